//! The section about errors: what inspections found of outputs, compared with float64.

use std::collections::BTreeMap;

use flashcore_problem::DType;

use super::chapter::{Chapter, how};
use super::{Cell, Section, Table};
use crate::SubjectInfo;
use crate::defences::Inspection;
use crate::gather::{EvidenceId, Timing};

/// Every subject that was inspected: its measurement, its place there, and what was found.
fn inspected<'g>(chapter: &Chapter<'g>) -> impl Iterator<Item = (&'g Timing, usize, &'g SubjectInfo, &'g Inspection)> {
    let timings = chapter.timings.clone().into_iter();
    timings.flat_map(|timing| {
        let subjects = timing.result.measurement.subjects.iter();
        let found = subjects.zip(&timing.result.inspections).enumerate();
        found.filter_map(move |(place, (subject, found))| Some((timing, place, &subject.info, found.as_ref()?)))
    })
}

/// Errors are compared within a family of our kernels, or a peer, and an element type.
fn group<'g>(timing: &Timing, info: &'g SubjectInfo) -> (&'g str, DType) {
    let family = info.label.split('/').next().filter(|_| info.is_ours());
    (family.unwrap_or(&info.label), timing.result.case.problem.dtype())
}

pub(super) fn section(chapter: &Chapter<'_>) -> Section {
    let mut section = Section::new("Errors");
    let mut table = Table::new(
        "The largest difference of an element from float64, and the Frobenius norm of all differences relative to that of \
         the output: of each family of kernels and each peer the largest, and each that was rejected, which has no time.",
        &[
            "problem", "of", "subject", "largest", "relative", "verdict", "run", "evidence",
        ],
    );
    let mut largest: BTreeMap<(&str, DType), f64> = BTreeMap::new();
    for (timing, _, info, found) in inspected(chapter).filter(|(.., found)| found.passed()) {
        let most = largest.entry(group(timing, info)).or_default();
        *most = most.max(found.max_abs);
    }
    for (timing, place, info, found) in inspected(chapter) {
        let (label, group) = (&info.label, group(timing, info));
        if found.passed() && largest.get(&group) != Some(&found.max_abs) {
            continue;
        }
        if found.passed() {
            // Of equals the first.
            largest.remove(&group);
        }
        let verdict = match found.rejected {
            None => "passed".to_string(),
            Some(reason) => format!("rejected ({reason}): {}", found.detail),
        };
        table.rows.push(vec![
            Cell::text(&timing.result.case.name),
            Cell::text(how(timing)),
            Cell::code(label),
            Cell::number(format!("{:.2e}", found.max_abs)),
            Cell::number(format!("{:.2e}", found.frobenius)),
            Cell::text(verdict),
            Cell::text(&chapter.origin(timing).key),
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
    let ours = || inspected(chapter).filter(|(.., info, _)| info.is_ours());
    let mut sentences = Vec::new();
    let passed = ours().filter(|(.., found)| found.passed());
    if let Some((timing, place, info, found)) = passed.max_by(|a, b| a.3.max_abs.total_cmp(&b.3.max_abs)) {
        let (name, label) = (&timing.result.case.name, &info.label);
        let text = format!(
            "The largest error of a kernel of ours against float64 is {:.2e} ({name}, {label}).",
            found.max_abs
        );
        sentences.push((text, vec![timing.ids[place].clone()]));
    }
    for (timing, place, info, found) in ours().filter(|(.., found)| !found.passed()) {
        let (name, label) = (&timing.result.case.name, &info.label);
        let text = format!(
            "{label} was rejected on {name}: {}.",
            found.detail.trim_end_matches('.')
        );
        sentences.push((text, vec![timing.ids[place].clone()]));
    }
    sentences
}
