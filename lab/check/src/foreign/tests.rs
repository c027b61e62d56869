//! Tests of reading and judging.

use super::*;

const SM89: Target = Target::Sm89;

fn kernel(body: &str) -> ForeignKernel {
    let text = format!(".version 7.0 .target sm_80\n{body}");
    read(text.as_bytes()).unwrap().remove(0)
}

fn problems(kernel: &ForeignKernel, asked: &Asked) -> Vec<Problem> {
    judge(kernel, asked, SM89)
}

fn only(kernel: &ForeignKernel, asked: &Asked, kind: ProblemKind) -> Problem {
    let mut all = problems(kernel, asked);
    assert_eq!(all.iter().map(|p| p.kind).collect::<Vec<_>>(), [kind], "{all:?}");
    all.remove(0)
}

fn dynamic(bytes: u32) -> Asked {
    Asked {
        dynamic_shared: bytes,
        ..Asked::default()
    }
}

#[test]
fn static_overflow_names_the_symbols_and_what_would_do() {
    let kernel = kernel(
        ".entry k()\n{ .shared .b8 q[8192];\n .shared .b8 k_tile[8192]; .shared .b8 v[8192];\n.shared .f32 s[4096]; \
         .shared .f32 o[4096]; .shared .f32 m[8]; ret; }",
    );
    let problem = only(&kernel, &Asked::default(), ProblemKind::StaticShared);
    assert_eq!(problem.line, Some(5));
    for part in ["57376 B of static", "`s` 16384", "49152", "101376", "8224 B too much"] {
        assert!(problem.message.contains(part), "{part}: {}", problem.message);
    }
    assert!(
        problem.help.contains("57376)") && problem.help.contains("all of `s` (16384 B)"),
        "{}",
        problem.help
    );
}

#[test]
fn dynamic_memory_needs_opting_in_and_has_an_end() {
    let kernel = kernel(".extern .shared .align 128 .b8 smem[];\n.entry k() { mov.u32 %r1, smem; ret; }");
    let problem = only(&kernel, &dynamic(76_800), ProblemKind::OptIn);
    assert!(
        problem
            .help
            .contains("cudaFuncAttributeMaxDynamicSharedMemorySize, 76800")
    );
    let problem = only(&kernel, &dynamic(147_456), ProblemKind::Shared);
    assert!(problem.message.contains("46080 B too much"), "{}", problem.message);
    assert!(problem.help.contains("sm_80, sm_90a, sm_100"), "{}", problem.help);
    let problem = only(&kernel, &dynamic(0), ProblemKind::DynamicShared);
    assert_eq!(problem.line, Some(2));
}

#[test]
fn the_verdict_is_that_of_the_worst_problem() {
    let kernel = kernel(".extern .shared .b8 tiles[]; .entry k() { mov.u32 %r1, tiles; ret; }");
    let verdict_of = |dynamic_shared, opted_in| {
        let asked = Asked {
            dynamic_shared,
            opted_in,
            ..Asked::default()
        };
        verdict(&problems(&kernel, &asked))
    };
    assert_eq!(verdict_of(49_152, false), Verdict::Launches);
    assert_eq!(verdict_of(76_800, false), Verdict::NeedsOptIn);
    assert_eq!(verdict_of(76_800, true), Verdict::Launches);
    assert_eq!(verdict_of(147_456, true), Verdict::Refused);
}

#[test]
fn a_kernel_is_picked_by_name() {
    let kernels = read(b".version 7.0 .target sm_80 .entry a() { ret; } .entry b() { ret; }").unwrap();
    assert_eq!(pick(&kernels, Some("b")).unwrap().len(), 1);
    assert_eq!(pick(&kernels, None).unwrap().len(), 2);
    let unknown = pick(&kernels, Some("c")).unwrap_err().to_string();
    assert!(unknown.contains("there are a, b"), "{unknown}");
}

#[test]
fn claims_are_compared_by_symbol() {
    let kernel = kernel(".entry k() {\n.shared .f32 partials[2][2][16][64]; ret; }");
    let claim = |name: &str, bytes| Asked {
        claims: vec![(name.to_string(), bytes)],
        ..Asked::default()
    };
    let problem = only(&kernel, &claim("partials", 8192), ProblemKind::Miscounted);
    assert_eq!(
        problem.message,
        "`partials` takes 16384 B, declared f32[2][2][16][64]; 8192 B were expected: 8192 B more"
    );
    assert_eq!(problem.line, Some(3));
    assert!(problems(&kernel, &claim("partials", 16_384)).is_empty());
    assert!(problems(&kernel, &claim("total", 16_384)).is_empty());
    assert!(
        only(&kernel, &claim("x", 1), ProblemKind::Miscounted)
            .message
            .contains("does not have")
    );
}

#[test]
fn threads_registers_and_architectures_are_held_against_the_card() {
    let mut k = kernel(".entry k() .maxntid 128 { ret; }");
    let threads = |threads| Asked {
        threads: Some(threads),
        ..Asked::default()
    };
    assert_eq!(threads_of(&k, &Asked::default()), Some(128));
    assert_eq!(threads_of(&k, &threads(64)), Some(64));
    assert!(problems(&k, &threads(128)).is_empty());
    assert!(
        only(&k, &threads(256), ProblemKind::Threads)
            .message
            .contains("at most 128")
    );
    assert!(
        only(&k, &threads(2048), ProblemKind::Threads)
            .message
            .contains("sm_89 allows 1024")
    );
    let required = kernel(".entry k() .reqntid 64, 2 { ret; }");
    assert!(
        only(&required, &threads(64), ProblemKind::Threads)
            .message
            .contains("built for [128, 1, 1]")
    );
    let kinds = |asked: Asked| problems(&k, &asked).iter().map(|p| p.kind).collect::<Vec<_>>();
    assert_eq!(kinds(threads(0)), [ProblemKind::Threads]);
    let grid = |grid| Asked {
        grid: Some(grid),
        ..Asked::default()
    };
    assert_eq!(kinds(grid([0, 1, 1])), [ProblemKind::Grid]);
    assert_eq!(kinds(grid([1, 65_536, 1])), [ProblemKind::Grid]);
    let pair = kernel(".entry k() .reqnctapercluster 2 { ret; }");
    only(&pair, &Asked::default(), ProblemKind::Cluster);
    // The proof counts 9 warps as 12 in units of 256 registers, here as everywhere.
    (k.max_threads, k.registers) = (None, Some(200));
    assert!(
        only(&k, &threads(288), ProblemKind::Registers)
            .message
            .contains("need 76800 registers")
    );
    assert!(problems(&k, &threads(256)).is_empty());
    (k.max_threads, k.registers) = (Some(1024), Some(65));
    let problem = only(&k, &Asked::default(), ProblemKind::Registers);
    assert!(problem.message.contains("may have 64"), "{}", problem.message);
    k.made_for = "sm_90a".to_string();
    k.registers = None;
    only(&k, &Asked::default(), ProblemKind::Architecture);
    assert!(judge(&k, &Asked::default(), Target::Sm90a).is_empty());
    (k.form, k.made_for) = (CodeForm::Cubin, "sm_80".to_string());
    assert!(judge(&k, &Asked::default(), Target::Sm89).is_empty());
    assert_eq!(
        judge(&k, &Asked::default(), Target::Sm90a)[0].kind,
        ProblemKind::Architecture
    );
}

/// Cubins of `fixtures/two_buffers.ptx`: by ptxas 12.0 and 13.0, old and new header, with and
/// without reserved bytes.
#[test]
fn cubins_say_what_ptxas_said() {
    let cubins: [(&str, &[u8], &str, u32); 3] = [
        (
            "12.0 sm_89",
            include_bytes!("fixtures/two_buffers-12.0-sm_89.cubin"),
            "sm_89",
            8,
        ),
        (
            "13.0 sm_89",
            include_bytes!("fixtures/two_buffers-13.0-sm_89.cubin"),
            "sm_89",
            8,
        ),
        (
            "13.0 sm_90a",
            include_bytes!("fixtures/two_buffers-13.0-sm_90a.cubin"),
            "sm_90",
            8,
        ),
    ];
    let text = read(include_bytes!("fixtures/two_buffers.ptx")).unwrap().remove(0);
    for (which, bytes, made_for, registers) in cubins {
        let kernels = read(bytes).unwrap_or_else(|error| panic!("{which}: {error}"));
        assert_eq!(kernels.len(), 1, "{which}");
        let kernel = &kernels[0];
        assert_eq!(
            (kernel.name.as_str(), kernel.made_for.as_str()),
            ("two_buffers", made_for),
            "{which}"
        );
        assert_eq!(kernel.registers, Some(registers), "{which}");
        assert_eq!(kernel.static_shared, text.static_shared, "{which}");
        assert_eq!(kernel.parameter_bytes, [8, 4], "{which}");
        assert_eq!(
            (kernel.max_threads, kernel.stack_bytes),
            (Some(128), Some(0)),
            "{which}"
        );
        // Cut off anywhere it is an error or less of a kernel, never a panic.
        for end in (0..bytes.len()).step_by(7) {
            let _ = read(&bytes[..end]);
        }
    }
}

#[test]
fn files_of_other_kinds_are_refused() {
    assert!(matches!(read(b"\x00\xff\xfe"), Err(ForeignError::NoCubin(_))));
    assert!(matches!(read(b"hello"), Err(ForeignError::Ptx(_))));
    let image = read(b"\x89PNG\r\n\x1a\n\0").unwrap_err().to_string();
    assert!(image.starts_with("this is a PNG image; a cubin"), "{image}");
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(read(&program).unwrap_err().to_string().contains("an ELF program"));
    assert_eq!(read(b".version 7.0 .target sm_80"), Err(ForeignError::NoKernels));
}

#[test]
fn shared_memory_is_what_the_body_declares() {
    let text = ".version 7.0 .target sm_80 .entry k(.param .u64 x) .maxntid 32, 4 { .shared .b8 tile[100]; ret; }";
    assert_eq!(read(text.as_bytes()).unwrap()[0].static_shared, 100);
}

#[test]
fn copies_that_no_architecture_has_are_found() {
    let text = ".version 7.0 .target sm_80 .entry k() { .reg .b32 %r<2>; .reg .b64 %rd<2>;\n cp.async.cg.shared.global [%r1], [%rd1], 8; ret; }";
    assert_eq!(
        read(text.as_bytes()).unwrap()[0].impossible,
        [(2, "cp.async.cg of 8 bytes; it copies 16".to_string())]
    );
    let text =
        ".version 7.0 .target sm_80 .entry k() {\n bar.sync 16;\n bar.sync 15;\n bar.arrive 4294967297, 32; ret; }";
    let found = &read(text.as_bytes()).unwrap()[0].impossible;
    let lines: Vec<u32> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [2, 4], "{found:?}");
}
