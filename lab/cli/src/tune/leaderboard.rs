//! `flashcore tune show`: shows the result of searches again.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use flashcore_bench::own::is_own;
use flashcore_bench::table::clip_to;
use flashcore_bench::{problem_file, problem_text};
use flashcore_check::programs::quoted;
use flashcore_problem::{Direction, Tolerance};
use flashcore_tune::board::{Board, BoardRow};
use flashcore_tune::insight::{Claims, Score, Scored, Tally};
use flashcore_tune::journal::{Header, read_seconds};
use flashcore_tune::runs::{self, Found};
use flashcore_tune::{History, PeerComparison, Told, Verdict, rewritten, times_as_long};
use serde_json::json;

use crate::args::case;
use crate::judged_run::allowed;
use crate::quantity::duration;
use crate::tune::args::OUTSIDE;
use crate::tune::{live, overview, peers};
use crate::{BAD, DIM, Failure, GOOD, HEAD, Outcome, Page, style};

/// Show what `flashcore tune` found
///
/// Without arguments: the latest run of each problem and device with its winner, interrupted runs, and
/// runs that cannot be read. With a run's folder or a problem: its leaderboard, the candidates that
/// failed and why, and the number of candidates by verdict. --all: every candidate.
#[derive(Args, Clone)]
#[command(
    after_help = "Exit codes: 0 done, 1 a listed run cannot be read, 2 usage or no such run, 3 the run cannot be read"
)]
pub(crate) struct LeaderboardArgs {
    /// A run's folder, or a problem (a name, a shape, or FILE.toml:NAME): its latest run
    #[arg(value_name = "RUN|PROBLEM")]
    run: Option<String>,
    /// Every candidate that was tried, with its verdict and reason
    #[arg(long, requires = "run", help_heading = "Output")]
    all: bool,
    /// Without a run: those that began at most so long ago, as 7d or 12h
    #[arg(long, value_name = "TIME", conflicts_with = "run", value_parser = since, help_heading = "Output")]
    since: Option<Duration>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

fn since(text: &str) -> Result<Duration, String> {
    duration(text).ok_or_else(|| "write a time as 7d, 12h or 30m".to_string())
}

pub(crate) fn run(args: &LeaderboardArgs) -> Result<Outcome, Failure> {
    let Some(wanted) = &args.run else {
        let mut found = found()?;
        if let Some(since) = args.since {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let first = now.saturating_sub(since).as_secs();
            found.runs.retain(|(_, header)| header.started_at >= first);
        }
        return Ok(overview::run(found, args.json));
    };
    let path = PathBuf::from(wanted);
    let folder = if path.is_dir() {
        path
    } else if problem_file::is_file(wanted) {
        latest(&found()?, &case(wanted)?.name)?
    } else {
        let shape = problem_text::read(wanted).transpose()?;
        latest(&found()?, &shape.map_or(wanted.clone(), |shape| shape.to_string()))?
    };
    let told = Told::read(&folder)?;
    let Told {
        header,
        history,
        board,
        claims,
        ..
    } = &told;
    let comparison = board.as_ref().and_then(|board| PeerComparison::read(&folder, board));
    let seconds = read_seconds(&folder);
    let json = || {
        let trials = history.trials();
        json!({
            "run": header, "trials": trials, "board": board, "peers": comparison, "claims": claims, "seconds": seconds,
        })
    };
    style::show(args.json, json, || {
        let mut page = Page::default();
        if header.case == header.problem.to_string() {
            page.line(format_args!("\n{HEAD}{}{HEAD:#}", title(header)));
        } else {
            page.heading(title(header), &header.problem);
        }
        match board {
            Some(board) => {
                add_headline(&mut page, header, board, history);
                add_board(&mut page, board, &folder);
            }
            None => page.wrap(2, format_args!("  No leaderboard yet: {}", unfinished(&folder))),
        }
        add_summary(&mut page, history, seconds);
        if args.all {
            page.heading("Candidates", live::LIST);
            history.trials().iter().for_each(|trial| page.line(live::line(trial)));
        } else {
            add_failures(&mut page, history);
        }
        if let Some(claims) = claims {
            add_claims(&mut page, claims);
        }
        if let Some(comparison) = &comparison {
            peers::add(&mut page, comparison);
        }
        page.field("evidence", folder.display());
        page
    });
    Ok(Outcome::Clean)
}

fn found() -> Result<Found, Failure> {
    let folder = runs::folder();
    Ok(folder.as_deref().map(runs::look).transpose()?.unwrap_or_default())
}

/// The latest run of a problem; one on a real device if there is one.
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
            (false, 0) => format!("there are runs of {}", flashcore_check::render::few(&cases)),
            (_, some) => style::count(some, "run") + " cannot be read: see `flashcore tune show`",
        };
        let why = format!("`{case}` is no folder, and there is no run of a problem of that name");
        Failure::usage(why).help(help)
    })
}

pub(crate) fn unfinished(folder: &Path) -> String {
    let folder = quoted(folder.as_os_str());
    format!("it was interrupted or still runs; `flashcore tune --resume --folder {folder}` continues it")
}

pub(crate) fn title(header: &Header) -> String {
    let devices: Vec<&str> = header.devices.iter().map(|device| device.name.as_str()).collect();
    let (case, devices) = (&header.case, devices.join(" and "));
    let planted = if header.torture {
        ", with planted candidates"
    } else {
        ""
    };
    match header.untimed() {
        None => format!("{case} on {devices}{planted}"),
        Some(what) => format!("{case}, a {what} of {devices}{planted}"),
    }
}

pub(crate) fn add_headline(page: &mut Page, header: &Header, board: &Board, history: &History) {
    if let Some(id) = board.winner.as_deref().filter(|_| header.computes) {
        let dtype = header.problem.dtype();
        let of_file = board.rows.iter().find(|row| row.id == id).and_then(|row| row.tolerance);
        let factor = of_file.map_or(String::new(), |factor| {
            format!("{factor} times the default tolerance, as its file asks: ")
        });
        let allowed = match header.problem.direction() {
            Direction::Backward => allowed(Tolerance::of_gradient(dtype), true),
            Direction::Forward => allowed(Tolerance::of(dtype), false),
        };
        let simulated = if board.rows.iter().any(|row| row.id == id && is_clean(row)) {
            ", and clean under the simulator"
        } else {
            ""
        };
        let text = format!("{GOOD}yes{GOOD:#}: within {factor}{allowed} of float64{simulated}");
        page.field("correct", text);
    }
    if let Some(row) = board.rows.iter().find(|row| Some(&row.id) == board.winner.as_ref()) {
        let rate = style::flops(header.problem.flops() / row.us * 1e6);
        let time = style::micros(row.us);
        page.field("time", format_args!("{time}, {rate}, by {}", row.id));
    }
    let of_user = board
        .rows
        .iter()
        .find(|row| is_own(&row.id) && Some(&row.id) != board.winner.as_ref());
    if let Some(row) = of_user {
        let ratio = row.ratio.map_or(String::new(), |ratio| {
            format!(
                ", {} as long as {}",
                times_as_long(ratio.value, ratio.interval),
                board.against
            )
        });
        page.field(
            "yours",
            format_args!("the best of yours is {}: {}{ratio}", row.id, style::micros(row.us)),
        );
    }
    let start = match header.begins_at_default() {
        Some(default) => format!("{}, the default ({})", board.start, default.by()),
        None => board.start.clone(),
    };
    page.field("result", verdict(&start, header, board, history));
    page.fields("trust", &header.trust);
}

pub(crate) fn add_board(page: &mut Page, board: &Board, folder: &Path) {
    add_rows(page, board, folder);
    for struck in &board.struck {
        let (id, verdict, reason) = (&struck.id, struck.verdict, &struck.reason);
        page.wrap(10, format_args!("  {BAD}struck{BAD:#}  {id}: {verdict}: {reason}"));
    }
    if let Some(witness) = &board.witness {
        let text = format!("every output row of the finalists was compared with {witness}");
        page.field("rows", text);
    }
    if let Some(why) = &board.head_to_head.why {
        page.wrap(2, format_args!("  Times of the search, not head to head: {why}"));
    }
}

fn add_rows(page: &mut Page, board: &Board, folder: &Path) {
    let widest = board.rows.iter().map(|row| row.id.len()).max().unwrap_or(0);
    page.heading("Leaderboard", format_args!("× is times as long as {}", board.against));
    for (place, row) in (1..).zip(&board.rows) {
        let ratio = match &row.ratio {
            Some(ratio) => times_as_long(ratio.value, ratio.interval),
            None if row.id == board.against => "× 1".to_string(),
            None => String::new(),
        };
        let verdict = row.verdict.map_or(String::new(), |verdict| {
            let colour = if verdict == Verdict::Faster { GOOD } else { DIM };
            format!("{colour}{verdict}{colour:#}")
        });
        let (id, time) = (&row.id, style::micros(row.us));
        let line = format!("  {place:>2}  {id:<widest$}  {ratio:<22}  {time:>9}  {verdict}");
        page.line(line.trim_end());
        if let Some(error) = row.error {
            let whose = if is_own(id) { "yours; " } else { "" };
            let allowed = row.tolerance.map_or("the default tolerance".to_string(), |factor| {
                format!("{factor} times the default tolerance, as its file asks")
            });
            page.line(format_args!(
                "      {DIM}{whose}largest error {error:.1e}, within {allowed}{DIM:#}"
            ));
        }
        if let Some(word) = rewritten(id, folder) {
            page.line(format_args!("      {DIM}written by the proposer: {word}{DIM:#}"));
        }
        if let Some(found) = row.simulated.as_ref().and_then(|check| check.why.as_ref()) {
            page.wrap(10, format_args!("      {BAD}the simulator: {found}{BAD:#}"));
        }
    }
    if !board.rows.is_empty() && board.rows.iter().all(is_clean) {
        page.field("simulated", "all of them, and nothing was found");
    }
}

fn is_clean(row: &BoardRow) -> bool {
    row.simulated.as_ref().is_some_and(|check| check.ok)
}

/// The result of a search in a sentence. `start` describes the first candidate.
fn verdict(start: &str, header: &Header, board: &Board, history: &History) -> String {
    if board.is_start_bad() {
        let why = board.start_failed.as_deref();
        let why = why.unwrap_or("the simulator finds errors in it");
        let instead = match &board.winner {
            Some(winner) => format!("the best that passed is {winner}"),
            None => "nothing else passed".to_string(),
        };
        return format!("{BAD}{start} FAILED{BAD:#} ({why}); {instead}");
    }
    if let (Some(winner), Some((gain, interval))) = (&board.winner, board.gain_of_winner()) {
        let [gain, low, high] = [gain, interval.lo, interval.hi].map(|share| share * 100.0);
        let interval = if header.is_predicted() {
            String::new()
        } else {
            format!(" [{low:.1}, {high:.1}]")
        };
        return format!("{GOOD}{winner}{GOOD:#} takes {gain:.1} %{interval} less time than {start}");
    }
    if history.trials().len() > 1 {
        let percent = board.gain * 100.0;
        return format!("{start} stands: no candidate is faster by {percent:.0} % or more");
    }
    // A longer budget does not help a proposer that ends.
    let why = match header.strategy.strip_prefix(OUTSIDE) {
        Some(command) => format!("`{command}` proposed nothing else"),
        None => more_time(history),
    };
    format!("{start} stands: only it was tried; {why}")
}

fn more_time(history: &History) -> String {
    const CANDIDATES: f64 = 20.0;
    let longest = history.trials().iter().map(|trial| trial.seconds).fold(0.0, f64::max);
    let budget = match longest * CANDIDATES {
        seconds if seconds <= 60.0 => "60s".to_string(),
        seconds => format!("{:.0}m", (seconds / 60.0).ceil()),
    };
    format!("a candidate takes {longest:.1} s here: give --budget {budget} or more")
}

pub(crate) fn add_summary(page: &mut Page, history: &History, seconds: Option<f64>) {
    let counts = history.count().into_iter();
    let counts = style::list(counts.map(|(verdict, count)| format!("{count} {verdict}")));
    let trials = style::count(history.trials().len(), "trial");
    let time = seconds.map_or(String::new(), |seconds| format!(" in {seconds:.0} s"));
    page.field("tried", format_args!("{trials}{time}: {counts}"));
}

const FAILURES: usize = 8;

/// Adds the candidates that failed: one line for all whose reasons differ only in names and numbers.
pub(crate) fn add_failures(page: &mut Page, history: &History) {
    let mut alike: Vec<((Verdict, String), &str, Vec<&str>)> = Vec::new();
    for trial in history.trials().iter().filter(|trial| !trial.verdict.is_timed()) {
        let kind = (trial.verdict, without_names_and_numbers(&trial.reason));
        match alike.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., ids)) => ids.push(&trial.id),
            None => alike.push((kind, &trial.reason, vec![&trial.id])),
        }
    }
    for ((verdict, _), reason, ids) in alike.iter().take(FAILURES) {
        let more = match ids.len() {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        let (id, reason) = (ids[0], clip_to(reason, 200));
        let text = format!("{BAD}{verdict}{BAD:#} {id}{more}: {DIM}{reason}{DIM:#}");
        page.field("failed", text);
    }
    if alike.len() > FAILURES {
        let more = style::count(alike.len() - FAILURES, "more reason");
        page.field("", format_args!("{more}: --all shows every candidate"));
    }
}

/// A reason without `names` and numbers: eleven kernels that spill have one reason.
fn without_names_and_numbers(reason: &str) -> String {
    let outside_names = reason.split('`').step_by(2);
    outside_names
        .flat_map(|text| text.split(|c: char| c.is_ascii_digit()))
        .collect()
}

/// Adds the table, and for right and wrong claims the one with the largest measured change.
pub(crate) fn add_claims(page: &mut Page, claims: &Claims) {
    if claims.claims.is_empty() {
        return page.field("claims", "none about these candidates");
    }
    page.heading(
        "Claims",
        "changes expected by simulator, compiler, cost model and counters",
    );
    for (index, line) in Tally::table(&claims.table).into_iter().enumerate() {
        let style = if index == 0 { DIM } else { anstyle::Style::new() };
        page.line(format_args!("  {style}{line}{style:#}"));
    }
    for (label, score) in [("came true", Score::CameTrue), ("wrong", Score::SignWrong)] {
        let scored = claims.claims.iter().filter(|scored| scored.score == Some(score));
        let size = |scored: &&Scored| scored.measured.map_or(0.0, f64::abs);
        let Some(scored) = scored.max_by(|a, b| size(a).total_cmp(&size(b))) else {
            continue;
        };
        let measured = match scored.measured {
            Some(percent) => format!("measured {percent:+.1} %"),
            None => "not measured".to_string(),
        };
        let (claim, about) = (&scored.claim, &scored.claim.about);
        page.field(label, format_args!("{claim} {DIM}({about}){DIM:#}: {measured}"));
    }
}

#[cfg(test)]
mod tests {
    use flashcore_tune::Trial;

    use super::*;

    fn plain(add: impl Fn(&mut Page)) -> String {
        let mut page = Page::default();
        add(&mut page);
        anstream::adapter::strip_str(&page.to_string()).to_string()
    }

    fn board(simulated: &[&str]) -> Board {
        let row = |(number, simulated): (usize, &&str)| {
            json!({
                "id": format!("wgmma/m192n128-s{number}-qreg-c2-pingpong-cond-k4"),
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
        let text = plain(|page| add_rows(page, &board(&["", ""]), Path::new("")));
        assert!(
            text.contains("-k4  × 1.071 [1.050, 1.093]     124 µs  AMBIGUOUS\n"),
            "{text}"
        );
        assert!(text.contains("nothing was found"), "{text}");
        let long = "a race of two warps ".repeat(10);
        let text = plain(|page| add_rows(page, &board(&["", &long]), Path::new("")));
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
        let text = plain(|page| add_failures(page, &history));
        assert!(
            text.contains("WRONG cpu/m0n16 and 1 more: kernel `a_b3` spills 40 B"),
            "{text}"
        );
        assert_eq!(text.lines().count(), FAILURES);
        history.add(trial(FAILURES + 1, "one too many"));
        let text = plain(|page| add_failures(page, &history));
        assert!(text.ends_with("1 more reason: --all shows every candidate\n"), "{text}");
    }
}
