//! The CUDA driver ([`flashcore_cuda`]): contexts, streams, memory, functions, events, graphs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use flashcore_ir::{BufferSpec, Chip};
use flashcore_kernels::{Choice, Config, KernelCache, Plan, Refusal, Step, select_with};
use flashcore_problem::{Problem, TensorView, TensorViewMut};

use crate::Error;
use crate::plans::Plans;
use crate::tensors::{DeviceTensors, ScaleBuffers};

pub use flashcore_cuda::*;

/// Problems whose plans are kept, with their tables on the device. A server sees few shapes at a
/// time; a new plan costs microseconds, and a copy if its table is no longer on the device.
const RECENT_PLANS: usize = 64;

/// A plan and the compiled kernels of its steps.
#[derive(Debug)]
pub(crate) struct Prepared {
    plan: Plan,
    functions: Vec<Function>,
    /// Tables that its launches read, on the device.
    _tables: Vec<HeldTables>,
}

/// What is kept ready for one context.
#[derive(Debug)]
pub(crate) struct CudaAttention {
    context: Context,
    chip: Chip,
    config: Option<Config>,
    kernels: KernelCache,
    recent: Mutex<VecDeque<(Problem, u32, Arc<Prepared>)>>,
}

impl CudaAttention {
    pub(crate) fn new(context: Context, config: Option<Config>) -> CudaAttention {
        CudaAttention {
            // `Device::cuda` lets only supported devices through.
            chip: context.info().chip(),
            context,
            config,
            kernels: KernelCache::default(),
            recent: Mutex::default(),
        }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The plan for a problem, and how it was chosen: one that compiles here without spilling.
    pub(crate) fn choose(&self, problem: &Problem, alignment: u32, plans: &Plans) -> Result<Choice, Error> {
        Ok(self.compile(problem, alignment, plans)?.0)
    }

    fn compile(&self, problem: &Problem, alignment: u32, plans: &Plans) -> Result<(Choice, Vec<Function>), Error> {
        let Some(config) = self.config else {
            let judge = |plan: &Plan| match self.load(plan) {
                Ok(functions) => Ok(Ok(functions)),
                // Another kernel may work where this driver's compiler refuses one or spills.
                Err(refusal @ (CudaError::Module(_) | CudaError::Compile(_))) => Ok(Err(Refusal::Compiler {
                    message: refusal.to_string(),
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

    /// Modules are kept by identity in their context, so a kernel is compiled once.
    fn load(&self, plan: &Plan) -> Result<Vec<Function>, CudaError> {
        let load = |step: &Step| Function::load(&self.context, &step.kernel, &ModuleOptions::default());
        plan.steps().map(load).collect()
    }

    pub(crate) fn prepare(&self, problem: &Problem, alignment: u32, plans: &Plans) -> Result<Arc<Prepared>, Error> {
        let recent = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = recent().iter().find(|(p, a, _)| *a == alignment && p == problem) {
            return Ok(found.2.clone());
        }
        let (choice, functions) = self.compile(problem, alignment, plans)?;
        let steps = choice.plan.steps().zip(&functions);
        let tables = steps.map(|(step, function)| function.hold_tables(&step.launch));
        let prepared = Arc::new(Prepared {
            _tables: tables.collect::<Result<_, _>>()?,
            plan: choice.plan,
            functions,
        });
        let mut recent = recent();
        recent.push_front((problem.clone(), alignment, prepared.clone()));
        recent.truncate(RECENT_PLANS);
        Ok(prepared)
    }

    pub(crate) fn workspace_bytes(&self, problem: &Problem, alignment: u32, plans: &Plans) -> Result<u64, Error> {
        Ok(self.prepare(problem, alignment, plans)?.plan.workspace_bytes())
    }

    pub(crate) fn forward_on(
        &self,
        stream: &Stream,
        problem: &Problem,
        tensors: &DeviceTensors<'_>,
        plans: &Plans,
    ) -> Result<(), Error> {
        if tensors.scales.is_some() && problem.num_scales() == 0 {
            return Err(Error::UnwantedScales { dtype: problem.dtype() });
        }
        let prepared = self.prepare(problem, tensors.alignment(), plans)?;
        let given = |spec: &BufferSpec| {
            let given = tensors.named(spec.name);
            given
                .filter(|slice| slice.len() as u64 >= spec.bytes && slice.address() != 0)
                .ok_or_else(|| Error::DeviceBuffer {
                    tensor: spec.name,
                    needed: spec.bytes,
                    given: given.map(|slice| slice.len() as u64),
                })
        };
        // Nothing is enqueued before all of it can be.
        let mut launches = Vec::with_capacity(prepared.functions.len());
        for (step, function) in prepared.plan.steps().zip(&prepared.functions) {
            let buffers = step.launch.buffers.iter().map(given).collect::<Result<Vec<_>, _>>()?;
            launches.push(function.prepare(&step.launch, &buffers)?);
        }
        for launch in &launches {
            launch.enqueue(stream)?;
        }
        Ok(())
    }

    pub(crate) fn forward_host(
        &self,
        problem: &Problem,
        [q, k, v]: [TensorView<'_>; 3],
        out: &mut TensorViewMut<'_>,
        lse: Option<&mut [f32]>,
        plans: &Plans,
    ) -> Result<(), Error> {
        let stream = Stream::new(&self.context)?;
        let upload = |bytes: &[u8]| DeviceBuffer::from_host(&stream, bytes);
        let scales = ScaleBuffers::upload(&stream, [&q, &k, &v])?;
        let (q, k, v) = (upload(q.bytes())?, upload(k.bytes())?, upload(v.bytes())?);
        // The whole extent travels both ways, so that gaps between rows come back as they were.
        let device_out = upload(out.as_view().bytes())?;
        let device_lse = lse
            .as_ref()
            .map(|lse| DeviceBuffer::new(&self.context, size_of_val(&**lse)))
            .transpose()?;
        let workspace_bytes = self.workspace_bytes(problem, 16, plans)?;
        let workspace = DeviceBuffer::new(&self.context, workspace_bytes as usize)?;
        let tensors = DeviceTensors {
            lse: device_lse.as_ref().map(DeviceBuffer::as_slice),
            scales: scales.as_ref().map(ScaleBuffers::as_slices),
            workspace: Some(workspace.as_slice()),
            ..DeviceTensors::new(q.as_slice(), k.as_slice(), v.as_slice(), device_out.as_slice())
        };
        self.forward_on(&stream, problem, &tensors, plans)?;
        device_out.as_slice().copy_to_host(&stream, out.bytes_mut())?;
        if let (Some(lse), Some(device)) = (lse, &device_lse) {
            lse.copy_from_slice(&device.to_vec::<f32>(&stream)?);
        }
        stream.synchronize()?;
        Ok(())
    }
}
