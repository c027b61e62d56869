//! `flashcore check museum/NAME` and `flashcore list museum`: failures of the past, and what they give here.

use flashcore_check::museum::{CARD, PIECES, Piece, Shown};
use flashcore_check::render::{self, Palette};
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::foreign::Runs;
use crate::style::{self, DIM, HEAD};

/// How the names of pieces begin on a command line.
pub(crate) const PREFIX: &str = "museum/";

/// The piece of a name.
pub(crate) fn piece(name: &str) -> Result<&'static Piece, Failure> {
    flashcore_check::museum::piece(name).ok_or_else(|| {
        Failure::usage(format!("the museum has no piece `{name}`")).help("`flashcore list museum` shows them all")
    })
}

/// Runs a piece, and shows what it gives.
pub(crate) fn check(name: &str, runs: &Runs, as_json: bool) -> Result<Outcome, Failure> {
    let piece = piece(name)?;
    let mut all = Shown::default();
    for schedule in (0..runs.schedules.max(1)).map(|n| runs.first + u64::from(n)) {
        let shown = piece.show(schedule).map_err(Failure::failed)?;
        all.problems = shown.problems;
        for found in shown.findings {
            flashcore_check::Found::add(&mut all.findings, vec![found.finding], schedule);
        }
    }
    let outcome = match all.findings.is_empty() && all.problems.is_empty() {
        true => Outcome::Clean,
        false => Outcome::Findings,
    };
    if as_json {
        style::print_json(&json!({
            "piece": entry(piece),
            "findings": all.findings,
            "problems": all.problems,
        }));
        return Ok(outcome);
    }
    let mut text = format!("{HEAD}{}{HEAD:#}\n", piece.title);
    text.push_str(&style::field(
        "piece",
        &format!("{PREFIX}{} in {}", piece.name, piece.file),
    ));
    text.push_str(&style::field("symptom", piece.symptom));
    if !all.problems.is_empty() {
        text.push_str(&style::field("card", CARD.name()));
    }
    for found in &all.findings {
        text.push('\n');
        text.push_str(&render::finding(
            found,
            runs.schedules as usize,
            Palette::COLOUR,
            style::width(),
        ));
    }
    for problem in &all.problems {
        text.push('\n');
        text.push_str(&render::problem(problem, piece.file, Palette::COLOUR, style::width()));
    }
    style::print(&text);
    Ok(outcome)
}

fn entry(piece: &Piece) -> Value {
    json!({
        "name": piece.name,
        "title": piece.title,
        "symptom": piece.symptom,
        "kind": piece.kind,
        "file": piece.file,
    })
}

/// All pieces.
pub(crate) fn list() -> String {
    let mut text = format!("{HEAD}Museum{HEAD:#} {DIM}(for check; docs/museum.md tells their stories){DIM:#}\n");
    for piece in &PIECES {
        let name = format!("{PREFIX}{}", piece.name);
        text.push_str(&format!("  {name:<25} {}\n", piece.title));
        text.push_str(&format!("  {:<25} {DIM}{}{DIM:#}\n", "", piece.kind));
    }
    text
}

/// All pieces, for scripts.
pub(crate) fn list_json() -> Value {
    PIECES.iter().map(entry).collect()
}
