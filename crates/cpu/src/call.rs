//! [`run`]: any task, on operands in host memory.

use flashcore_problem::view::Host;
use flashcore_problem::{
    AnyTask, BackwardTensors, Direction, Gradients, Name, Operands, Part, Problem, ProblemError, Task, TensorViewMut,
};

use crate::{CpuError, Options, append, attention_with, backward, combine};

/// Runs a task on rayon's current thread pool: attention or its gradients, an append, or a merge. [`Task::tensors`]
/// lists its operands. What is written keeps its bytes in gaps and in rows of no sequence.
///
/// ```
/// use flashcore_cpu::{Options, run};
/// use flashcore_problem::{InputKind, Inputs, Operands, Problem, Tensor};
/// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(64).build()?;
/// let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
/// let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
/// run(&Options::default(), &problem, Operands::forward(&q, &k, &v, &mut out))?;
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
    match task {
        AnyTask::Problem(problem) if problem.direction() == Direction::Backward => {
            gradients(options, problem, operands)
        }
        AnyTask::Problem(problem) => {
            let mut out = written(&mut operands, Name::Out)?;
            let lse = written_values(&mut operands)?;
            let sinks = operands.sinks();
            let inputs = operands.inputs(problem, &sinks)?;
            attention_with(options, problem, inputs, &operands.lengths()?, &mut out, lse)
        }
        AnyTask::Append(spec) => append(spec, operands.append_tensors(spec)?),
        AnyTask::Combine(merge) => {
            let mut out = written(&mut operands, Name::Out)?;
            let lse = written_values(&mut operands)?;
            let part = |n: usize| {
                let part = [Name::PartOut(n as u8), Name::PartLse(n as u8)].map(|name| operands.get(name));
                let [Some(out), Some(lse)] = part else {
                    return Ok(None); // checked before
                };
                let (out, lse) = (out.tensor("out")?, lse.values()?);
                Ok::<_, ProblemError>(Some(Part { out, lse }))
            };
            let parts = (0..merge.parts()).filter_map(|n| part(n).transpose());
            combine(merge.problem(), &parts.collect::<Result<Vec<_>, _>>()?, &mut out, lse)
        }
    }
}

fn gradients(options: &Options<'_>, problem: &Problem, mut operands: Operands<'_, Host>) -> Result<(), CpuError> {
    let [dq, dk, dv] = [Name::Dq, Name::Dk, Name::Dv].map(|name| written(&mut operands, name));
    let mut gradients = Gradients::from([dq?, dk?, dv?]);
    let [q, k, v] = operands.inputs(problem, &[])?;
    let read = |name: Name| {
        let given = operands.get(name);
        given.ok_or_else(|| absent(name))
    };
    let tensors = BackwardTensors {
        q,
        k,
        v,
        out: read(Name::Out)?.tensor("out")?,
        lse: read(Name::Lse)?.values()?,
        dout: read(Name::Dout)?.tensor("dout")?,
    };
    backward(options, problem, &tensors, &operands.lengths()?, &mut gradients)
}

/// An output of checked operands.
fn written<'a>(operands: &mut Operands<'a, Host>, name: Name) -> Result<TensorViewMut<'a>, ProblemError> {
    let view = operands.take_mut(name).ok_or_else(|| absent(name))?;
    view.into_tensor(name.as_str())
}

/// The log-sum-exp of checked operands, if it is written.
fn written_values<'a>(operands: &mut Operands<'a, Host>) -> Result<Option<&'a mut [f32]>, ProblemError> {
    let lse = operands.take_mut(Name::Lse);
    lse.map(|lse| lse.into_values()).transpose()
}

fn absent(name: Name) -> ProblemError {
    let why = "was not given".to_string();
    ProblemError::Operand { name, why }
}
