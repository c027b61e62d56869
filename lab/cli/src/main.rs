//! The `flashcore` command: one file per subcommand.

mod args;
mod bench;
mod card;
mod chart;
mod check;
mod compare;
mod cost;
mod device;
mod driver_cache;
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
mod launch;
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
#[cfg(test)]
mod tests;
mod tips;
mod triton;
mod tune;
mod watch;
mod without_gpu;
mod worker;

use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

// What most subcommands use.
use args::{InputArgs, ProblemArgs};
use card::Card;
use evidence::StoreArgs;
use failure::{Failure, Outcome};
use given::Given;
use style::{BAD, CODE, DIM, GOOD, HEAD, Page, micros, whole};

/// The version, and the revision that was built.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("FLASHCORE_BUILD_REVISION"), ")");

/// Fused attention for NVIDIA GPUs, written, checked and explained in Rust
///
/// Without a subcommand: computes attention on the best device of this machine, compares the output
/// with float64 and times it. Without a GPU it also predicts the time on an L4 and runs the GPU kernel
/// under the checking simulator.
#[derive(Parser)]
#[command(name = "flashcore", version = VERSION, max_term_width = 100, after_long_help = include_str!("help/manual.txt"))]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// When to use colours
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        global = true,
        hide_short_help = true
    )]
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
    Evidence(evidence::EvidenceArgs),
    Report(report::ReportArgs),
    Reproduce(reproduce::ReproduceArgs),
    Tune(tune::args::TuneArgs),
    Plans(plans::PlansArgs),
    Profile(profile::ProfileArgs),
    Device(device::DeviceArgs),
    Kbench(kbench::KbenchArgs),
    /// Run candidates for `flashcore tune`, which starts it
    ///
    /// Reads one JSON object per line from standard input (a device first) and writes one reply per line to
    /// standard output, until the input ends. docs/tune-protocols.md has the protocol.
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    /// Print what completes commands and flags in a shell, for its start-up file
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: Shell,
    },
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

/// The flags of a problem in a line or two, for `-h`, which does not explain them.
fn problem_flags(command: &clap::Command) -> String {
    let flags = command.get_arguments().filter(|arg| is_of_problem(arg));
    let names: Vec<String> = flags
        .filter_map(clap::Arg::get_long)
        .map(|name| format!("--{name}"))
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!("Problem flags: {} (--help explains them)", names.join(" "))
}

fn is_of_problem(arg: &clap::Arg) -> bool {
    arg.get_help_heading() == Some(args::PROBLEM)
}

/// With `-1` as a value of every flag, which says what it allows; without this the error is about a flag named -1.
/// The ends of help are laid out for lines of this width.
fn commands(command: clap::Command, width: usize) -> clap::Command {
    let takes_a_number = |arg: &clap::Arg| arg.get_long().is_some() && arg.get_action().takes_values();
    let relaid = |end: Option<&clap::builder::StyledStr>| Some(style::relaid(&end?.to_string(), width));
    let ends = [relaid(command.get_after_help()), relaid(command.get_after_long_help())];
    let folded = style::relaid(&problem_flags(&command), width);
    let command = match ends {
        _ if folded.is_empty() => {
            let [end, long_end] = ends;
            let command = end.into_iter().fold(command, clap::Command::after_help);
            long_end.into_iter().fold(command, clap::Command::after_long_help)
        }
        [end, long_end] => {
            let short = end.iter().fold(folded, |text, end| format!("{text}\n\n{end}"));
            command
                .after_help(short)
                .after_long_help(long_end.or(end).unwrap_or_default())
        }
    };
    command
        .mut_args(|arg| {
            if takes_a_number(&arg) && !arg.is_allow_hyphen_values_set() {
                arg.allow_negative_numbers(true)
            } else {
                arg
            }
        })
        .mut_args(|arg| {
            if is_of_problem(&arg) {
                arg.hide_short_help(true)
            } else {
                arg
            }
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

fn main() -> ExitCode {
    outlive_limits();
    flashcore_bench::set_revision(env!("FLASHCORE_BUILD_REVISION"));
    let mut command = commands(Cli::command(), style::width());
    let parsed = command
        .try_get_matches_from_mut(std::env::args_os())
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
            Some(Command::Evidence(args)) => evidence::run(&args),
            Some(Command::Report(args)) => report::run(&args),
            Some(Command::Reproduce(args)) => reproduce::run(&args),
            Some(Command::Tune(args)) => tune::run(&args, &given),
            Some(Command::Plans(args)) => plans::run(&args),
            Some(Command::Profile(args)) => profile::run(&args),
            Some(Command::Device(args)) => device::run(&args, &given),
            Some(Command::Kbench(args)) => kbench::run(&args),
            Some(Command::Worker(args)) => worker::run(&args),
            Some(Command::Completions { shell }) => {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "flashcore", &mut text);
                style::print(&String::from_utf8_lossy(&text));
                Ok(Outcome::Clean)
            }
        });
    match outcome {
        Ok(outcome) => outcome.into(),
        Err(failure) => failure.report(),
    }
}
