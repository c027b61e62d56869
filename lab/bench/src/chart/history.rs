//! The history of a search: the time of each candidate, and the best so far.

use maud::html;

use super::{Drawing, PIXELS, WIDTH, round, share};
use crate::table::number;

const HEIGHT: f64 = 160.0;
const LEFT: f64 = 44.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 34.0;
/// Slowest candidate that is drawn at its height, as a multiple of the first: slower ones are at the edge.
const MOST: f64 = 2.0;

/// The history of a search over `trials` candidates: those that were timed, by their number from 0 and their time
/// relative to the first candidate's.
pub fn history(title: &str, trials: usize, timed: &[(usize, f64)]) -> Drawing {
    let least = timed.iter().map(|(_, score)| *score).fold(1.0, f64::min);
    let (low, high) = (
        least * 0.9,
        MOST.min(timed.iter().map(|(_, score)| *score).fold(1.1, f64::max)),
    );
    let x = |trial: usize| round(LEFT + (WIDTH - LEFT) * trial as f64 / trials.max(2) as f64);
    let y = |score: f64| round(TOP + HEIGHT * (1.0 - share([low, high], score)));
    let mut best = f64::INFINITY;
    let mut path = String::new();
    for (trial, score) in timed {
        if *score < best {
            let [to, down] = if best.is_finite() { ["H", "V"] } else { ["M", " "] };
            path.push_str(&format!("{to}{}{down}{}", x(*trial), y(*score)));
            best = *score;
        }
    }
    path.push_str(&format!("H{WIDTH}"));
    let body = html! {
        circle.peer cx="6" cy="8" r="3" {}
        text.ink.small x="14" y="12" { "a candidate" }
        line.curve.la x1="92" x2="110" y1="8" y2="8" {}
        text.ink.small x="116" y="12" { "the best so far" }
        @for score in [least, 1.0, high] {
            line.line x1=(LEFT) x2=(WIDTH) y1=(y(score)) y2=(y(score)) {}
            @if score == 1.0 || (score - 1.0).abs() > 0.06 {
                text.soft.small x=(LEFT - 5.0) y=(y(score) + 4.0) text-anchor="end" { "× " (number(score)) }
            }
        }
        @for (trial, score) in timed {
            circle.peer cx=(x(*trial)) cy=(y(*score)) r="2.2" { title { "trial " (trial) ": × " (number(*score)) } }
        }
        @if !timed.is_empty() { path.curve.la d=(path) {} }
        text.soft.small x=(LEFT) y=(TOP + HEIGHT + 16.0) { "trial 0" }
        text.soft.small x=(WIDTH) y=(TOP + HEIGHT + 16.0) text-anchor="end" { "trial " (trials.saturating_sub(1)) }
        text.soft.small x="0" y=(TOP + HEIGHT + 32.0) { "time relative to the first candidate; lower is faster" }
    };
    Drawing::new(title, [WIDTH, TOP + HEIGHT + BOTTOM], PIXELS, body)
}
