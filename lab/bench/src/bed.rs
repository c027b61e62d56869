//! Tensors of a problem on a device, and candidates bound to them.

use std::collections::BTreeMap;

use flashcore_check::check_host_memory;
use flashcore_check::own::Declared;
use flashcore_kernels::Plan;
use flashcore_problem::{Host, InputKind, Inputs, Lengths, Name, Operands, Problem, Tensor};

use crate::defences::{AFTERWARDS_SEED, INSPECTION_SEEDS, Inspect, Inspection, Output, Rig, Rows, Run, Seen};
use crate::gpu::Launching;
use crate::{
    BenchError, Case, Expected, ExpectedOutputs, Measurement, Mode, Observer, Options, PeerTensors, Result, Stopwatch,
    Subject, Telemetry, Trouble, draw, draw_with, measure,
};

/// Two sets of tensors of a problem ("places"), and the queue that work on them goes into. Candidates are timed at
/// place 0; place 1 has the same tensors at other addresses.
pub trait Bed {
    /// The problem.
    fn problem(&self) -> &Problem;

    /// Copies inputs into a place, over what was there, in the queue. For a backward problem it then computes O and the
    /// log-sum-exp there, by the kernel that the library would choose.
    fn load(&self, place: usize, inputs: &Inputs) -> Result<(), Trouble>;

    /// Fills what candidates write at a place with poison, in the queue.
    fn poison(&self, place: usize) -> Result<(), Trouble>;

    /// Puts a pause of a few milliseconds into the queue. Here and below, a host does nothing: it has no queue.
    fn pause(&self) -> Result<(), Trouble> {
        Ok(())
    }

    /// Copies the outputs of a place aside, in the queue.
    fn snapshot(&self, place: usize) -> Result<(), Trouble>;

    /// Waits until the whole device, not only the queue, is idle.
    fn finish(&self) -> Result<(), Trouble> {
        Ok(())
    }

    /// Shows the outputs of a place, in the order of [`Problem::outputs`], or the last snapshot. The host's tensors are
    /// shown without a copy.
    ///
    /// # Errors
    /// A device error, or a snapshot that was never taken.
    fn see(&self, place: usize, what: Output, look: &mut dyn FnMut(&[Tensor])) -> Result<(), Trouble>;

    /// The log-sum-exp of a place; `None` where candidates write none.
    fn read_lse(&self, place: usize) -> Result<Option<Vec<f32>>, Trouble>;

    /// What was written outside the tensors, in a sentence. On the host, bounds checks end the process instead.
    fn outside(&self) -> Result<Option<String>, Trouble> {
        Ok(None)
    }

    /// The tensors of place 0, for peers.
    fn peer_tensors(&self) -> PeerTensors;

    /// The kernels of plan `index` of those that the bed was made for, but those that make its schedule, bound to both
    /// places. Each place has a workspace in which the schedule of the lengths is made now, and kept. `None` where the
    /// plan has no schedule.
    ///
    /// # Errors
    /// What the driver says.
    fn kept<'b>(
        &'b self,
        index: usize,
        plan: &Plan,
        launching: Launching,
    ) -> Result<Option<[Box<dyn Subject + 'b>; 2]>> {
        let (_, _, _) = (index, plan, launching);
        Ok(None)
    }

    /// A user's PTX kernel bound to both places.
    ///
    /// # Errors
    /// A problem that it does not serve, or why it cannot be loaded or launched.
    fn declared<'b>(&'b self, declared: &Declared, launching: Launching) -> Result<[Box<dyn Subject + 'b>; 2]> {
        let (_, label) = (launching, &declared.label);
        Err(BenchError::Nothing(format!(
            "{label} runs on a GPU; ask for a CUDA device"
        )))
    }
}

/// Tensors for what a problem writes besides the log-sum-exp, as poison, in the order of [`Problem::outputs`].
pub fn poisoned_outputs(problem: &Problem) -> Vec<Tensor> {
    let outputs = problem.outputs().into_iter();
    outputs
        .map(|(_, dtype, layout)| Tensor::poisoned(dtype, layout))
        .collect()
}

/// The operands of a call on the host with what it writes: outputs in the order of [`Problem::outputs`], and the
/// log-sum-exp where the problem writes one.
pub(crate) fn with_outputs<'a>(
    mut operands: Operands<'a, Host>,
    problem: &Problem,
    outs: &'a mut [Tensor],
    lse: &'a mut [f32],
) -> Operands<'a, Host> {
    if problem.writes_lse() {
        operands = operands.with_mut(Name::Lse, lse);
    }
    let named = problem.outputs().into_iter().zip(outs);
    let named = named.filter_map(|((word, ..), out)| Some((Name::from_word(word)?, out)));
    named.fold(operands, |operands, (name, out)| operands.with_mut(name, out))
}

/// Inputs for the seeds that inspections ask for, and the right expected. Where the problem has lengths, all have the
/// same.
#[derive(Debug, Default)]
pub struct Drawn {
    lengths: Option<Lengths<Vec<i32>>>,
    rows: Rows,
    inputs: BTreeMap<u64, Inputs>,
    expected: ExpectedOutputs,
}

impl Drawn {
    /// Draws the inputs and computes the expected in float64.
    pub fn new(case: &Case) -> Result<Drawn> {
        let mut drawn = Drawn::uninspected(case)?;
        // All inputs at once, and one output.
        let held = INSPECTION_SEEDS.len() as u64 + 1;
        check_host_memory(&case.problem, held, 1, 0)?;
        for seed in INSPECTION_SEEDS.into_iter().chain([AFTERWARDS_SEED]) {
            let inputs = drawn.draw(&case.problem, seed)?;
            drawn.expected.add(&case.problem, seed, &inputs)?;
            drawn.inputs.insert(seed, inputs);
        }
        Ok(drawn)
    }

    /// Lengths alone, for candidates that are not inspected.
    pub fn uninspected(case: &Case) -> Result<Drawn> {
        let lengths = case.problem.has_lengths().then(|| case.lengths()).transpose()?;
        let rows = match &lengths {
            Some(lengths) => Rows::of(&case.problem, &lengths.as_slices())?,
            None => Rows::All,
        };
        Ok(Drawn {
            lengths,
            rows,
            ..Drawn::default()
        })
    }

    fn draw(&self, problem: &Problem, seed: u64) -> Result<Inputs> {
        match &self.lengths {
            Some(lengths) => draw_with(problem, lengths, seed),
            None => Ok(draw(problem, InputKind::Normal, seed)),
        }
    }

    /// Loads standard normal inputs into both places: those that are drawn, if they are.
    pub(crate) fn load_into(&self, bed: &dyn Bed) -> Result<(), Trouble> {
        let mut places = INSPECTION_SEEDS.into_iter().take(2).enumerate();
        places.try_for_each(|(place, seed)| match self.inputs.get(&seed) {
            Some(inputs) => bed.load(place, inputs),
            None => {
                let drawn = self.draw(bed.problem(), seed);
                bed.load(place, &drawn.map_err(|error| Trouble::new(error.to_string()))?)
            }
        })
    }
}

/// Candidates bound to one bed, and the clock that times them.
pub struct Workbench<'a> {
    /// The tensors.
    pub bed: &'a dyn Bed,
    /// The candidates, bound to place 0.
    pub subjects: Vec<Box<dyn Subject + 'a>>,
    /// The same candidates bound to place 1, where they can be: functions of other libraries cannot.
    pub elsewhere: Vec<Option<Box<dyn Subject + 'a>>>,
    /// The clock.
    pub stopwatch: Box<dyn Stopwatch + 'a>,
}

impl<'a> Workbench<'a> {
    /// A workbench without candidates.
    pub fn new(bed: &'a dyn Bed, stopwatch: impl Stopwatch + 'a) -> Workbench<'a> {
        Workbench {
            bed,
            subjects: Vec::new(),
            elsewhere: Vec::new(),
            stopwatch: Box::new(stopwatch),
        }
    }

    /// Adds a candidate.
    pub fn add(&mut self, subject: Box<dyn Subject + 'a>, elsewhere: Option<Box<dyn Subject + 'a>>) {
        self.subjects.push(subject);
        self.elsewhere.push(elsewhere);
    }

    /// Adds a candidate ahead of those from this place on.
    pub fn insert(&mut self, at: usize, [subject, elsewhere]: [Box<dyn Subject + 'a>; 2]) {
        self.subjects.insert(at, subject);
        self.elsewhere.insert(at, Some(elsewhere));
    }

    /// Removes the candidates for whose place `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        for index in (0..self.subjects.len()).rev().filter(|&index| !keep(index)) {
            self.subjects.remove(index);
            self.elsewhere.remove(index);
        }
    }

    /// Runs a candidate as `run` says; `inputs` are loaded first. `false` if it cannot be bound to that place.
    pub fn run(&mut self, candidate: usize, run: &Run, inputs: Option<&Inputs>) -> Result<bool, Trouble> {
        let count = self.subjects.len();
        let Some(subject) = self.subjects.get_mut(candidate) else {
            return Err(Trouble::new(format!("kernel {candidate} of {count} that are open")));
        };
        if let Some(inputs) = inputs {
            self.bed.load(run.place, inputs)?;
            if run.place == 0 {
                subject.inputs_changed()?;
            }
        }
        if run.pause {
            self.bed.pause()?;
        }
        if run.poison {
            self.bed.poison(0)?;
            self.bed.poison(1)?;
        }
        if run.poison && !run.pause {
            self.bed.finish()?;
        }
        match (run.place, &mut self.elsewhere[candidate]) {
            (0, _) => subject.call()?,
            (_, Some(subject)) => subject.call()?,
            (_, None) => return Ok(false),
        }
        self.bed.snapshot(run.place)?;
        self.bed.finish()?;
        Ok(true)
    }

    /// Inspects a candidate.
    pub fn inspect(&mut self, candidate: usize, drawn: &Drawn, how: Inspect) -> Result<Inspection, Trouble> {
        how(&mut LocalRig {
            bench: self,
            candidate,
            drawn,
        })
    }

    /// Times the candidates against each other.
    pub fn time(
        &mut self,
        options: &Options,
        mode: Mode,
        baseline: usize,
        telemetry: Option<&Telemetry>,
        observer: &mut dyn Observer,
    ) -> Result<Measurement> {
        let (subjects, stopwatch) = (&mut self.subjects, &mut *self.stopwatch);
        measure(options, mode, subjects, baseline, stopwatch, telemetry, observer)
    }
}

struct LocalRig<'r, 'a> {
    bench: &'r mut Workbench<'a>,
    candidate: usize,
    drawn: &'r Drawn,
}

impl Rig for LocalRig<'_, '_> {
    fn problem(&self) -> &Problem {
        self.bench.bed.problem()
    }

    fn expected(&self, seed: u64) -> &Expected {
        self.drawn.expected.of(seed)
    }

    fn rows(&self) -> Option<&Rows> {
        Some(&self.drawn.rows)
    }

    fn run(&mut self, run: &Run) -> Result<bool, Trouble> {
        let inputs = run.load.and_then(|seed| self.drawn.inputs.get(&seed));
        self.bench.run(self.candidate, run, inputs)
    }

    fn look(&mut self, place: usize, what: Output, seed: u64) -> Result<Seen, Trouble> {
        let expected = self.drawn.expected.of(seed);
        let problem = self.bench.bed.problem();
        if place == 0
            && let Some(own) = self.bench.subjects[self.candidate].own_output()?
        {
            // What another library leaves in rows of its own that are of no sequence is its own affair.
            let seen = Seen::of(problem, expected, &self.drawn.rows, &own)?;
            return Ok(Seen { beyond: 0, ..seen });
        }
        let mut seen = Err(Trouble::new("the output was not shown"));
        let rows = &self.drawn.rows;
        let bed = self.bench.bed;
        bed.see(place, what, &mut |outs| seen = Seen::of(problem, expected, rows, outs))?;
        seen
    }

    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        if self.bench.subjects[self.candidate].writes_lse() {
            self.bench.bed.read_lse(place)
        } else {
            Ok(None)
        }
    }

    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        self.bench.bed.outside()
    }
}
