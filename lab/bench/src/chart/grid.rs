//! The ratio chart: speed-ups over a peer on each problem, head_dim and mask down, lengths across.

use maud::{Markup, html};

use super::{Chart, Drawing, MAX_PX, WIDTH, identity, length, round};
use crate::standing::{Shape, Standing};
use crate::table::{bracketed, geomean_text, times};
use crate::{BenchError, CaseResult, Mode, Report, Result};

const NAME: f64 = 132.0;
/// Height of the heading, of a row, of the legend.
const HEAD: f64 = 20.0;
const ROW: f64 = 34.0;
const LEGEND: f64 = 40.0;
const CELL: f64 = 80.0;
/// Width that a cell's text needs.
const LEAST_CELL: f64 = 44.0;

/// Least speed-up of each colour, its class, whether text on it takes the page's colour, and its name in the legend.
const CLASSES: [(f64, &str, bool, &str); 7] = [
    (1.5, "f3", true, "≥ 1.5"),
    (1.1, "f2", true, "≥ 1.1"),
    (1.01, "f1", false, "≥ 1.01"),
    (0.99, "f0", false, "same"),
    (0.9, "s1", false, "≥ 0.9"),
    (0.67, "s2", false, "≥ 0.67"),
    (0.0, "s3", true, "less"),
];

/// A row has at most one problem of each length.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    key: Key,
    cells: Vec<Option<Shape>>,
}

/// What the problems of a row have in common, besides the length.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    head_dim: usize,
    mask: String,
    /// Query heads a K/V head.
    heads_per_kv: usize,
    /// Of decoding, where batches of one length are different problems; elsewhere the batch shrinks as lengths grow.
    batch: Option<usize>,
}

impl Key {
    fn name(&self) -> String {
        let shared = match self.heads_per_kv {
            1 => String::new(),
            several => format!(" GQA{several}"),
        };
        let batch = self.batch.map_or(String::new(), |batch| format!(" B{batch}"));
        format!("D{} {}{shared}{batch}", self.head_dim, self.mask)
    }
}

/// A chart of speed-ups: our quickest kernel compared with `base`, on every problem of a report that has both in this
/// mode.
///
/// # Errors
/// [`BenchError::Given`] if there is no such problem: `base` must have been the baseline.
pub fn ratio(report: &Report, base: &str, mode: Mode) -> Result<Chart> {
    let mut standings = report.standings(base).into_iter();
    let Some(standing) = standings.find(|standing| standing.mode == mode) else {
        let peer = report.main_peer();
        let allowed = peer.unwrap_or("a subject that was timed in the same rounds as another kernel of ours");
        return Err(BenchError::bad_option("baseline", format!("{base} ({mode})"), allowed));
    };
    let Grid { drawing, rows } = grid(&report.results, &standing);
    let mut about = vec![format!("{mode}: {}; above 1 is faster", geomean_text(&standing))];
    about.extend(identity(report));
    let numbers = |shape: &Shape| {
        let (case, subject) = (shape.case.clone(), shape.subject.clone());
        vec![case, subject, times(shape.speedup), bracketed(Some(shape.interval))]
    };
    let shapes = rows.iter().flat_map(|row| row.cells.iter().flatten());
    let columns = ["problem", "kernel", "speed-up", "interval"];
    Ok(Chart::new(drawing, about, &columns, shapes.map(numbers).collect()))
}

fn title(base: &str) -> String {
    format!("Speed compared with {base}")
}

/// The drawing and what is in it.
struct Grid {
    drawing: Drawing,
    rows: Vec<Row>,
}

fn grid<'r>(results: impl IntoIterator<Item = &'r CaseResult> + Clone, standing: &Standing) -> Grid {
    let mut shapes: Vec<(Key, usize, Shape)> = Vec::new();
    for shape in &standing.shapes {
        let mut results = results.clone().into_iter();
        let result = results.find(|result| result.case.name == shape.case);
        let Some(problem) = result.map(|result| &result.case.problem) else {
            continue;
        };
        let key = Key {
            head_dim: problem.head_dim(),
            mask: shape.group.mask.clone(),
            heads_per_kv: problem.num_heads() / problem.num_kv_heads().max(1),
            batch: (problem.seq_len_q() == 1).then(|| problem.batch()),
        };
        shapes.push((key, problem.seq_len_kv(), shape.clone()));
    }
    let mut lengths: Vec<usize> = shapes.iter().map(|(_, keys, _)| *keys).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let rows = rows(&lengths, shapes);
    let drawing = draw(&title(&standing.base), &lengths, &rows);
    Grid { drawing, rows }
}

fn draw(title: &str, lengths: &[usize], rows: &[Row]) -> Drawing {
    let width = ((WIDTH - NAME) / lengths.len().max(1) as f64).clamp(LEAST_CELL, CELL);
    let all = WIDTH.max(NAME + width * lengths.len() as f64);
    let x = |column: usize| round(NAME + width * column as f64);
    let y = |row: usize| HEAD + ROW * row as f64;
    let bottom = y(rows.len());
    let body = html! {
        @for (column, keys) in lengths.iter().enumerate() {
            text.soft.small x=(round(x(column) + width / 2.0)) y="13" text-anchor="middle" { (length(*keys)) }
        }
        @for (index, row) in rows.iter().enumerate() {
            text.ink x="0" y=(y(index) + ROW / 2.0 + 4.0) { (row.key.name()) }
            @for (column, shape) in row.cells.iter().enumerate() {
                @if let Some(shape) = shape { (cell(shape, x(column), y(index), width)) }
            }
        }
        (legend(bottom + 12.0))
    };
    Drawing::new(
        title,
        [all, bottom + LEGEND],
        (MAX_PX as f64 * all / WIDTH) as u32,
        body,
    )
}

/// Puts each problem into the first row of its key that is free at its length.
fn rows(columns: &[usize], mut shapes: Vec<(Key, usize, Shape)>) -> Vec<Row> {
    shapes.sort_by(|a, b| a.0.cmp(&b.0));
    let mut rows: Vec<Row> = Vec::new();
    for (key, keys, shape) in shapes {
        let column = columns.iter().position(|known| *known == keys).unwrap_or_default();
        let is_free = |row: &&mut Row| row.key == key && row.cells[column].is_none();
        match rows.iter_mut().find(is_free) {
            Some(row) => row.cells[column] = Some(shape),
            None => {
                let mut cells = vec![None; columns.len()];
                cells[column] = Some(shape);
                rows.push(Row { key, cells });
            }
        }
    }
    rows
}

fn cell(shape: &Shape, x: f64, y: f64, width: f64) -> Markup {
    let (class, on) = colour(shape.speedup);
    let text = if on { "on" } else { "ink" };
    let middle = round(x + width / 2.0);
    html! {
        rect class=(class) x=(x + 1.0) y=(y + 1.0) width=(round(width - 2.0)) height=(ROW - 2.0) rx="3" {
            title { (shape.case) ": " (shape.subject) " " (times(shape.speedup)) " " (bracketed(Some(shape.interval))) }
        }
        text class={ (text) " bold" } x=(middle) y=(y + 15.0) text-anchor="middle" { (format!("{:.2}", shape.speedup)) }
        text class={ (text) " small" } x=(middle) y=(y + 27.0) text-anchor="middle" { (half_width(shape)) }
    }
}

fn legend(y: f64) -> Markup {
    let width = WIDTH / CLASSES.len() as f64;
    html! {
        @for (index, (_, class, _, name)) in CLASSES.iter().enumerate() {
            @let x = round(width * index as f64);
            rect class=(class) x=(x) y=(y) width="12" height="12" rx="2" {}
            text.soft.small x=(x + 15.0) y=(y + 10.0) { (name) }
        }
    }
}

fn colour(speedup: f64) -> (&'static str, bool) {
    let found = CLASSES.iter().find(|(least, ..)| speedup >= *least);
    found.map_or(("f0", false), |(_, class, on, _)| (*class, *on))
}

/// `±0.5 %`.
fn half_width(shape: &Shape) -> String {
    let half = shape.interval.relative_half_width(shape.speedup);
    match half.is_finite() {
        true => format!("±{:.1} %", half * 100.0),
        false => "±?".to_string(),
    }
}
