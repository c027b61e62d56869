//! `flashcore tune show` without arguments: the latest run of each problem and device, runs without a
//! leaderboard, and runs that cannot be read.

use std::path::{Path, PathBuf};

use flashcore::unstable::plans::date;
use flashcore_tune::TuneError;
use flashcore_tune::board::Board;
use flashcore_tune::journal::{Header, board_of, read_trials};
use flashcore_tune::runs::Found;
use serde::Serialize;
use serde_json::json;

use crate::tune::leaderboard::{title, unfinished};
use crate::{BAD, DIM, GOOD, HEAD, Outcome, Page, micros, style};

#[derive(Default, Serialize)]
struct Overview {
    /// The latest of each problem and device that has a leaderboard.
    runs: Vec<Finished>,
    unfinished: Vec<Unfinished>,
    unreadable: Vec<Unreadable>,
}

#[derive(Serialize)]
struct Finished {
    folder: PathBuf,
    run: Header,
    board: Board,
}

#[derive(Serialize)]
struct Unfinished {
    folder: PathBuf,
    run: Header,
    trials: usize,
    go_on: String,
}

#[derive(Serialize)]
struct Unreadable {
    folder: PathBuf,
    why: String,
}

impl Overview {
    fn of(found: Found) -> Overview {
        let mut overview = Overview::default();
        let mut unreadable = Vec::new();
        for (folder, header) in found.runs {
            if let Err(why) = overview.add(&folder, header) {
                unreadable.push((folder, why));
            }
        }
        let unreadable = unreadable.into_iter().chain(found.unreadable);
        let text = |(folder, why): (PathBuf, TuneError)| {
            let why = why.to_string();
            Unreadable { folder, why }
        };
        overview.unreadable = unreadable.map(text).collect();
        overview
    }

    fn add(&mut self, folder: &Path, run: Header) -> Result<(), TuneError> {
        let is_other = |other: &Finished| title(&other.run) != title(&run);
        let (folder, board) = (folder.to_path_buf(), board_of(folder)?);
        match board {
            Some(board) if self.runs.iter().all(is_other) => self.runs.push(Finished { folder, run, board }),
            Some(_) => {}
            None => self.unfinished.push(Unfinished {
                trials: read_trials(&folder)?.len(),
                go_on: unfinished(&folder),
                folder,
                run,
            }),
        }
        Ok(())
    }
}

pub(crate) fn run(found: Found, as_json: bool) -> Outcome {
    let overview = Overview::of(found);
    style::show(as_json, || json!(overview), || overview.page());
    Outcome::of(overview.unreadable.is_empty())
}

impl Overview {
    fn page(&self) -> Page {
        let mut page = Page::default();
        if self.runs.is_empty() && self.unfinished.is_empty() && self.unreadable.is_empty() {
            page.line("There is no run yet: `flashcore tune` makes one.");
        }
        let (real, made_up): (Vec<_>, Vec<_>) = self.runs.iter().partition(|of| of.run.is_real());
        real.iter().for_each(|of| of.add(&mut page));
        if !made_up.is_empty() {
            page.heading("Replays, predictions and torture", "not measured on this machine");
        }
        made_up.iter().for_each(|of| of.add(&mut page));
        if !self.unfinished.is_empty() {
            page.heading("Without a leaderboard", "interrupted, or still running");
        }
        for of in &self.unfinished {
            let (title, trials) = (title(&of.run), style::count(of.trials, "trial"));
            let day = date(of.run.started_at);
            page.wrap(2, format_args!("{day} {HEAD}{title}{HEAD:#}: {trials}; {}", of.go_on));
        }
        if !self.unreadable.is_empty() {
            page.heading("Unreadable", "repair or remove their folders");
        }
        for Unreadable { why, .. } in &self.unreadable {
            page.wrap(2, format_args!("{BAD}unreadable{BAD:#} {why}"));
        }
        page
    }
}

impl Finished {
    fn add(&self, page: &mut Page) {
        let (board, start) = (&self.board, &self.board.start);
        let time = |id: &str| {
            let row = board.rows.iter().find(|row| row.id == id);
            row.map_or(String::new(), |row| format!(" ({})", micros(row.us)))
        };
        let default = time(start);
        let found = match (&board.winner, board.gain_of_winner()) {
            _ if board.is_start_bad() => format!("{BAD}{start} FAILED{BAD:#}"),
            (Some(winner), Some((gain, _))) => {
                let (best, share) = (time(winner), gain * 100.0);
                format!("{winner}{best}, {GOOD}{share:.1} % less time{GOOD:#} than {start}{default}")
            }
            _ => format!("{start}{default}; nothing is significantly faster"),
        };
        let (title, folder) = (title(&self.run), self.folder.display());
        let day = date(self.run.started_at);
        page.wrap(
            2,
            format_args!("{day} {HEAD}{title}{HEAD:#}: {found} {DIM}({folder}){DIM:#}"),
        );
    }
}
