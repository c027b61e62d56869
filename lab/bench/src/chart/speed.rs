//! Speed: TFLOP/s against the sequence length, a panel for each head_dim and mask, a line for each implementation.

mod draw;

use std::fmt::Write;

use flashcore_problem::{Mask, Problem};

use crate::error::BenchError;
use crate::identity::date;
use crate::measure::Measured;
use crate::options::Mode;
use crate::report::{CaseResult, Report};

const COLUMNS: [&str; 8] = [
    "head_dim", "mask", "seq_len", "series", "subject", "tflops", "low", "high",
];

/// The lines, in the order of the legend: what a line is called, its class in the SVG, and its words in the legend.
const SERIES: [(&str, &str, &str); 4] = [
    ("FlashCore", "a", "FlashCore"),
    ("FA3", "b", "FA3: FlashAttention-3"),
    ("cuDNN", "c", "cuDNN, through PyTorch"),
    ("FA2", "d", "FA2: FlashAttention-2, through PyTorch"),
];

#[derive(Clone, Debug, PartialEq)]
struct Point {
    seq_len: usize,
    subject: String,
    tflops: f64,
    /// The rounds' 10th and 90th percentile.
    range: [f64; 2],
}

/// The lines of one head_dim and mask: for each of [`SERIES`] its points, by length.
#[derive(Clone, Debug, PartialEq)]
struct Panel {
    head_dim: usize,
    causal: bool,
    lines: [Vec<Point>; 4],
}

impl Panel {
    fn mask(&self) -> &'static str {
        if self.causal { "causal" } else { "full" }
    }
}

/// A chart of speeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// What the numbers are about, a line each.
    about: Vec<String>,
    panels: Vec<Panel>,
}

impl Speed {
    /// The speeds of a report in one mode: of our quickest kernel on each problem, and of the peers the chart knows. Problems
    /// count whose queries and keys are equally long, with a full or causal mask.
    ///
    /// # Errors
    /// [`BenchError::Given`] if there is no such problem in the mode, or two of the same head_dim, mask and length.
    pub fn of_report(report: &Report, mode: Mode) -> Result<Speed, BenchError> {
        let device = &report.run.device;
        let mut chart = Speed {
            about: Vec::new(),
            panels: Vec::new(),
        };
        let mut dtypes: Vec<&str> = Vec::new();
        let mut work: Vec<[usize; 2]> = Vec::new();
        for result in &report.results {
            let problem = &result.case.problem;
            let is_drawn = problem.seq_len_q() == problem.seq_len_kv()
                && [Mask::FULL, Mask::CAUSAL].contains(&problem.mask())
                && result.measurement.mode == mode;
            if !is_drawn {
                continue;
            }
            let dtype = problem.dtype().name();
            if !dtypes.contains(&dtype) {
                dtypes.push(dtype);
            }
            let sizes = [
                problem.batch() * problem.seq_len_q(),
                problem.num_heads() * problem.head_dim(),
            ];
            if !work.contains(&sizes) {
                work.push(sizes);
            }
            for (index, (name, ..)) in SERIES.iter().enumerate() {
                if let Some(point) = best(result, |subject| series(subject) == Some(name)) {
                    chart.add(problem.head_dim(), problem.mask() == Mask::CAUSAL, index, point)?;
                }
            }
        }
        if chart.panels.is_empty() {
            let allowed = "one in which problems with a full or causal mask and equal lengths were measured";
            return Err(BenchError::bad_option("mode", mode, allowed));
        }
        chart.about = vec![
            format!("{}, driver {}", device.name, device.driver),
            format!("{}, {mode}", dtypes.join(" and ")),
        ];
        if let [[tokens, hidden]] = work[..] {
            chart.about.push(format!("{tokens} tokens, hidden size {hidden}"));
        }
        chart
            .about
            .extend([format!("revision {}", report.run.revision), date(report.run.started_at)]);
        Ok(chart)
    }

    /// Reads what [`csv`](Speed::csv) wrote.
    pub fn of_csv(text: &str) -> Result<Speed, BenchError> {
        let mut chart = Speed {
            about: Vec::new(),
            panels: Vec::new(),
        };
        let mut has_columns = false;
        for (index, line) in text.lines().enumerate() {
            let wrong = |what: &str| BenchError::Given(format!("line {}: {what}", index + 1));
            if let Some(about) = line.strip_prefix("# ") {
                chart.about.push(about.to_string());
                continue;
            }
            let fields: Vec<&str> = line.split(',').collect();
            if !has_columns {
                if fields != COLUMNS {
                    return Err(wrong(&format!("the columns are {}", COLUMNS.join(","))));
                }
                has_columns = true;
                continue;
            }
            let [head_dim, mask, seq_len, name, subject, tflops, low, high] = fields[..] else {
                return Err(wrong("eight fields are needed"));
            };
            let whole = |text: &str| {
                text.parse::<usize>()
                    .map_err(|_| wrong(&format!("`{text}` is no number")))
            };
            let number = |text: &str| match text.parse::<f64>() {
                Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
                _ => Err(wrong(&format!("`{text}` is no number above 0"))),
            };
            let causal = match mask {
                "full" => false,
                "causal" => true,
                _ => return Err(wrong(&format!("mask is `{mask}`; allowed: full, causal"))),
            };
            let names = SERIES.map(|(name, ..)| name);
            let known = names.iter().position(|known| *known == name);
            let series = known.ok_or_else(|| wrong(&format!("series is `{name}`; allowed: {}", names.join(", "))))?;
            let point = Point {
                seq_len: whole(seq_len)?.max(1),
                subject: subject.to_string(),
                tflops: number(tflops)?,
                range: [number(low)?, number(high)?],
            };
            chart.add(whole(head_dim)?, causal, series, point)?;
        }
        if chart.panels.is_empty() {
            return Err(BenchError::Given("line 1: there is no point to draw".to_string()));
        }
        Ok(chart)
    }

    /// The numbers as CSV, small enough to be committed; lines that begin with `#` say what they are about.
    pub fn csv(&self) -> String {
        let mut out: String = self.about.iter().map(|about| format!("# {about}\n")).collect();
        out.push_str(&COLUMNS.join(","));
        out.push('\n');
        for panel in &self.panels {
            for ((name, ..), line) in SERIES.iter().zip(&panel.lines) {
                for point in line {
                    let _ = writeln!(
                        out,
                        "{},{},{},{name},{},{:.1},{:.1},{:.1}",
                        panel.head_dim,
                        panel.mask(),
                        point.seq_len,
                        point.subject,
                        point.tflops,
                        point.range[0],
                        point.range[1]
                    );
                }
            }
        }
        out
    }

    fn add(&mut self, head_dim: usize, causal: bool, series: usize, point: Point) -> Result<(), BenchError> {
        let key = |panel: &Panel| (panel.causal, panel.head_dim);
        let at = match self.panels.binary_search_by_key(&(causal, head_dim), key) {
            Ok(at) => at,
            Err(at) => {
                let panel = Panel {
                    head_dim,
                    causal,
                    lines: Default::default(),
                };
                self.panels.insert(at, panel);
                at
            }
        };
        let line = &mut self.panels[at].lines[series];
        match line.binary_search_by_key(&point.seq_len, |point| point.seq_len) {
            Ok(_) => Err(BenchError::bad_option(
                "problem",
                format!("two of head_dim {head_dim} and length {} for one point", point.seq_len),
                "one of each head_dim, mask and length",
            )),
            Err(place) => {
                line.insert(place, point);
                Ok(())
            }
        }
    }
}

/// Which of [`SERIES`] a subject belongs to.
fn series(subject: &Measured) -> Option<&'static str> {
    match subject.info.label.as_str() {
        _ if subject.info.is_ours() => Some("FlashCore"),
        "fa3" => Some("FA3"),
        "torch/cudnn" => Some("cuDNN"),
        "torch/flash" => Some("FA2"),
        _ => None,
    }
}

fn best(result: &CaseResult, wanted: impl Fn(&Measured) -> bool) -> Option<Point> {
    let subject = result.quickest(wanted)?;
    let summary = subject.summary?;
    let problem: &Problem = &result.case.problem;
    Some(Point {
        seq_len: problem.seq_len_kv(),
        subject: subject.info.label.clone(),
        tflops: result.tflops(summary.p50),
        range: [result.tflops(summary.p90), result.tflops(summary.p10)],
    })
}
