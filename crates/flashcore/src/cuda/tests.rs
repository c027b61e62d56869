use std::cell::Cell;
use std::collections::HashSet;

use flashcore_ir::Target;
use flashcore_kernels::select;
use flashcore_problem::{DType, Mask};

use super::*;

/// A persistent kernel has a block for each multiprocessor that is left.
#[test]
fn a_margin_takes_blocks_away() {
    let chip = Chip::from(Target::Sm90a);
    let config = "wgmma/m128n128-s2-pingpong-spec".parse().unwrap();
    let problem = Problem::named("llama8b-prefill-8k").unwrap();
    let blocks = |chip| Plan::new(&problem, &config, chip).unwrap().main.launch.blocks();
    assert_eq!(blocks(with_margin(chip, 20).unwrap()), blocks(chip) - 20);
    let error = with_margin(chip, chip.sms).unwrap_err().to_string();
    assert_eq!(
        error,
        "sm_margin is 132; the device has 132 multiprocessors, of which at least one must be left"
    );
}

/// Neighbours do not overlap; an output that is also a cache does, whichever begins first.
#[test]
fn outputs_over_inputs_are_refused() {
    let problem = Problem::named("tiny").unwrap();
    let plan = select(&problem, Target::Sm90a, 16, &KernelCache::default())
        .unwrap()
        .plan;
    let buffers = &plan.main.launch.buffers;
    let apart = |i: usize| buffers[..i].iter().map(|spec| 4096 + spec.bytes).sum::<u64>();
    check_apart(buffers, |i| apart(i) - i as u64 * 4096, |_, _| false).unwrap();
    let place = |name| buffers.iter().position(|spec| spec.name == name).unwrap();
    let (out, k) = (place("out"), place("k"));
    for shift in [0, 16, buffers[k].bytes - 16] {
        let at = |i| apart(if i == out { k } else { i }) + if i == out { shift } else { 0 };
        let error = check_apart(buffers, at, |_, _| false).unwrap_err().to_string();
        assert!(error.starts_with("out shares memory with k: "), "{error}");
    }
}

/// The last step writes dK and dV of shared tiles, the first ones read K.
#[test]
fn outputs_over_inputs_of_another_step_are_refused() {
    let problem = Problem::builder()
        .heads(8, 1)
        .seq_len(1024)
        .head_dim(128)
        .dtype(DType::BF16);
    let problem = problem.build().unwrap().backward().unwrap();
    let plan = Plan::new(
        &problem,
        &"wgmma/m64n128-s2-pingpong-k4".parse().unwrap(),
        Target::Sm90a,
    )
    .unwrap();
    let buffers: Vec<_> = plan.steps().flat_map(|step| step.launch.buffers.clone()).collect();
    let place = |name| (buffers.iter().position(|spec| spec.name == name).unwrap() as u64) << 32;
    let over_k = |name| if name == "dk" { place("k") } else { place(name) };
    check_apart(&buffers, |i| place(buffers[i].name), |_, _| false).unwrap();
    let error = check_apart(&buffers, |i| over_k(buffers[i].name), |_, _| false).unwrap_err();
    assert!(error.to_string().starts_with("dk shares memory with k: "), "{error}");
}

#[test]
fn the_environment_asks_for_checks() {
    let on = |value: &str| checks::is_on(Some(value.into()));
    assert_eq!(
        [on("1"), on("yes"), on("0"), on(""), checks::is_on(None)],
        [true, true, false, false, false]
    );
}

/// Whatever a launch that checks reads has its memory by the name that the call's tensors have.
#[test]
fn what_is_checked_is_what_calls_have() {
    let kernels = KernelCache::default();
    for seed in 0..200 {
        let append = flashcore_problem::append::random_append(seed).append;
        let check = flashcore_kernels::checks::of_append(&append, &kernels).unwrap();
        let own = append::step(&append, Target::Sm90a, 4, &kernels);
        let Ok(own) = own.or_else(|_| append::step(&append, Target::Sm90a, 2, &kernels)) else {
            continue; // rows of e4m3 that cannot be moved
        };
        for spec in check.launch.buffers.iter().filter(|spec| spec.name != "record") {
            let same = own.launch.buffers.iter().find(|own| own.name == spec.name);
            assert!(
                same.is_some_and(|same| same.bytes == spec.bytes && !spec.written),
                "{append:?}: {spec:?}"
            );
        }
    }
    let message = Error::Captured(flashcore_problem::ProblemError::Lengths {
        argument: "seqused_k",
        why: "has 9 for sequence 0; allowed are 0 to 4".to_string(),
    })
    .to_string();
    assert!(
        message.starts_with("seqused_k has 9 for sequence 0; allowed are 0 to 4; an earlier call, captured"),
        "{message}"
    );
}

#[test]
fn new_lengths_print_no_ptx() {
    let (kernels, compiled) = (KernelCache::default(), Compiled(Recent::new(RECENT_KERNELS)));
    let (printed, names) = (Cell::new(0), &mut HashSet::new());
    let print = |kernel: &Kernel| {
        printed.set(printed.get() + 1);
        Ok(kernel.to_ptx().len())
    };
    let decode = (3000..3400).map(|keys| (1, keys));
    let prefill = (0..100).map(|i| (100 + 81 * i, 100 + 81 * i));
    for (rows, keys) in decode.chain(prefill) {
        let problem = Problem::builder().heads(32, 8).seq_len_q(rows).seq_len_kv(keys);
        let problem = problem.head_dim(128).mask(Mask::CAUSAL).build().unwrap();
        let plan = select(&problem, Target::Sm90a, 16, &kernels).unwrap().plan;
        let lengths = compiled.of(&plan, print).unwrap();
        assert_eq!(lengths.len(), plan.steps().count());
        names.extend(plan.steps().map(|step| step.kernel.name().to_string()));
    }
    assert_eq!(printed.get(), names.len());
    assert!(names.len() <= 16, "{names:?}");
}

#[test]
fn a_refusal_of_the_compiler_is_kept_and_other_errors_are_not() {
    let problem = Problem::named("mission").unwrap();
    let plan = Plan::new(
        &problem,
        &"mma/m64n64-w4x1-s2-b1-qreg-xor-cond".parse().unwrap(),
        Target::Sm90a,
    )
    .unwrap();
    let refusal = flashcore_cuda::ModuleRefusal::PerformanceWarnings { warnings: Vec::new() };
    for (error, tries) in [
        (CudaError::Module(Box::new(refusal)), 1),
        (CudaError::NoDevice { visible: None }, 2),
    ] {
        let (compiled, tried) = (Compiled::<()>(Recent::new(RECENT_KERNELS)), Cell::new(0));
        for _ in 0..2 {
            let load = |_: &Kernel| {
                tried.set(tried.get() + 1);
                Err(error.clone())
            };
            assert_eq!(compiled.of(&plan, load).unwrap_err().to_string(), error.to_string());
        }
        assert_eq!(tried.get(), tries, "{error}");
    }
}
