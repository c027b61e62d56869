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
/// The marks of the axis, which begins and ends at one. A bar that is longer than the axis ends there, and its number
/// says how long it is.
const MARKS: [f64; 11] = [0.5, 0.75, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 2.5];
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
    Ok(speedups(&mode.to_string(), base, &standing.shapes))
}

/// The bars begin at 1, and go to the left where FlashCore is slower than `base`.
pub(crate) fn speedups(how: &str, base: &str, shapes: &[Shape]) -> Drawing {
    let ends = shapes
        .iter()
        .flat_map(|shape| [shape.speedup, shape.interval.lo, shape.interval.hi]);
    let ends: Vec<f64> = ends.filter(|end| end.is_finite()).collect();
    let [least, most] = [f64::min, f64::max].map(|end| ends.iter().copied().fold(1.0, end));
    let [first, .., last] = MARKS;
    let low = MARKS
        .into_iter()
        .filter(|mark| *mark <= least.min(0.95))
        .fold(first, f64::max);
    let high = MARKS
        .into_iter()
        .filter(|mark| *mark >= most.max(1.1))
        .fold(last, f64::min);
    let x = |value: f64| round(NAMES + (WIDTH - NAMES - NUMBERS) * (value.clamp(low, high) - low) / (high - low));
    let bottom = HEAD + ROW * shapes.len() as f64;
    let is_apart = |mark: f64, from: f64| mark == from || (x(mark) - x(from)).abs() >= APART;
    let marks = MARKS
        .into_iter()
        .filter(|mark| (low..=high).contains(mark))
        .filter(|mark| *mark == 1.0 || [low, 1.0, high].iter().all(|from| is_apart(*mark, *from)));
    let short = |name: &str| -> String { name.chars().take(LETTERS).collect() };
    let rows = || {
        shapes
            .iter()
            .zip(0..)
            .map(|(shape, place)| (HEAD + ROW * f64::from(place), shape))
    };
    let bar = |(y, shape): (f64, &Shape)| format!("M{} {}H{}", x(1.0), y + 4.0, x(shape.speedup));
    let bars = |is_faster: bool| {
        let of = rows().filter(|(_, shape)| (shape.speedup >= 1.0) == is_faster);
        of.map(bar).collect::<String>()
    };
    let whisker = |(y, shape): (f64, &Shape)| {
        let Interval { lo, hi } = shape.interval;
        hi.is_finite().then(|| format!("M{} {}H{}", x(lo), y + 4.0, x(hi)))
    };
    let body = html! {
        text.soft.small x="0" y="10" { (how) ": times as fast as " (base) "; line: 99 % interval" }
        @for mark in marks {
            line.line x1=(x(mark)) x2=(x(mark)) y1=(HEAD - 8.0) y2=(bottom) {}
            text.soft.small x=(x(mark)) y=(HEAD - 12.0) text-anchor="middle" { (mark) }
        }
        // What they have in common stands once: there are many.
        text.ink.small { @for (y, shape) in rows() { tspan x="0" y=(y + 8.0) { (short(&shape.case)) } } }
        path.up d=(bars(true)) {}
        path.down d=(bars(false)) {}
        path.mark d=(rows().filter_map(whisker).collect::<String>()) {}
        text.soft.small text-anchor="end" {
            @for (y, shape) in rows() {
                tspan x=(WIDTH) y=(y + 8.0) { (times(shape.speedup)) " " (bracketed(Some(shape.interval))) }
            }
        }
    };
    Drawing::new(
        &format!("{how}: times as fast as {base}"),
        [WIDTH, bottom],
        MAX_PX,
        body,
    )
}
