//! `flashcore leaderboard`: what searches found, shown again.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcore_bench::problem_file;
use flashcore_problem::Tolerance;
use flashcore_tune::board::{Board, BoardRow};
use flashcore_tune::insight::Claims;
use flashcore_tune::journal::{Header, board_of, read_header, read_seconds, read_trials};
use flashcore_tune::runs::{self, Found};
use flashcore_tune::{History, PeerComparison, Trial, Verdict, times_as_long};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::args::case;
use crate::failure::{Failure, Outcome};
use crate::style::{self, BAD, DIM, GOOD, HEAD};
use crate::tune::args::OUTSIDE;
use crate::tune::claims;
use crate::tune::heading;
use crate::tune::interrupt::quoted;
use crate::tune::live;
use crate::tune::overview;
use crate::tune::peers;

/// Show what `flashcore tune` found
///
/// Without arguments: the latest run of each problem and device, and its winner; runs that were cut off; and those that
/// cannot be read. With a run's folder or a problem's name: its leaderboard, what candidates failed and why, and how many
/// came to what. --all: every candidate.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 no such run, or one of those listed cannot be read, 2 usage, 3 the run cannot be read"
)]
pub(crate) struct LeaderboardArgs {
    /// A run's folder, or a problem (a name, or a file as FILE.toml:NAME): its latest run
    #[arg(value_name = "RUN|PROBLEM")]
    run: Option<String>,
    /// Every candidate that was tried, each with what came of it and why
    #[arg(long, requires = "run", help_heading = "Output")]
    all: bool,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(crate) fn run(args: &LeaderboardArgs) -> Result<Outcome, Failure> {
    let Some(wanted) = &args.run else {
        return overview::run(found()?, args.json);
    };
    let path = PathBuf::from(wanted);
    let folder = match path.is_dir() {
        true => path,
        false if problem_file::is_file(wanted) => latest(&found()?, &case(wanted)?.name)?,
        false => latest(&found()?, wanted)?,
    };
    let header = read_header(&folder)?;
    let mut history = History::default();
    for trial in read_trials(&folder)? {
        history.add(trial);
    }
    let board = board_of(&folder)?;
    let beside = board.as_ref().and_then(|board| PeerComparison::read(&folder, board));
    let claims: Option<Claims> = kept_in(&folder, "claims.json");
    let seconds = read_seconds(&folder);
    if args.json {
        let trials = history.trials();
        style::print_json(&json!({
            "run": header, "trials": trials, "board": board, "peers": beside, "claims": claims, "seconds": seconds,
        }));
        return Ok(Outcome::Clean);
    }
    let title = heading(&title(&header), &header.problem.to_string());
    style::print(&title);
    match &board {
        Some(board) => style::print(&(headline(&header, board, &history) + &text(board))),
        None => style::print(&style::wrap(
            &format!("  No leaderboard yet: {}", unfinished(&folder)),
            2,
        )),
    }
    style::print(&summary(&history, seconds));
    style::print(&match args.all {
        true => every(&history),
        false => failures(&history),
    });
    if let Some(claims) = &claims {
        style::print(&claims::text(claims));
    }
    style::print(&beside.as_ref().map(peers::text).unwrap_or_default());
    style::print(&style::field("evidence", &folder.display().to_string()));
    Ok(Outcome::Clean)
}

/// What there is of runs.
fn found() -> Result<Found, Failure> {
    let folder = runs::folder();
    Ok(folder.as_deref().map(runs::look).transpose()?.unwrap_or_default())
}

/// The latest run of a problem: the latest that says something of this machine, where there is one.
fn latest(found: &Found, case: &str) -> Result<PathBuf, Failure> {
    let of_case = |(_, header): &&(PathBuf, Header)| header.case == *case;
    let real = found.runs.iter().filter(of_case).find(|(_, header)| header.is_real());
    let latest = real.or_else(|| found.runs.iter().find(of_case));
    latest.map(|(folder, _)| folder.clone()).ok_or_else(|| {
        let mut cases: Vec<&str> = found.runs.iter().map(|(_, header)| header.case.as_str()).collect();
        cases.sort_unstable();
        cases.dedup();
        let help = match (cases.is_empty(), found.unreadable.len()) {
            (true, 0) => "there is no run yet: `flashcore tune` makes one".to_string(),
            (false, 0) => format!("there are runs of {}", cases.join(", ")),
            (_, some) => format!(
                "{} cannot be read: `flashcore leaderboard` says which, and why",
                style::count(some as u64, "run")
            ),
        };
        Failure::failed(format!(
            "`{case}` is no folder, and there is no run of a problem of that name"
        ))
        .help(help)
    })
}

/// What a run without a leaderboard is, and how it goes on. What it was begun with it does not know in full.
pub(crate) fn unfinished(folder: &Path) -> String {
    format!(
        "it was cut off, or goes on still; the command that began it takes it up again, with --resume --folder {}",
        quoted(folder.as_os_str())
    )
}

pub(crate) fn title(header: &Header) -> String {
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

/// What a run kept in a file of its folder when it ended.
fn kept_in<T: DeserializeOwned>(folder: &std::path::Path, name: &str) -> Option<T> {
    let text = std::fs::read_to_string(folder.join(name)).ok()?;
    serde_json::from_str(&text).ok()
}

/// What a search comes to: whether the output is right, how long it takes, what was tuned and gained.
pub(crate) fn headline(header: &Header, board: &Board, history: &History) -> String {
    let start = match header.begins_at_default() {
        Some(default) => format!("{}, the default ({})", board.start, default.by()),
        None => board.start.clone(),
    };
    let mut text = String::new();
    if let Some(id) = board.winner.as_deref().filter(|_| header.computes) {
        text.push_str(&style::field("correct", &correct(id, header, board)));
    }
    if let Some(row) = board.rows.iter().find(|row| Some(&row.id) == board.winner.as_ref()) {
        let rate = style::flops(header.problem.flops() / row.us * 1e6);
        text.push_str(&style::field(
            "time",
            &format!("{}, {rate}, by {}", style::micros(row.us), row.id),
        ));
    }
    text + &style::field("result", &verdict(&start, header, board, history))
}

/// What the kernel that is to be used was compared with.
fn correct(id: &str, header: &Header, board: &Board) -> String {
    let Tolerance { atol, rtol } = Tolerance::of(header.problem.dtype());
    let allowed = match atol == 0.0 {
        true => "fp8's rounding".to_string(),
        false => format!("{atol:.0e} + {rtol:.0e}·|x|"),
    };
    let clean = board
        .rows
        .iter()
        .any(|row| row.id == id && row.simulated == Some(Ok(())));
    let simulated = if clean { ", and clean under the simulator" } else { "" };
    format!("{GOOD}yes{GOOD:#}: within {allowed} of float64{simulated}")
}

/// A leaderboard as a table, what was struck from it, and what its kernels were compared with.
pub(crate) fn text(board: &Board) -> String {
    let mut text = rows(board);
    for struck in &board.struck {
        let line = format!(
            "  {BAD}struck{BAD:#}  {}: {}: {}",
            struck.id, struck.verdict, struck.reason
        );
        text.push_str(&style::wrap(&line, 10));
    }
    if let Some(witness) = &board.witness {
        text.push_str(&style::field(
            "rows",
            &format!("each of the finalists' was held against {witness}"),
        ));
    }
    if let Err(why) = &board.head_to_head {
        text.push_str(&style::wrap(
            &format!("  Times of the search, not head to head: {why}"),
            2,
        ));
    }
    text
}

/// The finalists, a line each.
fn rows(board: &Board) -> String {
    let widest = board.rows.iter().map(|row| row.id.len()).max().unwrap_or(0);
    let mut text = format!(
        "\n{HEAD}Leaderboard{HEAD:#} {DIM}· × is times as long as {}{DIM:#}\n",
        board.against
    );
    for (place, row) in board.rows.iter().enumerate() {
        let line = format!(
            "  {:>2}  {:<widest$}  {:<22}  {:>9}  {}",
            place + 1,
            row.id,
            ratio(row, board),
            style::micros(row.us),
            judged(row)
        );
        text.push_str(&(line.trim_end().to_string() + "\n"));
        if let Some(Err(found)) = &row.simulated {
            text.push_str(&style::wrap(&format!("      {BAD}the simulator: {found}{BAD:#}"), 10));
        }
    }
    if !board.rows.is_empty() && board.rows.iter().all(|row| row.simulated == Some(Ok(()))) {
        text.push_str(&style::field("simulated", "all of them, and nothing was found"));
    }
    text
}

/// What a leaderboard comes to, in a sentence. `start` says what its first candidate is.
fn verdict(start: &str, header: &Header, board: &Board, history: &History) -> String {
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
        _ if history.trials().len() == 1 => {
            // A program that ends, or says nonsense, does so whatever the budget.
            let why = match header.strategy.strip_prefix(OUTSIDE) {
                Some(command) => format!("`{command}` proposed nothing else"),
                None => more_time(history),
            };
            format!("{start} stands: only it was tried; {why}")
        }
        _ => format!(
            "{start} stands: nothing tried is faster by {:.0} % or more",
            board.gain * 100.0
        ),
    }
}

/// What to do where a budget was spent on one candidate.
fn more_time(history: &History) -> String {
    /// As many candidates are the beginning of a search.
    const CANDIDATES: f64 = 20.0;
    let longest = history.trials().iter().map(|trial| trial.seconds).fold(0.0, f64::max);
    let budget = match longest * CANDIDATES {
        seconds if seconds <= 60.0 => "60s".to_string(),
        seconds => format!("{:.0}m", (seconds / 60.0).ceil()),
    };
    format!("a candidate takes {longest:.1} s here: give --budget {budget} or more")
}

/// How long a finalist takes beside the others' measure, where they met.
fn ratio(row: &BoardRow, board: &Board) -> String {
    match &row.ratio {
        Some(ratio) => times_as_long(ratio.value, ratio.interval),
        None if row.id == board.against => "× 1".to_string(),
        None => String::new(),
    }
}

fn judged(row: &BoardRow) -> String {
    let Some(verdict) = row.verdict else {
        return String::new();
    };
    let colour = if verdict == Verdict::Faster { GOOD } else { DIM };
    format!("{colour}{verdict}{colour:#}")
}

/// What came of all candidates.
pub(crate) fn summary(history: &History, seconds: Option<f64>) -> String {
    let counts: Vec<String> = history
        .count()
        .iter()
        .map(|(verdict, count)| format!("{count} {verdict}"))
        .collect();
    let trials = style::count(history.trials().len() as u64, "trial");
    // Of a run that was killed nobody knows how long it took.
    let time = seconds.map_or(String::new(), |seconds| format!(" in {seconds:.0} s"));
    style::field("tried", &format!("{trials}{time}: {}", counts.join(", ")))
}

/// Most failures that are listed without --all.
const FAILURES: usize = 8;

/// Candidates that failed, with their reasons: one line for reasons that differ in names and numbers only.
pub(crate) fn failures(history: &History) -> String {
    let mut alike: Vec<(Verdict, String, &str, Vec<&str>)> = Vec::new();
    for Trial {
        verdict, reason, id, ..
    } in history.trials().iter().filter(|trial| !trial.verdict.is_timed())
    {
        let kind = without_names_and_numbers(reason);
        match alike
            .iter_mut()
            .find(|(of, of_kind, ..)| (*of, of_kind.as_str()) == (*verdict, kind.as_str()))
        {
            Some((.., ids)) => ids.push(id),
            None => alike.push((*verdict, kind, reason, vec![id])),
        }
    }
    let mut text = String::new();
    for (verdict, _, reason, ids) in alike.iter().take(FAILURES) {
        let more = match ids.len() {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        let line = format!("{BAD}{verdict}{BAD:#} {}{more}: {DIM}{}{DIM:#}", ids[0], short(reason));
        text.push_str(&style::field("failed", &line));
    }
    if alike.len() > FAILURES {
        let more = format!(
            "{}: --all has every candidate",
            style::count((alike.len() - FAILURES) as u64, "more reason")
        );
        text.push_str(&style::field("", &more));
    }
    text
}

/// A reason without its `names` and numbers: eleven kernels that spill have one reason.
fn without_names_and_numbers(reason: &str) -> String {
    let outside_names = reason.split('`').step_by(2);
    outside_names
        .flat_map(|text| text.split(|c: char| c.is_ascii_digit()))
        .collect()
}

/// Every candidate, a line each: what reads it may be a program.
fn every(history: &History) -> String {
    let lines = history.trials().iter().map(live::line);
    format!("\n{HEAD}Candidates{HEAD:#} {DIM}· {}{DIM:#}\n", live::LIST) + &lines.collect::<String>()
}

/// The beginning of a reason, on one line.
fn short(reason: &str) -> String {
    const LONGEST: usize = 200;
    let reason = reason.replace('\n', " ");
    match reason.chars().count() > LONGEST {
        true => reason.chars().take(LONGEST - 1).chain(['…']).collect(),
        false => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(simulated: &[&str]) -> Board {
        let row = |(number, simulated): (usize, &&str)| {
            json!({
                "id": format!("wgmma/m192n128-s{number}-qreg-c2-turns-lazy-k4"),
                "us": 123.4 + number as f64,
                "interval": { "lo": 120.0, "hi": 130.0 },
                "ratio": (number > 0).then(|| json!({
                    "value": 1.071, "interval": { "lo": 1.05, "hi": 1.0925 }, "of_medians": 1.07, "rounds": 9,
                })),
                "verdict": (number > 0).then_some("AMBIGUOUS"),
                "simulated": match *simulated {
                    "" => json!({ "ok": true }),
                    why => json!({ "ok": false, "why": why }),
                },
            })
        };
        let rows: Vec<_> = simulated.iter().enumerate().map(row).collect();
        let start = rows[0]["id"].clone();
        let board = json!({
            "start": start, "start_failed": null, "against": start, "rows": rows, "struck": [], "witness": null,
            "head_to_head": { "ok": true }, "simulates": true, "winner": start, "gain": 0.03,
        });
        serde_json::from_value(board).unwrap()
    }

    #[test]
    fn rows_are_ratios_first_and_no_wider_than_a_page() {
        let text = anstream::adapter::strip_str(&rows(&board(&["", ""]))).to_string();
        assert!(
            text.contains("-k4  × 1.071 [1.050, 1.093]     124 µs  AMBIGUOUS\n"),
            "{text}"
        );
        assert!(text.contains("nothing was found"), "{text}");
        let long = "a race of two warps ".repeat(10);
        let text = anstream::adapter::strip_str(&rows(&board(&["", &long]))).to_string();
        assert!(
            !text.contains("nothing was found") && text.contains("the simulator: a race"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn what_failed_alike_is_a_line_and_the_rest_is_counted() {
        let trial = |number: usize, reason: &str| -> Trial {
            serde_json::from_value(json!({
                "number": number, "id": format!("cpu/m{number}n16"), "origin": "", "verdict": "WRONG", "reason": reason,
                "timed": null, "fingerprint": null, "same_as": null, "seconds": 1.0,
            }))
            .unwrap()
        };
        let mut history = History::default();
        history.add(trial(0, "kernel `a_b3` spills 40 B"));
        history.add(trial(1, "kernel `a_b2` spills 104 B"));
        for number in 2..=FAILURES {
            history.add(trial(number, &format!("reason {}", "x".repeat(number))));
        }
        let plain = |history: &History| anstream::adapter::strip_str(&failures(history)).to_string();
        let text = plain(&history);
        assert!(
            text.contains("WRONG cpu/m0n16 and 1 more: kernel `a_b3` spills 40 B"),
            "{text}"
        );
        assert_eq!(text.lines().count(), FAILURES);
        history.add(trial(FAILURES + 1, "one too many"));
        let text = plain(&history);
        assert!(text.ends_with("1 more reason: --all has every candidate\n"), "{text}");
    }
}
