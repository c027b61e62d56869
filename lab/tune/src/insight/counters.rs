//! Rules from measured counters of a candidate to changes that may pay. Each names what was measured, the line that
//! waits for it most, and what it costs at most, per cent of the time.

use flashcore_bench::profile::{KernelProfile, LineProfile, WAITING, WAITS, WASTEFUL};

use super::claim::ClaimKind;
use super::rules::Reason;

/// Busy share of device memory from which on it binds, per cent: the reports' goal.
const BOUND: f64 = 65.0;

/// The measured bottlenecks of a launch, the most costly first.
pub(super) fn reasons(counters: &KernelProfile) -> Vec<Reason> {
    let get = |key: &str| counters.get(key).unwrap_or(0.0);
    let mut reasons = Vec::new();
    let (excess, all) = (get("wavefronts_excess"), get("wavefronts"));
    // Excess counts the landings of copies too, which `wavefronts` leaves out.
    let share = excess / all.max(excess).max(1.0);
    if share >= WASTEFUL {
        let worst = counters.lines.iter().filter(|line| line.wavefronts_excess > 0.0);
        let worst = worst.max_by(|a, b| a.wavefronts_excess.total_cmp(&b.wavefronts_excess));
        reasons.push(Reason {
            kind: ClaimKind::BankConflicts,
            evidence: format!("ncu: {excess:.0} of {all:.0} wavefronts are bank conflicts"),
            line: worst.map(place),
            turns: "swizzled+",
            costs: Some(share * get("shared")),
        });
    }
    let (dram, sm) = (get("dram"), get("sm_busy"));
    if dram >= BOUND && dram > sm {
        reasons.push(Reason {
            kind: ClaimKind::L2,
            evidence: format!("ncu: device memory is busy {dram:.0} % of the time, the SM {sm:.0} %"),
            line: None,
            turns: "pack_heads+ splits+ splits-",
            costs: Some(100.0 - dram),
        });
    } else {
        for wait in WAITS.iter() {
            let [reason, of_line] = wait.names;
            let share = counters.stalls.get(reason).copied().unwrap_or(0.0);
            let Some(kind) = kind(reason).filter(|_| share >= WAITING) else {
                continue;
            };
            let mut lines = counters.lines.iter();
            let at = lines.find(|line| line.waits_for.as_deref() == Some(of_line));
            reasons.push(Reason {
                kind,
                evidence: format!("ncu: {share:.0} % of the samples of warps wait for {}", wait.what),
                line: at.map(place),
                turns: wait.turns,
                costs: Some(share),
            });
        }
    }
    let costs = |reason: &Reason| reason.costs.unwrap_or(0.0);
    reasons.sort_by(|a, b| costs(b).total_cmp(&costs(a)));
    reasons
}

/// The kind of claim that a reason to wait makes; none of a memory barrier, which no kernel waits for.
fn kind(reason: &str) -> Option<ClaimKind> {
    Some(match reason {
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
