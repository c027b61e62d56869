//! Standings as text.

use super::{clip_to, lines, times};
use crate::standing::{Geomean, Standing};

/// Columns of a kind of problem.
const GROUP: usize = 28;
/// Names of missing problems shown.
const NAMES: usize = 6;

/// The mean over all problems, and by kind where there is more than one.
pub fn standing_text(standing: &Standing) -> String {
    let all = &standing.all;
    let worst = |mean: &Geomean| format!("{} ({})", times(mean.worst.speedup), mean.worst.case);
    let mut out = vec![
        format!(
            "geomean {} × {} {} over {} shapes, worst {}",
            times(all.value),
            clip_to(&standing.base, 24),
            interval(all),
            all.shapes,
            worst(all)
        ),
        format!("  {}: {}; above 1 is faster", standing.mode, standing.subject),
    ];
    if standing.groups.len() > 1 {
        out.push(format!(
            "  {:<GROUP$} {:>6} {:>7} {:<16} worst",
            "kind", "shapes", "geomean", "interval"
        ));
        out.extend(standing.groups.iter().map(|(group, mean)| {
            let (value, interval) = (times(mean.value), interval(mean));
            let shapes = mean.shapes;
            format!(
                "  {group:<GROUP$} {shapes:>6} {value:>7} {interval:<16} {}",
                worst(mean)
            )
        }));
    }
    if !standing.missing.is_empty() {
        let names: Vec<&str> = standing.missing.iter().take(NAMES).map(String::as_str).collect();
        let rest = match standing.missing.len().saturating_sub(NAMES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        out.push(format!("  no figure for both: {}{rest}", names.join(", ")));
    }
    lines(out)
}

fn interval(mean: &Geomean) -> String {
    mean.interval.map_or("[unknown]".to_string(), |interval| {
        format!("[{}, {}]", times(interval.lo), times(interval.hi))
    })
}
