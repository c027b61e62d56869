//! Tensors of a problem in device memory.

use std::cell::RefCell;

use flashcore::{Attention, Device, DeviceGradients, DeviceScales, DeviceTensors};
use flashcore_check::own::Declared;
use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};
use flashcore_kernels::Plan;
use flashcore_problem::{DType, Direction, Inputs, Layout, Lengths, POISON, Problem, Tensor};

use super::guarded::Guarded;
use super::subject::{KernelSubject, Launching};
use super::tools::GpuTools;
use crate::defences::Output;
use crate::{Bed, PeerPlace, PeerTensors, Result, Subject, Trouble};

/// The tensors of a problem in device memory, each between guards that no kernel may write.
#[derive(Debug)]
pub struct TensorSet {
    problem: Problem,
    /// Q, K, V, then their scales, where the problem has scales.
    inputs: Vec<Guarded>,
    sinks: Option<Guarded>,
    alibi_slopes: Option<Guarded>,
    lengths: Lengths<Guarded>,
    out: Guarded,
    lse: Option<Guarded>,
    /// dO, dQ, dK and dV of a backward problem, which reads O and the log-sum-exp.
    gradients: Option<[Guarded; 4]>,
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
        let gradients = problem.gradient_layouts().map(|layouts| {
            let gradient = |name, layout: &Layout| guarded(name, bytes(layout, dtype));
            let dout = gradient("dout", &layouts.dout)?;
            let [dq, dk, dv] = [("dq", &layouts.dq), ("dk", &layouts.dk), ("dv", &layouts.dv)];
            let [dq, dk, dv] = [dq, dk, dv].map(|(name, layout)| gradient(name, layout));
            Ok::<_, CudaError>([dout, dq?, dk?, dv?])
        });
        let head_values = |name, count: usize, size: usize| match count {
            0 => Ok(None),
            count => guarded(name, count * size).map(Some),
        };
        let sink_bytes = problem.sinks().map_or(0, DType::size_bytes);
        Ok(TensorSet {
            problem: problem.clone(),
            inputs,
            sinks: head_values("sinks", problem.num_sinks(), sink_bytes)?,
            alibi_slopes: head_values("alibi_slopes", problem.num_alibi_slopes(), size_of::<f32>())?,
            lengths: problem
                .length_entries()
                .try_map(|entries| guarded("lengths", 4 * entries))?,
            out: guarded("out", bytes(problem.o_layout(), problem.out_dtype()))?,
            lse: lse.map(|bytes| guarded("lse", bytes)).transpose()?,
            gradients: gradients.transpose()?,
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
        tensors.sinks = self.sinks.as_ref().map(Guarded::as_slice);
        tensors.alibi_slopes = self.alibi_slopes.as_ref().map(Guarded::as_slice);
        tensors.lengths = self.lengths.map(Guarded::as_slice);
        tensors.workspace = Some(self.workspace.as_slice());
        tensors.gradients = self.gradients.as_ref().map(|gradients| {
            let [dout, dq, dk, dv] = gradients.each_ref().map(Guarded::as_slice);
            DeviceGradients { dout, dq, dk, dv }
        });
        tensors
    }

    /// What kernels write besides the log-sum-exp, in the order of [`Problem::outputs`].
    pub fn outputs(&self) -> Vec<DeviceSlice<'_>> {
        match &self.gradients {
            None => vec![self.out.as_slice()],
            Some([_, outputs @ ..]) => outputs.iter().map(Guarded::as_slice).collect(),
        }
    }

    /// The log-sum-exp where kernels write it.
    fn written_lse(&self) -> Option<&Guarded> {
        self.lse.as_ref().filter(|_| self.gradients.is_none())
    }

    /// Fills what kernels write with poison, in the stream.
    pub fn poison(&self, stream: &Stream) -> Result<(), CudaError> {
        let lse = self.written_lse().map(Guarded::as_slice);
        let mut outputs = self.outputs().into_iter().chain(lse);
        outputs.try_for_each(|output| output.fill(stream, POISON))
    }

    /// The log-sum-exp, after the work in the stream; `None` where kernels write none.
    pub fn read_lse(&self, stream: &Stream) -> Result<Option<Vec<f32>>, CudaError> {
        let Some(lse) = self.written_lse() else { return Ok(None) };
        let mut values = vec![0.0f32; lse.as_slice().len() / size_of::<f32>()];
        let bytes = bytemuck::cast_slice_mut(&mut values);
        lse.as_slice().copy_to_host(stream, bytes)?;
        Ok(Some(values))
    }

    /// Copies inputs from the host. O and the log-sum-exp of a backward problem come from [`ForwardPass::run`].
    pub fn upload(&self, stream: &Stream, inputs: &Inputs) -> Result<(), CudaError> {
        let tensors = [&inputs.q, &inputs.k, &inputs.v];
        let scales = tensors.into_iter().filter_map(Tensor::scales).map(bytemuck::cast_slice);
        let from = tensors.into_iter().map(Tensor::bytes).chain(scales);
        let mut pairs = self.inputs.iter().zip(from);
        pairs.try_for_each(|(to, from)| to.as_slice().copy_from_host(stream, from))?;
        if let (Some([dout, ..]), Some(saved)) = (&self.gradients, &inputs.saved) {
            dout.as_slice().copy_from_host(stream, saved.dout.bytes())?;
        }
        let q = inputs.q.view();
        if let Some(sinks) = &self.sinks {
            sinks.as_slice().copy_from_host(stream, &self.problem.sink_bytes(&q))?;
        }
        if let (Some(to), Some(slopes)) = (&self.alibi_slopes, q.alibi_slopes()) {
            to.as_slice().copy_from_host(stream, bytemuck::cast_slice(slopes))?;
        }
        let lengths = self.lengths.arrays().into_iter().zip(inputs.lengths.arrays());
        let mut pairs = lengths.filter_map(|(to, from)| to.zip(from));
        pairs.try_for_each(|(to, from)| to.as_slice().copy_from_host(stream, bytemuck::cast_slice(from)))
    }
}

/// The forward pass of a backward problem, by the kernel that the library chooses: it gives O and the log-sum-exp.
#[derive(Debug)]
pub struct ForwardPass {
    attention: Attention,
    problem: Problem,
    workspace: DeviceBuffer,
}

impl ForwardPass {
    /// Compiles the kernel; `None` for a forward problem.
    ///
    /// # Errors
    /// No kernel serves the forward pass, plan tables that cannot be read, or what the driver says.
    pub fn new(stream: &Stream, problem: &Problem) -> Result<Option<ForwardPass>> {
        if problem.direction() == Direction::Forward {
            return Ok(None);
        }
        let (attention, problem) = (
            Attention::new(Device::Cuda(stream.context().clone()))?,
            problem.forward(),
        );
        // Allocations begin at multiples of 256 bytes.
        let bytes = attention.workspace_bytes(&problem, 16)?;
        let workspace = DeviceBuffer::new(stream.context(), usize::try_from(bytes).unwrap_or(usize::MAX))?;
        Ok(Some(ForwardPass {
            attention,
            problem,
            workspace,
        }))
    }

    /// Computes O and the log-sum-exp of these tensors, in the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(&self, stream: &Stream, tensors: &DeviceTensors<'_>) -> Result<(), flashcore::Error> {
        let mut tensors = *tensors;
        (tensors.workspace, tensors.gradients) = (Some(self.workspace.as_slice()), None);
        // SAFETY: beds outlive the wait for their stream, and a workspace is of one.
        #[allow(unsafe_code)]
        unsafe {
            self.attention.run_foreign(stream, &self.problem, &tensors, |_| None)
        }
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
    /// Of each output.
    snapshot: Vec<DeviceBuffer>,
    forward: Option<ForwardPass>,
    /// Outputs that are shown are copied here: allocating that much takes longer than the copy.
    shown: RefCell<Vec<Tensor>>,
    /// For each plan with a schedule a workspace of each place, in which it is kept.
    schedules: Vec<Option<[DeviceBuffer; 2]>>,
    /// Copies of K and V of place 0 that runs there take turns with.
    copies: Vec<[DeviceBuffer; 2]>,
}

impl<'g> GpuBed<'g> {
    /// Allocates the tensors; their values are not set.
    pub fn new(stream: &'g Stream, tools: &'g GpuTools, problem: &Problem, workspace_bytes: u64) -> Result<GpuBed<'g>> {
        let place = || TensorSet::new(stream, problem, workspace_bytes);
        let places = [place()?, place()?];
        let outputs = places[0].outputs().into_iter();
        let copies = outputs.map(|output| DeviceBuffer::new(stream.context(), output.len()));
        Ok(GpuBed {
            stream,
            tools,
            problem: problem.clone(),
            snapshot: copies.collect::<Result<_, CudaError>>()?,
            forward: ForwardPass::new(stream, problem)?,
            places,
            shown: RefCell::default(),
            schedules: Vec::new(),
            copies: Vec::new(),
        })
    }

    /// The same for plans, whose schedules can be [kept](Bed::kept). Runs at place 0 can take turns with so many
    /// [`caches`](crate::Options::caches).
    pub fn for_plans(
        stream: &'g Stream,
        tools: &'g GpuTools,
        problem: &Problem,
        plans: &[&Plan],
        caches: u32,
    ) -> Result<GpuBed<'g>> {
        let workspace = plans.iter().map(|plan| plan.workspace_bytes()).max().unwrap_or(0);
        let schedule = |plan: &&Plan| {
            let bytes = usize::try_from(plan.workspace_bytes()).unwrap_or(usize::MAX);
            let buffer = || DeviceBuffer::new(stream.context(), bytes);
            match plan.schedule_steps() {
                0 => Ok(None),
                _ => Ok(Some([buffer()?, buffer()?])),
            }
        };
        let bed = GpuBed::new(stream, tools, problem, workspace)?;
        let bytes = [bed.tensors(0).k.len(), bed.tensors(0).v.len()];
        let copy = |_| {
            let [k, v] = bytes.map(|bytes| DeviceBuffer::new(stream.context(), bytes));
            Ok([k?, v?])
        };
        Ok(GpuBed {
            copies: (1..caches).map(copy).collect::<Result<_, CudaError>>()?,
            schedules: plans.iter().map(schedule).collect::<Result<_, CudaError>>()?,
            ..bed
        })
    }

    /// The tensors of a place.
    pub fn tensors(&self, place: usize) -> DeviceTensors<'_> {
        self.places[place % 2].tensors()
    }

    /// These tensors of a place, and where it has copies of K and V, the same with each.
    pub(crate) fn in_turn<'b>(&'b self, place: usize, tensors: DeviceTensors<'b>) -> Vec<DeviceTensors<'b>> {
        let copies = self.copies.iter().filter(|_| place == 0).map(|[k, v]| {
            let mut copy = tensors;
            (copy.k, copy.v) = (k.as_slice(), v.as_slice());
            copy
        });
        std::iter::once(tensors).chain(copies).collect()
    }

    /// The outputs of a place.
    pub(crate) fn outputs(&self, place: usize) -> Vec<DeviceSlice<'_>> {
        self.places[place % 2].outputs()
    }
}

impl Bed for GpuBed<'_> {
    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn load(&self, place: usize, inputs: &Inputs) -> Result<(), Trouble> {
        self.places[place % 2].upload(self.stream, inputs)?;
        let tensors = self.tensors(place);
        for copy in self.in_turn(place, tensors).iter().skip(1) {
            copy.k.copy_from(self.stream, tensors.k)?;
            copy.v.copy_from(self.stream, tensors.v)?;
        }
        match &self.forward {
            Some(forward) => Ok(forward.run(self.stream, &self.tensors(place))?),
            None => Ok(()),
        }
    }

    fn poison(&self, place: usize) -> Result<(), Trouble> {
        Ok(self.places[place % 2].poison(self.stream)?)
    }

    fn pause(&self) -> Result<(), Trouble> {
        Ok(self.tools.spin(self.stream, PAUSE_US)?)
    }

    fn snapshot(&self, place: usize) -> Result<(), Trouble> {
        let outputs = self.places[place % 2].outputs().into_iter();
        let mut pairs = self.snapshot.iter().zip(outputs);
        Ok(pairs.try_for_each(|(snapshot, output)| snapshot.as_slice().copy_from(self.stream, output))?)
    }

    fn finish(&self) -> Result<(), Trouble> {
        Ok(self.stream.context().synchronize()?)
    }

    fn see(&self, place: usize, what: Output, look: &mut dyn FnMut(&[Tensor])) -> Result<(), Trouble> {
        let mut shown = self.shown.borrow_mut();
        if shown.is_empty() {
            let outputs = self.problem.outputs().into_iter();
            shown.extend(outputs.map(|(_, dtype, layout)| Tensor::poisoned(dtype, layout)));
        }
        let from = match what {
            Output::Final => self.places[place % 2].outputs(),
            Output::Snapshot => self.snapshot.iter().map(DeviceBuffer::as_slice).collect(),
        };
        for (from, to) in from.into_iter().zip(shown.iter_mut()) {
            from.copy_to_host(self.stream, to.bytes_mut())?;
        }
        look(&shown);
        Ok(())
    }

    fn read_lse(&self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        Ok(self.places[place % 2].read_lse(self.stream)?)
    }

    fn outside(&self) -> Result<Option<String>, Trouble> {
        for place in &self.places {
            let lengths = place.lengths.arrays().into_iter().flatten();
            let read = place.inputs.iter().chain(lengths);
            let written = [&place.out, &place.workspace].into_iter().chain(&place.lse);
            for buffer in read.chain(written).chain(place.gradients.iter().flatten()) {
                if let Some(outside) = buffer.outside(self.stream)? {
                    return Ok(Some(outside));
                }
            }
        }
        Ok(None)
    }

    fn kept<'b>(
        &'b self,
        index: usize,
        plan: &Plan,
        launching: Launching,
    ) -> Result<Option<[Box<dyn Subject + 'b>; 2]>> {
        let Some(Some(workspaces)) = self.schedules.get(index) else {
            return Ok(None);
        };
        let bound = |place: usize| {
            let mut tensors = self.tensors(place);
            tensors.workspace = Some(workspaces[place].as_slice());
            KernelSubject::kept(self.stream, plan, &self.in_turn(place, tensors), launching)
        };
        let [subject, elsewhere] = [bound(0)?, bound(1)?];
        Ok(Some([Box::new(subject), Box::new(elsewhere)]))
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
        let is_backward = tensors.gradients.is_some();
        let address = |name: &str| {
            let slice = tensors.named(name).filter(|_| is_backward || name != "lse")?;
            Some((slice.address(), slice.len()))
        };
        let place = PeerPlace::Cuda {
            ordinal: self.stream.context().info().ordinal,
            stream: self.stream.as_raw(),
        };
        PeerTensors::new(place, &self.problem, &address)
    }
}
