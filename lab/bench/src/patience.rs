//! How long runs and copies of a problem may take on slow devices, for deadlines.

use std::thread;
use std::time::Duration;

use flashcore_problem::Problem;

/// Operations per second of the slowest candidates worth waiting for, on a core and on a GPU.
const SLOW_CORE: f64 = 1e9;
const SLOW_GPU: f64 = 1e11;
/// Lowest rate at which inputs are drawn and tensors copied, bytes per second.
const SLOW_BYTES: f64 = 50e6;
/// Longest time that the size of a problem may add.
const LONGEST: Duration = Duration::from_secs(3600);

/// Time that the size of a problem needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Needs {
    /// Seconds of a run, and of copying its tensors.
    run: f64,
    bytes: f64,
}

impl Needs {
    /// Of a problem on `cpu` or `cuda:N`.
    pub fn of(problem: &Problem, device: &str) -> Needs {
        let rate = if device.starts_with("cuda") {
            SLOW_GPU
        } else {
            SLOW_CORE * thread::available_parallelism().map_or(1, usize::from) as f64
        };
        let tensors = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ];
        let elements: usize = tensors.iter().map(|layout| layout.span()).sum();
        Needs {
            run: problem.flops() / rate,
            bytes: elements as f64 * 4.0 / SLOW_BYTES,
        }
    }

    /// Of so many runs; an hour at most.
    pub fn runs(&self, count: usize) -> Duration {
        bounded(self.run * count as f64)
    }

    /// Of copying all tensors so many times; an hour at most.
    pub fn copies(&self, count: usize) -> Duration {
        bounded(self.bytes * count as f64)
    }
}

fn bounded(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(LONGEST, |needed| needed.min(LONGEST))
}
