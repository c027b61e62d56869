//! The command line as a whole: what its help shows, and how many flags there are.

use std::collections::BTreeSet;

use clap::CommandFactory;

use crate::args::PROBLEM;
use crate::{Cli, commands};

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

/// Lines of a screen.
const SCREEN: usize = 40;

/// Calls this with each command that help shows, and its words.
fn each(command: &clap::Command, words: &str, see: &mut dyn FnMut(&clap::Command, &str)) {
    see(command, words);
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        each(command, &format!("{words} {}", command.get_name()), see);
    }
}

/// Flags of all commands count, hidden ones too, but each of these counts once: those of a problem, wherever they are,
/// those of every command, and one that a command hands on to its subcommands.
#[test]
fn commands_and_flags_are_few() {
    let (mut pairs, mut once) = (
        Vec::new(),
        BTreeSet::from(["--help".to_string(), "--version".to_string()]),
    );
    let mut see = |command: &clap::Command, words: &str| {
        for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
            let name = arg.get_long().unwrap_or(arg.get_id().as_str());
            let is_shared = arg.get_help_heading() == Some(PROBLEM) || ["color", "json"].contains(&name);
            if is_shared {
                once.insert(format!("--{name}"));
            } else {
                pairs.push(format!("{words} --{name}"));
            }
        }
    };
    each(&Cli::command(), "flashcore", &mut see);
    let all = pairs.len() + once.len();
    assert!(
        all <= 160,
        "{all} flags: {}\n{}",
        once.into_iter().collect::<Vec<_>>().join(" "),
        pairs.join("\n")
    );
    let command = Cli::command();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
    assert!(names.len() <= 15, "{}: {names:?}", names.len());
}

#[test]
fn short_help_is_a_screen() {
    let mut command = commands(Cli::command(), 100);
    command.build();
    let mut long = Vec::new();
    let mut see = |command: &clap::Command, words: &str| {
        let help = command.clone().term_width(100).render_help().to_string();
        let (lines, columns) = (
            help.lines().count(),
            help.lines().map(|line| line.chars().count()).max(),
        );
        if lines > SCREEN || columns > Some(100) {
            long.push(format!("{words}: {lines} lines of {columns:?}\n{help}"));
        }
    };
    each(&command, "flashcore", &mut see);
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// `--help` explains what `-h` only names.
#[test]
fn flags_of_a_problem_are_named_and_explained() {
    let mut command = commands(Cli::command(), 100);
    command.build();
    let run = command.find_subcommand_mut("run").expect("a command");
    let (short, long) = (run.render_help().to_string(), run.render_long_help().to_string());
    assert!(
        short.contains("Problem flags: --batch") && !short.contains("Sequences in the batch"),
        "{short}"
    );
    assert!(
        long.contains("Sequences in the batch") && !long.contains("Problem flags:"),
        "{long}"
    );
}
