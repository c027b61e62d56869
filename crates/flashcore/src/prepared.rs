//! [`Prepared`]: a task whose kernel is chosen and compiled, for the caller to run. What a launch is prepared to is
//! `PreparedLaunch` in `plan.rs` of crate cuda.

use std::any::Any;
#[cfg(feature = "cuda")]
use std::sync::Arc;

use flashcore_problem::task::sealed::Kind;
use flashcore_problem::{AnyTask, Append, Combine, Problem};

#[cfg(feature = "cuda")]
use crate::cuda::Ready;
#[cfg(feature = "cpu")]
use crate::plans::CpuChoice;
use crate::plans::PlanSummary;

/// A task, owned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OwnedTask {
    Problem(Problem),
    Append(Append),
    Combine(Combine),
}

impl From<AnyTask<'_>> for OwnedTask {
    fn from(task: AnyTask<'_>) -> OwnedTask {
        match task {
            AnyTask::Problem(problem) => OwnedTask::Problem(problem.clone()),
            AnyTask::Append(append) => OwnedTask::Append(*append),
            AnyTask::Combine(merge) => OwnedTask::Combine(merge.clone()),
        }
    }
}

impl Kind for OwnedTask {
    fn kind(&self) -> AnyTask<'_> {
        match self {
            OwnedTask::Problem(problem) => AnyTask::Problem(problem),
            OwnedTask::Append(append) => AnyTask::Append(append),
            OwnedTask::Combine(merge) => AnyTask::Combine(merge),
        }
    }
}

/// A task whose kernel is chosen, compiled and ready to be called or captured: what [`Attention::prepare`] gives.
///
/// It is a task itself. Calls with it look nothing up, if their tensors start at multiples of 16 bytes, as allocations
/// do; others are prepared at their first call.
///
/// [`Attention::prepare`]: crate::Attention::prepare
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(crate) task: OwnedTask,
    /// The `Attention` that made it.
    pub(crate) made_by: u64,
    pub(crate) by: By,
}

/// What computes a task.
#[derive(Clone, Debug)]
pub(crate) enum By {
    /// The CPU, and for a problem the levers.
    #[cfg(feature = "cpu")]
    Cpu(Option<CpuChoice>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<Ready>),
}

impl Prepared {
    /// The id of the kernel: [`KernelId`](crate::KernelId) reads it if the task is a problem. Appends and merges have
    /// one kernel each.
    pub fn kernel(&self) -> String {
        let alone = match self.task {
            OwnedTask::Append(_) => "append",
            _ => "merge",
        };
        let of_plan = self.plan().map(|plan| plan.kernel().to_string());
        of_plan.unwrap_or_else(|| alone.to_string())
    }

    /// Why this kernel, in a sentence. Where this build of the CPU backend is not optimised, it says so.
    pub fn why(&self) -> &str {
        let why = match &self.by {
            #[cfg(feature = "cpu")]
            By::Cpu(choice) => choice.as_ref().map(|choice| choice.why.as_str()),
            #[cfg(feature = "cuda")]
            By::Cuda(ready) => ready.choice.as_ref().map(|choice| choice.why.as_str()),
        };
        why.unwrap_or("it is the only one")
    }

    /// The plan of a problem, with all that was considered.
    pub fn plan(&self) -> Option<PlanSummary> {
        match &self.by {
            #[cfg(feature = "cpu")]
            By::Cpu(choice) => choice.clone().map(PlanSummary::Cpu),
            #[cfg(feature = "cuda")]
            By::Cuda(ready) => ready.choice.clone().map(|choice| PlanSummary::Gpu(Box::new(choice))),
        }
    }

    /// What is ready on a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn ready(&self) -> Option<&Arc<Ready>> {
        match &self.by {
            #[cfg(feature = "cpu")]
            By::Cpu(_) => None,
            By::Cuda(ready) => Some(ready),
        }
    }

    /// Bytes of workspace that a call takes by `allocate` of [`Attention::run_foreign`](crate::Attention::run_foreign);
    /// 0 for most plans.
    #[cfg(feature = "cuda")]
    pub fn workspace_bytes(&self) -> u64 {
        self.ready().map_or(0, |ready| ready.workspace_bytes())
    }

    /// Whether its calls make a schedule.
    #[cfg(feature = "cuda")]
    pub fn has_schedule(&self) -> bool {
        self.ready().is_some_and(|ready| ready.schedule_steps() > 0)
    }
}

impl Kind for Prepared {
    fn kind(&self) -> AnyTask<'_> {
        self.task.kind()
    }

    fn prepared(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
