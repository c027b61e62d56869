//! Launches that are enqueued again and again, kept as graphs. On the host a graph of two kernels takes a third of the
//! time of two launches, and a graph of one kernel about 2 µs less than a launch.
//!
//! A graph is found by its kernels and by its stream. Arguments, grids and shared memory are set in each call, where
//! they differ from those of the call before, so that new lengths or tensors find the same graph. A graph holds the
//! modules of its kernels; what arguments point to is alive during the call that sets them, and is not read later.

use std::env::var_os;
use std::sync::{Arc, Mutex, Once};

use flashcore_ir::proof::LaunchShape;

use crate::context::{Context, lock};
use crate::error::CudaError;
use crate::graph::{Exec, Template};
use crate::module::LoadedModule;
use crate::plan::{Arguments, PreparedLaunch};
use crate::raw::Handle;
use crate::stream::Stream;
use crate::sys::CUgraphNode_st;

/// Sequences of launches that are kept, with a graph or not yet.
const MOST_KEPT: usize = 32;

/// Calls that launch kernels one by one, before a graph is made. Making one costs about what ten replays of two kernels
/// save, which a few calls would not get back.
const CALLS_BEFORE: u32 = 8;

/// Set to anything, it makes all calls launch kernels one by one.
const PLAIN: &str = "FLASHCORE_PLAIN_LAUNCHES";

/// With it the driver waits for each launch, to tell its fault at once. A graph of several would be one launch.
const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";

/// What a graph fixes of a launch. The address of a function is another's only after its module is unloaded, which a
/// graph prevents.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    function: usize,
    cluster: [u32; 3],
    programmatic: bool,
}

impl Kind {
    fn of(launch: &PreparedLaunch<'_>) -> Kind {
        Kind {
            function: launch.function.loaded().handle.0.addr(),
            cluster: launch.shape.cluster,
            programmatic: launch.shape.programmatic_dependent,
        }
    }
}

/// The sequences of a context.
pub(crate) struct Replays {
    plain: bool,
    recent: Recent<Sequence>,
    /// That the driver refuses graphs is told once: it costs the host time in each call.
    told: Once,
}

impl Replays {
    pub(crate) fn of_environment() -> Replays {
        Replays {
            plain: var_os(PLAIN).is_some() || var_os(BLOCKING).is_some_and(|value| value != "0"),
            recent: Recent::default(),
            told: Once::new(),
        }
    }

    /// Enqueues the launches as a graph: for [`PreparedLaunch::enqueue_all`], whose caller has promised what that asks.
    /// `false`: nothing was enqueued, they are to be launched one by one.
    pub(crate) fn enqueue(&self, launches: &[PreparedLaunch<'_>], stream: &Stream) -> Result<bool, CudaError> {
        if self.plain || !stream.takes_replays()? {
            return Ok(false);
        }
        for launch in launches {
            stream.check_context(launch.function.module().context(), "the kernel")?;
        }
        // A launch of an executable graph waits for the one before, so two streams never share a graph. A stream that
        // has the handle of one that was destroyed may wait for work of that one, as if it followed.
        let sequence = self.recent.get(stream.as_raw(), launches.iter().map(Kind::of));
        let mut sequence = lock(&sequence);
        sequence.calls = sequence.calls.saturating_add(1);
        if sequence.calls <= CALLS_BEFORE {
            return Ok(false);
        }
        match sequence.replay(launches, stream) {
            Ok(()) => Ok(true),
            Err(CudaError::Fault(fault)) => Err(CudaError::Fault(fault)),
            // Launches do the same without memory for a graph, or tell what is wrong with one of them.
            Err(error) => {
                self.told.call_once(|| {
                    eprintln!(
                        "flashcore: kernels of calls are launched one by one, as a graph of them failed: {error}"
                    );
                });
                *sequence = Sequence::default();
                Ok(false)
            }
        }
    }

    /// Graphs that there are.
    pub(crate) fn kept(&self) -> usize {
        self.recent.count(|sequence| sequence.graph.is_some())
    }

    pub(crate) fn clear(&self) {
        let forgotten = std::mem::take(&mut *lock(&self.recent.entries));
        drop(forgotten);
    }
}

/// Values by stream and kinds of launches, from the least to the most recently used. `cuGraph` calls on the same graph
/// must not be made by two threads at a time; the lock of each value sees to that.
struct Recent<T> {
    entries: Mutex<Vec<Entry<T>>>,
}

struct Entry<T> {
    stream: usize,
    kinds: Vec<Kind>,
    value: Arc<Mutex<T>>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent {
            entries: Mutex::default(),
        }
    }
}

impl<T: Default> Recent<T> {
    /// The value, or a new one in place of the one that was used least recently.
    fn get(&self, stream: usize, kinds: impl Iterator<Item = Kind> + Clone) -> Arc<Mutex<T>> {
        let mut entries = lock(&self.entries);
        let is = |entry: &Entry<T>| entry.stream == stream && kinds.clone().eq(entry.kinds.iter().copied());
        if let Some(at) = entries.iter().rposition(is) {
            entries[at..].rotate_left(1);
            return entries[entries.len() - 1].value.clone();
        }
        let forgotten = (entries.len() >= MOST_KEPT).then(|| entries.remove(0));
        let value = Arc::default();
        entries.push(Entry {
            stream,
            kinds: kinds.collect(),
            value: Arc::clone(&value),
        });
        // Destroying a graph takes longer than others should wait.
        drop(entries);
        drop(forgotten);
        value
    }

    fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        let entries = lock(&self.entries);
        entries.iter().filter(|entry| is(&lock(&entry.value))).count()
    }
}

/// Launches that were enqueued together.
#[derive(Default)]
struct Sequence {
    calls: u32,
    graph: Option<ReplayedGraph>,
}

impl Sequence {
    /// Sets the arguments, and launches the graph, which is made if there is none.
    fn replay(&mut self, launches: &[PreparedLaunch<'_>], stream: &Stream) -> Result<(), CudaError> {
        let context = stream.context();
        let graph = match &mut self.graph {
            Some(graph) => {
                graph.set(context, launches)?;
                graph
            }
            none => none.insert(ReplayedGraph::new(context, launches)?),
        };
        context.call(|driver| driver.cuGraphLaunch(graph.exec.handle.0, stream.handle()))?;
        for launch in launches {
            stream.enqueued(&launch.function.loaded().name, launch.function.module().loaded());
        }
        Ok(())
    }
}

/// A kernel of a graph, and what it is launched with.
struct Node {
    handle: Handle<CUgraphNode_st>,
    shape: LaunchShape,
    arguments: Arguments,
}

impl Node {
    fn is_set_to(&self, launch: &PreparedLaunch<'_>) -> bool {
        self.shape == launch.shape && self.arguments == launch.arguments
    }
}

/// A chain of kernels.
struct ReplayedGraph {
    // Before what it was made of.
    exec: Exec,
    /// Nodes are known by those of this graph.
    _template: Template,
    nodes: Vec<Node>,
    _modules: Vec<Arc<LoadedModule>>,
}

impl ReplayedGraph {
    #[allow(unsafe_code)]
    fn new(context: &Context, launches: &[PreparedLaunch<'_>]) -> Result<ReplayedGraph, CudaError> {
        let template = Template::new(context, context.call(|driver| driver.cuGraphCreate(0))?);
        let graph = template.graph.0;
        let mut nodes: Vec<Node> = Vec::with_capacity(launches.len());
        for launch in launches {
            let (function, shape) = (&launch.function, &launch.shape);
            function.opt_in(shape)?;
            let before = nodes.last().map(|node| node.handle.0);
            let handle = function.loaded().handle.0;
            let mut values = launch.arguments.values();
            // SAFETY: each pointer is to the value of its argument, which `Function::prepare` compared with the
            // kernel's parameter. What they point to is set in each call before the graph is launched.
            let node =
                context.call(|driver| unsafe { driver.graph_add_kernel(graph, before, handle, shape, &mut values) })?;
            nodes.push(Node {
                handle: Handle(node),
                shape: *shape,
                arguments: launch.arguments.clone(),
            });
        }
        Ok(ReplayedGraph {
            exec: context.call(|driver| template.instantiate(driver))?,
            _template: template,
            nodes,
            _modules: launches
                .iter()
                .map(|launch| launch.function.module().loaded().clone())
                .collect(),
        })
    }

    /// Sets what differs from the last launches.
    #[allow(unsafe_code)]
    fn set(&mut self, context: &Context, launches: &[PreparedLaunch<'_>]) -> Result<(), CudaError> {
        for (node, launch) in self.nodes.iter_mut().zip(launches) {
            if node.is_set_to(launch) {
                continue;
            }
            let (function, shape) = (&launch.function, &launch.shape);
            function.opt_in(shape)?;
            let (exec, handle) = (self.exec.handle.0, function.loaded().handle.0);
            let mut values = launch.arguments.values();
            // SAFETY: as when it was added; the buffers are borrowed by the launch.
            context
                .call(|driver| unsafe { driver.graph_set_kernel(exec, node.handle.0, handle, shape, &mut values) })?;
            node.shape = *shape;
            node.arguments.clone_from(&launch.arguments);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(functions: &[usize]) -> Vec<Kind> {
        let kind = |&function: &usize| Kind {
            function,
            cluster: [1, 1, 1],
            programmatic: true,
        };
        functions.iter().map(kind).collect()
    }

    /// How often the value was asked for before.
    fn ask(recent: &Recent<u32>, stream: usize, kinds: &[Kind]) -> u32 {
        let value = recent.get(stream, kinds.iter().copied());
        let mut value = lock(&value);
        *value += 1;
        *value - 1
    }

    #[test]
    fn sequences_are_of_kernels_in_their_order_and_of_a_stream() {
        let recent = Recent::default();
        let known = kinds(&[1, 2]);
        assert_eq!(ask(&recent, 7, &known), 0);
        let (mut clustered, mut serial) = (known.clone(), known.clone());
        clustered[1].cluster = [2, 1, 1];
        serial[1].programmatic = false;
        for other in [kinds(&[2, 1]), kinds(&[1]), kinds(&[1, 2, 3]), clustered, serial] {
            assert_eq!(ask(&recent, 7, &other), 0, "{other:?}");
        }
        assert_eq!(ask(&recent, 8, &known), 0);
        assert_eq!(ask(&recent, 7, &known), 1);
    }

    #[test]
    fn the_one_used_least_recently_goes() {
        let recent = Recent::default();
        let all: Vec<_> = (0..=MOST_KEPT).map(|n| kinds(&[n, n + 1])).collect();
        for known in &all[..MOST_KEPT] {
            ask(&recent, 1, known);
        }
        assert_eq!(ask(&recent, 1, &all[0]), 1);
        assert_eq!(ask(&recent, 1, &all[MOST_KEPT]), 0);
        assert_eq!(recent.count(|_| true), MOST_KEPT);
        assert_eq!(ask(&recent, 1, &all[0]), 2);
        assert_eq!(ask(&recent, 1, &all[1]), 0, "used least recently");
    }
}
