//! Strips: the rounds of a subject as dots, small enough for a cell of a table.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

use crate::stats::median;
use crate::table::number;

/// Size of a strip, pixels, as `page.css` has it, and what its dots leave free at the edges.
const SIZE: [f64; 2] = [80.0, 16.0];
const EDGE: f64 = 2.0;
/// How far the ends of a strip are from the median, which is in its middle. A round beyond has its dot at the end.
const REACH: f64 = 0.1;

/// What a dot looks like. Once in a page: `page.css` puts it at each point of a strip.
pub(super) fn dot() -> Markup {
    html! {
        svg width="0" height="0" aria-hidden="true" {
            marker id="dot" viewBox="-2 -2 4 4" markerUnits="userSpaceOnUse" markerWidth="4" markerHeight="4" {
                circle.ours r="2" fill-opacity="0.6" {}
            }
        }
    }
}

/// The strip of a subject's times: a dot for each round, the first at the top, the slower the further to the right.
pub(super) fn strip(rounds: &[f64]) -> Markup {
    let [width, height] = SIZE.map(|size| size - 2.0 * EDGE);
    let middle = median(rounds);
    let x = |us: f64| EDGE + width * (0.5 + (us / middle - 1.0) / (2.0 * REACH)).clamp(0.0, 1.0);
    let y = |round: usize| EDGE + height * round as f64 / (rounds.len() - 1).max(1) as f64;
    // Whole pixels, each point as its distance from the one before: a report has thousands.
    let (mut points, mut last) = (String::from("m"), [0, 0]);
    for (round, us) in rounds.iter().enumerate() {
        let at = [x(*us), y(round)].map(|pixels| pixels.round() as i32);
        let step = [at[0] - last[0], at[1] - last[1]];
        // A sign separates, too.
        let space = if round == 0 || step[0] < 0 { "" } else { " " };
        let _ = write!(points, "{space}{} {}", step[0], step[1]);
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
    fn a_dot_for_each_round_with_the_median_in_the_middle() {
        let of = |rounds: &[f64]| strip(rounds).into_string();
        // 5 % slower is half way to the right; 30 % faster would be beyond the end.
        let four = r#"<svg><path d="m40 2 19 4-57 4 38 4"/></svg>"#;
        assert_eq!(of(&[10.0, 10.5, 7.0, 10.0]), four);
        assert_eq!(of(&[3.0]), r#"<svg><path d="m40 2"/></svg>"#);
        assert_eq!(words(&[10.0, 10.5, 7.0, 10.0]), "4: 7.00–10.50");
        assert_eq!(words(&[]), "");
    }
}
