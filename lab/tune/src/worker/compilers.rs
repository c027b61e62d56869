//! Processes that compile kernels before they are opened. A driver compiles one kernel at a time in a process (32 kernels
//! on an H200: 7.1 s by one thread, 7.7 s by sixteen), and keeps what it compiled on disk for all of them.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use flashcore_problem::Problem;

use super::link::{Deadlines, Program, Worker};
use super::protocol::Command;

/// Processes worth having for `kernels` kernels on this machine: each takes a context on the device, and half a second to
/// start.
pub fn compilers_for(kernels: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (kernels / 4).clamp(1, cores)
}

/// Workers that only compile, for devices of one kind. They start at once: what is to be compiled comes soon, and a process
/// takes a second to have its device where several start together.
///
/// ```no_run
/// # use flashcore_tune::worker::{Compilers, Deadlines, Program};
/// # fn go(program: Program, problem: flashcore_problem::Problem) {
/// let compilers = Compilers::new(&program, &["cuda:0".to_string()], Deadlines::default(), 4);
/// compilers.begin(&problem, ["mma/m128n64-w4-s2-xor".to_string()]);
/// compilers.wait_for("mma/m128n64-w4-s2-xor");
/// # }
/// ```
#[derive(Debug)]
pub struct Compilers {
    tasks: Sender<Task>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Task {
    problem: Problem,
    kernel: String,
}

#[derive(Debug, Default)]
struct Shared {
    kernels: Mutex<Kernels>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Kernels {
    /// Every one that was asked for: each is compiled once.
    begun: BTreeSet<String>,
    /// Those not done yet.
    open: BTreeSet<String>,
}

impl Shared {
    fn kernels(&self) -> MutexGuard<'_, Kernels> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Compilers {
    /// As many processes as `count`, at least one, on devices such as `cuda:0` in turns: what one of them compiles serves
    /// all, and their contexts are made beside each other.
    pub fn new(program: &Program, devices: &[String], deadlines: Deadlines, count: usize) -> Compilers {
        let (tasks, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let shared = Arc::<Shared>::default();
        for device in devices.iter().cycle().take(count.max(1)) {
            let worker = Worker::new(program.clone(), device, deadlines);
            let (queue, shared) = (queue.clone(), shared.clone());
            thread::spawn(move || compile(worker, &queue, &shared));
        }
        Compilers { tasks, shared }
    }

    /// Begins to compile what was not asked for before, in this order. What does not compile says so when it is opened.
    pub fn begin(&self, problem: &Problem, kernels: impl IntoIterator<Item = String>) {
        let mut known = self.shared.kernels();
        for kernel in kernels {
            if !known.begun.insert(kernel.clone()) {
                continue;
            }
            known.open.insert(kernel.clone());
            let problem = problem.clone();
            // Without a device nobody compiles, and nobody is to be waited for.
            if let Err(unsent) = self.tasks.send(Task { problem, kernel }) {
                known.open.remove(&unsent.0.kernel);
            }
        }
    }

    /// Waits for one kernel, if it was begun.
    pub fn wait_for(&self, kernel: &str) {
        let known = self.shared.kernels();
        let busy = |known: &mut Kernels| known.open.contains(kernel);
        drop(self.shared.changed.wait_while(known, busy));
    }

    /// Waits for all that were begun; is told after each how many are left.
    pub fn wait(&self, mut left: impl FnMut(usize)) {
        let mut known = self.shared.kernels();
        while !known.open.is_empty() {
            left(known.open.len());
            known = match self.shared.changed.wait(known) {
                Ok(known) => known,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
    }
}

/// A thread's work: one kernel after the other, until nobody asks any more.
fn compile(mut worker: Worker, queue: &Mutex<Receiver<Task>>, shared: &Shared) {
    // Where it cannot be started now, that is tried again with each kernel.
    let _ = worker.hello();
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Task { problem, kernel }) = task else { return };
        let command = Command::Compile {
            problem,
            kernels: vec![kernel.clone()],
        };
        // What is lost here is compiled again, and its reason given, where it is opened.
        let _ = worker.ask(&command);
        shared.kernels().open.remove(&kernel);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_waited_for_where_nobody_compiles() {
        let program = Program {
            path: "none".into(),
            args: Vec::new(),
            env: Vec::new(),
        };
        let compilers = Compilers::new(&program, &[], Deadlines::default(), 4);
        compilers.begin(&Problem::named("tiny").unwrap(), ["mma/x".to_string()]);
        compilers.wait_for("mma/x");
        compilers.wait(|left| panic!("{left} left"));
    }
}
