//! How long each command may take.

use std::time::Duration;

use flashcore_bench::Needs;
use flashcore_check::own::PREFIX;

use super::protocol::Command;

/// How long each stage may take, in addition to what the size of the problem needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Taking the device.
    pub start: Duration,
    /// Compiling.
    pub compile: Duration,
    /// One command while an output is computed.
    pub run: Duration,
    /// Timing, in addition to its budget.
    pub time: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines {
            start: Duration::from_secs(60),
            compile: Duration::from_secs(120),
            run: Duration::from_secs(10),
            time: Duration::from_secs(20),
        }
    }
}

/// How many times as long as a run a compiler of a kernel of the user may take.
const COMPILES: u32 = 10;
/// Fewest runs for timing a kernel, including warm-up.
const LEAST_RUNS: usize = 16;

impl Deadlines {
    /// Deadlines for a user's limit on one run. The others are extended in proportion if the limit
    /// is longer than the default, and never shortened: compiling does not get faster.
    pub fn of_run(run: Duration) -> Deadlines {
        let usual = Deadlines::default();
        let times = (run.as_secs_f64() / usual.run.as_secs_f64()).max(1.0);
        Deadlines {
            start: usual.start.mul_f64(times),
            compile: usual.compile.mul_f64(times),
            run,
            time: usual.time.mul_f64(times),
        }
    }

    /// When a compiler of a kernel of the user is ended.
    pub(crate) fn compiler(&self) -> Duration {
        self.run * COMPILES
    }

    /// What a command does, for messages, and how long it may take.
    pub(super) fn of(&self, command: &Command, (needs, kernels): (Needs, usize)) -> (&'static str, Duration) {
        match command {
            Command::Hello { .. } | Command::Rates => ("starting", self.start),
            Command::Compile { kernels, .. } | Command::Open { kernels, .. } => {
                // Each of the user's is simulated.
                let of_user = kernels.iter().filter(|id| id.starts_with(PREFIX)).count();
                ("compiling", self.compile * (1 + 2 * of_user as u32))
            }
            Command::Simulate { .. } => ("simulating", self.compile * 3),
            // A run may load inputs, poison both outputs and copy one.
            Command::Run { .. } => ("running", self.run + needs.runs(1) + 4 * needs.copies(1)),
            Command::Read { .. } | Command::Outside => ("running", self.run + needs.copies(1)),
            Command::Time { options, .. } => {
                // Warm-up comes on top of the rounds, and so does the round that exceeds the budget.
                let budget = options.budget_ms / 1e3 + options.warm_up_max_us * 4.0 / 1e6;
                let budget = Duration::from_secs_f64(budget.clamp(0.0, 3600.0));
                ("timing", self.time + needs.runs(LEAST_RUNS * kernels) + budget)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flashcore_bench::defences::Run;
    use flashcore_problem::Problem;

    use super::*;

    fn problem(seq: usize) -> Problem {
        let problem = Problem::builder().heads(32, 32).seq_len(seq).head_dim(128);
        problem.build().unwrap()
    }

    #[test]
    fn a_longer_limit_extends_all_deadlines() {
        let usual = Deadlines::default();
        let [short, long] = [2, 20].map(|seconds| Deadlines::of_run(Duration::from_secs(seconds)));
        assert_eq!((short.run.as_secs(), short.compile), (2, usual.compile));
        assert_eq!((long.run.as_secs(), long.compile), (20, 2 * usual.compile));
    }

    #[test]
    fn each_kernel_of_the_user_has_time_to_be_compiled_and_simulated() {
        let usual = Deadlines::default();
        let of = |kernels: &[&str]| {
            let kernels = kernels.iter().map(|id| id.to_string()).collect();
            let problem = problem(64);
            usual
                .of(
                    &Command::Open {
                        problem,
                        seed: 1,
                        own: Vec::new(),
                        kernels,
                    },
                    Default::default(),
                )
                .1
        };
        assert_eq!(of(&["mma/m64n64", "wgmma/m128n128"]), usual.compile);
        // Compilers alone may take 100 s each.
        assert!(of(&["own/a", "own/b-M16"]) >= usual.compile + 2 * Duration::from_secs(200));
        assert!(of(&["own/a", "mma/m64n64"]) < of(&["own/a", "own/b-M16"]));
    }

    #[test]
    fn a_large_problem_gets_more_time() {
        let usual = Deadlines::default();
        let of = |seq: usize, device: &str| {
            let (kernel, kind, run) = (0, flashcore_problem::InputKind::Normal, Run::default());
            let run = Command::Run { kernel, kind, run };
            usual.of(&run, (Needs::of(&problem(seq), device), 2)).1
        };
        assert!(of(64, "cpu") < usual.run + Duration::from_secs(1));
        // 4.4 T operations.
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        assert!(of(16384, "cpu") > usual.run + Duration::from_secs(4_000 / cores));
        // 44 s for a run, and 86 s for 268 M elements that are copied.
        let on_gpu = of(16384, "cuda:0");
        assert!(on_gpu > usual.run + Duration::from_secs(120) && on_gpu < Duration::from_secs(240));
    }
}
