//! The claims that a search made about candidates, by kind and result: a table.

use flashcore_tune::insight::{Claims, Score, Scored, Tally};

use crate::style::{DIM, Page};

/// Adds the table, and for right and wrong claims the one with the largest measured change.
pub(crate) fn add(page: &mut Page, claims: &Claims) {
    if claims.claims.is_empty() {
        return page.field("claims", "none about these candidates");
    }
    page.heading("Claims", "changes expected by simulator, compiler and cost model");
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
