use std::cell::Cell;
use std::collections::HashSet;

use flashcore_ir::Target;
use flashcore_kernels::select;
use flashcore_problem::{Combine, DType, Mask};
use flashcore_testkit::{RandomLimits, random_backward, random_problem};

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

/// Every buffer that a launch has is a tensor of the task, as large and written where that is, or the workspace.
#[test]
fn launches_touch_what_tasks_describe() {
    let (kernels, mut seen) = (KernelCache::default(), HashSet::new());
    let mut check = |task: AnyTask<'_>, step: &Step| {
        let tensors = task.tensors();
        for buffer in step.launch.buffers.iter().filter(|buffer| buffer.name != "workspace") {
            let spec = tensors.iter().find(|spec| spec.name.as_str() == buffer.name);
            let spec = spec.unwrap_or_else(|| panic!("{}: {}", step.kernel.name(), buffer.name));
            assert!(buffer.bytes <= spec.bytes(), "{}: {buffer:?}", step.kernel.name());
            assert!(
                !buffer.written || spec.is_written(),
                "{}: {buffer:?}",
                step.kernel.name()
            );
            assert!(buffer.align <= 16);
            seen.insert(spec.name);
        }
    };
    for seed in 0..400 {
        let limits = RandomLimits {
            dtypes: &DType::ALL,
            head_values: seed % 3 == 0,
            lengths: seed % 2 == 0,
            ..RandomLimits::default()
        };
        let problem = random_problem(seed, &limits).unwrap();
        let backward = random_backward(seed, &RandomLimits { dtypes: &[], ..limits }).unwrap();
        for problem in [&problem, &backward] {
            for alignment in [16, 4] {
                if let Ok(choice) = select(problem, Target::Sm90a, alignment, &kernels) {
                    choice
                        .plan
                        .steps()
                        .for_each(|step| check(AnyTask::Problem(problem), step));
                }
            }
        }
        let merge = Combine::of(&problem, 1 + seed as usize % 8).unwrap();
        check(
            AnyTask::Combine(&merge),
            &merge_states::step(&problem, merge.parts(), 16, &kernels).unwrap(),
        );
        let append = flashcore_testkit::random_append(seed).append;
        if let Ok(step) = append::step(&append, Target::Sm90a, 4, &kernels) {
            check(AnyTask::Append(&append), &step);
        }
    }
    assert!(seen.len() > 40, "{seen:?}");
}

#[test]
fn the_environment_asks_for_checks() {
    let on = |value: &str| device_checks::is_on(Some(value.into()));
    assert_eq!(
        [on("1"), on("yes"), on("0"), on(""), device_checks::is_on(None)],
        [true, true, false, false, false]
    );
}

/// Whatever a launch that checks reads has its memory by the name that the call's tensors have.
#[test]
fn what_is_checked_is_what_calls_have() {
    let kernels = KernelCache::default();
    for seed in 0..200 {
        let append = flashcore_testkit::random_append(seed).append;
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
    let problem = Problem::named("small").unwrap();
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
