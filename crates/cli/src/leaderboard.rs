//! `flashcore leaderboard`: what searches found, shown again.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcore_tune::board::{Board, BoardRow};
use flashcore_tune::insight::Claims;
use flashcore_tune::journal::{Header, read_header, read_trials};
use flashcore_tune::{Beside, History, Verdict, runs};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::claims;
use crate::failure::{Failure, Outcome};
use crate::style::{self, BAD, DIM, GOOD, HEAD};
use crate::tune::heading;
use crate::tune_peers;

/// Show what `flashcore tune` found
///
/// Without arguments: the latest run of each problem and device, and its winner. With a run's folder or
/// a problem's name: its leaderboard, and what came of every candidate.
#[derive(Args)]
pub(crate) struct LeaderboardArgs {
    /// A run's folder, or the name of a problem: its latest run
    #[arg(value_name = "RUN|PROBLEM")]
    run: Option<String>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(crate) fn run(args: &LeaderboardArgs) -> Result<Outcome, Failure> {
    let kept = runs::folder();
    let all = kept.as_deref().map(runs::all).unwrap_or_default();
    let Some(wanted) = &args.run else {
        return overview(&all, args.json);
    };
    let path = PathBuf::from(wanted);
    let folder = if path.is_dir() {
        path
    } else {
        // The latest that says something of this machine, where there is one.
        let of_case = |(_, header): &&(PathBuf, Header)| header.case == *wanted;
        let real = all.iter().filter(of_case).find(|(_, header)| header.is_real());
        let latest = real.or_else(|| all.iter().find(of_case));
        let none = || Failure::failed(format!("`{wanted}` is no folder, and no run of such a problem is kept"));
        latest.ok_or_else(none)?.0.clone()
    };
    let header = read_header(&folder)?;
    let mut history = History::default();
    for trial in read_trials(&folder)? {
        history.add(trial);
    }
    let board = board(&folder);
    let beside = board.as_ref().and_then(|board| Beside::read(&folder, board));
    let claims: Option<Claims> = kept_in(&folder, "claims.json");
    if args.json {
        let trials = history.trials();
        style::print_json(
            &json!({ "run": header, "trials": trials, "board": board, "peers": beside, "claims": claims }),
        );
        return Ok(Outcome::Clean);
    }
    let title = heading(&title(&header), &header.problem.to_string());
    style::print(&title);
    match &board {
        Some(board) => style::print(&text(&header, board)),
        None => style::print("  The run has no leaderboard yet: `flashcore tune --resume` takes it up again.\n"),
    }
    let seconds = history.trials().iter().map(|trial| trial.seconds).sum();
    style::print(&summary(&history, seconds));
    if let Some(claims) = &claims {
        style::print(&claims::text(claims));
    }
    style::print(&beside.as_ref().map(tune_peers::text).unwrap_or_default());
    style::print(&style::field("evidence", &folder.display().to_string()));
    Ok(Outcome::Clean)
}

fn title(header: &Header) -> String {
    let devices: Vec<&str> = header.devices.iter().map(|device| device.name.as_str()).collect();
    let devices = devices.join(" and ");
    let on = match header.computes {
        true => format!("{} on {devices}", header.case),
        false => format!("{}, a replay of {devices}", header.case),
    };
    match header.torture {
        true => on + ", with planted candidates",
        false => on,
    }
}

/// The leaderboard of the run in a folder, if it has ended.
pub(crate) fn board(folder: &std::path::Path) -> Option<Board> {
    kept_in(folder, "board.json")
}

/// What a run kept in a file of its folder when it ended.
fn kept_in<T: DeserializeOwned>(folder: &std::path::Path, name: &str) -> Option<T> {
    let text = std::fs::read_to_string(folder.join(name)).ok()?;
    serde_json::from_str(&text).ok()
}

fn overview(all: &[(PathBuf, Header)], as_json: bool) -> Result<Outcome, Failure> {
    let mut seen: Vec<String> = Vec::new();
    let mut latest = Vec::new();
    for (folder, header) in all {
        let title = title(header);
        let Some(board) = board(folder).filter(|_| !seen.contains(&title)) else {
            continue;
        };
        latest.push((folder, header, board));
        seen.push(title);
    }
    if as_json {
        let rows = latest
            .iter()
            .map(|(folder, header, board)| json!({ "folder": folder, "run": header, "board": board }));
        style::print_json(&json!({ "runs": rows.collect::<Vec<_>>() }));
        return Ok(Outcome::Clean);
    }
    if latest.is_empty() {
        style::print("No run is kept yet: `flashcore tune` makes one.\n");
    }
    let (real, made_up): (Vec<_>, Vec<_>) = latest.into_iter().partition(|(_, header, _)| header.is_real());
    for (folder, header, board) in &real {
        style::print(&line(folder, header, board));
    }
    if !made_up.is_empty() {
        style::print(&heading("Replays and torture", "they say nothing of this machine"));
    }
    for (folder, header, board) in &made_up {
        style::print(&line(folder, header, board));
    }
    Ok(Outcome::Clean)
}

/// A run in the overview.
fn line(folder: &Path, header: &Header, board: &Board) -> String {
    let found = match (&board.winner, board.gain_of_winner()) {
        _ if board.is_start_bad() => format!("{BAD}{} FAILED{BAD:#}", board.start),
        (Some(winner), Some((gain, _))) => {
            format!("{winner}, {GOOD}{:+.1} %{GOOD:#} over {}", gain * 100.0, board.start)
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

/// A leaderboard as a table, and what it comes to.
pub(crate) fn text(header: &Header, board: &Board) -> String {
    let start = match header.begins_at_default() {
        Some(default) => format!("{}, the default ({})", board.start, default.by()),
        None => board.start.clone(),
    };
    let widest = board.rows.iter().map(|row| row.id.len()).max().unwrap_or(0);
    let mut text = format!(
        "\n{HEAD}Leaderboard{HEAD:#} {DIM}· times relative to {}{DIM:#}\n",
        board.against
    );
    for (place, row) in board.rows.iter().enumerate() {
        text.push_str(&format!(
            "  {:>2}  {:<widest$}  {:>9}  {}\n",
            place + 1,
            row.id,
            style::micros(row.us),
            beside(row, board)
        ));
    }
    for struck in &board.struck {
        let line = format!(
            "  {BAD}struck{BAD:#}  {}: {}: {}",
            struck.id, struck.verdict, struck.reason
        );
        text.push_str(&style::wrap(&line, 10));
    }
    if let Some(witness) = &board.witness {
        let kin = match board.is_witness_kin() {
            true => ", which is of the same family: a fault of them all would not show",
            false => "",
        };
        text.push_str(&style::field(
            "rows",
            &format!("each of the finalists' was held against {witness}{kin}"),
        ));
    }
    if let Err(why) = &board.head_to_head {
        text.push_str(&style::wrap(
            &format!("  Times of the search, not head to head: {why}"),
            2,
        ));
    }
    text.push_str(&style::field("result", &verdict(&start, board)));
    text
}

/// What a leaderboard comes to, in a sentence. `start` says what its first candidate is.
fn verdict(start: &str, board: &Board) -> String {
    if board.is_start_bad() {
        let why = match &board.start_failed {
            Some(why) => why.as_str(),
            None => "the simulator does not find it clean",
        };
        let instead = match &board.winner {
            Some(winner) => format!("the best that came through is {winner}"),
            None => "nothing else came through".to_string(),
        };
        return format!("{BAD}{start} FAILED{BAD:#} ({why}); {instead}");
    }
    match (&board.winner, board.gain_of_winner()) {
        (Some(winner), Some((gain, interval))) => format!(
            "{GOOD}{winner}{GOOD:#} is {:.1} % [{:.1}, {:.1}] faster than {start}",
            gain * 100.0,
            interval.lo * 100.0,
            interval.hi * 100.0
        ),
        _ => format!(
            "{start} stands: nothing tried is faster by {:.0} % or more",
            board.gain * 100.0
        ),
    }
}

fn beside(row: &BoardRow, board: &Board) -> String {
    let mut text = match &row.ratio {
        Some(ratio) => {
            let interval = format!("[{:.3}, {:.3}]", ratio.interval.lo, ratio.interval.hi);
            let verdict = row.verdict.map_or("", Verdict::name);
            let colour = if row.verdict == Some(Verdict::Faster) {
                GOOD
            } else {
                DIM
            };
            format!("{:.3} {interval} {colour}{verdict}{colour:#}", ratio.value)
        }
        None if row.id == board.against => "1".to_string(),
        None => String::new(),
    };
    match &row.simulated {
        Some(Ok(())) => text.push_str(" simulator: clean"),
        Some(Err(found)) => text.push_str(&format!(" {BAD}simulator: {found}{BAD:#}")),
        None => {}
    }
    text
}

/// What came of all candidates.
pub(crate) fn summary(history: &History, seconds: f64) -> String {
    let counts: Vec<String> = history
        .count()
        .iter()
        .map(|(verdict, count)| format!("{count} {verdict}"))
        .collect();
    let trials = style::count(history.trials().len() as u64, "trial");
    style::field("tried", &format!("{trials} in {seconds:.0} s: {}", counts.join(", ")))
}
