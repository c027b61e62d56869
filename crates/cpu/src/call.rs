//! [`run`]: any task, on operands in host memory.

use flashcore_problem::{AnyTask, Direction, Host, Name, Operands, Problem, Task};
use pulp::Arch;

use crate::backward::Backward;
use crate::output::Output;
use crate::schedule::Schedule;
use crate::{BACKWARD_CONFIG, CpuError, Options, SimdLevel, append, combine, default_config};

/// Runs a task: attention or its gradients, an append, or a merge. [`Task::tensors`] lists its operands. What is
/// written keeps its bytes in gaps and in rows of no sequence.
///
/// Products are accumulated in f32 for every dtype, and the result does not depend on the number of threads. A fully
/// masked row has output 0 and log-sum-exp −∞. Masked keys inside a partly visible K block enter the product with
/// weight 0, as in other fused kernels: an infinite or NaN element of V there makes the output NaN.
///
/// ```
/// use flashcore_cpu::{Options, run};
/// use flashcore_problem::{InputKind, Inputs, Operands, Problem, Tensor};
/// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(64).build()?;
/// let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
/// let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
/// let options = Options { config: Some("cpu/m64n128".parse()?), ..Options::default() };
/// run(&options, &problem, Operands::forward(&q, &k, &v, &mut out))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Operands that are not the task's, values that contradict it, and options that are invalid or not available on this
/// machine. Nothing is written then.
pub fn run(options: &Options<'_>, task: &impl Task, mut operands: Operands<'_, Host>) -> Result<(), CpuError> {
    let task = task.kind();
    task.check()?;
    operands.check(&task.tensors())?;
    let arch = arch_of(options)?;
    let run = || match task {
        AnyTask::Problem(problem) if problem.direction() == Direction::Backward => {
            gradients(options, arch, problem, operands)
        }
        AnyTask::Problem(problem) => attention(options, arch, problem, operands),
        AnyTask::Append(spec) => append::run(spec, operands),
        AnyTask::Combine(merge) => combine::run(merge, operands),
    };
    match options.pool {
        Some(pool) => pool.install(run),
        None => run(),
    }
}

/// The instruction set of a call whose options are valid.
fn arch_of(options: &Options<'_>) -> Result<Arch, CpuError> {
    let level = options.simd.unwrap_or_else(SimdLevel::best);
    let Some(arch) = level.arch() else {
        let available: Vec<&str> = SimdLevel::available().iter().map(|level| level.name()).collect();
        return Err(CpuError::Simd {
            asked: level,
            available: available.join(", "),
        });
    };
    if let Some(config) = options.config {
        config.check()?;
    }
    Ok(arch)
}

fn attention(
    options: &Options<'_>,
    arch: Arch,
    problem: &Problem,
    mut operands: Operands<'_, Host>,
) -> Result<(), CpuError> {
    let (out, lse) = (operands.take_bytes(Name::Out)?, operands.take_values(Name::Lse)?);
    let sinks = operands.sinks();
    let tensors = operands.inputs(problem, &sinks)?;
    let sequences = problem.sequences(&operands.lengths()?)?;
    let config = options.config;
    let schedule = Schedule {
        problem,
        output: Output::new((problem.out_dtype(), *problem.o_layout()), out, lse, tensors[0].sinks()),
        tensors,
        sequences: &sequences,
        config: config.unwrap_or_else(|| default_config(problem, rayon::current_num_threads())),
        arch,
    };
    schedule.run();
    Ok(())
}

fn gradients(
    options: &Options<'_>,
    arch: Arch,
    problem: &Problem,
    mut operands: Operands<'_, Host>,
) -> Result<(), CpuError> {
    let [dq, dk, dv] = [Name::Dq, Name::Dk, Name::Dv].map(|name| operands.take_bytes(name));
    let gradients = [dq?, dk?, dv?];
    let [q, k, v] = operands.inputs(problem, &[])?;
    let sequences = problem.sequences(&operands.lengths()?)?;
    let call = Backward {
        problem,
        queries: [q, operands.tensor(Name::Dout)?],
        keys: [k, v],
        out: operands.tensor(Name::Out)?,
        lse: operands.values(Name::Lse)?.unwrap_or_default(),
        sequences: &sequences,
        arch,
        config: options.config.unwrap_or(BACKWARD_CONFIG),
    };
    call.run(gradients);
    Ok(())
}
