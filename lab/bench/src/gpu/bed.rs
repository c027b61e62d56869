//! Tensors of a problem in device memory.

use std::cell::RefCell;

use flashcore::{DeviceScales, DeviceTensors};
use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};
use flashcore_problem::{DType, Inputs, Layout, POISON, Problem, Tensor};

use super::guarded::{Guarded, Lookout};
use super::tools::GpuTools;
use crate::bed::Bed;
use crate::defences::Output;
use crate::error::BenchError;
use crate::peers::{PeerPlace, PeerTensors};
use crate::subject::Trouble;

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
    pub fn upload(&self, stream: &Stream, inputs: &Inputs) -> Result<(), CudaError> {
        let tensors = [&inputs.q, &inputs.k, &inputs.v];
        for (to, from) in [&self.q, &self.k, &self.v].into_iter().zip(tensors) {
            to.as_slice().copy_from_host(stream, from.bytes())?;
        }
        let scales = tensors.into_iter().filter_map(Tensor::scales);
        for (to, from) in self.scales.iter().flatten().zip(scales) {
            to.as_slice().copy_from_host(stream, bytemuck::cast_slice(from))?;
        }
        Ok(())
    }
}

/// Pause put ahead of a candidate that may not wait for the stream, µs.
const PAUSE_US: f64 = 3_000.0;

/// Two sets of tensors of a problem in device memory, between guards.
#[derive(Debug)]
pub struct GpuBed<'g> {
    stream: &'g Stream,
    tools: &'g GpuTools,
    problem: Problem,
    places: [TensorSet; 2],
    snapshot: DeviceBuffer,
    /// Outputs that are shown are copied here: allocating that much takes longer than the copy.
    shown: RefCell<Option<Tensor>>,
}

impl<'g> GpuBed<'g> {
    /// Allocates the tensors; their values are not set.
    ///
    /// # Errors
    /// What the driver says, such as `OUT_OF_MEMORY`.
    pub fn new(
        stream: &'g Stream,
        tools: &'g GpuTools,
        problem: &Problem,
        workspace_bytes: u64,
    ) -> Result<GpuBed<'g>, BenchError> {
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
        Ok(self
            .snapshot
            .as_slice()
            .copy_from(self.stream, self.tensors(place).out)?)
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
            if let Some(outside) = place.outside(self.stream)? {
                return Ok(Some(outside));
            }
        }
        Ok(None)
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
