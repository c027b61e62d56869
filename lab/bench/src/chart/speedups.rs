//! Speed-ups as bars, one a problem, each with its interval.

use maud::html;

use super::{Drawing, MAX_PX, WIDTH, round};
use crate::standing::Shape;
use crate::table::{bracketed, times};
use crate::{BenchError, Interval, Mode, Report, Result};

/// Space for the names, and for the numbers at the right.
const NAMES: f64 = 160.0;
const NUMBERS: f64 = 114.0;
const HEAD: f64 = 34.0;
const ROW: f64 = 14.0;
const BAR: f64 = 7.0;
/// Ends of the axis at most: a bar that is longer ends there, and its number says how long it is.
const LEAST: f64 = 0.5;
const MOST: f64 = 2.5;
/// Room that a mark of the axis needs.
const APART: f64 = 20.0;
/// Letters of a name that there is room for.
const LETTERS: usize = 27;

/// A chart of speed-ups: our quickest kernel compared with `base`, on every problem of a report that has both in this
/// mode.
///
/// # Errors
/// [`BenchError::Given`] if there is no such problem: `base` must have been the baseline.
pub fn ratio(report: &Report, base: &str, mode: Mode) -> Result<Drawing> {
    let mut standings = report.standings(base).into_iter();
    let Some(standing) = standings.find(|standing| standing.mode == mode) else {
        let peer = report.main_peer();
        let allowed = peer.unwrap_or("a subject that was timed in the same rounds as another kernel of ours");
        return Err(BenchError::bad_option("baseline", format!("{base} ({mode})"), allowed));
    };
    Ok(speedups(&format!("{mode}, compared with {base}"), &standing.shapes))
}

/// The bars begin at 1, and go to the left where FlashCore is slower.
pub(crate) fn speedups(how: &str, shapes: &[Shape]) -> Drawing {
    let ends = shapes
        .iter()
        .flat_map(|shape| [shape.speedup, shape.interval.lo, shape.interval.hi]);
    let ends: Vec<f64> = ends
        .filter(|end| end.is_finite())
        .map(|end| end.clamp(LEAST, MOST))
        .collect();
    let low = ends.iter().copied().fold(0.95, f64::min);
    let high = ends.iter().copied().fold(1.1, f64::max);
    let x = |value: f64| round(NAMES + (WIDTH - NAMES - NUMBERS) * (value.clamp(low, high) - low) / (high - low));
    let bottom = HEAD + ROW * shapes.len() as f64;
    let marks = [0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5]
        .into_iter()
        .filter(|mark| (low..=high).contains(mark) && (*mark == 1.0 || (x(*mark) - x(1.0)).abs() >= APART));
    let short = |name: &str| -> String { name.chars().take(LETTERS).collect() };
    let rows = || {
        shapes
            .iter()
            .zip(0..)
            .map(|(shape, place)| (HEAD + ROW * f64::from(place), shape))
    };
    let whisker = |(y, shape): (f64, &Shape)| {
        let Interval { lo, hi } = shape.interval;
        hi.is_finite().then(|| format!("M{} {}H{}", x(lo), y + 4.5, x(hi)))
    };
    let body = html! {
        text.soft.small x="0" y="10" { (how) ": times as fast; line: 99 % interval" }
        @for mark in marks {
            line.line x1=(x(mark)) x2=(x(mark)) y1=(HEAD - 8.0) y2=(bottom) {}
            text.soft.small x=(x(mark)) y=(HEAD - 12.0) text-anchor="middle" { (mark) }
        }
        // What they have in common stands once: there are many.
        text.ink.small { @for (y, shape) in rows() { tspan x="0" y=(y + 8.0) { (short(&shape.case)) } } }
        @for (y, shape) in rows() {
            @let (from, to) = (x(shape.speedup.min(1.0)), x(shape.speedup.max(1.0)));
            @let colour = if shape.speedup < 1.0 { "s2" } else { "ours" };
            rect class=(colour) x=(from) y=(y + 1.0) width=(round(to - from)) height=(BAR) {}
        }
        path.mark d=(rows().filter_map(whisker).collect::<String>()) {}
        text.soft.small text-anchor="end" {
            @for (y, shape) in rows() {
                tspan x=(WIDTH) y=(y + 8.0) { (times(shape.speedup)) " " (bracketed(Some(shape.interval))) }
            }
        }
    };
    Drawing::new(&format!("Speed-ups, {how}"), [WIDTH, bottom], MAX_PX, body)
}
