//! What `bindings/python` still calls, in its old form: it goes when the bindings take [`Operands`].

#[cfg(feature = "cuda")]
use flashcore_problem::{AnyTask, ElementType, ProblemError, TensorSpec, View, ViewMut};
use flashcore_problem::{
    Append, AppendTensors, AppendValues, BackwardTensors, Carried, Gradients, Lengths, Name, Operands, Problem,
    SlotMapping, TensorView, TensorViewMut,
};

use crate::{Attention, Error};
#[cfg(feature = "cuda")]
use crate::{
    Cuda, DeviceAppend, DeviceTensors, Queue,
    attention::Backend,
    cuda::{DeviceSlice, Ready, Steps, Stream},
    plans::PlanSummary,
    schedule::{is_length, is_same},
};

impl Attention {
    #[doc(hidden)]
    pub fn forward_into<'a, 'o>(
        &self,
        problem: &Problem,
        q: impl Into<TensorView<'a>>,
        k: impl Into<TensorView<'a>>,
        v: impl Into<TensorView<'a>>,
        out: impl Into<TensorViewMut<'o>>,
        lse: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        let tensors = [q.into(), k.into(), v.into()];
        self.forward_lengths(problem, tensors, &Lengths::default(), out, lse)
    }

    #[doc(hidden)]
    pub fn forward_lengths<'o>(
        &self,
        problem: &Problem,
        [q, k, v]: [TensorView<'_>; 3],
        lengths: &Lengths<&[i32]>,
        out: impl Into<TensorViewMut<'o>>,
        lse: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        let out = out.into();
        problem.check_tensors(&q, &k, &v, &out, lse.as_deref())?;
        problem.check_given(lengths, |values| values.len())?;
        let carried = Carried::of(problem, [q, k, v])?;
        let mut operands = carried.operands().with_lengths(lengths).with_mut(Name::Out, out);
        if let Some(lse) = lse {
            operands = operands.with_mut(Name::Lse, lse);
        }
        self.run(problem, operands)
    }

    #[doc(hidden)]
    pub fn backward_lengths(
        &self,
        problem: &Problem,
        tensors: &BackwardTensors<'_>,
        lengths: &Lengths<&[i32]>,
        gradients: Gradients<TensorViewMut<'_>>,
    ) -> Result<(), Error> {
        problem.check_backward(tensors, &gradients)?;
        problem.check_given(lengths, |values| values.len())?;
        let BackwardTensors {
            q,
            k,
            v,
            out,
            lse,
            dout,
        } = *tensors;
        let Gradients { dq, dk, dv } = gradients;
        let inputs = [q, k, v].map(Into::into);
        let operands = Operands::backward(inputs, [out.into(), lse.into()], dout, [dq, dk, dv].map(Into::into));
        self.run(problem, operands.with_lengths(lengths))
    }

    #[doc(hidden)]
    pub fn append(&self, append: &Append, tensors: AppendTensors<'_>) -> Result<(), Error> {
        tensors.check(append)?;
        let AppendTensors {
            k_new,
            v_new,
            k_cache,
            v_cache,
            values,
            slot_mapping,
            seqused_k,
            rotary,
            ..
        } = tensors;
        append.check_given(&values, |values| values.len(), slot_mapping.map(|slots| slots.len()))?;
        let mut operands = Operands::append(k_new, v_new, k_cache, v_cache);
        for (word, values) in AppendValues::<()>::NAMES.into_iter().zip(values.arrays()) {
            if let (Some(name), Some(values)) = (Name::from_word(word), values) {
                operands = operands.with(name, *values);
            }
        }
        operands = match slot_mapping {
            Some(SlotMapping::I32(slots)) => operands.with(Name::SlotMapping, slots),
            Some(SlotMapping::I64(slots)) => operands.with(Name::SlotMapping, slots),
            None => operands,
        };
        if let Some(keys) = seqused_k {
            operands = operands.with_mut(Name::SequsedK, keys);
        }
        if let Some(rotary) = rotary {
            let tables = operands
                .with(Name::RotaryCos, rotary.cos)
                .with(Name::RotarySin, rotary.sin);
            operands = tables.with_mut(Name::QOut, rotary.q_out);
            if let Some(q) = rotary.q {
                operands = operands.with(Name::Q, q);
            }
        }
        self.run(append, operands)
    }
}

/// The schedule that a plan makes.
#[cfg(feature = "cuda")]
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Schedule(std::sync::Arc<Ready>);

#[cfg(feature = "cuda")]
#[doc(hidden)]
impl Schedule {
    pub fn workspace_bytes(&self) -> u64 {
        self.0.workspace_bytes()
    }

    pub fn kernel(&self) -> String {
        self.0.plan().map(|plan| plan.config.to_string()).unwrap_or_default()
    }
}

#[cfg(feature = "cuda")]
impl PartialEq for Schedule {
    fn eq(&self, other: &Schedule) -> bool {
        is_same(&self.0, &other.0)
    }
}

/// Operands in the memory that has their names, checked, in errors of the old form.
#[cfg(feature = "cuda")]
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
    operands.check(specs).map_err(|error| match error {
        ProblemError::Operand { name, why } => {
            let message = format!("{name} {why}");
            Error::Problem(ProblemError::Tensor {
                tensor: name.as_str(),
                message,
            })
        }
        other => other.into(),
    })
}

#[cfg(feature = "cuda")]
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

    pub fn append_on(&self, queue: &mut Queue, append: &Append, tensors: &DeviceAppend<'_>) -> Result<(), Error> {
        append.check()?;
        let ready = self
            .on_cuda()?
            .ready(AnyTask::Append(append), tensors.alignment(), &self.plans)?;
        check(&ready.tensors, |name| tensors.named(name))?;
        ready.enqueue(queue.stream(), Steps::All, |name| tensors.named(name))
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
