//! What `flashcore tune` claimed about candidates, and which kinds of claims came true: a table.

use flashcore_tune::insight::{Claims, Score, Scored, Tally};

use crate::style::{self, DIM, HEAD};

/// The table, and the claim that was furthest from what was measured.
pub(crate) fn text(claims: &Claims) -> String {
    let made = claims.claims.len();
    if made == 0 {
        return style::field("claims", "none were made about these candidates");
    }
    let mut lines = Tally::table(&claims.table).into_iter();
    let head = lines.next().unwrap_or_default();
    let mut text = format!(
        "\n{HEAD}Claims{HEAD:#} {DIM}· what simulator, compiler and cost model expected of changes{DIM:#}\n  \
         {DIM}{head}{DIM:#}\n"
    );
    for line in lines {
        text.push_str(&format!("  {line}\n"));
    }
    if let Some(best) = told(claims, Score::CameTrue) {
        text.push_str(&style::field("came true", &example(best)));
    }
    if let Some(worst) = told(claims, Score::SignWrong) {
        text.push_str(&style::field("wrong", &example(worst)));
    }
    text
}

/// Of the claims with a score, the one with the largest measured change.
fn told(claims: &Claims, score: Score) -> Option<&Scored> {
    let scored = claims.claims.iter().filter(|scored| scored.score == Some(score));
    let size = |scored: &&Scored| scored.measured.map_or(0.0, f64::abs);
    scored.max_by(|a, b| size(a).total_cmp(&size(b)))
}

fn example(scored: &Scored) -> String {
    let measured = match scored.measured {
        Some(percent) => format!("measured {percent:+.1} %"),
        None => "it did not".to_string(),
    };
    format!("{} {DIM}({}){DIM:#}: {measured}", scored.claim, scored.claim.about)
}
