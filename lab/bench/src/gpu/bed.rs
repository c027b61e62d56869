//! Tensors of a problem in device memory.

use std::cell::RefCell;

use flashcore::{DeviceScales, DeviceTensors};
use flashcore_check::own::Declared;
use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};
use flashcore_problem::{DType, Inputs, Layout, Lengths, POISON, Problem, Tensor};

use super::guarded::Guarded;
use super::subject::{KernelSubject, Launching};
use super::tools::GpuTools;
use crate::defences::Output;
use crate::{Bed, PeerPlace, PeerTensors, Result, Subject, Trouble};

/// The tensors of a problem in device memory, each between guards that no kernel may write.
#[derive(Debug)]
pub struct TensorSet {
    /// Q, K, V, then their scales, where the problem has scales.
    inputs: Vec<Guarded>,
    lengths: Lengths<Guarded>,
    out: Guarded,
    lse: Option<Guarded>,
    workspace: Guarded,
}

impl TensorSet {
    /// Allocates tensors; their values are not set.
    pub fn new(stream: &Stream, problem: &Problem, workspace_bytes: u64) -> Result<TensorSet> {
        let guarded = |name, bytes| Guarded::new(stream, name, bytes);
        let bytes = |layout: &Layout, dtype: DType| layout.span() * dtype.size_bytes();
        let dtype = problem.dtype();
        let mut inputs = vec![
            guarded("q", bytes(problem.q_layout(), dtype))?,
            guarded("k", bytes(problem.k_layout(), dtype))?,
            guarded("v", bytes(problem.v_layout(), dtype))?,
        ];
        if problem.num_scales() > 0 {
            for name in ["q's scales", "k's scales", "v's scales"] {
                inputs.push(guarded(name, problem.num_scales() * size_of::<f32>())?);
            }
        }
        let lse = problem.return_lse().then_some(problem.lse_len() * size_of::<f32>());
        Ok(TensorSet {
            inputs,
            lengths: problem
                .length_entries()
                .try_map(|entries| guarded("lengths", 4 * entries))?,
            out: guarded("out", bytes(problem.o_layout(), problem.out_dtype()))?,
            lse: lse.map(|bytes| guarded("lse", bytes)).transpose()?,
            workspace: guarded("workspace", usize::try_from(workspace_bytes).unwrap_or(usize::MAX))?,
        })
    }

    /// The tensors, as kernels take them.
    pub fn tensors(&self) -> DeviceTensors<'_> {
        let input = |index: usize| self.inputs[index].as_slice();
        let mut tensors = DeviceTensors::new(input(0), input(1), input(2), self.out.as_slice());
        tensors.lse = self.lse.as_ref().map(Guarded::as_slice);
        tensors.scales = (self.inputs.len() > 3).then(|| DeviceScales {
            q: input(3),
            k: input(4),
            v: input(5),
        });
        tensors.lengths = self.lengths.map(Guarded::as_slice);
        tensors.workspace = Some(self.workspace.as_slice());
        tensors
    }

    /// Fills the output and the log-sum-exp with poison, in the stream.
    pub fn poison(&self, stream: &Stream) -> Result<(), CudaError> {
        let mut outputs = [Some(&self.out), self.lse.as_ref()].into_iter().flatten();
        outputs.try_for_each(|output| output.as_slice().fill(stream, POISON))
    }

    /// The log-sum-exp, after the work in the stream; `None` where the problem asks for none.
    pub fn read_lse(&self, stream: &Stream) -> Result<Option<Vec<f32>>, CudaError> {
        let Some(lse) = &self.lse else { return Ok(None) };
        let mut values = vec![0.0f32; lse.as_slice().len() / size_of::<f32>()];
        let bytes = bytemuck::cast_slice_mut(&mut values);
        lse.as_slice().copy_to_host(stream, bytes)?;
        Ok(Some(values))
    }

    /// Copies inputs from the host.
    pub fn upload(&self, stream: &Stream, inputs: &Inputs) -> Result<(), CudaError> {
        let tensors = [&inputs.q, &inputs.k, &inputs.v];
        let scales = tensors.into_iter().filter_map(Tensor::scales).map(bytemuck::cast_slice);
        let from = tensors.into_iter().map(Tensor::bytes).chain(scales);
        let mut pairs = self.inputs.iter().zip(from);
        pairs.try_for_each(|(to, from)| to.as_slice().copy_from_host(stream, from))?;
        let lengths = self.lengths.arrays().into_iter().zip(inputs.lengths.arrays());
        let mut pairs = lengths.filter_map(|(to, from)| to.zip(from));
        pairs.try_for_each(|(to, from)| to.as_slice().copy_from_host(stream, bytemuck::cast_slice(from)))
    }
}

/// Pause put ahead of a candidate that may not wait for the stream, µs.
const PAUSE_US: f64 = 3_000.0;

/// Two sets of tensors of a problem in device memory, between guards.
#[derive(Debug)]
pub struct GpuBed<'g> {
    pub(crate) stream: &'g Stream,
    tools: &'g GpuTools,
    problem: Problem,
    places: [TensorSet; 2],
    snapshot: DeviceBuffer,
    /// Outputs that are shown are copied here: allocating that much takes longer than the copy.
    shown: RefCell<Option<Tensor>>,
}

impl<'g> GpuBed<'g> {
    /// Allocates the tensors; their values are not set.
    pub fn new(stream: &'g Stream, tools: &'g GpuTools, problem: &Problem, workspace_bytes: u64) -> Result<GpuBed<'g>> {
        let place = || TensorSet::new(stream, problem, workspace_bytes);
        let places = [place()?, place()?];
        Ok(GpuBed {
            stream,
            tools,
            problem: problem.clone(),
            snapshot: DeviceBuffer::new(stream.context(), places[0].tensors().out.len())?,
            places,
            shown: RefCell::default(),
        })
    }

    /// The tensors of a place.
    pub fn tensors(&self, place: usize) -> DeviceTensors<'_> {
        self.places[place % 2].tensors()
    }
}

impl Bed for GpuBed<'_> {
    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn load(&self, place: usize, inputs: &Inputs) -> Result<(), Trouble> {
        Ok(self.places[place % 2].upload(self.stream, inputs)?)
    }

    fn poison(&self, place: usize) -> Result<(), Trouble> {
        Ok(self.places[place % 2].poison(self.stream)?)
    }

    fn pause(&self) -> Result<(), Trouble> {
        Ok(self.tools.spin(self.stream, PAUSE_US)?)
    }

    fn snapshot(&self, place: usize) -> Result<(), Trouble> {
        let (snapshot, out) = (self.snapshot.as_slice(), self.tensors(place).out);
        Ok(snapshot.copy_from(self.stream, out)?)
    }

    fn finish(&self) -> Result<(), Trouble> {
        Ok(self.stream.context().synchronize()?)
    }

    fn see(&self, place: usize, what: Output, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble> {
        let mut shown = self.shown.borrow_mut();
        let out = shown.get_or_insert_with(|| Tensor::poisoned(self.problem.out_dtype(), *self.problem.o_layout()));
        let from = match what {
            Output::Final => self.tensors(place).out,
            Output::Snapshot => self.snapshot.as_slice(),
        };
        from.copy_to_host(self.stream, out.bytes_mut())?;
        look(out);
        Ok(())
    }

    fn read_lse(&self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        Ok(self.places[place % 2].read_lse(self.stream)?)
    }

    fn outside(&self) -> Result<Option<String>, Trouble> {
        for place in &self.places {
            let lengths = place.lengths.arrays().into_iter().flatten();
            let read = place.inputs.iter().chain(lengths);
            for buffer in read.chain([&place.out, &place.workspace]).chain(&place.lse) {
                if let Some(outside) = buffer.outside(self.stream)? {
                    return Ok(Some(outside));
                }
            }
        }
        Ok(None)
    }

    fn declared<'b>(&'b self, declared: &Declared, launching: Launching) -> Result<[Box<dyn Subject + 'b>; 2]> {
        let bound = |place| {
            let sets = [self.tensors(place), self.tensors(1 - place)];
            KernelSubject::declared(self.stream, declared, &self.problem, &sets, launching)
        };
        let [subject, elsewhere] = [bound(0)?, bound(1)?];
        Ok([Box::new(subject), Box::new(elsewhere)])
    }

    fn peer_tensors(&self) -> PeerTensors {
        let tensors = self.tensors(0);
        let addresses = [tensors.q, tensors.k, tensors.v, tensors.out].map(|slice| (slice.address(), slice.len()));
        let scales = tensors
            .scales
            .map(|scales| [scales.q, scales.k, scales.v].map(DeviceSlice::address));
        let place = PeerPlace::Cuda {
            ordinal: self.stream.context().info().ordinal,
            stream: self.stream.as_raw(),
        };
        PeerTensors::new(place, &self.problem, addresses, scales)
    }
}
