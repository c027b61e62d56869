//! The CUDA driver ([`flashcore_cuda`]): contexts, streams, memory, functions, events, graphs.

mod launch;

use std::sync::Arc;

use flashcore_ir::{BufferSpec, Chip, Kernel};
use flashcore_kernels::{
    Choice, Config, KernelCache, Plan, Recent, Refusal, Step, append, checks, merge_states, select_with,
};
use flashcore_problem::{AnyTask, Name, Operands, Problem, Task, TensorSpec};
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use rustc_hash::FxBuildHasher;

use crate::kept::{Key, Wanted};
use crate::plans::Plans;
use crate::{Cuda, Error};

pub use flashcore_cuda::*;

mod device_checks;

use device_checks::{Check, Records};

/// Tasks whose plans are kept, about, with their tables on the device.
const KEPT_PLANS: usize = 1024;

/// Kernels that are kept compiled, or the compiler's refusal: as many as [`KernelCache`] keeps.
const RECENT_KERNELS: usize = 64;

/// Compiled kernels by the kernel itself, so that its PTX is printed and hashed once.
#[derive(Debug)]
struct Compiled<F>(Recent<Arc<Kernel>, Result<F, CudaError>>);

impl<F: Clone> Compiled<F> {
    /// The kernels of a plan's steps. Another error than a compiler's refusal is not kept.
    fn of(&self, plan: &Plan, load: impl Fn(&Kernel) -> Result<F, CudaError>) -> Result<Vec<F>, CudaError> {
        plan.steps().map(|step| self.of_step(step, &load)).collect()
    }

    fn of_step(&self, step: &Step, load: impl Fn(&Kernel) -> Result<F, CudaError>) -> Result<F, CudaError> {
        let make = || match load(&step.kernel) {
            Err(error) if !is_refusal(&error) => Err(error),
            compiled => Ok((step.kernel.clone(), compiled)),
        };
        self.0.get_or_make(|kernel| Arc::ptr_eq(kernel, &step.kernel), make)?
    }
}

/// Whether the compiler refused a kernel, or spills: another kernel may work.
fn is_refusal(error: &CudaError) -> bool {
    matches!(error, CudaError::Module(_) | CudaError::Compile(_))
}

/// The memory of a launch's buffer, if it is enough. Without bytes there need be none.
fn memory_of<'a>(spec: &BufferSpec, given: Option<DeviceSlice<'a>>) -> Result<DeviceSlice<'a>, Error> {
    given
        .filter(|slice| slice.len() as u64 >= spec.bytes && (slice.address() != 0 || spec.bytes == 0))
        .ok_or_else(|| Error::DeviceBuffer {
            tensor: spec.name,
            needed: spec.bytes,
            given: given.map(|slice| slice.len() as u64),
        })
}

/// A card with as many multiprocessors fewer, at least one.
fn with_margin(chip: Chip, sm_margin: u32) -> Result<Chip, Error> {
    match chip.sms.checked_sub(sm_margin) {
        Some(sms) if sms > 0 => Ok(Chip { sms, ..chip }),
        _ => Err(Error::SmMargin {
            given: sm_margin,
            sms: chip.sms,
        }),
    }
}

/// A task's launches with their compiled kernels, and what a call of them needs.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) context: Context,
    /// The tensors of the task.
    pub(crate) tensors: Vec<TensorSpec>,
    /// Of a problem.
    pub(crate) choice: Option<Choice>,
    /// Of other tasks, which are one launch.
    alone: Option<Step>,
    functions: Vec<Function>,
    /// Whether values on the device are checked before calls read them.
    checks: bool,
    /// What checks them: for calls, and for those that make a schedule, which have no pages. None where nothing is
    /// checked, or there are no values.
    check: Option<Check>,
    check_of_schedule: Option<Check>,
    /// Tables that its launches read, on the device.
    _tables: Vec<HeldTables>,
}

impl Ready {
    pub(crate) fn plan(&self) -> Option<&Plan> {
        self.choice.as_ref().map(|choice| &choice.plan)
    }

    /// Bytes of workspace that a call needs.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.plan().map_or(0, Plan::workspace_bytes)
    }

    /// How many of the first steps make the schedule.
    pub(crate) fn schedule_steps(&self) -> usize {
        self.plan().map_or(0, Plan::schedule_steps)
    }

    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        let of_plan = self.plan().into_iter().flat_map(Plan::steps);
        of_plan.chain(&self.alone)
    }

    /// Enqueues steps of a task, whose operands were checked.
    pub(crate) fn enqueue_operands(
        &self,
        stream: &Stream,
        part: Steps,
        operands: &Operands<'_, Cuda>,
        workspace: Option<DeviceSlice<'_>>,
    ) -> Result<(), Error> {
        self.enqueue(stream, part, |buffer| {
            if buffer == "workspace" {
                return workspace;
            }
            // Q is rotated in place where none is given.
            let of_q = || operands.memory(Name::QOut).filter(|_| buffer == Name::Q.as_str());
            match operands.memory_of_word(buffer).or_else(of_q) {
                // The kernel of a schedule has an argument for it, and does not read it.
                None if part == Steps::Schedule && buffer == Name::BlockTable.as_str() => self.unread(),
                given => given,
            }
        })
    }

    /// Memory that no kernel reads, in the place of what a launch declares all the same: as large as the block table.
    #[allow(unsafe_code)]
    fn unread<'m>(&self) -> Option<DeviceSlice<'m>> {
        let spec = self.tensors.iter().find(|spec| spec.name == Name::BlockTable)?;
        // SAFETY: a schedule reads nothing of it (`no_schedule_reads_pages_or_the_scale`).
        Some(unsafe { DeviceSlice::from_raw(&self.context, 256, spec.bytes() as usize) })
    }

    /// Enqueues steps of a task whose operands were checked. `memory` gives the memory of a buffer by its name.
    ///
    /// Nothing but a check is enqueued before all of it can be.
    pub(crate) fn enqueue<'m>(
        &self,
        stream: &Stream,
        part: Steps,
        memory: impl Fn(&str) -> Option<DeviceSlice<'m>>,
    ) -> Result<(), Error> {
        let made = self.schedule_steps();
        let (first, end) = match part {
            Steps::All => (0, self.functions.len()),
            Steps::Schedule => (0, made),
            Steps::AfterSchedule => (made, self.functions.len()),
        };
        let mut launches = Vec::with_capacity(end - first);
        for (step, function) in self.steps().zip(&self.functions).take(end).skip(first) {
            let buffers = step.launch.buffers.iter();
            let buffers = buffers.map(|spec| memory_of(spec, memory(spec.name)));
            launches.push((&step.launch, function, buffers.collect::<Result<Vec<_>, _>>()?));
        }
        if self.checks {
            let check = match part {
                Steps::Schedule => &self.check_of_schedule,
                Steps::All | Steps::AfterSchedule => &self.check,
            };
            Records::of(&self.context)?.check(stream, check.as_ref(), &memory)?;
        }
        launch::on(stream, launches)
    }
}

/// The steps of a plan that a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    All,
    /// Those that make the schedule.
    Schedule,
    /// All others.
    AfterSchedule,
}

/// What is kept ready for one context.
#[derive(Debug)]
pub(crate) struct CudaAttention {
    pub(crate) context: Context,
    /// The device as plans see it: without the multiprocessors that are left to others.
    pub(crate) chip: Chip,
    /// The kernel that it was made for, if it was made for one.
    pub(crate) config: Option<Config>,
    /// Whether values on the device are checked before calls read them.
    checks: bool,
    kernels: KernelCache,
    compiled: Compiled<Function>,
    ready: Kept,
}

/// Plans by their tasks, which no attacker picks: the default hasher takes as long as the rest of a look-up.
type Kept = Cache<Key, Arc<Ready>, UnitWeighter, FxBuildHasher>;

fn none_kept() -> Kept {
    let most = KEPT_PLANS as u64;
    Cache::with(
        KEPT_PLANS,
        most,
        UnitWeighter,
        FxBuildHasher,
        DefaultLifecycle::default(),
    )
}

impl CudaAttention {
    /// For a card with `sm_margin` multiprocessors fewer. Without a word on `checks` the environment has it.
    pub(crate) fn new(
        context: Context,
        config: Option<Config>,
        sm_margin: u32,
        checks: Option<bool>,
    ) -> Result<CudaAttention, Error> {
        Ok(CudaAttention {
            // `Device::cuda` lets only supported devices through.
            chip: with_margin(context.info().chip(), sm_margin)?,
            context,
            config,
            checks: checks.unwrap_or_else(device_checks::of_environment),
            kernels: KernelCache::default(),
            compiled: Compiled(Recent::new(RECENT_KERNELS)),
            ready: none_kept(),
        })
    }

    /// Multiprocessors that are left to others.
    pub(crate) fn sm_margin(&self) -> u32 {
        self.context.info().chip().sms - self.chip.sms
    }

    /// Forgets the plans that were made with other tables.
    pub(crate) fn forget_plans(&mut self) {
        self.ready = none_kept();
    }

    fn compile(&self, problem: &Problem, alignment: u32, plans: &Plans) -> Result<(Choice, Vec<Function>), Error> {
        let Some(config) = self.config else {
            let judge = |plan: &Plan| match self.load(plan) {
                Ok(functions) => Ok(Ok(functions)),
                Err(error) if is_refusal(&error) => Ok(Err(Refusal::Compiler {
                    message: error.to_string(),
                })),
                Err(error) => Err(error),
            };
            let rows = plans.suggestions(problem);
            let chosen = select_with(problem, self.chip, alignment, &rows, &self.kernels, judge);
            return Ok(chosen??);
        };
        let plan = Plan::with_cache(problem, &config, self.chip, &self.kernels);
        let plan = plan.map_err(|refusal| Error::refused(config, refusal))?;
        let functions = self.load(&plan)?;
        let choice = Choice {
            plan,
            why: "it was asked for by name".to_string(),
            suggestion: None,
            considered: Vec::new(),
        };
        Ok((choice, functions))
    }

    fn load(&self, plan: &Plan) -> Result<Vec<Function>, CudaError> {
        self.compiled.of(plan, |kernel| self.load_kernel(kernel))
    }

    fn load_kernel(&self, kernel: &Kernel) -> Result<Function, CudaError> {
        Function::load(&self.context, kernel, &ModuleOptions::default())
    }

    /// What checks values of a call, compiled, if they are checked. What its records need is allocated here, so that a
    /// call that is warm can be captured.
    fn check_of(&self, step: impl FnOnce() -> Result<Option<Step>, Refusal>) -> Result<Option<Check>, Error> {
        if !self.checks {
            return Ok(None);
        }
        Records::of(&self.context)?;
        let step = step().map_err(|refusal| Error::refused("check", refusal))?;
        let compile = |step: Step| {
            let function = self.compiled.of_step(&step, |kernel| self.load_kernel(kernel))?;
            Ok(Check { step, function })
        };
        step.map(compile).transpose()
    }

    /// What calls of a valid task need whose tensors are aligned to so many bytes. Compiles it at its first use.
    pub(crate) fn ready(&self, task: AnyTask<'_>, alignment: u32, plans: &Plans) -> Result<Arc<Ready>, Error> {
        if let Some(found) = self.found(task, alignment) {
            return Ok(found);
        }
        let make = || Ok(Arc::new(self.make(task, alignment, plans)?));
        self.ready.get_or_insert_with(&Key(task.into(), alignment), make)
    }

    /// The same, if it is there.
    pub(crate) fn found(&self, task: AnyTask<'_>, alignment: u32) -> Option<Arc<Ready>> {
        self.ready.get(&Wanted(task, alignment))
    }

    fn make(&self, task: AnyTask<'_>, alignment: u32, plans: &Plans) -> Result<Ready, Error> {
        let kernels = &self.kernels;
        let (mut choice, mut alone, mut check, mut check_of_schedule) = (None, None, None, None);
        let mut one = |kernel: &str, step: Result<Step, Refusal>| {
            let step = alone.insert(step.map_err(|refusal| Error::refused(kernel, refusal))?);
            let function = self.compiled.of_step(step, |kernel| self.load_kernel(kernel))?;
            Ok::<_, Error>(vec![function])
        };
        let functions = match task {
            AnyTask::Problem(problem) => {
                let (chosen, functions) = self.compile(problem, alignment, plans)?;
                let of_problem = |pages| self.check_of(|| checks::of_problem(problem, pages, kernels));
                check = of_problem(true)?;
                if chosen.plan.schedule_steps() > 0 {
                    check_of_schedule = of_problem(false)?;
                }
                choice = Some(chosen);
                functions
            }
            AnyTask::Append(append) => {
                let functions = one("append", append::step(append, self.chip.target, alignment, kernels))?;
                check = self.check_of(|| checks::of_append(append, kernels).map(Some))?;
                functions
            }
            AnyTask::Combine(merge) => {
                let step = merge_states::step(merge.problem(), merge.parts(), alignment, kernels);
                one("merge", step)?
            }
        };
        let mut ready = Ready {
            context: self.context.clone(),
            tensors: task.tensors(),
            choice,
            alone,
            functions,
            checks: self.checks,
            check,
            check_of_schedule,
            _tables: Vec::new(),
        };
        let steps = ready.steps().zip(&ready.functions);
        let tables = steps.map(|(step, function)| function.hold_tables(&step.launch));
        ready._tables = tables.collect::<Result<_, _>>()?;
        Ok(ready)
    }
}

#[cfg(test)]
mod tests;
