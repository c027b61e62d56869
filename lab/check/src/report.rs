//! [`CheckReport`]: what checking a plan showed.

use flashcore_ir::Target;
use flashcore_ir::proof::LaunchRefusal;
use flashcore_kernels::StopAfter;
use flashcore_sim::{Counts, Finding, FindingKind, Line, MemorySite, TraceRecord};
use serde::Serialize;

use crate::{Gate, source};

/// What checking comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing is wrong: launchable, no finding under any schedule, the right answer under each.
    Clean,
    /// It cannot be launched; it was not simulated.
    Refused,
    /// The simulator found something.
    Findings,
    /// The simulator found nothing, but the answer is wrong or depends on the schedule.
    Wrong,
}

impl Verdict {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Clean => "clean",
            Verdict::Refused => "refused",
            Verdict::Findings => "findings",
            Verdict::Wrong => "wrong",
        }
    }
}

/// A finding, and the schedules that showed it.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// As the first of the schedules showed it.
    #[serde(flatten)]
    pub finding: Finding,
    /// The source line that it names, where the source is at hand.
    pub source: Option<String>,
    /// The same for the other side.
    pub other_source: Option<String>,
    /// Seeds of the schedules.
    pub schedules: Vec<u64>,
}

impl Found {
    /// Adds the findings of a schedule to those of the ones before. What the same lines of the kernel do
    /// wrong in the same way to the same object is one mistake, whichever of their instructions does it.
    pub fn add(all: &mut Vec<Found>, findings: Vec<Finding>, schedule: u64) {
        for finding in findings {
            match all.iter_mut().find(|found| same_mistake(&found.finding, &finding)) {
                Some(found) => {
                    found.finding.count += finding.count;
                    if found.schedules.last() != Some(&schedule) {
                        found.schedules.push(schedule);
                    }
                }
                None => all.push(Found::of(finding, schedule)),
            }
        }
    }

    /// A finding that a schedule showed, with the source lines that it names where they are at hand.
    fn of(finding: Finding, schedule: u64) -> Found {
        let quote = |line: Option<&Line>| line.and_then(|line| source::quote(line.file, line.line));
        Found {
            source: quote(finding.line()),
            other_source: quote(finding.other_line()),
            finding,
            schedules: vec![schedule],
        }
    }
}

fn same_mistake(a: &Finding, b: &Finding) -> bool {
    let place = |line: Option<&Line>| line.map(|line| (line.file, line.line));
    let places = |finding: &Finding| (place(finding.line()), place(finding.other_line()));
    let (here, there) = places(b);
    // Of a race either side may come second, as the schedule has it.
    let mirrored = matches!(a.kind, FindingKind::Race | FindingKind::BlockRace) && places(a) == (there, here);
    a.kind == b.kind && a.object == b.object && (places(a) == (here, there) || mirrored)
}

/// The size of one of a plan's steps.
#[derive(Clone, Debug, Serialize)]
pub struct StepSize {
    /// The kernel's entry name.
    pub kernel: String,
    /// Blocks of the launch.
    pub blocks: u64,
    /// Warps a block.
    pub warps: u32,
}

/// What checking a plan showed. Prints as a compiler does ([`crate::render`]).
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The problem, in one line.
    pub problem: String,
    /// The config's id.
    pub kernel: String,
    /// The architecture it was planned for.
    pub target: Target,
    /// The stage that it stops after, where it does not compute the answer.
    pub stop_after: Option<StopAfter>,
    /// Kind of the inputs.
    pub inputs: &'static str,
    /// Seed of the inputs.
    pub seed: u64,
    /// Seeds of the schedules it ran under.
    pub schedules: Vec<u64>,
    /// What it comes to.
    pub verdict: Verdict,
    /// Why it cannot be launched.
    pub refusals: Vec<LaunchRefusal>,
    /// What is wrong, in the order of the kernel's lines.
    pub findings: Vec<Found>,
    /// The answer against float64, under the first schedule or the first that gave another answer.
    pub gate: Option<Gate>,
    /// Seed of the first schedule whose answer differs from the first one's in any bit.
    pub differs_under: Option<u64>,
    /// The plan's steps.
    pub steps: Vec<StepSize>,
    /// Most blocks of a step that were simulated, where a step has more: its output was not compared.
    pub only_blocks: Option<u64>,
    /// Instructions executed under the first schedule, by class, all steps together.
    pub counts: Counts,
    /// Traced values, under the first schedule.
    pub traces: Vec<TraceRecord>,
    /// What memory accesses cost, by line, where it was asked for.
    pub memory: Vec<MemorySite>,
    /// Seconds that simulating took.
    pub seconds: f64,
}
