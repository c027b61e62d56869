//! Sections about what a card was used for: the roofline, and the busy shares of its units.

use flashcore_problem::DType;

use super::chapter::{Chapter, ours, peer};
use super::{Cell, Section, Table, count};
use crate::chart::{Point, Roof, Shares, bars, roofline};
use crate::gather::Timing;
use crate::profile::{Goals, rows, verdicts};

/// Reasons to wait, and lines, of a profile that are shown.
const WAITS: usize = 3;
const LINES: usize = 5;

pub(super) fn sections(chapter: &Chapter<'_>) -> [Section; 2] {
    [roofs(chapter), pipes(chapter)]
}

/// The roofline of the largest grid of 16-bit elements.
fn roofs(chapter: &Chapter<'_>) -> Section {
    let mut section = Section::new("Roofline");
    let Some(card) = chapter.profile() else {
        return section;
    };
    let mut grids = chapter.grids().into_iter();
    let is_16_bit = |timings: &[&Timing]| matches!(timings[0].result.case.problem.dtype(), DType::F16 | DType::BF16);
    let Some((how, timings)) = grids.find(|(_, timings)| is_16_bit(timings)) else {
        return section;
    };
    let roof = Roof {
        tflops: card.tensor_f16_f32acc_tflops,
        gbps: card.dram_gbps,
    };
    let mut points = Vec::new();
    for timing in &timings {
        let result = &timing.result;
        let intensity = result.flops / result.bytes;
        for (subject, ours) in [(ours(timing), true), (peer(timing), false)] {
            points.extend(subject.and_then(|subject| subject.summary).map(|summary| Point {
                intensity,
                tflops: result.tflops(summary.p50),
                ours,
            }));
        }
    }
    let description = format!(
        "TFLOP/s against operations per byte that must move, both logarithmic, {how}: FlashCore and the quickest peer on \
         {}, below the limits of {} by its datasheet. Hot inputs may lie in L2 and pass the roof of memory.",
        count(timings.len(), "problem"),
        card.title
    );
    section.draw(
        roofline(&format!("Roofline of {}, {how}", card.title), roof, &points),
        description,
    );
    section
}

/// The busy shares that counters say, and what was predicted of them.
fn pipes(chapter: &Chapter<'_>) -> Section {
    let mut section = Section::new("Pipes");
    if chapter.profiles.is_empty() {
        return section;
    }
    let mut table = Table::new(
        "Busy shares, per cent of the time.",
        &["problem", "subject", "unit", "measured", "predicted", "evidence"],
    );
    let shown = |share: Option<f64>| Cell::number(share.map_or("–".to_string(), |share| format!("{share:.1}")));
    let mut drawn = Vec::new();
    for profiled in &chapter.profiles {
        let record = &profiled.record;
        let [case, label] = [&record.case.name, &record.subject.label];
        // The first launch of a plan does the work.
        let rows = rows(record.launches.first(), record.predicted.as_ref());
        table.rows.extend(rows.iter().map(|row| {
            let [measured, predicted] = [row.measured, row.predicted].map(shown);
            let (unit, id) = (Cell::text(row.title), Cell::Evidence(profiled.id.clone()));
            vec![Cell::text(case), Cell::code(label), unit, measured, predicted, id]
        }));
        let rows = rows
            .iter()
            .map(|row| (row.title.to_string(), row.measured, row.predicted));
        drawn.push(Shares {
            title: [case.clone(), label.clone()],
            rows: rows.collect(),
        });
    }
    section.say("Counters of single launches by Nsight Compute, with warm caches.");
    let description = format!(
        "Busy shares of the units of the card, a group of bars for each kernel ({}): measured above, predicted below.",
        count(drawn.len(), "kernel")
    );
    section.draw(bars("Busy shares, per cent of the time", &drawn), description);
    section.tabulate(table);
    section.tabulate(goals(chapter));
    section.tabulate(lines(chapter));
    section
}

/// The counters that have a goal, and what warps waited for.
fn goals(chapter: &Chapter<'_>) -> Table {
    let mut table = Table::new(
        "Goals of a launch, per cent, and what most warps waited for.",
        &["problem", "subject", "goals", "waits", "evidence"],
    );
    for profiled in &chapter.profiles {
        let (record, Some(launch)) = (&profiled.record, profiled.record.launches.first()) else {
            continue;
        };
        let goals = verdicts(launch, &Goals::default()).into_iter().filter_map(|verdict| {
            let said = if verdict.reached? { "reached" } else { "not reached" };
            Some(format!(
                "{} {:.0} of {:.0} ({said})",
                verdict.key, verdict.measured, verdict.goal
            ))
        });
        let waits = launch.waits().into_iter().take(WAITS);
        let waits = waits.map(|(reason, share)| format!("{} {share:.0}", reason.replace('_', " ")));
        table.rows.push(vec![
            Cell::text(&record.case.name),
            Cell::code(&record.subject.label),
            Cell::text(goals.collect::<Vec<_>>().join(", ")),
            Cell::text(waits.collect::<Vec<_>>().join(", ")),
            Cell::Evidence(profiled.id.clone()),
        ]);
    }
    table
}

/// The lines of each kernel at which warps were sampled most.
fn lines(chapter: &Chapter<'_>) -> Table {
    let mut table = Table::new(
        "Rust lines at which most warps were sampled, per cent of the samples that are kept, and the shared-memory \
         wavefronts that bank conflicts added there.",
        &["subject", "line", "samples", "waits for", "conflicts", "evidence"],
    );
    for profiled in &chapter.profiles {
        let launch = profiled.record.launches.first();
        let lines = launch.map(|launch| launch.lines.as_slice()).unwrap_or_default();
        let all: f64 = lines.iter().map(|line| line.samples).sum();
        for line in lines.iter().take(LINES).filter(|line| line.samples > 0.0) {
            table.rows.push(vec![
                Cell::code(&profiled.record.subject.label),
                Cell::code(format!("{}:{}", line.file, line.line)),
                Cell::number(format!("{:.1}", 100.0 * line.samples / all)),
                Cell::text(line.waits_for.clone().unwrap_or_default()),
                Cell::number(format!("{:.0}", line.wavefronts_excess)),
                Cell::Evidence(profiled.id.clone()),
            ]);
        }
    }
    table
}
