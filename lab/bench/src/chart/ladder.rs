//! The ladder: the time of each kernel on one problem, on a logarithmic scale, in a given order, with peers.

use maud::{Markup, html};

use super::{Drawing, MAX_PX, WIDTH, round, share};
use crate::table::{clip_to, number, times};
use crate::{BenchError, CaseResult, Interval, Measured, Mode, Report, Result, Stop};

/// Height of a rung: its name, its id, its bar.
const RUNG: f64 = 46.0;
/// Where a rung's bar begins, from its top, and how high it is.
const BAR: (f64, f64) = (28.0, 11.0);
const AXIS: f64 = 22.0;
/// Characters of a name and of an id that fit.
const NAME: usize = 44;
const ID: usize = 62;

/// A rung to be drawn: which subject, and what to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RungName {
    /// The subject's label: a config id, or a peer's name.
    pub id: String,
    /// What stands in the chart; the id where it is `None`.
    pub name: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Rung {
    name: String,
    id: Option<String>,
    us: f64,
    interval: Interval,
    tflops: f64,
    ours: bool,
}

/// A chart of one problem's times: the rungs named, in that order; where none is named all kernels of ours, the slowest
/// first, then all peers.
///
/// # Errors
/// [`BenchError::Given`] for a problem that was not measured in the mode, or a subject that has no time on it.
pub fn ladder(report: &Report, case: &str, mode: Mode, rungs: &[RungName]) -> Result<Drawing> {
    let of_mode = || report.results.iter().filter(|result| result.measurement.mode == mode);
    let Some(result) = of_mode().find(|result| result.case.name == case) else {
        let cases: Vec<&str> = of_mode().map(|result| result.case.name.as_str()).collect();
        let given = format!("{case} ({mode})");
        return Err(BenchError::bad_option("problem", given, cases.join(", ")));
    };
    let rungs: Vec<Rung> = match rungs {
        [] => all(result),
        names => names.iter().map(|name| named(result, name)).collect::<Result<_, _>>()?,
    };
    Ok(draw(&title(case, Some(result)), &rungs, &speedup_over(&rungs)))
}

/// The drawing of a result's kernels, the slowest first, then its peers. `name` is what a kernel is called.
pub(crate) fn ladder_of(result: &CaseResult, name: impl Fn(&str) -> Option<String>) -> Drawing {
    let mut rungs = all(result);
    for rung in &mut rungs {
        if let Some(name) = name(&rung.name) {
            rung.id = Some(std::mem::replace(&mut rung.name, name));
        }
    }
    draw(&title(&result.case.name, Some(result)), &rungs, &speedup_over(&rungs))
}

/// The drawing of a kernel's time on each of several problems, with its rate.
pub(crate) fn problems(how: &str, timed: &[(&CaseResult, &Measured)]) -> Drawing {
    let rungs = timed
        .iter()
        .filter_map(|(result, subject)| rung(result, subject, Some(&result.case.name)));
    let rungs: Vec<Rung> = rungs.collect();
    let title = title(how, timed.first().map(|(result, _)| *result));
    draw(&title, &rungs, &|rung| format!("{} TFLOP/s", number(rung.tflops)))
}

fn title(of: &str, result: Option<&CaseResult>) -> String {
    let is_predicted = result.is_some_and(|result| matches!(result.measurement.stop, Stop::Predicted));
    format!("{of}: µs a run{}", if is_predicted { ", PREDICTED" } else { "" })
}

/// Over the first rung.
fn speedup_over(rungs: &[Rung]) -> impl Fn(&Rung) -> String {
    let first = rungs.first().map_or(f64::NAN, |first| first.us);
    move |rung| format!("{}×", times(first / rung.us))
}

/// `said` is what stands below a rung's time.
fn draw(title: &str, rungs: &[Rung], said: &dyn Fn(&Rung) -> String) -> Drawing {
    let scale = Scale::of(rungs.iter().map(|rung| rung.us));
    let bottom = RUNG * rungs.len() as f64;
    let peers = rungs.iter().filter(|rung| !rung.ours).map(|rung| rung.us);
    let best_peer = peers.reduce(f64::min);
    let body = html! {
        @for tick in scale.ticks() {
            path.line d=(at_bars(scale.x(tick), rungs.len())) {}
            text.soft.small x=(scale.x(tick)) y=(bottom + 14.0) text-anchor=(scale.anchor(tick)) {
                (tick) " µs"
            }
        }
        @for (index, rung) in rungs.iter().enumerate() {
            g transform={ "translate(0 " (RUNG * index as f64) ")" } { (draw_rung(rung, &said(rung), &scale)) }
        }
        @if let Some(us) = best_peer {
            path.best d=(at_bars(scale.x(us), rungs.len())) {}
        }
    };
    Drawing::new(title, [WIDTH, bottom + AXIS], MAX_PX, body)
}

/// A vertical line at the bars alone, so that names stay legible.
fn at_bars(x: f64, rungs: usize) -> String {
    let piece = |index: usize| {
        let top = RUNG * index as f64 + BAR.0 - 2.0;
        format!("M{x} {top}v{}", BAR.1 + 4.0)
    };
    (0..rungs).map(piece).collect()
}

fn draw_rung(rung: &Rung, speedup: &str, scale: &Scale) -> Markup {
    let (top, height) = BAR;
    let middle = top + height / 2.0;
    let x = scale.x(rung.us);
    html! {
        text.ink.bold x="0" y="12" { (clip_to(&rung.name, NAME)) }
        text.ink x=(WIDTH) y="12" text-anchor="end" { (number(rung.us)) " µs" }
        @if let Some(id) = &rung.id {
            text.soft.small x="0" y="24" { (clip_to(id, ID)) }
        }
        text.soft.small x=(WIDTH) y="24" text-anchor="end" { (speedup) }
        rect class=(if rung.ours { "ours" } else { "peer" }) x="0" y=(top) width=(x.max(1.0)) height=(height) rx="2" {}
        @if rung.interval.hi.is_finite() {
            @let (lo, hi) = (scale.x(rung.interval.lo), scale.x(rung.interval.hi));
            line.mark x1=(lo) x2=(hi) y1=(middle) y2=(middle) {}
            @for end in [lo, hi] {
                line.mark x1=(end) x2=(end) y1=(middle - 3.0) y2=(middle + 3.0) {}
            }
        }
    }
}

fn rung(result: &CaseResult, subject: &Measured, name: Option<&str>) -> Option<Rung> {
    let summary = subject.summary?;
    let label = &subject.info.label;
    Some(Rung {
        name: name.unwrap_or(label).to_string(),
        id: name.filter(|name| *name != label).map(|_| label.clone()),
        us: summary.p50,
        interval: summary.interval,
        tflops: result.tflops(summary.p50),
        ours: subject.info.is_ours(),
    })
}

fn all(result: &CaseResult) -> Vec<Rung> {
    let subjects = result.measurement.subjects.iter();
    let mut rungs: Vec<Rung> = subjects.filter_map(|subject| rung(result, subject, None)).collect();
    rungs.sort_by(|a, b| b.ours.cmp(&a.ours).then(b.us.total_cmp(&a.us)));
    rungs
}

fn named(result: &CaseResult, wanted: &RungName) -> Result<Rung> {
    let subjects = &result.measurement.subjects;
    let subject = subjects.iter().find(|subject| subject.info.label == wanted.id);
    let found = subject.and_then(|subject| rung(result, subject, wanted.name.as_deref()));
    found.ok_or_else(|| {
        let timed = subjects.iter().filter(|subject| subject.summary.is_some());
        let labels: Vec<&str> = timed.map(|subject| subject.info.label.as_str()).collect();
        BenchError::bad_option("rung", &wanted.id, labels.join(", "))
    })
}

/// A logarithmic axis from one of 1, 2, 5 × 10ⁿ to another.
struct Scale {
    lo: f64,
    hi: f64,
}

impl Scale {
    fn of(times: impl Iterator<Item = f64> + Clone) -> Scale {
        let least = times.clone().fold(f64::INFINITY, f64::min);
        let most = times.fold(0.0, f64::max);
        if !(least > 0.0 && most.is_finite()) {
            return Scale { lo: 1.0, hi: 10.0 };
        }
        // The bar of the shortest time stays visible.
        let steps = steps();
        let lo = steps.iter().rev().find(|step| **step <= 0.8 * least);
        let lo = lo.copied().unwrap_or(1e-3);
        let hi = steps.iter().find(|step| **step >= most && **step > lo);
        Scale {
            lo,
            hi: hi.copied().unwrap_or(1e9),
        }
    }

    fn x(&self, us: f64) -> f64 {
        round(share([self.lo, self.hi], us) * WIDTH)
    }

    /// All steps where there is room for their labels, decades where there is not.
    fn ticks(&self) -> Vec<f64> {
        let within = |step: &f64| (self.lo..=self.hi).contains(step);
        let mut ticks: Vec<f64> = steps().into_iter().filter(within).collect();
        if ticks.len() > 7 {
            ticks.retain(|step| step.log10().fract().abs() < 1e-9);
        }
        ticks
    }

    /// Labels at either end stay inside.
    fn anchor(&self, tick: f64) -> &'static str {
        match self.x(tick) {
            x if x < 20.0 => "start",
            x if x > WIDTH - 30.0 => "end",
            _ => "middle",
        }
    }
}

/// 1, 2, 5 × 10ⁿ from a nanosecond to a quarter of an hour, in µs.
fn steps() -> Vec<f64> {
    let decade = |exponent: i32| {
        // A quotient for small ones, so that 0.1 prints as 0.1.
        [1.0, 2.0, 5.0].map(|digit| match exponent {
            ..0 => digit / 10f64.powi(-exponent),
            _ => digit * 10f64.powi(exponent),
        })
    };
    (-3..9).flat_map(decade).collect()
}
