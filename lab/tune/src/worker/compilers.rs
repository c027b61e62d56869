//! Processes that compile kernels before they are opened. A driver compiles one kernel at a time in
//! a process (32 kernels on an H200: 7.1 s by one thread, 7.7 s by sixteen), and its disk cache
//! serves all processes.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use flashcore_check::sandbox::Policy;
use flashcore_problem::Problem;

use super::Program;
use super::deadlines::Deadlines;
use super::link::Worker;
use super::protocol::Command;

/// Useful number of processes for `kernels` kernels on this machine: each takes a context on the
/// device, and half a second to start.
pub fn compilers_for(kernels: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (kernels / 4).clamp(1, cores)
}

/// Workers that only compile, for devices of one kind. They start at once, because a process needs
/// a second to take its device when several start together.
#[derive(Debug)]
pub struct Compilers {
    tasks: Sender<(Problem, String)>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Every requested kernel with the kind of its problem, and whether it is compiled.
    kernels: Mutex<BTreeMap<(String, String), bool>>,
    changed: Condvar,
}

impl Shared {
    fn kernels(&self) -> MutexGuard<'_, BTreeMap<(String, String), bool>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Compilers {
    /// Starts `count` processes, at least one, on devices such as `cuda:0` in turn. One process's
    /// modules serve all.
    pub fn new(
        program: &Program,
        devices: &[String],
        (deadlines, policy): (Deadlines, &Option<Policy>),
        count: usize,
    ) -> Compilers {
        let (tasks, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let shared = Arc::<Shared>::default();
        for device in devices.iter().cycle().take(count.max(1)) {
            let worker = Worker::new(program.clone(), device, deadlines).confined(policy.clone());
            let (queue, shared) = (queue.clone(), shared.clone());
            thread::spawn(move || compile(worker, &queue, &shared));
        }
        Compilers { tasks, shared }
    }

    /// Begins to compile new kernels, in this order. Errors are reported when a kernel is opened.
    pub fn begin(&self, problem: &Problem, kernels: impl IntoIterator<Item = String>) {
        let (mut known, kind) = (self.shared.kernels(), kind(problem));
        for kernel in kernels {
            let key = (kernel, kind.clone());
            if known.contains_key(&key) {
                continue;
            }
            // Without a process nothing compiles, and nothing is to be waited for.
            let sent = self.tasks.send((problem.clone(), key.0.clone()));
            known.insert(key, sent.is_err());
        }
    }

    /// Waits for one kernel, if it was requested, for every kind of problem.
    pub fn wait_for(&self, kernel: &str) {
        let is_open = |known: &mut BTreeMap<(String, String), bool>| {
            let mut of_kernel = known.iter().filter(|((of, _), _)| of == kernel);
            of_kernel.any(|(_, is_done)| !is_done)
        };
        drop(self.shared.changed.wait_while(self.shared.kernels(), is_open));
    }
}

/// What of a problem may be baked into a kernel: problems of one kind share it, but for a few of the backward pass,
/// which are then compiled when they are timed. Lengths, strides, mask and scale are arguments.
fn kind(problem: &Problem) -> String {
    let group = problem.num_heads() / problem.num_kv_heads();
    let sizes = [problem.head_dim(), problem.head_dim_v(), group];
    let (dtype, direction) = (problem.dtype(), problem.direction());
    let stored = [
        problem.return_lse(),
        problem.softcap().is_some(),
        problem.alibi().is_some(),
        problem.has_lengths(),
        problem.deterministic(),
    ];
    let sinks = problem.sinks();
    let lengths = (problem.q_lengths(), problem.kv_lengths());
    format!("{sizes:?} {dtype} {direction:?} {stored:?} {sinks:?} {lengths:?}")
}

/// A thread that compiles one kernel after another until the queue is closed.
fn compile(mut worker: Worker, queue: &Mutex<Receiver<(Problem, String)>>, shared: &Shared) {
    // If it cannot be started now, each kernel tries again.
    let _ = worker.hello();
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((problem, kernel)) = task else { return };
        let (kernels, kind) = (vec![kernel.clone()], kind(&problem));
        // After an error the kernel is compiled again when it is opened, which reports the reason.
        let _ = worker.ask::<()>(&Command::Compile { problem, kernels });
        shared.kernels().insert((kernel, kind), true);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_one_kind_differ_in_lengths_alone() {
        let build = |seq, head_dim| {
            let builder = Problem::builder().heads(8, 2).seq_len(seq).head_dim(head_dim);
            builder.build().unwrap()
        };
        assert_eq!(kind(&build(512, 64)), kind(&build(4000, 64)));
        assert_ne!(kind(&build(512, 64)), kind(&build(512, 128)));
    }

    #[test]
    fn without_a_process_no_kernel_is_waited_for() {
        let program = Program {
            path: "none".into(),
            args: Vec::new(),
            env: Vec::new(),
        };
        let compilers = Compilers::new(&program, &[], (Deadlines::default(), &None), 4);
        compilers.begin(&Problem::named("tiny").unwrap(), ["mma/x".to_string()]);
        compilers.wait_for("mma/x");
    }
}
