//! Rules from measured counters of a candidate to changes that may pay: what [`insights`] finds in them, as claims
//! about levers, with the line that is to blame most.

use flashcore_bench::profile::{Cause, Goals, KernelProfile, LineProfile, Wait, insights};

use super::claim::ClaimKind;
use super::rules::Reason;

/// The measured bottlenecks of a launch that levers can change, the most costly first.
pub(super) fn reasons(counters: &KernelProfile) -> Vec<Reason> {
    let found = insights(counters, &Goals::default()).into_iter();
    let reasons = found.filter_map(|insight| {
        let lines = counters.lines.iter();
        let (kind, turns, line) = match insight.cause {
            Cause::BankConflicts => {
                let lines = lines.filter(|line| line.wavefronts_excess > 0.0);
                let worst = lines.max_by(|a, b| a.wavefronts_excess.total_cmp(&b.wavefronts_excess));
                (ClaimKind::BankConflicts, "swizzled+", worst)
            }
            Cause::DeviceMemory => (ClaimKind::L2, "pack_heads+ splits+ splits-", None),
            Cause::Wait(wait) => {
                let at = lines
                    .into_iter()
                    .find(|line| line.waits_for.as_deref() == Some(wait.names[1]));
                (kind(wait)?, wait.turns, at)
            }
            Cause::Idle | Cause::Pipe => return None,
        };
        Some(Reason {
            kind,
            evidence: format!("ncu: {}", insight.evidence),
            line: line.map(place),
            turns,
            costs: Some(insight.saves_at_most),
        })
    });
    reasons.collect()
}

/// The kind of claim that a reason to wait makes; none of a memory barrier, which no kernel waits for.
fn kind(wait: &Wait) -> Option<ClaimKind> {
    Some(match wait.names[0] {
        "long_scoreboard" | "barrier" | "wait" => ClaimKind::Latency,
        "short_scoreboard" | "mio_throttle" => ClaimKind::SharedMemory,
        "math_pipe_throttle" => ClaimKind::Arithmetic,
        "lg_throttle" => ClaimKind::Uncoalesced,
        _ => return None,
    })
}

fn place(line: &LineProfile) -> String {
    // ncu gives the path that it resolved.
    let from = ["crates/", "lab/"]
        .iter()
        .filter_map(|folder| line.file.find(folder))
        .min();
    format!("{}:{}", &line.file[from.unwrap_or(0)..], line.line)
}
