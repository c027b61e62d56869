//! What speaks for which change: from what is seen of a candidate to levers worth turning. Whether a change pays, and by
//! how much, the cost model says of the candidate it leads to; a rule alone makes no claim.

use flashcore_check::cost::{Bound, Resource};

use super::claim::{Claim, ClaimKind};
use super::look::{Advisor, Look, Waste};
use crate::space::Space;

/// Where a lever is to be turned: to the next value that may be proposed, in the lever's order, or the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Up,
    Down,
}

use Turn::{Down, Up};

/// What speaks for some changes.
#[derive(Clone, Debug)]
struct Reason {
    kind: ClaimKind,
    evidence: String,
    line: Option<String>,
    turns: &'static [(&'static str, Turn)],
}

/// A change of one lever.
#[derive(Clone, Debug)]
struct Change {
    lever: &'static str,
    from: String,
    to: String,
    id: String,
}

/// Least gain that is claimed, per cent: smaller ones are lost in noise.
const LEAST: f64 = 2.0;
/// Part of passes or sectors beyond the fewest from which on it is worth a word.
const WASTEFUL: f64 = 0.05;
/// Part of the card that is busy over all waves, below which waves are to blame.
const BUSY: f64 = 0.85;
/// Waves beyond which the last one matters little.
const MANY_WAVES: f64 = 6.0;
/// Part of its registers that a candidate's values need, from which on more may be too many.
const FULL: f64 = 0.5;
/// How far the estimate of registers may be off, as a part of them: on most of 48 kernels that an assembler looked at
/// (docs/cost-model.md).
const OFF_BY: f64 = 0.1;

/// The claims about a candidate. `registers` are those the compiler gave its threads, where somebody knows; `tried` says
/// of which candidates the outcome is known already, so that nothing is to be claimed about them.
pub(super) fn claims(
    about: &str,
    registers: Option<u32>,
    advisor: &Advisor,
    space: &Space,
    tried: &dyn Fn(&str) -> bool,
) -> Vec<Claim> {
    let Some(look) = advisor.look(&[about.to_string()]).remove(0) else {
        return Vec::new();
    };
    let mut asked: Vec<(Reason, Change)> = Vec::new();
    for reason in reasons(&look, registers) {
        let changes = reason
            .turns
            .iter()
            .filter_map(|&(lever, turn)| change(about, lever, turn, space));
        asked.extend(
            changes
                .filter(|change| !tried(&change.id))
                .map(|change| (reason.clone(), change)),
        );
    }
    let ids: Vec<String> = asked.iter().map(|(_, change)| change.id.clone()).collect();
    let mut claims: Vec<Claim> = Vec::new();
    for ((reason, change), after) in asked.into_iter().zip(advisor.look(&ids)) {
        // A change that several reasons name is the first one's.
        let is_new = claims.iter().all(|claim| claim.proposes != change.id);
        if let Some(after) = after.filter(|_| is_new) {
            claims.extend(claim(about, &look, reason, change, &after));
        }
    }
    claims
}

/// What is claimed of a change: that it does not build, that it pays by so much, or nothing.
fn claim(about: &str, before: &Look, reason: Reason, change: Change, after: &Look) -> Option<Claim> {
    let percent = 100.0 * (after.micros / before.micros - 1.0);
    let (kind, evidence, line, expected) = match spills(before, after) {
        Some(evidence) => (ClaimKind::Spills, evidence, None, None),
        None if percent <= -LEAST && reason.kind.is_answered(before, after) => {
            (reason.kind, reason.evidence, reason.line, Some(percent))
        }
        None => return None,
    };
    Some(Claim {
        about: about.to_string(),
        kind,
        evidence,
        line,
        lever: change.lever.to_string(),
        from: change.from,
        to: change.to,
        proposes: change.id,
        expected,
    })
}

/// Why a change is likely to spill.
fn spills(before: &Look, after: &Look) -> Option<String> {
    let (needed, left) = after.registers?;
    let built = before.registers?;
    is_to_spill((needed, left), Some(built))
        .then(|| format!("its values would need {needed} registers a thread where {left} are left"))
}

/// Whether a kernel whose values need so many registers a thread, where its launch leaves so many
/// ([`registers`](flashcore_check::cost::Observation::registers)), is likely to spill: it needs more than there are, by
/// more than the estimate may be off. What is estimated of a kernel near it that was `built` is corrected by that it was.
///
/// ```
/// use flashcore_tune::insight::is_to_spill;
/// assert!(is_to_spill((290, 255), None) && !is_to_spill((261, 255), None));
/// assert!(!is_to_spill((290, 255), Some((280, 255))));
/// ```
pub fn is_to_spill(registers: (u32, u32), built: Option<(u32, u32)>) -> bool {
    let part = |(needed, left): (u32, u32)| f64::from(needed) / f64::from(left);
    part(registers) > built.map_or(1.0, part).max(1.0) + OFF_BY
}

impl ClaimKind {
    /// Whether a change takes away what the claim is about: a change that pays for other reasons is no claim of this
    /// kind.
    fn is_answered(self, before: &Look, after: &Look) -> bool {
        let blocks = |look: &Look| look.fit.occupancy.blocks_per_sm;
        match self {
            ClaimKind::Spills => false,
            ClaimKind::BankConflicts => beyond(&after.conflicts) < beyond(&before.conflicts),
            ClaimKind::Uncoalesced => beyond(&after.scattered) < beyond(&before.scattered),
            ClaimKind::Registers | ClaimKind::Room => blocks(after) > blocks(before),
            ClaimKind::Waves => busy(after) > busy(before),
            ClaimKind::SharedMemory
            | ClaimKind::L2
            | ClaimKind::Arithmetic
            | ClaimKind::TensorCores
            | ClaimKind::Latency
            | ClaimKind::Launch => after.micros_of(before.binds) < before.micros_of(before.binds),
        }
    }
}

/// Part of accesses beyond the fewest there could be.
fn beyond(waste: &Option<Waste>) -> f64 {
    waste.as_ref().map_or(0.0, |waste| waste.beyond)
}

/// Part of the card that is busy over all waves of blocks.
fn busy(look: &Look) -> f64 {
    look.fit.waves / look.fit.waves.ceil().max(1.0)
}

fn change(about: &str, lever: &'static str, turn: Turn, space: &Space) -> Option<Change> {
    let mut settings = space.turned(about, lever);
    let at = settings.iter().position(|(_, id)| id == about)?;
    let to = match turn {
        Up => at + 1,
        Down => at.checked_sub(1)?,
    };
    let from = settings[at].0.clone();
    (to < settings.len()).then(|| {
        let (to, id) = settings.swap_remove(to);
        Change { lever, from, to, id }
    })
}

/// What speaks for changes, the most particular first.
fn reasons(look: &Look, registers: Option<u32>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |kind, evidence: String, line: Option<&str>, turns| {
        reasons.push(Reason {
            kind,
            evidence,
            line: line.map(str::to_string),
            turns,
        });
    };
    let wasteful = |waste: &&Waste| waste.beyond >= WASTEFUL;
    if let Some(waste) = look.conflicts.as_ref().filter(wasteful) {
        let evidence = format!(
            "{} passes over shared memory where {} would do",
            waste.took, waste.fewest
        );
        add(
            ClaimKind::BankConflicts,
            evidence,
            Some(&waste.line),
            &[("swizzled", Up)],
        );
    }
    if let Some(waste) = look.scattered.as_ref().filter(wasteful) {
        let evidence = format!(
            "{} sectors of global memory where {} would do",
            waste.took, waste.fewest
        );
        add(
            ClaimKind::Uncoalesced,
            evidence,
            Some(&waste.line),
            &[("vector_bytes", Up), ("tile", Up)],
        );
    }
    let fit = &look.fit;
    let blocks = match fit.occupancy.blocks_per_sm {
        1 => "one block".to_string(),
        blocks => format!("{blocks} blocks"),
    };
    // Room for more is of use where more are waiting.
    let waiting = fit.waves > 1.0;
    if waiting && fit.occupancy.limited_by == "registers" {
        let (count, whose) = match registers {
            Some(registers) => (registers, "by the compiler"),
            None => (fit.registers, "estimated"),
        };
        let evidence = format!("{count} registers a thread ({whose}) leave room for {blocks} an SM");
        let turns = &[("min_blocks", Up), ("cols", Down), ("rows", Down)];
        add(ClaimKind::Registers, evidence, None, turns);
    }
    if waiting && fit.occupancy.limited_by == "shared memory" {
        let evidence = format!("shared memory leaves room for {blocks} an SM");
        let turns = &[("stages", Down), ("cols", Down), ("rows", Down)];
        add(ClaimKind::Room, evidence, None, turns);
    }
    if fit.waves <= MANY_WAVES && busy(look) < BUSY {
        let evidence = format!(
            "{:.2} waves of blocks keep {:.0} % of the card busy",
            fit.waves,
            100.0 * busy(look)
        );
        let turns = &[
            ("rows", Down),
            ("rows", Up),
            ("splits", Up),
            ("cluster", Down),
            ("tile", Down),
        ];
        add(ClaimKind::Waves, evidence, None, turns);
    }
    let (kind, turns) = binding(look.binds);
    let mut evidence = format!("{} binds, {:.1} times the next", look.binds.title(), look.lead);
    if let Some((_, share)) = &look.hottest {
        evidence.push_str(&format!(", {:.0} % of it", 100.0 * share));
    }
    add(
        kind,
        evidence,
        look.hottest.as_ref().map(|(line, _)| line.as_str()),
        turns,
    );
    if look
        .registers
        .is_some_and(|(needed, left)| f64::from(needed) > FULL * f64::from(left))
    {
        // Changes that take more registers: of those that would need too many is warned.
        add(ClaimKind::Spills, String::new(), None, &HUNGRY);
    }
    reasons
}

/// Changes that take more registers.
const HUNGRY: [(&str, Turn); 5] = [
    ("cols", Up),
    ("rows", Up),
    ("warps", Down),
    ("q_in_registers", Up),
    ("min_blocks", Up),
];

/// What may help where something binds.
fn binding(bound: Bound) -> (ClaimKind, &'static [(&'static str, Turn)]) {
    match bound {
        Bound::Resource(Resource::Shared) => {
            let turns = &[
                ("q_in_registers", Up),
                ("warps", Down),
                ("kv_warps", Down),
                ("rows", Up),
                ("cols", Up),
                ("tile", Up),
            ];
            (ClaimKind::SharedMemory, turns)
        }
        // Fewer bytes, and nothing else worse. Larger tiles and clusters save bytes too, but of 206 that were proposed for
        // that 14 paid: they leave fewer blocks, or blocks that wait for each other, and bytes were not what bound.
        Bound::Resource(Resource::L2 | Resource::Dram) => (ClaimKind::L2, &[("pack_heads", Up), ("tile", Up)]),
        Bound::Resource(Resource::Mufu | Resource::Fma | Resource::Alu | Resource::Issue) => {
            let turns = &[
                ("rescale", Up),
                ("cols", Up),
                ("rows", Up),
                ("warps", Down),
                ("vector_bytes", Up),
                ("kind", Up),
            ];
            (ClaimKind::Arithmetic, turns)
        }
        Bound::Resource(Resource::Tensor) => (ClaimKind::TensorCores, &[("cols", Down), ("rows", Down), ("rows", Up)]),
        Bound::Latency => {
            let turns = &[
                ("min_blocks", Up),
                ("stages", Up),
                ("cols", Up),
                ("rows", Up),
                ("rows", Down),
                ("warps", Up),
                ("kv_warps", Up),
                ("cluster", Down),
                ("splits", Up),
            ];
            (ClaimKind::Latency, turns)
        }
        Bound::Launch => (ClaimKind::Launch, &[("splits", Down)]),
    }
}
