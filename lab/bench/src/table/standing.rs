//! Standings as text.

use std::fmt::Write;

use super::{clip_to, line, times};
use crate::standing::{Geomean, Standing};

/// Columns of a kind of problem.
const GROUP: usize = 28;
/// Names of missing problems shown.
const NAMES: usize = 6;

/// Where our kernels stand: the mean over all problems, and by kind where there is more than one.
pub fn standing_text(standing: &Standing) -> String {
    let mut out = String::new();
    let all = &standing.all;
    let base = clip_to(&standing.base, 24);
    line(
        &mut out,
        &format!(
            "geomean {} × {base} {} over {} shapes, worst {} ({})",
            times(all.value),
            interval(all),
            all.shapes,
            times(all.worst.speedup),
            all.worst.case
        ),
    );
    line(
        &mut out,
        &format!("  {}: {}; above 1 is faster", standing.mode, standing.subject),
    );
    if standing.groups.len() > 1 {
        let _ = writeln!(
            out,
            "  {:<GROUP$} {:>6} {:>7} {:<16} worst",
            "kind", "shapes", "geomean", "interval"
        );
        for (group, mean) in &standing.groups {
            line(
                &mut out,
                &format!(
                    "  {group:<GROUP$} {:>6} {:>7} {:<16} {} ({})",
                    mean.shapes,
                    times(mean.value),
                    interval(mean),
                    times(mean.worst.speedup),
                    mean.worst.case
                ),
            );
        }
    }
    if !standing.missing.is_empty() {
        let more = standing.missing.len().saturating_sub(NAMES);
        let names = standing
            .missing
            .iter()
            .take(NAMES)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        let rest = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        line(&mut out, &format!("  no figure for both: {names}{rest}"));
    }
    out
}

fn interval(mean: &Geomean) -> String {
    mean.interval.map_or("[unknown]".to_string(), |interval| {
        format!("[{}, {}]", times(interval.lo), times(interval.hi))
    })
}
