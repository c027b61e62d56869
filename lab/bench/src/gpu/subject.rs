//! A plan as a subject: its kernels, loaded and checked against the plan, in graphs or launched one by one.

use flashcore_check::own::{Declared, OwnError};
use flashcore_cuda::{
    CudaError, DeviceSlice, Function, FunctionAttributes, Graph, ModuleOptions, PreparedLaunch, Stream,
};
use flashcore_ir::{BufferSpec, Launch};
use flashcore_kernels::{Plan, Step};
use flashcore_problem::Problem;

use super::buffers::Buffers;
use super::launch;
use super::tools::timed_us;
use crate::{Attributes, BenchError, LaunchMode, Result, Subject, SubjectInfo, Trouble};

/// Length that a graph's chain should have, µs: launching a graph then costs next to nothing a run.
const CHAIN_US: f64 = 200.0;
/// Most runs of a chain, unless there are more sets of tensors.
const MAX_CHAIN: u32 = 64;
/// A first run this long is estimate enough, µs; a shorter one may have waited for its code to be loaded.
const LONG_US: f64 = 10_000.0;
/// Runs that a first estimate is made of.
const ESTIMATE_RUNS: u32 = 3;

/// A plan's kernels bound to tensors in device memory.
#[derive(Debug)]
pub struct KernelSubject<'a> {
    info: SubjectInfo,
    stream: &'a Stream,
    runs: Vec<PreparedPlan<'a>>,
    graph: Option<Graph>,
    writes_lse: bool,
}

/// All steps of a plan, ready to be enqueued.
#[derive(Clone, Debug)]
pub struct PreparedPlan<'a> {
    steps: Vec<PreparedLaunch<'a>>,
}

impl<'a> PreparedPlan<'a> {
    /// Binds kernels and their launches to tensors.
    pub fn of<'l>(launches: impl Iterator<Item = (&'l Launch, &'l Function)>, tensors: &Buffers<'a>) -> Result<Self> {
        let mut steps = Vec::new();
        for (step, function) in launches {
            steps.push(launch::prepare(function, step, &bind(step, tensors)?)?);
        }
        Ok(PreparedPlan { steps })
    }

    /// Enqueues all steps, in order.
    pub fn enqueue(&self, stream: &Stream) -> Result<(), CudaError> {
        launch::enqueue_all(&self.steps, stream)
    }
}

/// How to launch a kernel that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launching {
    /// In graphs: chains of as many runs as make up some hundred microseconds, and as many on each set of tensors.
    Graph,
    /// In graphs of this many runs.
    GraphOf(u32),
    /// One by one.
    Plain,
}

impl<'a> KernelSubject<'a> {
    /// Loads the plan's kernels and binds them to sets of tensors. The runs of a graph take turns with `in_turn`, the
    /// last of them on the first set; single runs also with `others`.
    ///
    /// # Errors
    /// No tensors to take turns with, what the driver says, and [`BenchError::Attributes`] if what was loaded is not
    /// what the plan says.
    pub fn new(
        stream: &'a Stream,
        plan: &Plan,
        in_turn: &[Buffers<'a>],
        others: &[Buffers<'a>],
        launching: Launching,
    ) -> Result<KernelSubject<'a>> {
        let options = ModuleOptions::default();
        let (kernels, main) = (KernelSubject::load(stream, plan, &options)?, plan.before.len());
        let subject = KernelSubject::bound(stream, &kernels, main, [in_turn, others], launching, &options)?;
        Ok(subject.of_plan(plan, ""))
    }

    /// The same without the kernels that make a schedule of lengths: it is made once, now, in the workspace that all
    /// sets have, which nothing else uses.
    ///
    /// # Errors
    /// As [`KernelSubject::new`].
    pub fn kept(
        stream: &'a Stream,
        plan: &Plan,
        in_turn: &[Buffers<'a>],
        launching: Launching,
    ) -> Result<KernelSubject<'a>> {
        let options = ModuleOptions::default();
        let kernels = KernelSubject::load(stream, plan, &options)?;
        let (schedule, others) = kernels.split_at(plan.schedule_steps());
        let launches = schedule.iter().map(|(launch, function)| (launch, function));
        if let Some(first) = in_turn.first() {
            PreparedPlan::of(launches, first)?.enqueue(stream)?;
        }
        let main = plan.before.len() - schedule.len();
        let subject = KernelSubject::bound(stream, others, main, [in_turn, &[]], launching, &options)?;
        Ok(subject.of_plan(plan, " (schedule kept)"))
    }

    /// The same with line information and launched one by one, for a profiler. Its identity is that of the modules
    /// without.
    ///
    /// # Errors
    /// As [`KernelSubject::new`].
    pub(crate) fn with_lines(stream: &'a Stream, plan: &Plan, sets: &[Buffers<'a>]) -> Result<KernelSubject<'a>> {
        let options = ModuleOptions {
            line_info: true,
            ..ModuleOptions::default()
        };
        let (kernels, main) = (KernelSubject::load(stream, plan, &options)?, plan.before.len());
        let subject = KernelSubject::bound(stream, &kernels, main, [sets, &[]], Launching::Plain, &options)?;
        Ok(subject.of_plan(plan, ""))
    }

    fn load(stream: &Stream, plan: &Plan, options: &ModuleOptions) -> Result<Vec<(Launch, Function)>> {
        let load = |step: &Step| {
            let function = Function::load(stream.context(), &step.kernel, options)?;
            check_attributes(plan, step, function.attributes())?;
            Ok((step.launch.clone(), function))
        };
        plan.steps().map(load).collect()
    }

    fn of_plan(self, plan: &Plan, suffix: &str) -> KernelSubject<'a> {
        let id = plan.config.to_string();
        KernelSubject {
            info: SubjectInfo {
                label: format!("{id}{suffix}"),
                kernel: Some(id),
                ..self.info
            },
            ..self
        }
    }

    /// Loads a user's kernel, which may spill, and binds it to sets of tensors; the first is the one that is timed hot.
    ///
    /// # Errors
    /// A problem that it does not serve; what the driver says.
    pub fn declared(
        stream: &'a Stream,
        declared: &Declared,
        problem: &Problem,
        sets: &[Buffers<'a>],
        launching: Launching,
    ) -> Result<KernelSubject<'a>> {
        let launch = declared.launch(problem).map_err(|error| match error {
            OwnError::NotServed(_) => BenchError::Nothing(error.to_string()),
            error => BenchError::Given(error.to_string()),
        })?;
        let options = ModuleOptions {
            allow_local_memory: true,
            allow_performance_warnings: true,
            ..ModuleOptions::default()
        };
        let module = launch::load(stream.context(), &declared.ptx, &options)?;
        let kernels = [(launch, module.function(&declared.entry)?)];
        let (first, others) = sets.split_at(1.min(sets.len()));
        let subject = KernelSubject::bound(stream, &kernels, 0, [first, others], launching, &options)?;
        Ok(KernelSubject {
            info: SubjectInfo {
                label: declared.label.clone(),
                ..subject.info
            },
            writes_lse: declared.writes_lse(),
            ..subject
        })
    }

    /// Binds loaded kernels, of which `main` is the one to be described; the label is left to the caller.
    fn bound(
        stream: &'a Stream,
        kernels: &[(Launch, Function)],
        main: usize,
        [in_turn, others]: [&[Buffers<'a>]; 2],
        launching: Launching,
        options: &ModuleOptions,
    ) -> Result<KernelSubject<'a>> {
        let launches = || kernels.iter().map(|(launch, function)| (launch, function));
        let runs = in_turn
            .iter()
            .chain(others)
            .map(|set| PreparedPlan::of(launches(), set));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        let (Some(first), false) = (runs.first(), in_turn.is_empty()) else {
            return Err(BenchError::Nothing(
                "a kernel was given no tensors to be timed on".to_string(),
            ));
        };
        let chain = match launching {
            Launching::Plain => None,
            Launching::GraphOf(chain) => Some(chain.max(1)),
            Launching::Graph => Some(chain_of(estimate_us(stream, first)?, in_turn.len() as u32)),
        };
        let capture = |chain: u32| {
            Graph::capture(stream, |stream| {
                sets_of(chain, in_turn.len()).try_for_each(|set| runs[set].enqueue(stream))
            })
        };
        let graph = chain.map(capture).transpose()?;
        if let Some(graph) = &graph {
            graph.upload(stream)?;
        }
        let launch = chain.map_or(LaunchMode::Plain, LaunchMode::Graph);
        let functions: Vec<Function> = kernels.iter().map(|(_, function)| function.clone()).collect();
        let launch_of_main = kernels.get(main).map(|(launch, _)| launch);
        let info = described(launch_of_main, &functions, options, launch);
        Ok(KernelSubject {
            info,
            stream,
            runs,
            graph,
            writes_lse: true,
        })
    }

    /// Gives it another name in tables, as for a kernel measured against itself.
    pub fn labelled(mut self, label: impl Into<String>) -> KernelSubject<'a> {
        self.info.label = label.into();
        self
    }
}

/// The identity of loaded kernels, but for their label.
fn described(
    main: Option<&Launch>,
    functions: &[Function],
    options: &ModuleOptions,
    launch: LaunchMode,
) -> SubjectInfo {
    let modules = functions.iter().map(|function| function.module().identity().hex());
    let found = functions.first().map(Function::attributes);
    let attributes = found.zip(main).map(|(found, main)| Attributes {
        registers: found.registers,
        local_bytes: found.local_bytes,
        static_shared_bytes: found.static_shared_bytes,
        dynamic_shared_bytes: main.dynamic_shared_bytes,
        threads: main.threads(),
        blocks: main.blocks(),
        binary_version: found.binary_version,
    });
    SubjectInfo {
        module: Some(modules.collect::<Vec<_>>().join("+")),
        options: format!("{options:?}"),
        attributes,
        ..SubjectInfo::new("", launch)
    }
}

fn bind<'a>(launch: &Launch, tensors: &Buffers<'a>) -> Result<Vec<DeviceSlice<'a>>> {
    let bound = |spec: &BufferSpec| Ok(tensors.get(spec.name, spec.bytes)?);
    launch.buffers.iter().map(bound).collect()
}

/// Runs of a chain that take turns with so many sets of tensors, all of them the same number of times.
fn chain_of(run_us: f64, sets: u32) -> u32 {
    let runs = ((CHAIN_US / run_us).ceil() as u32).clamp(1, MAX_CHAIN);
    runs.next_multiple_of(sets)
}

/// The sets of tensors of a chain's runs. The last run has the first set, whose output is inspected.
fn sets_of(chain: u32, sets: usize) -> impl Iterator<Item = usize> {
    (0..chain).rev().map(move |left| left as usize % sets)
}

fn estimate_us(stream: &Stream, run: &PreparedPlan<'_>) -> Result<f64, CudaError> {
    let time = |runs: u32| {
        let total = timed_us(stream, || (0..runs).try_for_each(|_| run.enqueue(stream)));
        total.map(|us| us / f64::from(runs))
    };
    let first = time(1)?;
    let us = if first >= LONG_US { first } else { time(ESTIMATE_RUNS)? };
    Ok(us.max(0.5))
}

/// Holds what the driver loaded against what the plan says, so that no other kernel is timed in its name.
fn check_attributes(plan: &Plan, step: &Step, found: &FunctionAttributes) -> Result<()> {
    let ledger = step.kernel.ledger();
    let static_bytes = if ledger.is_static { ledger.total_bytes() } else { 0 };
    let threads = step.launch.threads();
    let differs =
        |what: &str, plan: u32, loaded: u32| format!("the plan says {plan} {what}, the loaded function {loaded}");
    let wrong = if found.static_shared_bytes != static_bytes {
        differs("B of static shared memory", static_bytes, found.static_shared_bytes)
    } else if found.local_bytes != 0 {
        differs("B of local memory", 0, found.local_bytes)
    } else if found.max_threads_per_block < threads {
        differs("threads a block", threads, found.max_threads_per_block)
    } else {
        return Ok(());
    };
    Err(BenchError::Attributes(format!("{}: {wrong}", plan.config)))
}

impl Subject for KernelSubject<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn call(&mut self) -> Result<(), Trouble> {
        match &self.graph {
            Some(graph) => Ok(graph.launch(self.stream)?),
            None => Ok(self.runs[0].enqueue(self.stream)?),
        }
    }

    fn run_once(&mut self, set: usize) -> Result<(), Trouble> {
        Ok(self.runs[set % self.runs.len()].enqueue(self.stream)?)
    }

    fn input_sets(&self) -> usize {
        self.runs.len()
    }

    fn writes_lse(&self) -> bool {
        self.writes_lse
    }
}

/// Anything that puts launches into a stream, captured once as a graph and replayed: for floors and planted slowdowns.
pub struct ClosureSubject<'a> {
    info: SubjectInfo,
    stream: &'a Stream,
    graph: Graph,
}

impl<'a> ClosureSubject<'a> {
    /// `work` puts `runs` runs into the stream. What it launches lives as long as the subject.
    pub fn new(
        label: &str,
        stream: &'a Stream,
        runs: u32,
        work: impl FnMut(&Stream) -> Result<(), CudaError> + 'a,
    ) -> Result<ClosureSubject<'a>> {
        Ok(ClosureSubject {
            info: SubjectInfo::new(label, LaunchMode::Graph(runs)),
            stream,
            graph: Graph::capture(stream, work)?,
        })
    }
}

impl Subject for ClosureSubject<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn call(&mut self) -> Result<(), Trouble> {
        Ok(self.graph.launch(self.stream)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_has_every_set_of_tensors_as_often_as_the_others() {
        for (run_us, sets, expected) in [
            (34.0, 1, 6),
            (1.0, 1, 64),
            (500.0, 1, 1),
            (34.0, 8, 8),
            (200.0, 8, 8),
            (20.0, 8, 16),
            (1.0, 5, 65),
            (1.0, 100, 100),
        ] {
            let chain = chain_of(run_us, sets);
            assert_eq!(chain, expected, "{run_us} us, {sets} sets");
            let order: Vec<usize> = sets_of(chain, sets as usize).collect();
            for set in 0..sets as usize {
                let runs = order.iter().filter(|of| **of == set).count();
                assert_eq!(runs, (chain / sets) as usize, "{run_us} us, set {set} of {sets}");
            }
            assert_eq!(order.last(), Some(&0));
        }
    }
}
