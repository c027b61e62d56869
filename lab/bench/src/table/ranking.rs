//! Rankings of sweeps as text.

use std::fmt::Write;

use super::{clip_to, line, number, times};
use crate::sweep::{Place, RankedRow, Ranking};

/// Columns of a label: long config ids are what a ranking is about.
const LABEL: usize = 40;

/// What a sweep found on one problem, the best first.
pub fn ranking_text(ranking: &Ranking) -> String {
    let mut out = String::new();
    line(&mut out, &format!("{}  {}", ranking.case, ranking.problem));
    let screened = &ranking.screened;
    line(
        &mut out,
        &format!(
            "  {} subjects screened in {} rounds of short turns; {} left out",
            screened.subjects,
            screened.rounds,
            ranking.left_out.len()
        ),
    );
    if let Some(measured) = &ranking.measured {
        line(
            &mut out,
            &format!(
                "  {} measured, {}, {} rounds",
                measured.subjects, measured.how, measured.rounds
            ),
        );
        heading(&mut out, measured);
        rows(&mut out, ranking.rows.iter().filter(|row| row.measured));
    }
    let mut only_screened = ranking.rows.iter().filter(|row| !row.measured).peekable();
    if only_screened.peek().is_some() {
        line(&mut out, "  only screened; not to be compared with the times above");
        heading(&mut out, screened);
        rows(&mut out, only_screened);
    }
    for (label, reason) in &ranking.left_out {
        line(&mut out, &format!("  {label}: {reason}"));
    }
    out
}

fn heading(out: &mut String, place: &Place) {
    let base = place
        .base
        .as_deref()
        .map_or(String::new(), |base| format!("× {}", clip_to(base, 12)));
    let _ = writeln!(
        out,
        "  rank {:<LABEL$} {:>7} {:<15} {:>7} {:>6} {base}",
        "subject", "p50 µs", "interval", "TFLOP/s", "× best"
    );
}

fn rows<'r>(out: &mut String, rows: impl Iterator<Item = &'r RankedRow>) {
    for row in rows {
        let rank = row.rank.map_or("peer".to_string(), |rank| rank.to_string());
        let interval = if row.interval.hi.is_finite() {
            format!("{}–{}", number(row.interval.lo), number(row.interval.hi))
        } else {
            "unknown".to_string()
        };
        let text = format!(
            "  {rank:>4} {:<LABEL$} {:>7} {interval:<15} {:>7} {:>6} {}",
            clip_to(&row.label, LABEL),
            number(row.median_us),
            number(row.tflops),
            row.to_best.map_or(String::new(), times),
            row.to_base.map_or(String::new(), |ratio| times(ratio.value)),
        );
        line(out, text.trim_end());
    }
}
