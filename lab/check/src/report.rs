//! [`CheckReport`]: the result of checking a plan.

use std::collections::BTreeSet;

use flashcore_ir::Target;
use flashcore_ir::proof::LaunchRefusal;
use flashcore_kernels::Tap;
use flashcore_problem::Direction;
use flashcore_sim::{Counts, Finding, FindingKind, Line, MemorySite, TraceRecord};
use serde::Serialize;

use crate::{Gate, source};

/// The kind of [`CheckReport::values`] in messages.
pub(crate) const VALUES: &str = "values";

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It can be launched, has no finding under any schedule, and its output is right.
    Clean,
    /// It cannot be launched and was not simulated.
    Refused,
    /// The simulator reported findings, or lengths contradict the problem.
    Findings,
    /// There are no findings, but the output is wrong or depends on the schedule.
    Wrong,
}

/// A finding, and the schedules that showed it.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The finding under the first schedule that shows it.
    #[serde(flatten)]
    pub finding: Finding,
    /// Its source line, if the file is found.
    pub source: Option<String>,
    /// The source line of the second access.
    pub other_source: Option<String>,
    /// Seeds of the schedules that show it.
    pub schedules: Vec<u64>,
}

impl Found {
    /// Adds the findings of a schedule. Findings of one kind at the same lines and object are one
    /// mistake, even if different instructions cause them.
    pub fn add(all: &mut Vec<Found>, findings: Vec<Finding>, schedule: u64) {
        for finding in findings {
            match all.iter_mut().find(|found| same_mistake(&found.finding, &finding)) {
                Some(found) => {
                    found.finding.count += finding.count;
                    if found.schedules.last() != Some(&schedule) {
                        found.schedules.push(schedule);
                    }
                }
                None => {
                    let quote = |line: Option<&Line>| line.and_then(|line| source::quote(line.file, line.line));
                    all.push(Found {
                        source: quote(finding.line()),
                        other_source: quote(finding.other_line()),
                        finding,
                        schedules: vec![schedule],
                    });
                }
            }
        }
    }
}

fn same_mistake(a: &Finding, b: &Finding) -> bool {
    let place = |line: Option<&Line>| line.map(|line| (line.file, line.line));
    let places = |finding: &Finding| (place(finding.line()), place(finding.other_line()));
    let (here, there) = places(b);
    // In a race the schedule decides which access comes second.
    let mirrored = matches!(a.kind, FindingKind::Race | FindingKind::BlockRace) && places(a) == (there, here);
    a.kind == b.kind && a.object == b.object && (places(a) == (here, there) || mirrored)
}

/// The size of one of a plan's steps.
#[derive(Clone, Debug, Serialize)]
pub struct StepSize {
    /// The kernel's name.
    pub kernel: String,
    /// Blocks of the launch.
    pub blocks: u64,
    /// Warps per block.
    pub warps: u32,
}

/// The result of checking a plan. Prints like a compiler message ([`crate::render`]).
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The problem as text.
    pub problem: String,
    /// Its direction.
    pub direction: Direction,
    /// The config's id.
    pub kernel: String,
    /// The architecture of the plan.
    pub target: Target,
    /// The tap that the build stores; `None` without.
    pub tap: Option<Tap>,
    /// Kind of the inputs.
    pub inputs: &'static str,
    /// Seed of the inputs.
    pub seed: u64,
    /// Seeds of the schedules.
    pub schedules: Vec<u64>,
    /// The verdict.
    pub verdict: Verdict,
    /// Why it cannot be launched.
    pub refusals: Vec<LaunchRefusal>,
    /// Given lengths and pages that contradict the problem, with array, sequence and entry: kernels cut a length to its
    /// bound, and read zeros for a page outside the cache. The output is then not compared.
    pub values: Vec<String>,
    /// The findings, in order of the kernel's lines.
    pub findings: Vec<Found>,
    /// Comparison of the output with float64, under the first schedule or the first one whose
    /// output is wrong.
    pub gate: Option<Gate>,
    /// Seed of the first schedule whose output differs from that of the first schedule in any bit.
    pub differs_under: Option<u64>,
    /// Whether outputs must be the same bits under all schedules. A kernel that declares that its last bits may differ
    /// must be right under each.
    pub reproducible: bool,
    /// The plan's steps.
    pub steps: Vec<StepSize>,
    /// The limit of simulated blocks, if a step has more blocks; the output is then not compared.
    pub only_blocks: Option<u64>,
    /// Executed instructions of all steps by class, under the first schedule.
    pub counts: Counts,
    /// Traced values under the first schedule.
    pub traces: Vec<TraceRecord>,
    /// Cost of memory accesses by line, if requested.
    pub memory: Vec<MemorySite>,
    /// Time of the simulations, seconds.
    pub seconds: f64,
}

impl CheckReport {
    /// What is wrong: the kinds of all findings and the first of them, the refusals of the launch, or the wrong output.
    /// `None` of a clean check.
    pub fn fault(&self) -> Option<String> {
        match self.verdict {
            Verdict::Clean => None,
            Verdict::Refused => {
                let refusals: Vec<String> = self.refusals.iter().map(ToString::to_string).collect();
                Some(refusals.join("; "))
            }
            Verdict::Findings => {
                let of_values = self.values.first().map(|_| VALUES);
                let kinds = self.findings.iter().map(|found| found.finding.kind.name());
                let kinds: BTreeSet<&str> = of_values.into_iter().chain(kinds).collect();
                let found = self.findings.first().map(|found| found.finding.to_string());
                let first = self.values.first().cloned().or(found);
                let kinds = Vec::from_iter(kinds).join(", ");
                Some(format!("{kinds}; {}", first.unwrap_or_default()))
            }
            Verdict::Wrong => Some(match (self.differs_under, &self.gate) {
                (Some(schedule), _) => format!("the output under schedule {schedule} differs from the first"),
                (None, gate) => gate.as_ref().map_or_else(String::new, ToString::to_string),
            }),
        }
    }
}
