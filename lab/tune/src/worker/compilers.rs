//! Processes that compile kernels before they are opened. A driver compiles one kernel at a time in
//! a process (32 kernels on an H200: 7.1 s by one thread, 7.7 s by sixteen), and its disk cache
//! serves all processes.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use flashcore_problem::Problem;

use super::deadlines::Deadlines;
use super::link::{Program, Worker};
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
    /// Every requested kernel, and whether it is compiled.
    kernels: Mutex<BTreeMap<String, bool>>,
    changed: Condvar,
}

impl Shared {
    fn kernels(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Compilers {
    /// Starts `count` processes, at least one, on devices such as `cuda:0` in turn. One process's
    /// modules serve all.
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

    /// Begins to compile new kernels, in this order. Errors are reported when a kernel is opened.
    pub fn begin(&self, problem: &Problem, kernels: impl IntoIterator<Item = String>) {
        let mut known = self.shared.kernels();
        for kernel in kernels {
            if known.contains_key(&kernel) {
                continue;
            }
            // Without a process nothing compiles, and nothing is to be waited for.
            let sent = self.tasks.send((problem.clone(), kernel.clone()));
            known.insert(kernel, sent.is_err());
        }
    }

    /// Waits for one kernel, if it was requested.
    pub fn wait_for(&self, kernel: &str) {
        let is_open = |known: &mut BTreeMap<String, bool>| known.get(kernel) == Some(&false);
        drop(self.shared.changed.wait_while(self.shared.kernels(), is_open));
    }

    /// Waits for all requested kernels. `left` receives the number that remains.
    pub fn wait(&self, mut left: impl FnMut(usize)) {
        let is_open = |known: &mut BTreeMap<String, bool>| {
            let open = known.values().filter(|is_done| !**is_done).count();
            if open > 0 {
                left(open);
            }
            open > 0
        };
        drop(self.shared.changed.wait_while(self.shared.kernels(), is_open));
    }
}

/// A thread that compiles one kernel after another until the queue is closed.
fn compile(mut worker: Worker, queue: &Mutex<Receiver<(Problem, String)>>, shared: &Shared) {
    // If it cannot be started now, each kernel tries again.
    let _ = worker.hello();
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((problem, kernel)) = task else { return };
        let kernels = vec![kernel.clone()];
        // After an error the kernel is compiled again when it is opened, which reports the reason.
        let _ = worker.ask::<()>(&Command::Compile { problem, kernels });
        shared.kernels().insert(kernel, true);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_process_no_kernel_is_waited_for() {
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
