//! `flashcore leaderboard` alone: the latest run of each problem and device, runs without a leaderboard, and runs that cannot
//! be read.

use std::path::{Path, PathBuf};

use flashcore_tune::TuneError;
use flashcore_tune::board::Board;
use flashcore_tune::journal::{Header, board_of, read_trials};
use flashcore_tune::runs::Found;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::style::{self, BAD, DIM, GOOD, HEAD};
use crate::tune::heading;
use crate::tune::leaderboard::{title, unfinished};

/// Runs by what there is to say of them, the latest first.
#[derive(Default)]
struct Overview {
    /// The latest of each problem and device that has a leaderboard.
    latest: Vec<(PathBuf, Header, Board)>,
    /// Those without a leaderboard, and how many trials they have.
    unfinished: Vec<(PathBuf, Header, usize)>,
    /// Those that cannot be read, and why.
    unreadable: Vec<(PathBuf, String)>,
}

impl Overview {
    fn of(found: Found) -> Overview {
        let mut overview = Overview::default();
        for (folder, header) in found.runs {
            if let Err(why) = overview.add(&folder, header) {
                overview.unreadable.push((folder, why.to_string()));
            }
        }
        let unreadable = found.unreadable.into_iter();
        overview
            .unreadable
            .extend(unreadable.map(|(folder, why)| (folder, why.to_string())));
        overview
    }

    fn add(&mut self, folder: &Path, header: Header) -> Result<(), TuneError> {
        let Some(board) = board_of(folder)? else {
            let trials = read_trials(folder)?.len();
            self.unfinished.push((folder.to_path_buf(), header, trials));
            return Ok(());
        };
        let name = title(&header);
        if self.latest.iter().all(|(_, other, _)| title(other) != name) {
            self.latest.push((folder.to_path_buf(), header, board));
        }
        Ok(())
    }
}

pub(crate) fn run(found: Found, as_json: bool) -> Result<Outcome, Failure> {
    let overview = Overview::of(found);
    match as_json {
        true => print_json(&overview),
        false => print(&overview),
    }
    Ok(match overview.unreadable.is_empty() {
        true => Outcome::Clean,
        false => Outcome::Findings,
    })
}

fn print_json(overview: &Overview) {
    let runs = overview.latest.iter();
    let runs = runs.map(|(folder, header, board)| json!({ "folder": folder, "run": header, "board": board }));
    let cut_off = overview.unfinished.iter();
    let cut_off = cut_off.map(|(folder, header, trials)| {
        json!({ "folder": folder, "run": header, "trials": trials, "go_on": unfinished(folder) })
    });
    let unreadable = overview.unreadable.iter();
    let unreadable = unreadable.map(|(folder, why)| json!({ "folder": folder, "why": why }));
    style::print_json(&json!({
        "runs": runs.collect::<Vec<_>>(),
        "unfinished": cut_off.collect::<Vec<_>>(),
        "unreadable": unreadable.collect::<Vec<_>>(),
    }));
}

fn print(overview: &Overview) {
    let Overview {
        latest,
        unfinished: cut_off,
        unreadable,
    } = overview;
    if latest.is_empty() && cut_off.is_empty() && unreadable.is_empty() {
        style::print("No run is kept yet: `flashcore tune` makes one.\n");
    }
    let (real, made_up): (Vec<_>, Vec<_>) = latest.iter().partition(|(_, header, _)| header.is_real());
    for (folder, header, board) in real {
        style::print(&line(folder, header, board));
    }
    if !made_up.is_empty() {
        style::print(&heading("Replays and torture", "they say nothing of this machine"));
    }
    for (folder, header, board) in made_up {
        style::print(&line(folder, header, board));
    }
    if !cut_off.is_empty() {
        style::print(&heading("Without a leaderboard", "cut off, or going on still"));
    }
    for (folder, header, trials) in cut_off {
        let trials = style::count(*trials as u64, "trial");
        let text = format!("{HEAD}{}{HEAD:#}: {trials}; {}", title(header), unfinished(folder));
        style::print(&style::wrap(&text, 2));
    }
    if !unreadable.is_empty() {
        style::print(&heading("Unreadable", "mend them, or take their folders away"));
    }
    for (_, why) in unreadable {
        style::print(&style::wrap(&format!("{BAD}unreadable{BAD:#} {why}"), 2));
    }
}

/// A run in the overview.
fn line(folder: &Path, header: &Header, board: &Board) -> String {
    let found = match (&board.winner, board.gain_of_winner()) {
        _ if board.is_start_bad() => format!("{BAD}{} FAILED{BAD:#}", board.start),
        (Some(winner), Some((gain, _))) => {
            format!(
                "{winner}, {GOOD}{:.1} % faster{GOOD:#} than {}",
                gain * 100.0,
                board.start
            )
        }
        _ => format!("{}, nothing is faster by what counts", board.start),
    };
    style::wrap(
        &format!(
            "{HEAD}{}{HEAD:#}: {found} {DIM}({}){DIM:#}",
            title(header),
            folder.display()
        ),
        2,
    )
}
