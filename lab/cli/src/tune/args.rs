//! The arguments of `flashcore tune`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use flashcore_bench::Own;
use flashcore_tune::strategy::Kind;

use crate::kernel_file::{Trusted, trusted};
use crate::quantity::{deadline, duration};
use crate::tune::leaderboard::LeaderboardArgs;
use crate::{Failure, ProblemArgs};

/// Find the fastest correct kernel for a problem on this machine
///
/// Proposes configs and sends each through gates: one that is refused, does not compile, is wrong,
/// differs from run to run, hangs or crashes costs one trial. The rest are timed against the best so far,
/// and at the end the best against each other. Every trial is kept at once, with its reason. Without a
/// GPU it tunes the CPU's kernels and checks the GPU's kernel under the simulator.
#[derive(Args, Clone)]
#[command(after_long_help = include_str!("../help/tune.txt"), args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct TuneArgs {
    #[command(subcommand)]
    pub(crate) what: Option<What>,
    #[command(flatten)]
    pub(crate) problem: ProblemArgs,
    /// best, cpu, cuda:0,cuda:1, predict:CARD or replay:FILE
    ///
    /// replay:shipped has the times of one space. predict:CARD has the cost model's times of a card that need not be
    /// here (`list profiles`, or FILE.json of `device calibrate`).
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "Search")]
    pub(crate) device: String,
    /// A command that starts a worker, in place of this program
    ///
    /// Such as `ssh HOST flashcore worker` or `python3 -m flashcore_attn.ray`. --device names a device for each, also
    /// one name several times.
    #[arg(long, value_name = "COMMAND", help_heading = "Search")]
    pub(crate) workers: Option<String>,
    /// exhaustive, random, elite, elite+insights, ranked (docs/tune.md)
    ///
    /// The default is ranked, and elite without a cost model of the device.
    #[arg(long, value_name = "NAME", help_heading = "Search")]
    pub(crate) strategy: Option<Kind>,
    /// A program that proposes configs (docs/tune.md)
    #[arg(long, value_name = "COMMAND", conflicts_with = "strategy", help_heading = "Search")]
    pub(crate) proposer: Option<String>,
    /// Time of the search, as 90s, 5m or 1h
    ///
    /// With --resume in all, earlier parts included; finals and peers are not counted. Without a GPU and without
    /// --device, half of it is for the search and half for the GPU kernel under the simulator.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = budget, overrides_with = "trials",
          help_heading = "Search")]
    budget: Duration,
    /// Trials of the search, in place of a time
    #[arg(long, value_name = "N", overrides_with = "budget", value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Search")]
    trials: Option<u64>,
    /// The first candidate, by its id; FILE.toml, kernels of your own
    ///
    /// The first candidate is the library's choice by default. Kernels of your own (docs/own-kernel.md) are candidates
    /// with all values of their parameters; with --family own they are searched alone. They get no place in a plan
    /// table.
    #[arg(long, value_name = "ID|FILES", value_delimiter = ',', help_heading = "Search")]
    pub(crate) kernel: Vec<String>,
    /// Let the files of --kernel run, and remember their content
    ///
    /// And let code of --proposer run on a GPU. With =unsandboxed they run in workers that are not confined
    /// (docs/own-kernel.md, SECURITY.md).
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
    /// Add candidates that hang, crash, are wrong or cheat
    ///
    /// To show that the gates hold.
    #[arg(long, help_heading = "Search")]
    pub(crate) torture: bool,
    /// Time after which a candidate counts as hung
    ///
    /// In addition to the time that the problem's size needs; more than 10s also lengthens the deadlines of compiling
    /// and timing.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = deadline, help_heading = "Search")]
    pub(crate) deadline: Duration,
    /// Peers to time at the end: all, none, or their labels
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
    /// It takes some seconds each; claims are made from them.
    #[arg(long, help_heading = "Search")]
    pub(crate) counters: bool,
    /// measure, plan: leave out these steps
    ///
    /// Without `measure` a new GPU is predicted with the rates of its profile; without `plan` no winner is added to the
    /// plan table that the library uses.
    #[arg(
        long,
        value_name = "WHAT",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true,
        help_heading = "Search"
    )]
    skip: Vec<Skip>,
    /// Keep the run in this folder [default: one in the XDG data folder]
    #[arg(long, value_name = "FOLDER", help_heading = "Evidence")]
    pub(crate) folder: Option<PathBuf>,
    /// Continue the run in --folder, or the latest of this problem and device
    ///
    /// Where no problem is named, with the problem, device and flags that it had, and without --folder the latest run
    /// that was interrupted.
    #[arg(long, help_heading = "Evidence")]
    pub(crate) resume: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Evidence")]
    pub(crate) json: bool,
}

#[derive(Subcommand, Clone)]
pub(crate) enum What {
    Show(LeaderboardArgs),
}

/// What a search leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Skip {
    Measure,
    Plan,
}

/// The strategy's name of a run with a proposer: this prefix and the command.
pub(crate) const OUTSIDE: &str = "outside: ";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Budget {
    Trials(usize),
    Time(Duration),
}

/// A bare number was one of trials once.
fn budget(text: &str) -> Result<Duration, String> {
    duration(text).ok_or_else(|| "write a time above 0 as 90s, 5m or 500ms; --trials N counts".to_string())
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
            Budget::Trials(trials) => write!(f, "--trials {trials}"),
            Budget::Time(time) => write!(f, "--budget {}s", time.as_secs_f64()),
        }
    }
}

impl TuneArgs {
    pub(crate) fn budget(&self) -> Budget {
        let trials = self.trials.and_then(|trials| usize::try_from(trials).ok());
        trials.map_or(Budget::Time(self.budget), Budget::Trials)
    }

    /// The id of `--kernel`, and its files.
    pub(crate) fn kernels(&self) -> Result<(Option<String>, Vec<String>), Failure> {
        let words = self.kernel.iter().cloned();
        let (mut ids, files): (Vec<String>, Vec<String>) = words.partition(|word| !Own::is_named(word));
        if let [first, second, ..] = ids.as_slice() {
            let why = format!("--kernel names {first} and {second}, and one candidate is the first");
            return Err(Failure::usage(why).help("`flashcore bench --kernel ID,ID` times kernels against each other"));
        }
        Ok((ids.pop(), files))
    }

    /// Whether the rates of a new GPU are measured first.
    pub(crate) fn measures(&self) -> bool {
        !self.skip.contains(&Skip::Measure)
    }

    /// Whether a winner gets a row in the user's plan table.
    pub(crate) fn plans(&self) -> bool {
        !self.skip.contains(&Skip::Plan)
    }

    pub(crate) fn is_informed(&self) -> bool {
        self.proposer.is_some() || self.strategy.is_none_or(Kind::is_informed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_a_budget_is_more_than_what_was_spent() {
        use Budget::{Time, Trials};
        let seconds = Duration::from_secs_f64;
        for (budget, trials, spent, twice) in [
            (Trials(60), 60, 0.0, "--trials 120"),
            (Trials(20), 60, 0.0, "--trials 120"),
            (Time(seconds(90.0)), 9, 80.0, "--budget 180s"),
            (Time(seconds(0.5)), 9, 0.0, "--budget 1s"),
            (Time(seconds(60.0)), 9, 200.0, "--budget 400s"),
        ] {
            assert_eq!(budget.twice(trials, seconds(spent)).to_string(), twice);
        }
    }
}
