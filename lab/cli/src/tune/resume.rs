//! Folders of runs that were interrupted or did not begin. `flashcore tune --resume` without a problem: the run says
//! what was asked for.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches};
use flashcore_tune::journal::{board_of, read_header};
use flashcore_tune::runs;

use crate::args::ShapeFlags;
use crate::tune::args::TuneArgs;
use crate::tune::leaderboard::title;
use crate::{Cli, Command, Failure, Given, style};

/// Words of a command that say where it is kept and what it prints, and whether the next word belongs to each.
const NOT_KEPT: [(&str, bool); 3] = [("--resume", false), ("--json", false), ("--folder", true)];

/// The words after `tune` on the command line; none where one of them is no text.
fn typed() -> Vec<String> {
    let words: Option<Vec<String>> = std::env::args_os().map(|word| word.into_string().ok()).collect();
    let words = words.unwrap_or_default().into_iter();
    words.skip_while(|word| word != "tune").skip(1).collect()
}

/// The words of this run that are kept with it.
pub(crate) fn command() -> Vec<String> {
    kept(typed())
}

fn kept(words: Vec<String>) -> Vec<String> {
    let (mut words, mut all) = (words.into_iter(), Vec::new());
    while let Some(word) = words.next() {
        let (flag, has_value) = word
            .split_once('=')
            .map_or((word.as_str(), false), |(flag, _)| (flag, true));
        match NOT_KEPT.iter().find(|(known, _)| *known == flag) {
            Some((_, true)) if !has_value => drop(words.next()),
            Some(_) => {}
            None => all.push(word),
        }
    }
    all
}

/// The arguments that a run began with, and over them those that are typed now; `None` where a problem is named, or no
/// run is continued.
pub(crate) fn taken_up(args: &TuneArgs, given: &Given) -> Result<Option<TuneArgs>, Failure> {
    let of_problem = ["dtype", "kv_heads", "seq_q", "seq_kv", "head_dim_v", "backward"];
    if !args.resume || given.names_problem || given.has(&ShapeFlags::NAMES) || given.has(&of_problem) {
        return Ok(None);
    }
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => interrupted()?,
    };
    let begun = read_header(&folder)?;
    if begun.command.is_empty() {
        let why = format!("{} has no command, as an earlier build began it", folder.display());
        return Err(Failure::usage(why).help("name its problem, device and flags again, with --resume"));
    }
    let words = ["flashcore", "tune"].map(str::to_string).into_iter();
    let words = words.chain(begun.command.iter().cloned()).chain(typed());
    let parser = crate::commands(Cli::command(), style::width()).args_override_self(true);
    let wrong = |error: clap::Error| Failure::usage(format!("{}: its command: {error}", folder.display()));
    let matches = parser.try_get_matches_from(words).map_err(wrong)?;
    let Some(Command::Tune(mut args)) = Cli::from_arg_matches(&matches).map_err(wrong)?.command else {
        return Ok(None);
    };
    let (title, asked) = (title(&begun), begun.command.join(" "));
    style::note(format_args!(
        "continuing {title} (`flashcore tune {asked}`) in {}",
        folder.display()
    ));
    args.folder = Some(folder);
    Ok(Some(args))
}

/// The folder of the latest run that has no leaderboard.
fn interrupted() -> Result<PathBuf, Failure> {
    let kept = runs::folder();
    let found = kept.as_deref().map(runs::look).transpose()?.unwrap_or_default();
    let mut unfinished = found
        .runs
        .iter()
        .filter(|(folder, _)| matches!(board_of(folder), Ok(None)));
    let folder = unfinished.next().map(|(folder, _)| folder.clone());
    folder.ok_or_else(|| {
        let help = "a run that ended is continued by its folder and a larger --budget: `flashcore tune show` lists them, \
                    `flashcore tune --resume --folder FOLDER --budget 10m` continues one";
        Failure::usage("no run was interrupted").help(help)
    })
}

/// Removes the new folder of a run that did not begin, whatever kept it from that; a folder with files stays.
pub(crate) struct Unused(pub(crate) PathBuf);

impl Drop for Unused {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_command_begins_the_same_search() {
        let of = |line: &str| kept(line.split(' ').map(str::to_string).collect()).join(" ");
        assert_eq!(
            of("tiny --json --folder here --budget 5 --device cpu --resume"),
            "tiny --budget 5 --device cpu"
        );
        assert_eq!(of("--folder=here --seq 64"), "--seq 64");
    }
}
