//! Tensors of a problem in device memory, and the rig that subjects are inspected on.

use std::collections::BTreeMap;

use flashcore::{DeviceScales, DeviceTensors};
use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};
use flashcore_problem::{DType, Layout, POISON, Problem, Tensor};

use super::guarded::{Guarded, Lookout};
use super::tools::GpuTools;
use crate::answers::{Answers, HostInputs};
use crate::defences::{AFTERWARDS_SEED, Expected, INSPECTION_SEEDS, Output, Rig};
use crate::error::BenchError;
use crate::subject::{Subject, Trouble};

/// Pause put ahead of a subject that may not wait for the stream, µs.
const PAUSE_US: f64 = 3_000.0;

/// The tensors of a problem in device memory, each between guards that nobody is to write.
#[derive(Debug)]
pub struct TensorSet {
    q: Guarded,
    k: Guarded,
    v: Guarded,
    out: Guarded,
    lse: Option<Guarded>,
    /// Of q, k and v, where the problem has scales.
    scales: Option<[Guarded; 3]>,
    workspace: Guarded,
    lookout: Lookout,
}

/// Tensors that a set has at most, for the guards of all.
const MOST_TENSORS: usize = 9;

impl TensorSet {
    /// Allocates tensors, their values not set.
    ///
    /// # Errors
    /// What the driver says, such as `OUT_OF_MEMORY`.
    pub fn new(stream: &Stream, problem: &Problem, workspace_bytes: u64) -> Result<TensorSet, BenchError> {
        let guarded = |name, bytes| Guarded::new(stream, name, bytes);
        let tensor =
            |name, layout: &Layout, dtype: DType| Guarded::new(stream, name, layout.span() * dtype.size_bytes());
        let lse = problem
            .return_lse()
            .then(|| guarded("lse", problem.lse_len() * size_of::<f32>()));
        let scale = |name| Guarded::new(stream, name, problem.num_scales() * size_of::<f32>());
        let scales = match problem.num_scales() {
            0 => None,
            _ => Some([scale("q's scales")?, scale("k's scales")?, scale("v's scales")?]),
        };
        Ok(TensorSet {
            q: tensor("q", problem.q_layout(), problem.dtype())?,
            k: tensor("k", problem.k_layout(), problem.dtype())?,
            v: tensor("v", problem.v_layout(), problem.dtype())?,
            out: tensor("out", problem.o_layout(), problem.out_dtype())?,
            lse: lse.transpose()?,
            scales,
            workspace: guarded("workspace", usize::try_from(workspace_bytes).unwrap_or(usize::MAX))?,
            lookout: Lookout::new(stream, MOST_TENSORS)?,
        })
    }

    /// The tensors, as kernels take them.
    pub fn tensors(&self) -> DeviceTensors<'_> {
        DeviceTensors {
            q: self.q.as_slice(),
            k: self.k.as_slice(),
            v: self.v.as_slice(),
            out: self.out.as_slice(),
            lse: self.lse.as_ref().map(Guarded::as_slice),
            scales: self.scales.as_ref().map(|[q, k, v]| DeviceScales {
                q: q.as_slice(),
                k: k.as_slice(),
                v: v.as_slice(),
            }),
            workspace: Some(self.workspace.as_slice()),
        }
    }

    /// Fills the output and the log-sum-exp with poison, in the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn poison(&self, stream: &Stream) -> Result<(), CudaError> {
        let outputs = [Some(&self.out), self.lse.as_ref()];
        let mut outputs = outputs.into_iter().flatten();
        outputs.try_for_each(|output| output.as_slice().fill(stream, POISON))
    }

    /// The log-sum-exp, after the work in the stream; `None` where the problem asks for none.
    ///
    /// # Errors
    /// What the driver says.
    pub fn read_lse(&self, stream: &Stream) -> Result<Option<Vec<f32>>, CudaError> {
        let Some(lse) = &self.lse else { return Ok(None) };
        let mut values = vec![0.0f32; lse.as_slice().len() / size_of::<f32>()];
        lse.as_slice()
            .copy_to_host(stream, bytemuck::cast_slice_mut(&mut values))?;
        Ok(Some(values))
    }

    /// What was written beside the tensors since they were allocated, in a sentence.
    ///
    /// # Errors
    /// What the driver says.
    pub fn outside(&self, stream: &Stream) -> Result<Option<String>, CudaError> {
        let tensors = [&self.q, &self.k, &self.v, &self.out, &self.workspace];
        let others = self.lse.iter().chain(self.scales.iter().flatten());
        let all: Vec<&Guarded> = tensors.into_iter().chain(others).collect();
        self.lookout.outside(stream, &all)
    }

    /// Copies inputs from the host.
    ///
    /// # Errors
    /// What the driver says.
    pub fn upload(&self, stream: &Stream, inputs: &HostInputs) -> Result<(), CudaError> {
        let mut pairs = self.inputs().into_iter().zip(bytes_of(inputs));
        pairs.try_for_each(|(to, from)| to.copy_from_host(stream, from))
    }

    /// What a kernel reads, in the order of [`bytes_of`].
    fn inputs(&self) -> Vec<DeviceSlice<'_>> {
        let tensors = [&self.q, &self.k, &self.v];
        let scales = self.scales.iter().flatten();
        tensors.into_iter().chain(scales).map(Guarded::as_slice).collect()
    }
}

/// Q, K and V, then their scales where they have them.
fn bytes_of(inputs: &HostInputs) -> Vec<&[u8]> {
    let tensors = [&inputs.q, &inputs.k, &inputs.v];
    let scales = tensors.into_iter().filter_map(|tensor| tensor.scales());
    let scales = scales.map(bytemuck::cast_slice);
    tensors.into_iter().map(Tensor::bytes).chain(scales).collect()
}

/// Everything in device memory that inspecting subjects of one problem takes; subjects borrow from it.
#[derive(Debug)]
pub struct GpuBed {
    problem: Problem,
    places: [TensorSet; 2],
    snapshot: DeviceBuffer,
    /// Inputs of each seed, to be copied from there, in the order of [`bytes_of`].
    masters: BTreeMap<u64, Vec<DeviceBuffer>>,
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
            let upload = |bytes| DeviceBuffer::from_host(stream, bytes);
            let master = bytes_of(&inputs).into_iter().map(upload);
            masters.insert(seed, master.collect::<Result<Vec<_>, _>>()?);
        }
        let bed = GpuBed {
            problem: problem.clone(),
            snapshot: DeviceBuffer::new(stream.context(), places[0].tensors().out.len())?,
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

    /// Draws inputs and knows no answers: to time kernels that were judged before.
    ///
    /// # Errors
    /// What the driver says, such as `OUT_OF_MEMORY`.
    pub fn blind(stream: &Stream, problem: &Problem, workspace_bytes: u64) -> Result<GpuBed, BenchError> {
        let place = |seed| {
            let place = TensorSet::new(stream, problem, workspace_bytes)?;
            place.upload(stream, &HostInputs::draw(problem, seed))?;
            Ok::<TensorSet, BenchError>(place)
        };
        let places = [place(INSPECTION_SEEDS[0])?, place(INSPECTION_SEEDS[1])?];
        stream.synchronize()?;
        Ok(GpuBed {
            problem: problem.clone(),
            snapshot: DeviceBuffer::new(stream.context(), places[0].tensors().out.len())?,
            places,
            masters: BTreeMap::new(),
            answers: Answers::default(),
        })
    }

    /// The tensors of a place: 0 is the one that is timed.
    pub fn tensors(&self, place: usize) -> DeviceTensors<'_> {
        self.places[place % 2].tensors()
    }

    fn load(&self, stream: &Stream, place: usize, seed: u64) -> Result<(), CudaError> {
        if let Some(master) = self.masters.get(&seed) {
            for (to, from) in self.places[place % 2].inputs().into_iter().zip(master) {
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
        Ok(self.bed.places[place % 2].poison(self.stream)?)
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

    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        if !self.subject.info().is_ours() {
            return Ok(None);
        }
        Ok(self.bed.places[place % 2].read_lse(self.stream)?)
    }

    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        for place in &self.bed.places {
            if let Some(outside) = place.outside(self.stream)? {
                return Ok(Some(outside));
            }
        }
        Ok(None)
    }
}
