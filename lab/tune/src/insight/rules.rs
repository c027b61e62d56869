//! Rules from observations of a candidate to changes that may pay. The cost model predicts the
//! changed candidate; a rule alone makes no claim.

use flashcore_bench::profile::KernelProfile;
use flashcore_check::cost::{Bound, Resource, is_to_spill};

use super::claim::{Claim, ClaimKind, Source};
use super::counters;
use super::look::{Advisor, Look, Waste};
use crate::space::Space;

pub(super) struct Reason {
    pub(super) kind: ClaimKind,
    pub(super) evidence: String,
    pub(super) line: Option<String>,
    /// Levers, each followed by `+` for its next value or `-` for the one before, in the lever's
    /// order and among those that may be proposed.
    pub(super) turns: &'static str,
    /// What it costs at most, per cent of the time, if that was measured.
    pub(super) costs: Option<f64>,
}

/// Smallest gain that is claimed, per cent; smaller ones are within the noise.
const LEAST: f64 = 2.0;
/// Share of unnecessary passes or sectors from which on there is a reason.
const WASTEFUL: f64 = 0.05;
/// Share of the card that is busy over all waves, below which waves are a reason.
const BUSY: f64 = 0.85;
/// Waves beyond which the last one matters little.
const MANY_WAVES: f64 = 6.0;
/// Share of its registers that a candidate's values need, above which a change may spill.
const FULL: f64 = 0.5;

/// `registers` are the compiler's per thread, if known. Candidates that are `tried` need no claim.
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
    let expects = |claim, _, after: Option<&Look>| expected(claim, &look, after?);
    claimed(about, reasons(&look, registers), advisor, (space, tried), expects)
}

/// Claims from measured counters. What a change gains is what the cost model predicts of it, at most what the
/// bottleneck costs; half of that where the model sees no difference, or does not know the kernel.
pub(super) fn claims_of_counters(
    about: &str,
    counters: &KernelProfile,
    advisor: &Advisor,
    space: &Space,
    tried: &dyn Fn(&str) -> bool,
) -> Vec<Claim> {
    let before = advisor.look(&[about.to_string()]).remove(0);
    let expects = |mut claim: Claim, costs: f64, after: Option<&Look>| {
        let both = before.as_deref().zip(after);
        let predicted = both.map_or(0.0, |(before, after)| 100.0 * (after.micros / before.micros - 1.0));
        let expected = match predicted {
            slower if slower >= LEAST => 0.0,
            faster if faster <= -LEAST => faster.max(-costs),
            _ => -costs / 2.0,
        };
        claim.source = Source::Counters;
        claim.expected = Some(expected);
        let builds = both.is_none_or(|(before, after)| spills(before, after).is_none());
        (expected <= -LEAST && builds).then_some(claim)
    };
    claimed(about, counters::reasons(counters), advisor, (space, tried), expects)
}

/// The claims of changes that reasons name, of which none is tried. `expects` completes one, or drops it, by what its
/// reason costs and how the changed candidate looks. If several reasons name a change, the first one counts.
fn claimed(
    about: &str,
    reasons: Vec<Reason>,
    advisor: &Advisor,
    (space, tried): (&Space, &dyn Fn(&str) -> bool),
    expects: impl Fn(Claim, f64, Option<&Look>) -> Option<Claim>,
) -> Vec<Claim> {
    let mut changes = Vec::new();
    for reason in reasons {
        let turns = reason.turns.split(' ');
        let of_reason = turns.filter_map(|turn| reason.change(about, turn, space));
        let fresh = of_reason.filter(|claim| !tried(&claim.proposes));
        changes.extend(fresh.map(|claim| (claim, reason.costs.unwrap_or(0.0))));
    }
    let ids: Vec<String> = changes.iter().map(|(claim, _)| claim.proposes.clone()).collect();
    let mut claims: Vec<Claim> = Vec::new();
    for ((claim, costs), after) in changes.into_iter().zip(advisor.look(&ids)) {
        if claims.iter().all(|other| other.proposes != claim.proposes) {
            claims.extend(expects(claim, costs, after.as_deref()));
        }
    }
    claims
}

/// The claim with its expectation: that the change does not build, or that it pays; otherwise none.
fn expected(mut claim: Claim, before: &Look, after: &Look) -> Option<Claim> {
    if let Some(evidence) = spills(before, after) {
        (claim.kind, claim.evidence, claim.line) = (ClaimKind::Spills, evidence, None);
        return Some(claim);
    }
    let percent = 100.0 * (after.micros / before.micros - 1.0);
    claim.expected = Some(percent);
    (percent <= -LEAST && claim.kind.is_reduced(before, after)).then_some(claim)
}

fn spills(before: &Look, after: &Look) -> Option<String> {
    let (needed, left) = after.registers?;
    let spills = is_to_spill((needed, left), Some(before.registers?));
    spills.then(|| format!("its values would need {needed} registers a thread where {left} are left"))
}

impl ClaimKind {
    /// Whether a change reduces the claim's subject, and does not pay for other reasons alone.
    fn is_reduced(self, before: &Look, after: &Look) -> bool {
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

fn beyond(waste: &Option<Waste>) -> f64 {
    waste.as_ref().map_or(0.0, |waste| waste.beyond)
}

fn busy(look: &Look) -> f64 {
    look.fit.waves / look.fit.waves.ceil().max(1.0)
}

impl Reason {
    /// The change by a turn such as `stages+`, if the lever has such a value.
    fn change(&self, about: &str, turn: &str, space: &Space) -> Option<Claim> {
        let (lever, up) = turn.split_at(turn.len() - 1);
        let settings = space.turned(about, lever);
        let at = settings.iter().position(|(_, id)| id == about)?;
        let to = match up {
            "+" => at + 1,
            _ => at.checked_sub(1)?,
        };
        let (to, proposes) = settings.get(to)?.clone();
        Some(Claim {
            about: about.to_string(),
            kind: self.kind,
            source: Source::Model,
            evidence: self.evidence.clone(),
            line: self.line.clone(),
            lever: lever.to_string(),
            from: settings[at].0.clone(),
            to,
            proposes,
            expected: None,
        })
    }
}

fn reasons(look: &Look, registers: Option<u32>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |kind, evidence: String, line: Option<&str>, turns| {
        reasons.push(Reason {
            kind,
            evidence,
            line: line.map(str::to_string),
            turns,
            costs: None,
        });
    };
    let wastes = [
        (
            &look.conflicts,
            ClaimKind::BankConflicts,
            "passes over shared memory",
            "swizzled+",
        ),
        (
            &look.scattered,
            ClaimKind::Uncoalesced,
            "sectors of global memory",
            "vector_bytes+ tile+",
        ),
    ];
    for (waste, kind, what, turns) in wastes {
        if let Some(waste) = waste.as_ref().filter(|waste| waste.beyond >= WASTEFUL) {
            let evidence = format!("{} {what}, of {} needed", waste.took, waste.fewest);
            add(kind, evidence, Some(&waste.line), turns);
        }
    }
    let fit = &look.fit;
    let blocks = match fit.occupancy.blocks_per_sm {
        1 => "one block".to_string(),
        blocks => format!("{blocks} blocks"),
    };
    // Room for more blocks on an SM is useful if more are waiting.
    let waiting = fit.waves > 1.0;
    if waiting && fit.occupancy.limited_by == "registers" {
        let (count, whose) = match registers {
            Some(registers) => (registers, "by the compiler"),
            None => (fit.registers, "estimated"),
        };
        let evidence = format!("{count} registers a thread ({whose}) leave room for {blocks} an SM");
        add(ClaimKind::Registers, evidence, None, "min_blocks+ cols- rows-");
    }
    if waiting && fit.occupancy.limited_by == "shared memory" {
        let evidence = format!("shared memory leaves room for {blocks} an SM");
        add(ClaimKind::Room, evidence, None, "stages- cols- rows-");
    }
    if fit.waves <= MANY_WAVES && busy(look) < BUSY {
        let (waves, busy) = (fit.waves, 100.0 * busy(look));
        let evidence = format!("{waves:.2} waves of blocks keep {busy:.0} % of the card busy");
        add(ClaimKind::Waves, evidence, None, "rows- rows+ splits+ cluster- tile-");
    }
    let (kind, turns) = binding(look.binds);
    let mut evidence = format!("{} binds, {:.1} times the next", look.binds.title(), look.lead);
    if let Some((_, share)) = &look.hottest {
        evidence.push_str(&format!(", {:.0} % of it", 100.0 * share));
    }
    let line = look.hottest.as_ref().map(|(line, _)| line.as_str());
    add(kind, evidence, line, turns);
    let is_full = |(needed, left): (u32, u32)| f64::from(needed) > FULL * f64::from(left);
    if look.registers.is_some_and(is_full) {
        // Changes that need more registers: those that need too many get a warning.
        let turns = "cols+ rows+ warps- q_in_registers+ min_blocks+";
        add(ClaimKind::Spills, String::new(), None, turns);
    }
    reasons
}

fn binding(bound: Bound) -> (ClaimKind, &'static str) {
    match bound {
        Bound::Resource(Resource::Shared) => (
            ClaimKind::SharedMemory,
            "q_in_registers+ warps- kv_warps- rows+ cols+ tile+",
        ),
        // Changes that save bytes at no other cost. Larger tiles and clusters save bytes too, but
        // of 206 such claims 14 came true: they leave fewer blocks, or blocks that wait for each
        // other.
        Bound::Resource(Resource::L2 | Resource::Dram) => (ClaimKind::L2, "pack_heads+ tile+"),
        Bound::Resource(Resource::Mufu | Resource::Fma | Resource::Alu | Resource::Issue) => {
            (ClaimKind::Arithmetic, "rescale+ cols+ rows+ warps- vector_bytes+ kind+")
        }
        Bound::Resource(Resource::Tensor) => (ClaimKind::TensorCores, "cols- rows- rows+"),
        Bound::Latency => (
            ClaimKind::Latency,
            "min_blocks+ stages+ cols+ rows+ rows- warps+ kv_warps+ cluster- splits+",
        ),
        Bound::Launch => (ClaimKind::Launch, "splits-"),
    }
}
