//! The `flashcore` command: one file per subcommand.

mod args;
mod bench;
mod card;
mod chart;
mod check;
mod compare;
mod cost;
mod device;
mod evidence;
mod explain;
mod failure;
mod first_run;
mod foreign;
mod gate;
mod given;
mod in_place;
mod judged_run;
mod kbench;
mod kernel_file;
mod kernels;
mod levers;
mod list;
mod machine;
mod memory;
mod missing;
mod museum;
mod own;
mod parity;
mod plans;
mod profile;
mod progress;
mod protocol;
mod quantity;
mod ranked;
mod report;
mod reproduce;
mod run;
mod simulated;
mod sources;
mod stdout;
mod style;
mod tips;
mod triton;
mod tune;
mod watch;
mod without_gpu;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

// What most subcommands use.
use args::{InputArgs, ProblemArgs};
use card::Card;
use evidence::StoreArgs;
use failure::{Failure, Outcome};
use given::Given;
use style::{BAD, CODE, DIM, GOOD, HEAD, Page, micros, whole};

/// Fused attention for NVIDIA GPUs, written, checked and explained in Rust
///
/// Without a subcommand: computes attention on the best device of this machine, compares the output
/// with float64 and times it. Without a GPU it also predicts the time on an L4 and runs the GPU kernel
/// under the checking simulator.
#[derive(Parser)]
#[command(name = "flashcore", version, max_term_width = 100, after_long_help = include_str!("help/manual.txt"))]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// When to use colours
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", global = true)]
    color: ColorChoice,
    /// Print one JSON object: of the command without a subcommand
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Explain(explain::ExplainArgs),
    List(list::ListArgs),
    Bench(bench::BenchArgs),
    Parity(parity::ParityArgs),
    Gate(gate::GateArgs),
    Compare(compare::CompareArgs),
    Evidence(evidence::EvidenceArgs),
    Report(report::ReportArgs),
    Reproduce(reproduce::ReproduceArgs),
    Tune(tune::args::TuneArgs),
    Leaderboard(tune::leaderboard::LeaderboardArgs),
    Plans(plans::PlansArgs),
    Profile(profile::ProfileArgs),
    Device(device::DeviceArgs),
    Kbench(kbench::KbenchArgs),
    /// Run candidates for `flashcore tune`, which starts it
    ///
    /// Reads one JSON object per line from standard input (a device first) and writes one reply per line to
    /// standard output, until the input ends. docs/tune-protocols.md has the protocol.
    Worker(worker::WorkerArgs),
}

/// Prints help, the version, or an error in the arguments, which is wrapped as every other message.
fn not_parsed(message: &clap::Error) -> ExitCode {
    let mut text = tips::told(message);
    // What Rust's parsers of numbers say, in words for people.
    for (rust, words) in [
        ("invalid digit found in string", "write a whole number"),
        ("cannot parse integer from empty string", "write a whole number"),
        ("number too large to fit in target type", "the number is too large"),
        ("invalid float literal", "write a number"),
    ] {
        text = text.replace(rust, words);
    }
    if message.use_stderr() {
        style::eprint(&style::wrap(&text, 2));
        return ExitCode::from(2);
    }
    style::print(&text);
    Outcome::Clean.into()
}

/// Beginnings of headings whose flags `--help` has alone: so `-h` fits a screen.
const FOLDED: [&str; 2] = ["Problem", "For a "];

/// With a short help that has the last paragraph of the end alone.
fn folded(command: clap::Command, end: &str) -> clap::Command {
    let begins = |heading: &str| FOLDED.iter().any(|folded| heading.starts_with(folded));
    let is_folded = |arg: &clap::Arg| arg.get_help_heading().is_some_and(begins);
    let more = match command.get_arguments().any(is_folded) {
        true => "Flags of the problem (--heads, --seq, --causal, ...) or of a file: see --help\n",
        false => "",
    };
    let last = end.rsplit("\n\n").next().unwrap_or(end);
    let command = command
        .after_help(format!("{more}{last}"))
        .after_long_help(end.to_string());
    command.mut_args(|arg| {
        let hidden = is_folded(&arg);
        arg.hide_short_help(hidden)
    })
}

/// With `-1` as a value of every flag, which says what it allows; without this the error is about a flag named -1.
/// The ends of help are laid out for lines of this width.
fn commands(command: clap::Command, width: usize) -> clap::Command {
    let takes_a_number = |arg: &clap::Arg| arg.get_long().is_some() && arg.get_action().takes_values();
    let relaid = |end: Option<&clap::builder::StyledStr>| Some(style::relaid(&end?.to_string(), width));
    let ends = [relaid(command.get_after_help()), relaid(command.get_after_long_help())];
    let command = match ends {
        [Some(end), _] => folded(command, &end),
        [None, Some(end)] => command.after_long_help(end),
        [None, None] => command,
    };
    // It keeps nothing anyway.
    let command = match command.get_name() {
        "evidence" => command.mut_arg("no_store", |arg| arg.hide(true)),
        _ => command,
    };
    command
        .mut_args(|arg| match takes_a_number(&arg) && !arg.is_allow_hyphen_values_set() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
        .mut_subcommands(|command| commands(command, width))
}

/// A file that may not grow any more (`ulimit -f`) is an error with a message, and ends no process in silence.
#[cfg(unix)]
fn outlive_limits() {
    use signal_hook::consts::SIGXFSZ;
    // What the handler does is not needed: with one, the write fails.
    let _ = signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default());
}

#[cfg(not(unix))]
fn outlive_limits() {}

/// `-std=c++17` is how compilers spell it.
fn as_flag(arg: OsString) -> OsString {
    let standard = arg.to_str().and_then(|arg| arg.strip_prefix("-std="));
    standard.map_or(arg.clone(), |standard| format!("--std={standard}").into())
}

fn main() -> ExitCode {
    outlive_limits();
    flashcore_bench::set_revision(env!("FLASHCORE_BUILD_REVISION"));
    let mut command = commands(Cli::command(), style::width());
    let parsed = command
        .try_get_matches_from_mut(std::env::args_os().map(as_flag))
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, Given::of(&command, &matches))));
    let (cli, given) = match parsed {
        Ok(parsed) => parsed,
        Err(message) => return not_parsed(&message),
    };
    match cli.color {
        ColorChoice::Auto => {}
        ColorChoice::Always => anstream::ColorChoice::Always.write_global(),
        ColorChoice::Never => anstream::ColorChoice::Never.write_global(),
    }
    let outcome: Result<Outcome, Failure> = progress::check()
        .and_then(|()| machine::check_threads())
        .and_then(|()| match cli.command {
            None => first_run::run(cli.json),
            Some(_) if cli.json => {
                Err(Failure::usage("--json is a flag of subcommands").help("put it after the subcommand"))
            }
            Some(Command::Run(args)) => run::run(&args),
            Some(Command::Check(args)) => check::run(&args, &given),
            Some(Command::Explain(args)) => explain::run(&args, &given),
            Some(Command::List(args)) => list::run(&args, &given),
            Some(Command::Bench(args)) => bench::run(&args, &given),
            Some(Command::Parity(args)) => parity::run(&args),
            Some(Command::Gate(args)) => gate::run(&args, &given),
            Some(Command::Compare(args)) => compare::run(&args),
            Some(Command::Evidence(args)) => evidence::run(&args),
            Some(Command::Report(args)) => report::run(&args),
            Some(Command::Reproduce(args)) => reproduce::run(&args),
            Some(Command::Tune(args)) => tune::run(&args, &given),
            Some(Command::Leaderboard(args)) => tune::leaderboard::run(&args),
            Some(Command::Plans(args)) => plans::run(&args),
            Some(Command::Profile(args)) => profile::run(&args),
            Some(Command::Device(args)) => device::run(&args),
            Some(Command::Kbench(args)) => kbench::run(&args),
            Some(Command::Worker(args)) => worker::run(&args),
        });
    match outcome {
        Ok(outcome) => outcome.into(),
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of help texts are laid out by hand for 100 columns; clap would break their columns on narrower
    /// terminals.
    #[test]
    fn the_ends_of_help_fit_a_line() {
        fn walk(command: &clap::Command, width: usize) {
            let ends = [command.get_after_help(), command.get_after_long_help()];
            for line in ends
                .into_iter()
                .flatten()
                .flat_map(|end| end.to_string().lines().map(str::to_string).collect::<Vec<_>>())
            {
                assert!(line.chars().count() <= width, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(|command| walk(command, width));
        }
        walk(&Cli::command(), 100);
        walk(&commands(Cli::command(), 80), 80);
    }

    #[test]
    fn negative_numbers_are_values() {
        let parsed = commands(Cli::command(), 100).try_get_matches_from(["flashcore", "run", "--seed", "-1"]);
        let message = parsed.expect_err("a seed is not negative").to_string();
        assert!(message.contains("invalid value '-1' for '--seed <N>'"), "{message}");
    }
}
