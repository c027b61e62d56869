//! The arguments of `flashcore tune`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flashcore_tune::strategy::Kind;

use crate::ProblemArgs;
use crate::kernel_file::{Trusted, trusted};
use crate::quantity::duration;

/// Find the fastest correct kernel for a problem on this machine
///
/// Proposes configs and sends each through gates: one that is refused, does not compile, is wrong,
/// differs from run to run, hangs or crashes costs one trial. The rest are timed against the best so far,
/// and at the end the best against each other. Every trial is kept at once, with its reason. Without a
/// GPU it tunes the CPU's kernels and checks the GPU's kernel under the simulator.
#[derive(Args, Clone)]
#[command(after_help = include_str!("../help/tune.txt"))]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) problem: ProblemArgs,
    /// best, cpu, cuda:N, predict:CARD or replay:FILE
    ///
    /// Several GPUs are cuda:0,cuda:1. predict:CARD has the cost model's times of a card that need not be here (`list
    /// profiles`, or FILE.json of `device calibrate`), replay:FILE those of a table (replay:shipped).
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "Search")]
    pub(crate) device: String,
    /// A command that starts a worker, such as `ssh HOST flashcore worker`
    ///
    /// In place of this program; another is `python3 -m flashcore_attn.ray`. --device names a device for each, also one
    /// name several times.
    #[arg(long, value_name = "COMMAND", help_heading = "Search")]
    pub(crate) workers: Option<String>,
    /// exhaustive, random, elite, elite+insights or ranked [default: ranked]
    ///
    /// docs/tune.md explains them. Without a cost model of the device the default is elite.
    #[arg(long, value_name = "NAME", help_heading = "Search")]
    pub(crate) strategy: Option<Kind>,
    /// A program that proposes configs, in place of a strategy
    ///
    /// docs/tune.md has the protocol.
    #[arg(long, value_name = "COMMAND", conflicts_with = "strategy", help_heading = "Search")]
    pub(crate) proposer: Option<String>,
    /// Trials (200) or time (90s, 5m, 1h) of the search
    ///
    /// With --resume in all, earlier parts included; finals and peers are not counted. Without a GPU and without
    /// --device, half of a time is for the search and half for the GPU kernel under the simulator.
    #[arg(long, value_name = "TRIALS|TIME", default_value = "60s", value_parser = budget, help_heading = "Search")]
    pub(crate) budget: Budget,
    /// The first candidate [default: the library's choice]
    #[arg(long, value_name = "ID", help_heading = "Search")]
    pub(crate) start: Option<String>,
    /// Kernels of your own as candidates (FILE.toml)
    ///
    /// With all values of their parameters (docs/own-kernel.md); with --family own they are searched alone. They get no
    /// place in a plan table.
    #[arg(long, value_name = "FILES", value_delimiter = ',', help_heading = "Search")]
    pub(crate) kernel: Vec<String>,
    /// Let the files of --kernel, and code of --proposer, run
    ///
    /// The content of files is remembered, and code of --proposer runs on a GPU (docs/own-kernel.md). With
    /// =unsandboxed: in workers that are not confined (SECURITY.md).
    #[arg(long, value_name = "unsandboxed", num_args = 0..=1, require_equals = true, default_missing_value = "file",
          value_parser = trusted, help_heading = "Search")]
    pub(crate) trust: Option<Trusted>,
    /// Families to search [default: those that pay on the device]
    ///
    /// `list levers` names them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Search")]
    pub(crate) family: Vec<String>,
    /// Seed of the strategy and of the inputs
    ///
    /// By default 1 for the strategy, and new inputs for each run.
    #[arg(long, value_name = "N", help_heading = "Search")]
    pub(crate) seed: Option<u64>,
    /// Add candidates that hang, crash, are wrong or cheat, to test the gates
    #[arg(long, help_heading = "Search")]
    pub(crate) torture: bool,
    /// Seconds after which a candidate counts as hung
    ///
    /// In addition to the time that the problem's size needs. More than 10 also lengthens the deadlines of compiling
    /// and timing.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600), help_heading = "Search")]
    pub(crate) deadline: u64,
    /// Peers to time at the end: all, none, or labels
    ///
    /// With the winner and the default. A label is that of `bench --peers`, such as torch/cudnn,fa3.
    #[arg(
        long,
        value_name = "LABELS",
        value_delimiter = ',',
        default_value = "all",
        value_parser = crate::args::peer,
        help_heading = "Search"
    )]
    pub(crate) peers: Vec<String>,
    /// Read the hardware counters of each new best with ncu
    ///
    /// It takes some seconds each. Claims are made from them.
    #[arg(long, help_heading = "Search")]
    pub(crate) counters: bool,
    /// Do not measure the rates of a new GPU first
    ///
    /// Predicts with those of its profile.
    #[arg(long, help_heading = "Search")]
    pub(crate) no_measure: bool,
    /// Keep the run in this folder [default: one in the XDG data folder]
    #[arg(long, value_name = "FOLDER", help_heading = "Evidence")]
    pub(crate) folder: Option<PathBuf>,
    /// Continue the run in --folder, or the latest of this problem and device
    ///
    /// Where no problem is named, with the problem, device and flags that it had, and without --folder the latest run
    /// that was interrupted.
    #[arg(long, help_heading = "Evidence")]
    pub(crate) resume: bool,
    /// Do not add a winner to the plan table that the library uses
    ///
    /// `flashcore plans` shows the table.
    #[arg(long, help_heading = "Evidence")]
    pub(crate) no_plan: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// The strategy's name of a run with a proposer: this prefix and the command.
pub(crate) const OUTSIDE: &str = "outside: ";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    Trials(usize),
    Time(Duration),
}

impl Budget {
    /// Twice the budget, or twice what was spent if that is more: enough to continue a run.
    pub(crate) fn twice(self, trials: usize, time: Duration) -> Budget {
        match self {
            Budget::Trials(most) => Budget::Trials(most.max(trials).saturating_mul(2)),
            Budget::Time(most) => {
                let seconds = most.max(time).as_secs_f64() * 2.0;
                Budget::Time(Duration::try_from_secs_f64(seconds.ceil()).unwrap_or(most))
            }
        }
    }
}

/// As it is typed.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Trials(trials) => write!(f, "{trials}"),
            Budget::Time(time) => write!(f, "{}s", time.as_secs_f64()),
        }
    }
}

fn budget(text: &str) -> Result<Budget, String> {
    let trials = || text.parse().ok().filter(|trials| *trials > 0).map(Budget::Trials);
    let budget = duration(text).map(Budget::Time).or_else(trials);
    budget.ok_or_else(|| "write trials as 200, or time as 90s, 5m or 1h".to_string())
}

impl TuneArgs {
    pub(crate) fn is_informed(&self) -> bool {
        self.proposer.is_some() || self.strategy.is_none_or(Kind::is_informed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_trials_or_time() {
        assert_eq!(budget("200"), Ok(Budget::Trials(200)));
        assert_eq!(budget("90s"), Ok(Budget::Time(Duration::from_secs(90))));
        assert_eq!(budget("1.5m"), Ok(Budget::Time(Duration::from_secs(90))));
        assert_eq!(budget("1h"), Ok(Budget::Time(Duration::from_secs(3600))));
        // Twice of it is more than what was spent, and can be typed.
        for (budget, trials, seconds, twice) in [
            ("60", 60, 0, "120"),
            ("20", 60, 0, "120"),
            ("1.5m", 9, 80, "180s"),
            ("0.5s", 9, 0, "1s"),
            ("60s", 9, 200, "400s"),
        ] {
            let next = super::budget(budget)
                .unwrap()
                .twice(trials, Duration::from_secs(seconds));
            assert_eq!(next.to_string(), twice);
            assert_eq!(super::budget(twice), Ok(next));
        }
        for wrong in ["0", "-5", "fast", "m", "h", "-1h", "infs", "1e400s", "1e300h"] {
            assert!(budget(wrong).is_err(), "{wrong}");
        }
    }
}
