//! Our kernels compared with another implementation over many problems: the geometric mean of speed-ups, with an
//! interval, over all of them and by kind of problem.

use std::collections::BTreeMap;
use std::fmt;

use flashcore_problem::{Direction, Mask, Problem};
use serde::{Deserialize, Serialize};

use crate::compare::Comparison;
use crate::measure::in_common;
use crate::stats::RESAMPLES;
use crate::{Case, CaseResult, Interval, Measured, Mode, Ratio, Report, Sample};

/// Keys up to which a problem is short.
const SHORT_KEYS: usize = 1024;
/// Keys up to which a problem is of middle length.
const MIDDLE_KEYS: usize = 4096;

/// A kind of problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group {
    /// Elements of a head.
    pub head_dim: usize,
    /// `full`, `causal`, `window`, or `decode` for a single row whatever its mask; with ` backward` after it for
    /// gradients.
    pub mask: String,
    /// By the number of keys.
    pub length: Length,
}

/// Lengths, by the number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// Up to 1,024.
    Short,
    /// Up to 4,096.
    Middle,
    /// More.
    Long,
}

impl Group {
    /// The kind that a problem is of.
    ///
    /// ```
    /// use flashcore_bench::standing::Group;
    /// use flashcore_problem::Problem;
    /// let problem = Problem::named("small-causal")?;
    /// assert_eq!(Group::of(&problem).to_string(), "D64 causal, up to 1k keys");
    /// assert_eq!(Group::of(&problem.backward()?).to_string(), "D64 causal backward, up to 1k keys");
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    pub fn of(problem: &Problem) -> Group {
        let mask = match problem.mask() {
            _ if problem.seq_len_q() == 1 => "decode",
            Mask::FULL => "full",
            Mask::CAUSAL => "causal",
            _ => "window",
        };
        let keys = problem.seq_len_kv();
        let length = match keys {
            keys if keys <= SHORT_KEYS => Length::Short,
            keys if keys <= MIDDLE_KEYS => Length::Middle,
            _ => Length::Long,
        };
        let backward = match problem.direction() {
            Direction::Forward => "",
            Direction::Backward => " backward",
        };
        Group {
            head_dim: problem.head_dim(),
            mask: format!("{mask}{backward}"),
            length,
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = match self.length {
            Length::Short => "up to 1k keys",
            Length::Middle => "up to 4k keys",
            Length::Long => "over 4k keys",
        };
        f.pad(&format!("D{} {}, {length}", self.head_dim, self.mask))
    }
}

/// One problem: how many times as fast the subject is as the base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Name of the problem.
    pub case: String,
    /// Its kind.
    pub group: Group,
    /// Whose speed-up it is.
    pub subject: String,
    /// The base's time over the subject's: above 1, the subject is faster.
    pub speedup: f64,
    /// Interval of that.
    pub interval: Interval,
}

impl Shape {
    /// From the subject's time relative to the base's.
    pub fn new(case: &str, group: Group, subject: &str, ratio: &Ratio) -> Shape {
        Shape {
            case: case.to_string(),
            group,
            subject: subject.to_string(),
            speedup: 1.0 / ratio.value,
            interval: Interval::new(1.0 / ratio.interval.hi, 1.0 / ratio.interval.lo),
        }
    }
}

/// The geometric mean of the speed-ups of some problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Geomean {
    /// The mean.
    pub value: f64,
    /// Its interval, at the confidence of the problems. It says how well these problems were measured, and nothing
    /// about others. `None` where a problem's interval is unknown.
    pub interval: Option<Interval>,
    /// Problems.
    pub shapes: usize,
    /// The problem with the smallest speed-up.
    pub worst: Shape,
    /// Problems whose interval includes 1.
    pub unsure: usize,
}

impl Geomean {
    /// The mean over problems that were measured one after the other, so that their errors are independent: on the
    /// logarithm, half-widths add as squares. `None` for no problems.
    pub fn of<'s>(shapes: impl IntoIterator<Item = &'s Shape>) -> Option<Geomean> {
        let shapes: Vec<&Shape> = shapes.into_iter().collect();
        let worst = shapes.iter().min_by(|a, b| a.speedup.total_cmp(&b.speedup))?;
        let count = shapes.len() as f64;
        let mean = shapes.iter().map(|shape| shape.speedup.ln()).sum::<f64>() / count;
        let includes_one = |shape: &Shape| (shape.interval.lo..=shape.interval.hi).contains(&1.0);
        let half = |end: fn(&Shape) -> f64| {
            let squares = shapes.iter().map(|shape| (end(shape) / shape.speedup).ln().powi(2));
            squares.sum::<f64>().sqrt() / count
        };
        let (below, above) = (half(|shape| shape.interval.lo), half(|shape| shape.interval.hi));
        Some(Geomean {
            value: mean.exp(),
            interval: (below.is_finite() && above.is_finite())
                .then(|| Interval::new((mean - below).exp(), (mean + above).exp())),
            shapes: shapes.len(),
            worst: (*worst).clone(),
            unsure: shapes.iter().filter(|shape| includes_one(shape)).count(),
        })
    }
}

/// Speed-ups over one base in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// What is compared with.
    pub base: String,
    /// Whose speed-ups: a label, or in words.
    pub subject: String,
    /// The mode.
    pub mode: Mode,
    /// Over all problems.
    pub all: Geomean,
    /// By kind of problem.
    pub groups: Vec<(Group, Geomean)>,
    /// Problem by problem.
    pub shapes: Vec<Shape>,
    /// Problems on which one of the two has no time.
    pub missing: Vec<String>,
}

impl Standing {
    fn new(base: &str, subject: String, mode: Mode, shapes: Vec<Shape>, missing: Vec<String>) -> Option<Standing> {
        let mut by_group: BTreeMap<&Group, Vec<&Shape>> = BTreeMap::new();
        for shape in &shapes {
            by_group.entry(&shape.group).or_default().push(shape);
        }
        let groups = by_group.into_iter();
        let groups = groups.filter_map(|(group, shapes)| Some((group.clone(), Geomean::of(shapes)?)));
        let groups = groups.collect();
        Some(Standing {
            base: base.to_string(),
            subject,
            mode,
            all: Geomean::of(&shapes)?,
            groups,
            shapes,
            missing,
        })
    }
}

/// Our quickest kernel on a problem, and each of some peers that have rounds in common with it: its time over theirs.
pub(crate) struct Against<'r> {
    pub(crate) ours: &'r Measured,
    pub(crate) peers: Vec<(&'r Measured, Ratio)>,
}

impl<'r> Against<'r> {
    /// Of the peers with these labels, or of all where there are none. `None` where no pair was timed.
    pub(crate) fn of(result: &'r CaseResult, samples: &[Sample], confidence: f64, wanted: &[String]) -> Option<Self> {
        let ours = result.quickest(|subject| subject.info.is_ours())?;
        let subjects = &result.measurement.subjects;
        let place = |subject: &Measured| {
            let mut labels = subjects.iter().map(|known| &known.info.label);
            labels.position(|label| *label == subject.info.label)
        };
        let is_wanted = |label: &String| wanted.is_empty() || wanted.contains(label);
        let ratio = |peer: &'r Measured| {
            let (ours, theirs) = in_common(samples, place(ours)?, place(peer)?);
            Some((peer, Ratio::paired(&ours, &theirs, confidence, RESAMPLES)?))
        };
        let peers = subjects
            .iter()
            .filter(|peer| peer.info.is_peer() && is_wanted(&peer.info.label));
        let peers: Vec<_> = peers.filter_map(ratio).collect();
        (!peers.is_empty()).then_some(Against { ours, peers })
    }

    /// Compared with the best of the peers.
    pub(crate) fn shape(&self, case: &Case) -> Option<Shape> {
        let (_, ratio) = self.peers.iter().max_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
        Some(Shape::new(
            &case.name,
            Group::of(&case.problem),
            &self.ours.info.label,
            ratio,
        ))
    }
}

/// Our fastest kernel on each result of a mode compared with `base`.
pub(crate) fn standing<'r>(
    results: impl IntoIterator<Item = &'r CaseResult>,
    base: &str,
    mode: Mode,
) -> Option<Standing> {
    let (mut shapes, mut missing, mut most) = (Vec::new(), Vec::new(), 0);
    for result in results.into_iter().filter(|result| result.measurement.mode == mode) {
        let ours = |subject: &Measured| subject.info.is_ours() && subject.info.label != base;
        let subjects = result.measurement.subjects.iter();
        most = most.max(subjects.filter(|s| ours(s) && s.summary.is_some()).count());
        let quickest = result.quickest(ours);
        match quickest.and_then(|subject| Some((subject, subject.ratio?))) {
            Some((subject, ratio)) if result.baseline().is_some_and(|subject| subject.info.label == base) => shapes
                .push(Shape::new(
                    &result.case.name,
                    Group::of(&result.case.problem),
                    &subject.info.label,
                    &ratio,
                )),
            _ => missing.push(result.case.name.clone()),
        }
    }
    let subject = match most {
        1 => "our kernel".to_string(),
        most => format!("the quickest of our kernels on each shape, of {most} at most"),
    };
    Standing::new(base, subject, mode, shapes, missing)
}

impl Report {
    /// Our fastest kernel on each problem compared with `base`, by mode. Only ratios paired by round count, so `base`
    /// must have been the baseline; problems where it was not, or where one of the two has no time, are listed as
    /// missing.
    pub fn standings(&self, base: &str) -> Vec<Standing> {
        let modes = [Mode::Hot, Mode::Cold, Mode::Sustained];
        modes
            .into_iter()
            .filter_map(|mode| standing(&self.results, base, mode))
            .collect()
    }

    /// The peer that is the baseline of most problems, if any peer is.
    pub fn main_peer(&self) -> Option<&str> {
        most_frequent_baseline(&self.results, |subject| subject.info.is_peer())
    }

    /// The subject that is the baseline of most problems, a peer or a kernel of ours.
    pub fn main_baseline(&self) -> Option<&str> {
        most_frequent_baseline(&self.results, |_| true)
    }
}

/// The subject that is the baseline of most results, of those that count.
pub(crate) fn most_frequent_baseline<'r>(
    results: impl IntoIterator<Item = &'r CaseResult>,
    counts_in: impl Fn(&Measured) -> bool,
) -> Option<&'r str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for result in results {
        if let Some(baseline) = result.baseline().filter(|subject| counts_in(subject)) {
            *counts.entry(&baseline.info.label).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(label, _)| label)
}

impl Comparison {
    /// B compared with A over all problems that both have, by subject and mode.
    pub fn standings(&self) -> Vec<Standing> {
        let mut by_subject: BTreeMap<(Mode, &str), Vec<Shape>> = BTreeMap::new();
        for row in &self.rows {
            let shape = Shape::new(&row.case, row.group.clone(), &row.label, &row.ratio);
            by_subject.entry((row.mode, &row.label)).or_default().push(shape);
        }
        let standing = |((mode, label), shapes): ((Mode, &str), _)| {
            Standing::new(&self.a, label.to_string(), mode, shapes, Vec::new())
        };
        by_subject.into_iter().filter_map(standing).collect()
    }
}

#[cfg(test)]
#[path = "standing_tests.rs"]
mod tests;
