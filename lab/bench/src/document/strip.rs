//! Strips: the rounds of a subject as lines on an axis, small enough for a cell of a table.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

use crate::stats::median;
use crate::table::number;

/// Width of a strip, pixels, as `page.css` has it, and what is free at its ends.
const WIDTH: f64 = 80.0;
const EDGE: f64 = 2.0;
/// How far the ends of a strip are from the median, which is in its middle. A round beyond has its line at the end.
const REACH: f64 = 0.1;

/// What a round looks like. Once in a page: `page.css` puts it at each point of a strip.
pub(super) fn dot() -> Markup {
    html! {
        marker id="dot" viewBox="-1 -6 2 12" markerUnits="userSpaceOnUse" markerWidth="2" markerHeight="12" {
            rect.ours x="-1" y="-6" width="2" height="12" fill-opacity="0.6" {}
        }
    }
}

/// The strip of a subject's times: a line for each round, the slower the further to the right.
pub(super) fn strip(rounds: &[f64]) -> Markup {
    let middle = median(rounds);
    let share = |us: f64| (0.5 + (us / middle - 1.0) / (2.0 * REACH)).clamp(0.0, 1.0);
    // Whole pixels, each point as its distance from the one before: a report has thousands.
    let (mut points, mut last) = (String::from("M0 8h"), 0);
    for (round, us) in rounds.iter().enumerate() {
        let at = (EDGE + (WIDTH - 2.0 * EDGE) * share(*us)).round() as i32;
        // A sign separates, too.
        let space = if round == 0 || at < last { "" } else { " " };
        let _ = write!(points, "{space}{}", at - last);
        last = at;
    }
    PreEscaped(format!(r#"<svg><path d="{points}"/></svg>"#))
}

/// The same in words: `8: 4.46–4.48`.
pub(super) fn words(rounds: &[f64]) -> String {
    let [least, most] = [f64::min, f64::max].map(|end| rounds.iter().copied().reduce(end).unwrap_or(f64::NAN));
    match rounds.len() {
        0 => String::new(),
        count => format!("{count}: {}–{}", number(least), number(most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_round_with_the_median_in_the_middle() {
        let of = |rounds: &[f64]| strip(rounds).into_string();
        // 5 % slower is half way to the right; 30 % faster would be beyond the end.
        let four = r#"<svg><path d="M0 8h40 19-57 38"/></svg>"#;
        assert_eq!(of(&[10.0, 10.5, 7.0, 10.0]), four);
        assert_eq!(of(&[3.0]), r#"<svg><path d="M0 8h40"/></svg>"#);
        assert_eq!(words(&[10.0, 10.5, 7.0, 10.0]), "4: 7.00–10.50");
        assert_eq!(words(&[]), "");
    }
}
