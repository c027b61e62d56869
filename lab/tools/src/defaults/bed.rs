//! The tensors of a problem on a GPU, and kernels that are timed on them.

use std::error::Error;
use std::sync::{Mutex, PoisonError};

use flashcore::unstable::cuda::{DeviceBuffer, DeviceSlice, Event, Stream};
use flashcore_bench::gpu::{Buffers, PreparedPlan};
use flashcore_cuda::{CudaError, Function, ModuleOptions};
use flashcore_kernels::{Plan, Step};
use flashcore_problem::{DType, InputKind, Inputs, POISON, Problem};

/// Bytes of the output that are compared at each end.
const COMPARED: usize = 4 << 20;

/// Normal numbers of a dtype, drawn once.
fn pattern(dtype: DType) -> Result<Inputs, Box<dyn Error>> {
    static DRAWN: Mutex<Vec<(DType, Inputs)>> = Mutex::new(Vec::new());
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, inputs)) = drawn.iter().find(|(of, _)| *of == dtype) {
        return Ok(inputs.clone());
    }
    let of = Problem::builder()
        .heads(16, 16)
        .seq_len(1024)
        .head_dim(128)
        .dtype(dtype)
        .build()?;
    let inputs = Inputs::generate(&of, InputKind::Normal, 7);
    drawn.push((dtype, inputs.clone()));
    Ok(inputs)
}

/// The tensors of a problem, filled with normal numbers over and over.
pub(super) struct Memory {
    buffers: [DeviceBuffer; 5],
    dtype: DType,
}

impl Memory {
    pub(super) fn new<'p>(
        stream: &Stream,
        problem: &Problem,
        plans: impl Iterator<Item = &'p Plan>,
    ) -> Result<Memory, Box<dyn Error>> {
        let size = problem.dtype().size_bytes();
        let layouts = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ];
        let [q, k, v, out] = layouts.map(|layout| DeviceBuffer::new(stream.context(), layout.span() * size));
        let workspace = plans.map(Plan::workspace_bytes).max().unwrap_or(0);
        let workspace = DeviceBuffer::new(stream.context(), usize::try_from(workspace)?)?;
        let memory = Memory {
            buffers: [q?, k?, v?, out?, workspace],
            dtype: problem.dtype(),
        };
        let pattern = pattern(problem.dtype())?;
        for (buffer, from) in memory.buffers.iter().zip([&pattern.q, &pattern.k, &pattern.v]) {
            for start in (0..buffer.len()).step_by(from.bytes().len()) {
                let end = buffer.len().min(start + from.bytes().len());
                buffer
                    .as_slice()
                    .range(start..end)?
                    .copy_from_host(stream, &from.bytes()[..end - start])?;
            }
        }
        Ok(memory)
    }

    fn tensors(&self) -> Buffers<'_> {
        let names = ["q", "k", "v", "out", "workspace"].into_iter().zip(&self.buffers);
        names.fold(Buffers::default(), |buffers, (name, buffer)| {
            buffers.with(name, buffer.as_slice())
        })
    }

    /// Both ends of the output of a kernel.
    pub(super) fn output(&self, stream: &Stream, kernel: &Loaded<'_>) -> Result<Vec<f32>, Box<dyn Error>> {
        let out: DeviceSlice<'_> = self.buffers[3].as_slice();
        out.fill(stream, POISON)?;
        kernel.prepared.enqueue(stream)?;
        let mut bytes = vec![0; out.len().min(COMPARED)];
        let mut values = Vec::new();
        for start in [0, out.len() - bytes.len()] {
            out.range(start..start + bytes.len())?
                .copy_to_host(stream, &mut bytes)?;
            stream.synchronize()?;
            let elements = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
            values.extend(elements.map(|bits| match self.dtype {
                DType::F16 => half::f16::from_bits(bits).to_f32(),
                _ => half::bf16::from_bits(bits).to_f32(),
            }));
        }
        Ok(values)
    }
}

/// A kernel that is loaded and bound to its tensors.
pub(super) struct Loaded<'a> {
    prepared: PreparedPlan<'a>,
    events: [Event; 2],
    us: f64,
}

impl<'a> Loaded<'a> {
    pub(super) fn new(stream: &Stream, plan: &Plan, memory: &'a Memory) -> Result<Loaded<'a>, Box<dyn Error>> {
        Self::of(stream, plan, &Self::functions(stream, plan)?, memory)
    }

    /// The functions of a plan, none of which spills.
    pub(super) fn functions(stream: &Stream, plan: &Plan) -> Result<Vec<Function>, Box<dyn Error>> {
        let load = |step: &Step| Function::load(stream.context(), &step.kernel, &ModuleOptions::default());
        let functions: Vec<Function> = plan.steps().map(load).collect::<Result<_, CudaError>>()?;
        match functions.iter().any(|function| function.attributes().local_bytes > 0) {
            true => Err("it uses local memory".into()),
            false => Ok(functions),
        }
    }

    /// A plan's functions on a problem's tensors.
    pub(super) fn of(
        stream: &Stream,
        plan: &Plan,
        functions: &[Function],
        memory: &'a Memory,
    ) -> Result<Loaded<'a>, Box<dyn Error>> {
        let events = [Event::new(stream.context())?, Event::new(stream.context())?];
        let mut loaded = Loaded {
            prepared: PreparedPlan::new(plan, functions, &memory.tensors())?,
            events,
            us: 0.0,
        };
        // The first run loads its code.
        loaded.time(stream, 0, 1)?;
        loaded.us = loaded.time(stream, 0, 1)?;
        Ok(loaded)
    }

    /// Runs that take about so long.
    pub(super) fn runs(&self, us: f64) -> Result<u32, Box<dyn Error>> {
        Ok(((us / self.us.max(1.0)).ceil() as u32).clamp(1, 200))
    }

    /// Time of a run, µs.
    pub(super) fn time(&self, stream: &Stream, lead: u32, runs: u32) -> Result<f64, Box<dyn Error>> {
        for _ in 0..lead {
            self.prepared.enqueue(stream)?;
        }
        self.events[0].record(stream)?;
        for _ in 0..runs {
            self.prepared.enqueue(stream)?;
        }
        self.events[1].record(stream)?;
        self.events[1].synchronize()?;
        Ok(f64::from(self.events[0].elapsed_ms(&self.events[1])?) * 1e3 / f64::from(runs))
    }
}
