//! What `bindings/python` still calls, in its old form: it goes when the bindings take [`Operands`].

use flashcore_problem::{AnyTask, ElementType, Name, Operands, Problem, TensorSpec, View, ViewMut};

use crate::attention::Backend;
use crate::cuda::{DeviceSlice, Ready, Steps, Stream};
use crate::plans::PlanSummary;
use crate::schedule::{is_length, is_same};
use crate::{Attention, Cuda, DeviceTensors, Error};

/// The schedule that a plan makes.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Schedule(std::sync::Arc<Ready>);

#[doc(hidden)]
impl Schedule {
    pub fn workspace_bytes(&self) -> u64 {
        self.0.workspace_bytes()
    }

    pub fn kernel(&self) -> String {
        self.0.plan().map(|plan| plan.config.to_string()).unwrap_or_default()
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Schedule) -> bool {
        is_same(&self.0, &other.0)
    }
}

/// Checks operands in the memory that has their names.
fn check<'a>(specs: &[TensorSpec], named: impl Fn(&str) -> Option<DeviceSlice<'a>>) -> Result<(), Error> {
    let mut operands = Operands::<Cuda>::new();
    for spec in specs {
        let TensorSpec {
            name, element, layout, ..
        } = *spec;
        operands = match named(name.as_str()) {
            None => operands,
            Some(memory) if spec.is_written() => operands.with_mut(name, ViewMut::new(element, layout, memory.into())),
            Some(memory) => operands.with(name, View::new(element, layout, memory)),
        };
    }
    for name in [
        Name::Sinks,
        Name::AlibiSlopes,
        Name::QScale,
        Name::Lse,
        Name::SequsedK,
        Name::SlotMapping,
    ] {
        if let (Some(memory), false) = (named(name.as_str()), specs.iter().any(|spec| spec.name == name)) {
            operands = operands.with(name, View::new(ElementType::I32, [1], memory));
        }
    }
    Ok(operands.check(specs)?)
}

#[doc(hidden)]
impl Attention {
    fn ready_at(&self, problem: &Problem, alignment: u32) -> Result<std::sync::Arc<Ready>, Error> {
        self.on_cuda()?.ready(AnyTask::Problem(problem), alignment, &self.plans)
    }

    pub fn plan_aligned(&self, problem: &Problem, alignment: u32) -> Result<PlanSummary, Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => self.plan(problem),
            Backend::Cuda(cuda) => {
                let ready = cuda.ready(AnyTask::Problem(problem), alignment, &self.plans)?;
                let choice = ready.choice.clone().ok_or_else(|| Error::Schedule {
                    why: "has no plan".to_string(),
                })?;
                Ok(PlanSummary::Gpu(Box::new(choice)))
            }
        }
    }

    pub fn workspace_bytes(&self, problem: &Problem, alignment: u32) -> Result<u64, Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => Ok(0),
            Backend::Cuda(_) => Ok(self.ready_at(problem, alignment)?.workspace_bytes()),
        }
    }

    pub fn schedule(&self, problem: &Problem, alignment: u32) -> Result<Option<Schedule>, Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(_) => {
                let ready = self.ready_at(problem, alignment)?;
                Ok((ready.schedule_steps() > 0).then_some(Schedule(ready)))
            }
        }
    }

    /// # Safety
    /// As [`Attention::run_raw`].
    #[allow(unsafe_code)] // the promise is the caller's
    pub unsafe fn run_foreign<'a>(
        &self,
        stream: &Stream,
        problem: &Problem,
        tensors: &DeviceTensors<'a>,
        workspace: impl FnOnce(u64) -> Option<DeviceSlice<'a>>,
    ) -> Result<(), Error> {
        let steps = tensors.steps;
        let ready = self.ready_at(problem, tensors.alignment())?;
        match steps {
            Steps::Schedule => {
                let lengths: Vec<TensorSpec> = ready
                    .tensors
                    .iter()
                    .filter(|spec| is_length(spec.name))
                    .copied()
                    .collect();
                check(&lengths, |name| tensors.lengths.named(name).copied())?;
            }
            Steps::All | Steps::AfterSchedule => check(&ready.tensors, |name| tensors.named(name))?,
        }
        let mut tensors = *tensors;
        let bytes = ready.workspace_bytes();
        if bytes > 0 && tensors.workspace.is_none() {
            tensors.workspace = workspace(bytes);
        }
        ready.enqueue(stream, steps, |name| tensors.named(name))
    }
}
