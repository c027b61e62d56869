//! The section about errors: what inspections found of outputs, compared with float64.

use std::collections::BTreeMap;

use super::chapter::Chapter;
use super::{Cell, Section, Table};
use crate::defences::Inspection;
use crate::gather::{EvidenceId, Gathered, Timing};

/// Every subject that was inspected.
fn inspected<'g>(chapter: &Chapter<'g>) -> impl Iterator<Item = (&'g Timing, usize, &'g Inspection)> {
    let timings = chapter.timings.clone().into_iter();
    timings.flat_map(|timing| {
        let found = timing.result.inspections.iter().enumerate();
        found.filter_map(move |(place, found)| Some((timing, place, found.as_ref()?)))
    })
}

pub(super) fn section(chapter: &Chapter<'_>, gathered: &Gathered) -> Section {
    let mut section = Section::new("Errors");
    let mut table = Table::new(
        "The largest difference of an element from float64, and the Frobenius norm of all differences relative to that of \
         the output: of each subject the problem with the largest, and each that was rejected, which has no time.",
        &[
            "problem", "mode", "subject", "largest", "relative", "verdict", "run", "evidence",
        ],
    );
    let label = |timing: &Timing, place: usize| timing.result.measurement.subjects[place].info.label.clone();
    let mut largest: BTreeMap<String, f64> = BTreeMap::new();
    for (timing, place, found) in inspected(chapter).filter(|(.., found)| found.passed()) {
        let most = largest.entry(label(timing, place)).or_default();
        *most = most.max(found.max_abs);
    }
    for (timing, place, found) in inspected(chapter) {
        let label = label(timing, place);
        if found.passed() && largest.get(&label) != Some(&found.max_abs) {
            continue;
        }
        if found.passed() {
            // Of equals the first.
            largest.remove(&label);
        }
        let verdict = match found.rejected {
            None => "passed".to_string(),
            Some(reason) => format!("rejected ({reason}): {}", found.detail),
        };
        table.rows.push(vec![
            Cell::text(&timing.result.case.name),
            Cell::text(timing.mode().to_string()),
            Cell::code(&label),
            Cell::number(format!("{:.2e}", found.max_abs)),
            Cell::number(format!("{:.2e}", found.frobenius)),
            Cell::text(verdict),
            Cell::text(&gathered.origins[timing.origin].key),
            Cell::Evidence(timing.ids[place].clone()),
        ]);
    }
    if !table.rows.is_empty() {
        section.say(
            "Before a subject is timed its output is compared with float64 on fresh inputs, over a poisoned output, at \
             other addresses, and again after timing.",
        );
    }
    section.tabulate(table);
    section
}

/// The largest error of a kernel of ours, and whether any was rejected, as sentences.
pub(super) fn largest(chapter: &Chapter<'_>) -> Vec<(String, Vec<EvidenceId>)> {
    let ours =
        || inspected(chapter).filter(|(timing, place, _)| timing.result.measurement.subjects[*place].info.is_ours());
    let label = |timing: &Timing, place: usize| timing.result.measurement.subjects[place].info.label.clone();
    let mut sentences = Vec::new();
    let passed = ours().filter(|(.., found)| found.passed());
    if let Some((timing, place, found)) = passed.max_by(|a, b| a.2.max_abs.total_cmp(&b.2.max_abs)) {
        let (name, label) = (&timing.result.case.name, label(timing, place));
        let text = format!(
            "The largest error of a kernel of ours against float64 is {:.2e} ({name}, {label}).",
            found.max_abs
        );
        sentences.push((text, vec![timing.ids[place].clone()]));
    }
    for (timing, place, found) in ours().filter(|(.., found)| !found.passed()) {
        let (name, label) = (&timing.result.case.name, label(timing, place));
        let text = format!(
            "{label} was rejected on {name}: {}.",
            found.detail.trim_end_matches('.')
        );
        sentences.push((text, vec![timing.ids[place].clone()]));
    }
    sentences
}
