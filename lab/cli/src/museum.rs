//! `flashcore check museum/NAME` and `flashcore list museum`: past failures and their findings.

use flashcore_check::Found;
use flashcore_check::museum::{CARD, PIECES, Piece, Shown};
use serde_json::{Value, json};

use crate::foreign::Runs;
use crate::{DIM, Failure, HEAD, Outcome, Page, foreign, style};

pub(crate) const PREFIX: &str = "museum/";

pub(crate) fn piece(name: &str) -> Result<&'static Piece, Failure> {
    flashcore_check::museum::piece(name).ok_or_else(|| {
        Failure::usage(format!("the museum has no exhibit `{name}`")).help("`flashcore list museum` shows them all")
    })
}

pub(crate) fn check(name: &str, runs: &Runs, as_json: bool) -> Result<Outcome, Failure> {
    let piece = piece(name)?;
    let mut all = Shown::default();
    for schedule in (0..runs.schedules.max(1)).map(|n| runs.first + u64::from(n)) {
        let shown = piece.show(schedule, false).map_err(Failure::failed)?;
        all.problems = shown.problems;
        for found in shown.findings {
            Found::add(&mut all.findings, vec![found.finding], schedule);
        }
    }
    let json = || json!({ "piece": piece, "findings": all.findings, "problems": all.problems });
    style::show(as_json, json, || {
        let mut page = Page::new(format_args!("{HEAD}{}{HEAD:#}", piece.title));
        page.field("exhibit", format_args!("{PREFIX}{} in {}", piece.name, piece.file));
        page.field("symptom", piece.symptom);
        if !all.problems.is_empty() {
            page.field("card", CARD.name());
        }
        foreign::add_problems(&mut page, &all.problems, piece.file);
        foreign::add_findings(&mut page, &all.findings, runs);
        page
    });
    Ok(Outcome::of(all.findings.is_empty() && all.problems.is_empty()))
}

pub(crate) fn list() -> (Page, Value) {
    let mut page = Page::new(format_args!(
        "{HEAD}Museum{HEAD:#} {DIM}(for check; docs/museum.md tells their stories){DIM:#}"
    ));
    for piece in PIECES.iter() {
        let name = format!("{PREFIX}{}", piece.name);
        page.line(format_args!("  {name:<25} {}", piece.title));
        page.line(format_args!("  {:<25} {DIM}{}{DIM:#}", "", piece.kind));
    }
    (page, json!(*PIECES))
}
