//! Standings as text.

use super::{bracketed, clip_to, lines, times};
use crate::standing::{Geomean, Standing};

/// Columns of a kind of problem.
const GROUP: usize = 28;
const NAMES: usize = 6;

/// The mean over all problems, and by kind where there is more than one.
pub fn standing_text(standing: &Standing) -> String {
    let mut out = vec![
        geomean_text(standing),
        format!("  {}: {}; above 1 is faster", standing.mode, standing.subject),
    ];
    if standing.groups.len() > 1 {
        out.push(format!(
            "  {:<GROUP$} {:>6} {:>7} {:<16} worst",
            "kind", "shapes", "geomean", "interval"
        ));
        out.extend(standing.groups.iter().map(|(group, mean)| {
            let (value, interval) = (times(mean.value), bracketed(mean.interval));
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

/// The mean over all problems, in a line.
pub(crate) fn geomean_text(standing: &Standing) -> String {
    let all = &standing.all;
    let (value, base, interval) = (times(all.value), clip_to(&standing.base, 24), bracketed(all.interval));
    let (shapes, worst) = (all.shapes, worst(all));
    format!("geomean {value} × {base} {interval} over {shapes} shapes, worst {worst}")
}

fn worst(mean: &Geomean) -> String {
    format!("{} ({})", times(mean.worst.speedup), mean.worst.case)
}
