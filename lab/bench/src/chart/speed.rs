//! Speed: TFLOP/s against the sequence length, a panel for each head_dim and mask, a line for each implementation.

mod draw;

use flashcore_problem::{Direction, Mask, Problem};

use crate::report::add_new;
use crate::{BenchError, CaseResult, Measured, Mode, Report, Result, date};

/// The lines, in the order of the legend: the label of a peer, what its line is called, its class in the SVG, and its
/// words in the legend.
const SERIES: [(&str, &str, &str, &str); 5] = [
    ("", "FlashCore", "a", "FlashCore"),
    ("fa3", "FA3", "b", "FA3: FlashAttention-3"),
    ("torch/cudnn", "cuDNN", "c", "cuDNN, through PyTorch"),
    ("torch/flash", "FA2", "d", "FA2: FlashAttention-2, through PyTorch"),
    ("fa4", "FA4", "e", "FA4: FlashAttention-4"),
];

/// What a peer is called.
pub(crate) fn name_of(label: &str) -> &str {
    match SERIES.iter().find(|series| series.0 == label) {
        Some((_, name, ..)) => name,
        None if label == "flashinfer" => "FlashInfer",
        None => label,
    }
}

/// A speed. Points are kept in the order of [`Point::place`].
#[derive(Clone, Debug, PartialEq)]
struct Point {
    head_dim: usize,
    causal: bool,
    /// Place in [`SERIES`].
    series: usize,
    seq_len: usize,
    tflops: f64,
    /// The rounds' 10th and 90th percentile; NaN where they are not known.
    range: [f64; 2],
}

impl Point {
    fn mask(&self) -> &'static str {
        if self.causal { "causal" } else { "full" }
    }

    /// Panel by panel and line by line, by length.
    fn place(&self) -> (bool, usize, usize, usize) {
        (self.causal, self.head_dim, self.series, self.seq_len)
    }
}

/// A chart of speeds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Speed {
    /// What the numbers are about, a line each.
    about: Vec<String>,
    points: Vec<Point>,
}

impl Speed {
    /// The speeds of a report in one mode: of our quickest kernel on each problem, and of the peers the chart knows.
    /// Problems count whose queries and keys are equally long, with a full or causal mask.
    ///
    /// # Errors
    /// [`BenchError::Given`] if there is no such problem in the mode, or two of the same head_dim, mask and length.
    pub fn of_report(report: &Report, mode: Mode) -> Result<Speed> {
        let device = &report.run.device;
        let drawn = report
            .results
            .iter()
            .filter(|result| result.measurement.mode == mode && is_drawn(&result.case.problem));
        let mut chart = Speed::of_results(drawn)?;
        if chart.points.is_empty() {
            let allowed = "one in which problems with a full or causal mask and equal lengths were measured";
            return Err(BenchError::bad_option("mode", mode, allowed));
        }
        chart
            .about
            .insert(0, format!("{}, driver {}", device.name, device.driver));
        chart
            .about
            .extend([format!("revision {}", report.run.revision), date(report.run.started_at)]);
        Ok(chart)
    }

    /// The speeds of some results of one mode, each of a problem that [`is_drawn`].
    pub(crate) fn of_results<'r>(results: impl IntoIterator<Item = &'r CaseResult>) -> Result<Speed> {
        let mut chart = Speed::default();
        let mut how: Vec<String> = Vec::new();
        let mut work: Vec<[usize; 3]> = Vec::new();
        let mut modes: Vec<Mode> = Vec::new();
        for result in results {
            let (problem, mode) = (&result.case.problem, result.measurement.mode);
            let dtype = match problem.direction() {
                Direction::Forward => problem.dtype().name().to_string(),
                Direction::Backward => format!("{} backward", problem.dtype()),
            };
            add_new(&mut how, dtype);
            add_new(&mut modes, mode);
            add_new(&mut work, work_of(problem));
            for point in (0..SERIES.len()).filter_map(|series| best(result, series)) {
                chart.add(point)?;
            }
        }
        let modes: Vec<String> = modes.iter().map(ToString::to_string).collect();
        chart
            .about
            .push(format!("{}, {}", how.join(" and "), modes.join(" and ")));
        if let [[tokens, hidden, _]] = work[..] {
            chart.about.push(format!("{tokens} tokens, hidden size {hidden}"));
        }
        Ok(chart)
    }

    /// Says what device the numbers are of.
    pub(crate) fn on(mut self, device: &str) -> Speed {
        self.about.insert(0, device.to_string());
        self
    }

    fn add(&mut self, point: Point) -> Result<()> {
        match self.points.binary_search_by_key(&point.place(), Point::place) {
            Ok(_) => Err(BenchError::bad_option(
                "problem",
                format!(
                    "two of head_dim {} and length {} for one point",
                    point.head_dim, point.seq_len
                ),
                "one of each head_dim, mask and length",
            )),
            Err(place) => {
                self.points.insert(place, point);
                Ok(())
            }
        }
    }
}

/// Whether a problem has a place in the chart: queries and keys are equally long, with a full or causal mask.
pub(crate) fn is_drawn(problem: &Problem) -> bool {
    problem.seq_len_q() == problem.seq_len_kv() && [Mask::FULL, Mask::CAUSAL].contains(&problem.mask())
}

/// Tokens, heads times head_dim, and whether it is a backward pass: equal for the problems of a grid.
pub(crate) fn work_of(problem: &Problem) -> [usize; 3] {
    [
        problem.batch() * problem.seq_len_q(),
        problem.num_heads() * problem.head_dim(),
        usize::from(problem.direction() == Direction::Backward),
    ]
}

/// Which of [`SERIES`] a subject belongs to.
fn series(subject: &Measured) -> Option<usize> {
    let label = if subject.info.is_ours() {
        ""
    } else {
        &subject.info.label
    };
    SERIES.iter().position(|series| series.0 == label)
}

/// The quickest subject of a series.
fn best(result: &CaseResult, of: usize) -> Option<Point> {
    let subject = result.quickest(|subject| series(subject) == Some(of))?;
    let summary = subject.summary?;
    let problem = &result.case.problem;
    Some(Point {
        head_dim: problem.head_dim(),
        causal: problem.mask() == Mask::CAUSAL,
        series: of,
        seq_len: problem.seq_len_kv(),
        tflops: result.tflops(summary.p50),
        range: [result.tflops(summary.p90), result.tflops(summary.p10)],
    })
}

#[cfg(test)]
#[path = "speed_tests.rs"]
mod tests;
