//! The CUDA driver ([`flashcore_cuda`]): contexts, streams, memory, functions, events, graphs.

mod launch;

use std::sync::Arc;

use flashcore_ir::{BufferSpec, Chip, Kernel};
use flashcore_kernels::{Choice, Config, KernelCache, Plan, Recent, Refusal, Step, append, merge_states, select_with};
use flashcore_problem::{Append, BackwardTensors, Gradients, Lengths, Problem, TensorView, TensorViewMut};

use crate::plans::Plans;
use crate::tensors::{DeviceGradients, DeviceTensors, HeadValueBuffers, ScaleBuffers, Steps};
use crate::{DeviceAppend, Error};

pub use flashcore_cuda::*;

mod checks;

use checks::{Check, Records};

/// Problems whose plans are kept, with their tables on the device. A server sees few shapes at a
/// time; a new plan costs microseconds, and a copy if its table is no longer on the device.
const RECENT_PLANS: usize = 64;

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

/// A plan, how it was chosen, and the compiled kernels of its steps.
#[derive(Debug)]
pub(crate) struct Prepared {
    choice: Choice,
    functions: Vec<Function>,
    /// What checks the values of lengths: for calls, and for those that make a schedule, which have no pages. None
    /// where nothing is checked.
    check: Option<Check>,
    check_of_schedule: Option<Check>,
    /// Tables that its launches read, on the device.
    _tables: Vec<HeldTables>,
}

impl Prepared {
    pub(crate) fn plan(&self) -> &Plan {
        &self.choice.plan
    }
}

/// The launch of an append, its compiled kernel, and what checks its values, if they are checked.
type PreparedAppend = (Step, Function, Option<Check>);

/// What is kept ready for one context.
#[derive(Debug)]
pub(crate) struct CudaAttention {
    context: Context,
    chip: Chip,
    config: Option<Config>,
    /// Whether values on the device are checked before calls read them.
    checks: bool,
    kernels: KernelCache,
    compiled: Compiled<Function>,
    /// By problem and alignment.
    plans: Recent<Box<(Problem, u32)>, Arc<Prepared>>,
    /// By append and alignment.
    appends: Recent<Box<(Append, u32)>, Arc<PreparedAppend>>,
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
            checks: checks.unwrap_or_else(checks::of_environment),
            kernels: KernelCache::default(),
            compiled: Compiled(Recent::new(RECENT_KERNELS)),
            plans: Recent::new(RECENT_PLANS),
            appends: Recent::new(RECENT_PLANS),
        })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The device as plans see it: without the multiprocessors that are left to others.
    pub(crate) fn chip(&self) -> Chip {
        self.chip
    }

    /// Multiprocessors that are left to others.
    pub(crate) fn sm_margin(&self) -> u32 {
        self.context.info().chip().sms - self.chip.sms
    }

    /// The kernel that it was made for, if it was made for one.
    pub(crate) fn fixed(&self) -> Option<Config> {
        self.config
    }

    /// Forgets the plans that were made with other tables.
    pub(crate) fn forget_plans(&mut self) {
        self.plans = Recent::new(RECENT_PLANS);
    }

    /// The plan for a problem, and how it was chosen: one that compiles here without spilling.
    pub(crate) fn choose(&self, problem: &Problem, alignment: u32, plans: &Plans) -> Result<Choice, Error> {
        Ok(self.prepare(problem, alignment, plans)?.choice.clone())
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
        let plan = Plan::with_cache(problem, &config, self.chip, &self.kernels).map_err(|refusal| Error::Refused {
            kernel: config.to_string(),
            refusal: Box::new(refusal),
        })?;
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

    /// The launch of an append that was checked, and its compiled kernel.
    pub(crate) fn prepare_append(&self, append: &Append, alignment: u32) -> Result<Arc<PreparedAppend>, Error> {
        let make = || {
            let step =
                append::step(append, self.chip.target, alignment, &self.kernels).map_err(|refusal| Error::Refused {
                    kernel: "append".to_string(),
                    refusal: Box::new(refusal),
                })?;
            let function = self.compiled.of_step(&step, |kernel| self.load_kernel(kernel))?;
            let check = self.check_of(|| flashcore_kernels::checks::of_append(append, &self.kernels).map(Some))?;
            Ok((Box::new((*append, alignment)), Arc::new((step, function, check))))
        };
        self.appends
            .get_or_make(|kept| kept.1 == alignment && kept.0 == *append, make)
    }

    /// What checks values of a call, compiled, if they are checked. What its records need is allocated here, so that a
    /// call that is warm can be captured.
    fn check_of(&self, step: impl FnOnce() -> Result<Option<Step>, Refusal>) -> Result<Option<Check>, Error> {
        if !self.checks {
            return Ok(None);
        }
        Records::of(&self.context)?;
        let step = step().map_err(|refusal| Error::Refused {
            kernel: "check".to_string(),
            refusal: Box::new(refusal),
        })?;
        let compile = |step: Step| {
            let function = self.compiled.of_step(&step, |kernel| self.load_kernel(kernel))?;
            Ok(Check { step, function })
        };
        step.map(compile).transpose()
    }

    /// Enqueues an append that was checked.
    pub(crate) fn append_on(&self, stream: &Stream, append: &Append, tensors: &DeviceAppend<'_>) -> Result<(), Error> {
        let prepared = self.prepare_append(append, tensors.alignment())?;
        let (step, function, check) = &*prepared;
        let given = |spec: &BufferSpec| memory_of(spec, tensors.named(spec.name));
        let buffers = step.launch.buffers.iter().map(given).collect::<Result<Vec<_>, _>>()?;
        tensors.check_apart(&step.launch.buffers, |i| buffers[i].address())?;
        self.check(stream, check.as_ref(), |name| tensors.named(name))?;
        launch::on(stream, [(&step.launch, function, buffers)])
    }

    /// Runs a call's check, if there is one, and raises what graphs have found, unless nothing is checked.
    fn check<'a>(
        &self,
        stream: &Stream,
        check: Option<&Check>,
        named: impl Fn(&str) -> Option<DeviceSlice<'a>>,
    ) -> Result<(), Error> {
        if self.checks {
            Records::of(&self.context)?.check(stream, check, named)?;
        }
        Ok(())
    }

    /// Enqueues the merge of so many parts; `named` gives the memory of a buffer.
    pub(crate) fn merge_on<'a>(
        &self,
        stream: &Stream,
        problem: &Problem,
        parts: usize,
        alignment: u32,
        named: impl Fn(&str) -> Option<DeviceSlice<'a>>,
    ) -> Result<(), Error> {
        let step = merge_states::step(problem, parts, alignment, &self.kernels).map_err(|refusal| Error::Refused {
            kernel: "merge".to_string(),
            refusal: Box::new(refusal),
        })?;
        let function = self.compiled.of_step(&step, |kernel| self.load_kernel(kernel))?;
        let buffers = step.launch.buffers.iter().map(|spec| memory_of(spec, named(spec.name)));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        check_apart(&step.launch.buffers, |i| buffers[i].address(), |_, _| false)?;
        self.check(stream, None, named)?;
        launch::on(stream, [(&step.launch, &function, buffers)])
    }

    pub(crate) fn prepare(&self, problem: &Problem, alignment: u32, plans: &Plans) -> Result<Arc<Prepared>, Error> {
        let make = || {
            let (choice, functions) = self.compile(problem, alignment, plans)?;
            let steps = choice.plan.steps().zip(&functions);
            let tables = steps.map(|(step, function)| function.hold_tables(&step.launch));
            let check = |pages| self.check_of(|| flashcore_kernels::checks::of_problem(problem, pages, &self.kernels));
            let prepared = Prepared {
                check: check(true)?,
                check_of_schedule: match choice.plan.schedule_steps() {
                    0 => None,
                    _ => check(false)?,
                },
                _tables: tables.collect::<Result<_, _>>()?,
                choice,
                functions,
            };
            Ok((Box::new((problem.clone(), alignment)), Arc::new(prepared)))
        };
        self.plans
            .get_or_make(|kept| kept.1 == alignment && kept.0 == *problem, make)
    }

    pub(crate) fn workspace_bytes(&self, problem: &Problem, alignment: u32, plans: &Plans) -> Result<u64, Error> {
        Ok(self.prepare(problem, alignment, plans)?.choice.plan.workspace_bytes())
    }

    /// Enqueues a plan of either direction. `workspace` gives what the plan needs, if the tensors have none.
    pub(crate) fn run_on<'a>(
        &self,
        stream: &Stream,
        problem: &Problem,
        tensors: &DeviceTensors<'a>,
        workspace: impl FnOnce(u64) -> Option<DeviceSlice<'a>>,
        plans: &Plans,
    ) -> Result<(), Error> {
        if tensors.scales.is_some() && problem.num_scales() == 0 {
            return Err(Error::UnwantedScales { dtype: problem.dtype() });
        }
        for (tensor, given, needed) in [
            ("sinks", tensors.sinks, problem.num_sinks()),
            ("alibi_slopes", tensors.alibi_slopes, problem.num_alibi_slopes()),
        ] {
            if given.is_some() && needed == 0 {
                return Err(Error::Unwanted { tensor });
            }
        }
        problem.check_given(&tensors.lengths, |slice| slice.len() / size_of::<i32>())?;
        let prepared = self.prepare(problem, tensors.alignment(), plans)?;
        let mut tensors = *tensors;
        let bytes = prepared.plan().workspace_bytes();
        if bytes > 0 && tensors.workspace.is_none() {
            tensors.workspace = workspace(bytes);
        }
        let given = |spec: &BufferSpec| memory_of(spec, tensors.named(spec.name));
        // Nothing but a check is enqueued before all of it can be.
        let plan = &prepared.choice.plan;
        let (all, made) = (prepared.functions.len(), plan.schedule_steps());
        let (first, end) = match tensors.steps {
            Steps::All => (0, all),
            Steps::Schedule => (0, made),
            Steps::AfterSchedule => (made, all),
        };
        let mut launches = Vec::with_capacity(end - first);
        let (mut specs, mut addresses) = (Vec::new(), Vec::new());
        for (step, function) in plan.steps().zip(&prepared.functions).take(end).skip(first) {
            let buffers = step.launch.buffers.iter().map(given).collect::<Result<Vec<_>, _>>()?;
            specs.extend_from_slice(&step.launch.buffers);
            addresses.extend(buffers.iter().map(|buffer| buffer.address()));
            launches.push((&step.launch, function, buffers));
        }
        // Of all steps together: one may write over what another reads.
        check_apart(&specs, |i| addresses[i], |_, _| false)?;
        let check = match tensors.steps {
            Steps::Schedule => &prepared.check_of_schedule,
            Steps::All | Steps::AfterSchedule => &prepared.check,
        };
        self.check(stream, check.as_ref(), |name| tensors.named(name))?;
        launch::on(stream, launches)
    }

    pub(crate) fn forward_host(
        &self,
        problem: &Problem,
        [q, k, v]: [TensorView<'_>; 3],
        lengths: &Lengths<&[i32]>,
        out: &mut TensorViewMut<'_>,
        lse: Option<&mut [f32]>,
        plans: &Plans,
    ) -> Result<(), Error> {
        problem.sequences(lengths)?;
        let stream = Stream::new(&self.context)?;
        let upload = |bytes: &[u8]| DeviceBuffer::from_host(&stream, bytes);
        let scales = ScaleBuffers::upload(&stream, [&q, &k, &v])?;
        let head_values = HeadValueBuffers::upload(&stream, problem, &q)?;
        let lengths = lengths.try_map(|values| DeviceBuffer::from_host(&stream, values))?;
        let (q, k, v) = (upload(q.bytes())?, upload(k.bytes())?, upload(v.bytes())?);
        // The whole extent travels both ways, so that gaps between rows come back as they were.
        let device_out = upload(out.as_view().bytes())?;
        let device_lse = lse
            .as_ref()
            .map(|lse| DeviceBuffer::from_host(&stream, lse))
            .transpose()?;
        let workspace_bytes = self.workspace_bytes(problem, 16, plans)?;
        let workspace = DeviceBuffer::new(&self.context, workspace_bytes as usize)?;
        let tensors = DeviceTensors {
            lse: device_lse.as_ref().map(DeviceBuffer::as_slice),
            scales: scales.as_ref().map(ScaleBuffers::as_slices),
            sinks: head_values.sinks(),
            alibi_slopes: head_values.alibi_slopes(),
            lengths: lengths.map(DeviceBuffer::as_slice),
            workspace: Some(workspace.as_slice()),
            ..DeviceTensors::new(q.as_slice(), k.as_slice(), v.as_slice(), device_out.as_slice())
        };
        self.run_on(&stream, problem, &tensors, |_| None, plans)?;
        device_out.as_slice().copy_to_host(&stream, out.bytes_mut())?;
        if let (Some(lse), Some(device)) = (lse, &device_lse) {
            lse.copy_from_slice(&device.to_vec::<f32>(&stream)?);
        }
        stream.synchronize()?;
        Ok(())
    }

    pub(crate) fn backward_host(
        &self,
        problem: &Problem,
        tensors: &BackwardTensors<'_>,
        lengths: &Lengths<&[i32]>,
        gradients: &mut Gradients<TensorViewMut<'_>>,
        plans: &Plans,
    ) -> Result<(), Error> {
        problem.sequences(lengths)?;
        let stream = Stream::new(&self.context)?;
        let upload = |bytes: &[u8]| DeviceBuffer::from_host(&stream, bytes);
        let [q, k, v, out, dout] =
            [&tensors.q, &tensors.k, &tensors.v, &tensors.out, &tensors.dout].map(|tensor| upload(tensor.bytes()));
        let (q, k, v, out, dout) = (q?, k?, v?, out?, dout?);
        let lse = DeviceBuffer::from_host(&stream, tensors.lse)?;
        let lengths = lengths.try_map(|values| DeviceBuffer::from_host(&stream, values))?;
        // The whole extent travels both ways, so that gaps between rows come back as they were.
        let [dq, dk, dv] = gradients.each().map(|tensor| upload(tensor.as_view().bytes()));
        let (dq, dk, dv) = (dq?, dk?, dv?);
        let workspace_bytes = self.workspace_bytes(problem, 16, plans)?;
        let workspace = DeviceBuffer::new(&self.context, workspace_bytes as usize)?;
        let device = DeviceTensors {
            lse: Some(lse.as_slice()),
            lengths: lengths.map(DeviceBuffer::as_slice),
            workspace: Some(workspace.as_slice()),
            gradients: Some(DeviceGradients {
                dout: dout.as_slice(),
                dq: dq.as_slice(),
                dk: dk.as_slice(),
                dv: dv.as_slice(),
            }),
            ..DeviceTensors::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice())
        };
        self.run_on(&stream, problem, &device, |_| None, plans)?;
        for (device, host) in [
            (&dq, &mut gradients.dq),
            (&dk, &mut gradients.dk),
            (&dv, &mut gradients.dv),
        ] {
            device.as_slice().copy_to_host(&stream, host.bytes_mut())?;
        }
        stream.synchronize()?;
        Ok(())
    }
}

/// Refuses what a step writes where it reads something else. `address` gives that of a buffer by its position, and
/// `may_share` says, by the names of what is written and what is read, which may share memory.
pub(crate) fn check_apart(
    buffers: &[BufferSpec],
    address: impl Fn(usize) -> u64,
    may_share: impl Fn(&str, &str) -> bool,
) -> Result<(), Error> {
    let ends = |i: usize| address(i) + buffers[i].bytes;
    let written = (0..buffers.len()).filter(|&i| buffers[i].written);
    for (to, from) in written.flat_map(|to| (0..buffers.len()).map(move |from| (to, from))) {
        let is_read = !buffers[from].written && buffers[from].name != buffers[to].name;
        let is_read = is_read && buffers[from].bytes > 0 && buffers[to].bytes > 0;
        if is_read && address(to) < ends(from) && address(from) < ends(to) {
            let (written, read) = (buffers[to].name, buffers[from].name);
            if !may_share(written, read) {
                return Err(Error::SharedMemory { written, read });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
