//! Tensors of a problem in device memory, and the rig that subjects are inspected on.

use std::collections::BTreeMap;

use flashcore::DeviceTensors;
use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};
use flashcore_problem::{Layout, POISON, Problem, Tensor};

use super::tools::GpuTools;
use crate::answers::{Answers, HostInputs};
use crate::defences::{AFTERWARDS_SEED, Expected, INSPECTION_SEEDS, Output, Rig};
use crate::error::BenchError;
use crate::subject::{Subject, Trouble};

/// Pause put ahead of a subject that may not wait for the stream, µs.
const PAUSE_US: f64 = 3_000.0;

/// The tensors of a problem in device memory.
#[derive(Debug)]
pub struct TensorSet {
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    out: DeviceBuffer,
    lse: Option<DeviceBuffer>,
    workspace: DeviceBuffer,
}

impl TensorSet {
    /// Allocates tensors, their values not set.
    ///
    /// # Errors
    /// What the driver says, such as `OUT_OF_MEMORY`.
    pub fn new(stream: &Stream, problem: &Problem, workspace_bytes: u64) -> Result<TensorSet, BenchError> {
        let context = stream.context();
        let size = problem.dtype().size_bytes();
        let buffer = |layout: &Layout| DeviceBuffer::new(context, layout.span() * size);
        let lse = problem
            .return_lse()
            .then(|| DeviceBuffer::new(context, problem.lse_len() * 4));
        Ok(TensorSet {
            q: buffer(problem.q_layout())?,
            k: buffer(problem.k_layout())?,
            v: buffer(problem.v_layout())?,
            out: buffer(problem.o_layout())?,
            lse: lse.transpose()?,
            workspace: DeviceBuffer::new(context, usize::try_from(workspace_bytes).unwrap_or(usize::MAX))?,
        })
    }

    /// The tensors, as kernels take them.
    pub fn tensors(&self) -> DeviceTensors<'_> {
        DeviceTensors {
            q: self.q.as_slice(),
            k: self.k.as_slice(),
            v: self.v.as_slice(),
            out: self.out.as_slice(),
            lse: self.lse.as_ref().map(DeviceBuffer::as_slice),
            workspace: Some(self.workspace.as_slice()),
        }
    }

    /// Copies inputs from the host.
    ///
    /// # Errors
    /// What the driver says.
    pub fn upload(&self, stream: &Stream, inputs: &HostInputs) -> Result<(), CudaError> {
        self.q.as_slice().copy_from_host(stream, inputs.q.bytes())?;
        self.k.as_slice().copy_from_host(stream, inputs.k.bytes())?;
        self.v.as_slice().copy_from_host(stream, inputs.v.bytes())
    }
}

/// Everything in device memory that inspecting subjects of one problem takes; subjects borrow from it.
#[derive(Debug)]
pub struct GpuBed {
    problem: Problem,
    places: [TensorSet; 2],
    snapshot: DeviceBuffer,
    /// Inputs of each seed, to be copied from there: q, k, v.
    masters: BTreeMap<u64, [DeviceBuffer; 3]>,
    answers: Answers,
}

impl GpuBed {
    /// Draws inputs, computes what is right, and puts it all into device memory.
    ///
    /// # Errors
    /// What the driver says, such as `OUT_OF_MEMORY`.
    pub fn new(stream: &Stream, problem: &Problem, workspace_bytes: u64) -> Result<GpuBed, BenchError> {
        let place = || TensorSet::new(stream, problem, workspace_bytes);
        let places = [place()?, place()?];
        let mut answers = Answers::default();
        let mut masters = BTreeMap::new();
        for seed in INSPECTION_SEEDS.into_iter().chain([AFTERWARDS_SEED]) {
            let inputs = HostInputs::draw(problem, seed);
            answers.add(problem, seed, &inputs)?;
            let upload = |tensor: &Tensor| DeviceBuffer::from_host(stream, tensor.bytes());
            masters.insert(seed, [upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?]);
        }
        let bed = GpuBed {
            problem: problem.clone(),
            snapshot: DeviceBuffer::new(stream.context(), places[0].out.len())?,
            places,
            masters,
            answers,
        };
        // Timed on inputs that are neither zeros nor whatever was there.
        bed.load(stream, 0, INSPECTION_SEEDS[0])?;
        bed.load(stream, 1, INSPECTION_SEEDS[1])?;
        stream.synchronize()?;
        Ok(bed)
    }

    /// The tensors of a place: 0 is the one that is timed.
    pub fn tensors(&self, place: usize) -> DeviceTensors<'_> {
        self.places[place % 2].tensors()
    }

    fn load(&self, stream: &Stream, place: usize, seed: u64) -> Result<(), CudaError> {
        let tensors = self.tensors(place);
        if let Some(master) = self.masters.get(&seed) {
            for (to, from) in [tensors.q, tensors.k, tensors.v].into_iter().zip(master) {
                to.copy_from(stream, from.as_slice())?;
            }
        }
        Ok(())
    }
}

/// A subject on a [`GpuBed`].
pub struct GpuRig<'r, 's, 't> {
    /// The tensors.
    pub bed: &'r GpuBed,
    /// The stream.
    pub stream: &'r Stream,
    /// The bench's own kernels.
    pub tools: &'r GpuTools,
    /// The subject, bound to place 0.
    pub subject: &'r mut (dyn Subject + 's),
    /// The same bound to place 1, if it can be.
    pub elsewhere: Option<&'r mut (dyn Subject + 't)>,
}

impl GpuRig<'_, '_, '_> {
    fn out(&self, place: usize) -> DeviceSlice<'_> {
        self.bed.tensors(place).out
    }
}

impl Rig for GpuRig<'_, '_, '_> {
    fn problem(&self) -> &Problem {
        &self.bed.problem
    }

    fn expected(&self, seed: u64) -> &Expected {
        self.bed.answers.of(seed)
    }

    fn load(&mut self, place: usize, seed: u64) -> Result<(), Trouble> {
        self.bed.load(self.stream, place, seed)?;
        match place {
            0 => self.subject.inputs_changed(),
            _ => Ok(()),
        }
    }

    fn poison(&mut self, place: usize) -> Result<(), Trouble> {
        Ok(self.out(place).fill(self.stream, POISON)?)
    }

    fn pause(&mut self) -> Result<(), Trouble> {
        Ok(self.tools.spin(self.stream, PAUSE_US)?)
    }

    fn run(&mut self, place: usize) -> Result<bool, Trouble> {
        match (place, &mut self.elsewhere) {
            (0, _) => self.subject.call()?,
            (_, Some(subject)) => subject.call()?,
            (_, None) => return Ok(false),
        }
        Ok(true)
    }

    fn snapshot(&mut self, place: usize) -> Result<(), Trouble> {
        Ok(self.bed.snapshot.as_slice().copy_from(self.stream, self.out(place))?)
    }

    fn finish(&mut self) -> Result<(), Trouble> {
        Ok(self.stream.context().synchronize()?)
    }

    fn read(&mut self, place: usize, what: Output) -> Result<Tensor, Trouble> {
        if place == 0
            && let Some(answer) = self.subject.answer()?
        {
            return Ok(answer);
        }
        let mut tensor = Tensor::poisoned(self.bed.problem.out_dtype(), *self.bed.problem.o_layout());
        let from = match what {
            Output::Final => self.out(place),
            Output::Snapshot => self.bed.snapshot.as_slice(),
        };
        from.copy_to_host(self.stream, tensor.bytes_mut())?;
        Ok(tensor)
    }
}
