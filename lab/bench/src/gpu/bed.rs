//! Tensors of a problem in device memory.

use std::cell::RefCell;

use flashcore::{Attention, Device, Prepared};
use flashcore_check::own::Declared;
use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};
use flashcore_kernels::Plan;
use flashcore_problem::{Direction, Inputs, Name, POISON, Problem, Task, Tensor, TensorSpec};

use super::buffers::Buffers;
use super::guarded::Guarded;
use super::subject::{KernelSubject, Launching};
use super::tools::GpuTools;
use crate::bed::poisoned_outputs;
use crate::defences::Output;
use crate::{Bed, PeerPlace, PeerTensors, Result, Subject, Trouble};

/// The tensors of a problem in device memory, each between guards that no kernel may write.
#[derive(Debug)]
pub struct TensorSet {
    problem: Problem,
    /// In the order of [`Task::tensors`].
    tensors: Vec<(TensorSpec, Guarded)>,
    workspace: Guarded,
}

impl TensorSet {
    /// Allocates tensors; their values are not set.
    pub fn new(stream: &Stream, problem: &Problem, workspace_bytes: u64) -> Result<TensorSet> {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let guarded = |spec: TensorSpec| {
            let guarded = Guarded::new(stream, spec.name.as_str(), bytes(spec.bytes()))?;
            Ok::<_, CudaError>((spec, guarded))
        };
        Ok(TensorSet {
            problem: problem.clone(),
            tensors: problem.tensors().into_iter().map(guarded).collect::<Result<_, _>>()?,
            workspace: Guarded::new(stream, "workspace", bytes(workspace_bytes))?,
        })
    }

    /// The tensors, as kernels take them, and the workspace.
    pub fn tensors(&self) -> Buffers<'_> {
        let tensors = self.tensors.iter();
        let named = tensors.fold(Buffers::default(), |buffers, (spec, guarded)| {
            buffers.with(spec.name.as_str(), guarded.as_slice())
        });
        named.with("workspace", self.workspace.as_slice())
    }

    /// What kernels write besides the log-sum-exp, in the order of [`Problem::outputs`].
    pub fn outputs(&self) -> Vec<DeviceSlice<'_>> {
        let outputs = self
            .tensors
            .iter()
            .filter(|(spec, _)| spec.is_written() && spec.name != Name::Lse);
        outputs.map(|(_, guarded)| guarded.as_slice()).collect()
    }

    /// The log-sum-exp where kernels write it.
    fn written_lse(&self) -> Option<&Guarded> {
        let lse = self
            .tensors
            .iter()
            .find(|(spec, _)| spec.is_written() && spec.name == Name::Lse);
        lse.map(|(_, guarded)| guarded)
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
    pub fn upload(&self, stream: &Stream, inputs: &Inputs) -> Result<(), flashcore::Error> {
        let carried = inputs.carried(&self.problem)?;
        let operands = carried.operands();
        for (spec, guarded) in &self.tensors {
            let given = operands
                .get(spec.name)
                .filter(|_| !matches!(spec.name, Name::Out | Name::Lse));
            if let Some(from) = given {
                guarded.as_slice().copy_from_host(stream, from.memory())?;
            }
        }
        Ok(())
    }
}

/// The forward pass of a backward problem, by the kernel that the library chooses: it gives O and the log-sum-exp.
#[derive(Debug)]
pub struct ForwardPass {
    attention: Attention,
    prepared: Prepared,
    workspace: RefCell<Option<DeviceBuffer>>,
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
        let attention = Attention::new(Device::Cuda(stream.context().clone()))?;
        let prepared = attention.prepare(&problem.forward())?;
        Ok(Some(ForwardPass {
            attention,
            prepared,
            workspace: RefCell::default(),
        }))
    }

    /// Computes O and the log-sum-exp of these tensors, in the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn run(&self, stream: &Stream, tensors: &Buffers<'_>) -> Result<(), flashcore::Error> {
        let mut workspace = self.workspace.borrow_mut();
        let allocate = |bytes: usize| {
            let kept = workspace.take().filter(|kept| kept.len() >= bytes);
            let kept = kept.or_else(|| DeviceBuffer::new(stream.context(), bytes).ok())?;
            Some(workspace.insert(kept).as_slice().address())
        };
        // SAFETY: beds outlive the wait for their stream, and a workspace is of one.
        #[allow(unsafe_code)]
        unsafe {
            let operands = tensors.operands(&self.prepared);
            self.attention.run_foreign(stream, &self.prepared, operands, allocate)
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
        let bytes = [Name::K, Name::V].map(|name| problem.tensor(name).map_or(0, |spec| spec.bytes() as usize));
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
    pub fn tensors(&self, place: usize) -> Buffers<'_> {
        self.places[place % 2].tensors()
    }

    /// These tensors of a place, and where it has copies of K and V, the same with each.
    pub(crate) fn in_turn<'b>(&'b self, place: usize, tensors: Buffers<'b>) -> Vec<Buffers<'b>> {
        let copies = self.copies.iter().filter(|_| place == 0);
        let copies = copies.map(|[k, v]| tensors.clone().with("k", k.as_slice()).with("v", v.as_slice()));
        std::iter::once(tensors.clone()).chain(copies).collect()
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
        for [k, v] in self.copies.iter().filter(|_| place == 0) {
            for (to, name) in [(k, "k"), (v, "v")] {
                to.as_slice().copy_from(self.stream, tensors.get(name, 0)?)?;
            }
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
            shown.extend(poisoned_outputs(&self.problem));
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
            let tensors = place.tensors.iter().map(|(_, guarded)| guarded);
            for buffer in tensors.chain([&place.workspace]) {
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
            let tensors = self.tensors(place).with("workspace", workspaces[place].as_slice());
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
        let is_backward = self.problem.direction() == Direction::Backward;
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
