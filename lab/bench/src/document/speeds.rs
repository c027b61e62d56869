//! Sections about speed: against length, and the ladder of kernels.

use flashcore_check::render;
use flashcore_kernels::Config;

use super::chapter::{Chapter, how};
use super::{Cell, Section, Table, count};
use crate::CaseResult;
use crate::chart::{Speed, is_drawn, ladder_of, work_of};
use crate::gather::Timing;
use crate::rungs::rungs;
use crate::table::{bracketed, number, span, times};

/// Fewest lengths for a chart against length.
const LENGTHS: usize = 3;
/// Fewest kernels of ours on one problem for a ladder, one of which is a rung below the default.
const RUNGS: usize = 3;

pub(super) fn sections(chapter: &Chapter<'_>) -> Vec<Section> {
    let mut sections = Vec::new();
    for (how, timings) in chapter.grids() {
        sections.push(speed(chapter, &how, &timings));
    }
    sections
}

/// Speed against length, and every time as a table.
fn speed(chapter: &Chapter<'_>, how: &str, timings: &[&Timing]) -> Section {
    let mut section = Section::new(format!("Speed: {how}"));
    let drawn = grid_of(timings);
    let mut lengths: Vec<usize> = drawn.iter().map(|result| result.case.problem.seq_len_kv()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    match Speed::of_results(drawn.iter().copied()) {
        Ok(speed) if lengths.len() >= LENGTHS => {
            let description = format!(
                "TFLOP/s against the sequence length, {how}: FlashCore and its peers on {} of equal work, a panel for each \
                 head size and mask.",
                count(drawn.len(), "problem")
            );
            section.draw(speed.on(&chapter.device.name).draw(), description);
        }
        _ => section.say("No chart: it takes problems of equal work at three lengths or more, full or causal."),
    }
    section.tabulate(times_table(how, timings));
    section
}

/// The results with a place in the chart: of those with equal work (tokens, and heads times head size) the most.
fn grid_of<'g>(timings: &[&'g Timing]) -> Vec<&'g CaseResult> {
    let mut grids: Vec<([usize; 3], Vec<&'g CaseResult>)> = Vec::new();
    for result in timings.iter().map(|timing| &timing.result) {
        let problem = &result.case.problem;
        // Shared K/V heads change the work of a problem of the same shape.
        if !is_drawn(problem) || problem.num_heads() != problem.num_kv_heads() {
            continue;
        }
        match grids.iter_mut().find(|(work, _)| *work == work_of(problem)) {
            // One point for each place in the chart: two may differ in head_dim of V, or in layout.
            Some((_, grid)) if grid.iter().any(|other| place(other) == place(result)) => {}
            Some((_, grid)) => grid.push(result),
            None => grids.push((work_of(problem), vec![result])),
        }
    }
    let largest = grids.into_iter().rev().max_by_key(|(_, grid)| grid.len());
    largest.map(|(_, grid)| grid).unwrap_or_default()
}

fn place(result: &CaseResult) -> (usize, String, usize) {
    let problem = &result.case.problem;
    (problem.head_dim(), problem.mask().to_string(), problem.seq_len_kv())
}

/// Every subject on every problem.
fn times_table(how: &str, timings: &[&Timing]) -> Table {
    let mut table = Table::new(
        format!(
            "Times, {how}: medians, their intervals, time relative to the baseline of the same rounds, and the rounds: in \
             HTML a line each from 10 % below the median to 10 % above it, in Markdown their number, the least and the most."
        ),
        &[
            "problem",
            "subject",
            "µs",
            "interval",
            "TFLOP/s",
            "× baseline",
            "rounds",
            "evidence",
        ],
    );
    for timing in timings {
        let result = &timing.result;
        for (place, (id, subject, rounds)) in timing.subjects().enumerate() {
            let Some(summary) = subject.summary else { continue };
            let ratio = match subject.ratio {
                Some(ratio) => format!("{} {}", times(ratio.value), bracketed(Some(ratio.interval))),
                None if place == result.measurement.baseline => "baseline".to_string(),
                None => String::new(),
            };
            table.rows.push(vec![
                Cell::text(&result.case.name),
                Cell::code(&subject.info.label),
                Cell::number(number(summary.p50)),
                Cell::number(span(summary.interval, number)),
                Cell::number(number(result.tflops(summary.p50))),
                Cell::number(ratio),
                Cell::Rounds(rounds.to_vec()),
                Cell::Evidence(id.clone()),
            ]);
        }
    }
    table
}

/// The ladder: of the measurements in which an early kernel took part that with the most kernels.
pub(super) fn ladder(chapter: &Chapter<'_>) -> Section {
    let mut section = Section::new("The ladder");
    let kernels = |timing: &Timing| {
        let subjects = timing.result.measurement.subjects.iter();
        subjects
            .filter(|subject| subject.info.is_ours() && subject.summary.is_some())
            .count()
    };
    let is_early = |timing: &&&Timing| {
        let mut subjects = timing.result.measurement.subjects.iter();
        subjects.any(|subject| {
            let family = subject.info.label.split('/').next();
            subject.summary.is_some() && matches!(family, Some("ladder" | "scalar"))
        })
    };
    let timings = chapter
        .timings
        .iter()
        .filter(is_early)
        .filter(|timing| kernels(timing) >= RUNGS);
    let Some(timing) = timings.max_by_key(|timing| kernels(timing)) else {
        return section;
    };
    let result = &timing.result;
    let subjects = result.measurement.subjects.iter();
    let ours = subjects.filter(|subject| subject.info.is_ours());
    let times_of_ours: Vec<f64> = ours.filter_map(|subject| Some(subject.summary?.p50)).collect();
    let [first, last] = [f64::max, f64::min].map(|end| times_of_ours.iter().copied().reduce(end));
    if let (Some(first), Some(last)) = (first, last) {
        section.say(format!(
            "{} kernels of ours on {} ({}), from {} to {}: {} times as fast.",
            times_of_ours.len(),
            result.case.name,
            result.case.problem,
            render::time(first, 4),
            render::time(last, 4),
            times(first / last),
        ));
    }
    let description = format!(
        "Time of each kernel on {} on a logarithmic scale, from the slowest of ours to the quickest, then peers; the \
         dashed mark is the quickest peer.",
        result.case.name
    );
    let rungs = match chapter.profile() {
        Some(card) => rungs(&result.case.problem, card, &[]),
        None => Vec::new(),
    };
    let name = |label: &str| {
        let config: Config = label.parse().ok()?;
        let rung = rungs.iter().find(|rung| rung.config == config)?;
        Some(rung.label.to_string())
    };
    section.draw(ladder_of(result, name), description);
    section.tabulate(times_table(&how(timing), &[timing]));
    section
}
