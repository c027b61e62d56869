//! What can be said to `flashcore tune`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flashcore_tune::TuneError;
use flashcore_tune::strategy::Kind;

use crate::args::ProblemArgs;

/// Find the fastest correct kernel for a problem on this machine
///
/// Proposes configs, sends each through gates (what is refused, does not compile, is wrong, differs
/// from run to run, hangs or crashes costs one trial and no more), times the rest against the best so
/// far, and lets the best meet head to head. Every trial is kept as it happens, with its reason.
/// Without a GPU it tunes the CPU's kernels, checks the GPU's kernel under the simulator, and compares
/// strategies on a space that was measured on an H200.
#[derive(Args)]
#[command(after_help = TUNE_HELP)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) problem: ProblemArgs,
    /// best, cpu, cuda:N, several GPUs as cuda:0,cuda:1, or replay:FILE (replay:shipped)
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "Search")]
    pub(crate) device: String,
    /// exhaustive, random, hill, single, elite, niches, the last three with +insights, too, ranked
    /// (docs/tune.md) [default: ranked; elite where nothing models the device]
    #[arg(long, value_name = "NAME", value_parser = strategy, help_heading = "Search")]
    pub(crate) strategy: Option<Kind>,
    /// A program that proposes configs, in place of a strategy (docs/tune.md)
    #[arg(long, value_name = "COMMAND", conflicts_with = "strategy", help_heading = "Search")]
    pub(crate) proposer: Option<String>,
    /// Trials (a bare number: 200) or time (90s, 5m, 1h) of the search; finals and peers come after it
    #[arg(long, value_name = "TRIALS|TIME", default_value = "60s", value_parser = budget, help_heading = "Search")]
    pub(crate) budget: Budget,
    /// The first candidate, in place of what the library would run
    #[arg(long, value_name = "ID", help_heading = "Search")]
    pub(crate) start: Option<String>,
    /// Families to search, in place of those worth it: mma, wgmma, scalar, ladder, cpu
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Search")]
    pub(crate) family: Vec<String>,
    /// Seed of the strategy and of the inputs [default: 1 for the strategy; inputs are drawn anew for each run]
    #[arg(long, value_name = "N", help_heading = "Search")]
    pub(crate) seed: Option<u64>,
    /// Search among candidates that hang, crash, are wrong or cheat, too: shows that the gates hold
    #[arg(long, help_heading = "Search")]
    pub(crate) torture: bool,
    /// Seconds after which a candidate that does not answer hangs, beside what the problem's size needs;
    /// more than 10 lengthens the deadlines of compiling and timing, too
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600), help_heading = "Search")]
    pub(crate) deadline: u64,
    /// Peers that the winner and the default are timed with at the end: all, none, or labels such as torch/cudnn,fa3
    #[arg(
        long,
        value_name = "LABELS",
        value_delimiter = ',',
        default_value = "all",
        help_heading = "Search"
    )]
    pub(crate) peers: Vec<String>,
    /// Predict with the profile's rates on a GPU that was never measured, in place of measuring it first
    #[arg(long, help_heading = "Search")]
    pub(crate) no_measure: bool,
    /// Keep the run in this folder, in place of one in the XDG data folder
    #[arg(long, value_name = "FOLDER", help_heading = "Evidence")]
    pub(crate) folder: Option<PathBuf>,
    /// Take up the run in --folder again, or the latest of this problem and device
    #[arg(long, help_heading = "Evidence")]
    pub(crate) resume: bool,
    /// Keep a winner out of the plan table that the library asks (`flashcore plans`)
    #[arg(long, help_heading = "Evidence")]
    pub(crate) no_plan: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

const TUNE_HELP: &str = "\
Examples:
  flashcore tune                                      a minute on the best device
  flashcore tune llama8b-prefill-2k --budget 10m
  flashcore tune --resume                             a run that was cut off, taken up again
  flashcore tune --device replay:shipped --budget 100 a search without a device
  flashcore tune mission --peers none                 without PyTorch at the end
  flashcore tune --torture --budget 40                with candidates that hang, crash and cheat
  flashcore tune --proposer 'python3 scripts/propose.py'

Verdicts, in the order of the gates:
  REFUSED, BUILD_FAILED, LAUNCH_FAILED, HUNG, WRONG, UNSTABLE, then by the clock SLOWER, AMBIGUOUS
  (no clear gain) or FASTER: at least 3 % against the best when it was
  proposed, the interval clear of none.

Ctrl-C ends the search after the candidates at hand and says how to go on; a second one ends it at once.
So do SIGTERM and SIGHUP (not under nohup).

Exit codes: 0 done, 1 nothing could be timed, the default failed, the proposer died or the plan table could not be written,
  2 usage, 3 environment, 130 interrupted by any of these signals";

/// How the strategy of a run is called where a program proposes: this, and the command.
pub(crate) const OUTSIDE: &str = "outside: ";

/// How long to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    Trials(usize),
    Time(Duration),
}

impl Budget {
    /// Twice as much, and twice what was spent where that is more: with less a run that spent this one has nothing left.
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

fn strategy(name: &str) -> Result<Kind, String> {
    name.parse().map_err(|error: TuneError| error.to_string())
}

fn budget(text: &str) -> Result<Budget, String> {
    let wrong = || "write trials as 200, or time as 90s, 5m or 1h".to_string();
    let seconds = |number: &str, unit: f64| match number.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Duration::try_from_secs_f64(value * unit)
            .map(Budget::Time)
            .map_err(|_| wrong()),
        _ => Err(wrong()),
    };
    for (suffix, unit) in [('s', 1.0), ('m', 60.0), ('h', 3600.0)] {
        if let Some(number) = text.strip_suffix(suffix) {
            return seconds(number, unit);
        }
    }
    match text.parse() {
        Ok(trials) if trials > 0 => Ok(Budget::Trials(trials)),
        _ => Err(wrong()),
    }
}

impl TuneArgs {
    /// Whether what proposes candidates asks the cost model, where there is one.
    pub(crate) fn is_informed(&self) -> bool {
        self.proposer.is_some() || self.strategy.is_none_or(Kind::is_informed)
    }

    pub(crate) fn budget_trials(&self) -> Option<usize> {
        match self.budget {
            Budget::Trials(trials) => Some(trials),
            Budget::Time(_) => None,
        }
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
