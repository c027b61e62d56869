//! Where instructions come from: kernel lines before verb lines, and debug lines in PTX on request.

use flashcore_ir::{Kernel, KernelBuilder, Val};

/// A verb as tiles have them, with another inside.
#[track_caller]
fn normalise<'k>(k: &'k KernelBuilder, x: Val<'k, f32>) -> Val<'k, f32> {
    k.verb("normalise", || x * inverse(k, x))
}

const INVERSE_LINE: u32 = line!() + 3;
#[track_caller]
fn inverse<'k>(k: &'k KernelBuilder, x: Val<'k, f32>) -> Val<'k, f32> {
    k.verb("inverse", || x.recip())
}

fn kernel_of_verbs() -> (Kernel, u32) {
    let line = line!() + 4;
    let kernel = Kernel::build("k", 32, |k| {
        let data = k.param_ptr_mut::<f32>("data");
        let x = data.load();
        let y = normalise(k, x);
        data.store(y);
    });
    (kernel.expect("builds"), line)
}

#[test]
fn the_kernel_line_comes_first() {
    let (kernel, line) = kernel_of_verbs();
    let mut found = Vec::new();
    kernel.for_each_inst(&mut |inst, site| {
        let lines = kernel.backtrace(site);
        let steps: Vec<_> = lines.iter().map(|(l, verb)| (l.line, verb.unwrap_or("-"))).collect();
        found.push((flashcore_ir::ptx::mnemonic(inst), steps));
        assert_eq!(kernel.kernel_line(site), lines[0].0);
        assert_eq!(kernel.site(site).line, lines[lines.len() - 1].0);
    });
    let find = |mnemonic: &str| {
        let matching: Vec<_> = found.iter().filter(|(m, _)| m == mnemonic).collect();
        assert_eq!(matching.len(), 1, "{mnemonic} in {found:?}");
        matching[0].1.clone()
    };
    assert_eq!(find("ld.global.f32"), [(line - 1, "-")]);
    assert_eq!(find("st.global.f32"), [(line + 1, "-")]);
    let normalise_line = INVERSE_LINE - 6;
    assert_eq!(find("mul.rn.f32"), [(line, "-"), (normalise_line, "normalise")]);
    assert_eq!(
        find("rcp.approx.ftz.f32"),
        [(line, "-"), (normalise_line, "normalise"), (INVERSE_LINE, "inverse")]
    );
}

#[test]
fn frames_are_shared_and_end_with_their_verb() {
    let kernel = Kernel::build("k", 32, |k| {
        let data = k.param_ptr_mut::<f32>("data");
        for _ in 0..3 {
            data.store(normalise(k, data.load()));
        }
    });
    let kernel = kernel.expect("builds");
    let mut frames = std::collections::HashSet::new();
    kernel.for_each_inst(&mut |_, site| {
        let mut frame = kernel.site(site).frame;
        while let Some(id) = frame {
            frames.insert(id);
            frame = kernel.frame(id).parent;
        }
    });
    assert_eq!(frames.len(), 2, "an unrolled loop calls from one line");
}

#[test]
fn debug_lines_are_kernel_lines() {
    let (kernel, line) = kernel_of_verbs();
    let plain = kernel.to_ptx();
    assert!(!plain.contains(".loc") && !plain.contains(".file"), "{plain}");

    let with_lines = kernel.to_ptx_with_lines();
    assert!(
        with_lines.contains(&format!(".file 1 \"{}\"\n", file!())),
        "{with_lines}"
    );
    let locations: Vec<u32> = with_lines
        .lines()
        .filter_map(|l| l.trim().strip_prefix(".loc 1 "))
        .map(|rest| rest.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(
        locations,
        [line - 2, line - 1, line, line + 1],
        "one a line, verbs looked through"
    );

    let without: Vec<&str> = with_lines
        .lines()
        .filter(|l| !l.trim().starts_with(".loc") && !l.starts_with(".file"))
        .collect();
    assert_eq!(without, plain.lines().collect::<Vec<_>>());
}

#[test]
fn traces_print_nothing_that_runs() {
    let build = |trace: bool| {
        Kernel::build("k", 32, |k| {
            let data = k.param_ptr_mut::<f32>("data");
            let x = data.load();
            if trace {
                k.trace("x\nret;", x);
            }
            data.store(x);
        })
        .expect("builds")
    };
    let (traced, plain) = (build(true), build(false));
    assert_eq!(traced.traces(), ["x\nret;"]);
    let ptx = traced.to_ptx();
    let instructions: Vec<&str> = ptx.lines().filter(|l| !l.trim().starts_with("//")).collect();
    assert_eq!(instructions, plain.to_ptx().lines().collect::<Vec<_>>());
    assert_eq!(traced.to_string(), "k (4 instructions, 32 threads)");
    assert_eq!(traced.num_insts(), plain.num_insts() + 1);
}

#[test]
fn registers_have_names() {
    let kernel = Kernel::build("k", 32, |k| {
        let scores = k.acc_unwritten("scores", 2);
        let best = k.var_unwritten::<f32>("best");
        best.set(scores.var(7).get());
    });
    let kernel = kernel.expect("builds");
    let names: Vec<_> = kernel.maybe_unwritten().map(|reg| kernel.reg_name(reg)).collect();
    assert_eq!(names, [[Some("scores"); 8].as_slice(), &[Some("best")]].concat());
    let copy = flashcore_ir::Reg {
        class: flashcore_ir::RegClass::F32,
        index: 9,
    };
    assert_eq!(kernel.reg_name(copy), None);
}
