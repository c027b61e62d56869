//! Rules from measured counters of a candidate to changes that may pay. Each names what was measured, the line that
//! waits for it most, and what it costs at most, per cent of the time.

use flashcore_bench::profile::{KernelProfile, LineProfile};

use super::claim::ClaimKind;
use super::rules::Reason;

/// A reason to wait, as ncu calls it for a launch and for a line, with what may help.
struct Wait {
    reason: &'static str,
    of_line: &'static str,
    kind: ClaimKind,
    what: &'static str,
    turns: &'static str,
}

/// Reasons to wait that levers change. Meaning: Nsight Compute documentation, "Warp Stall Reasons".
const WAITS: [Wait; 7] = [
    Wait {
        reason: "long_scoreboard",
        of_line: "long_sb",
        kind: ClaimKind::Latency,
        what: "wait for global memory",
        turns: "stages+ min_blocks+ warps+ kv_warps+ splits+ vector_bytes+",
    },
    Wait {
        reason: "short_scoreboard",
        of_line: "short_sb",
        kind: ClaimKind::SharedMemory,
        what: "wait for shared memory or exponentials",
        turns: "q_in_registers+ cols+ min_blocks+ rescale+",
    },
    Wait {
        reason: "mio_throttle",
        of_line: "mio",
        kind: ClaimKind::SharedMemory,
        what: "wait for the queue of shared memory",
        turns: "q_in_registers+ warps- kv_warps- rows+ tile+",
    },
    Wait {
        reason: "barrier",
        of_line: "barrier",
        kind: ClaimKind::Latency,
        what: "wait at barriers",
        turns: "warps- kv_warps- min_blocks+ pingpong- cols+ stages+",
    },
    Wait {
        reason: "math_pipe_throttle",
        of_line: "math",
        kind: ClaimKind::Arithmetic,
        what: "wait for a busy pipe",
        turns: "rescale+ cols+ rows+ warps-",
    },
    Wait {
        reason: "wait",
        of_line: "wait",
        kind: ClaimKind::Latency,
        what: "wait for the instruction before",
        turns: "min_blocks+ warps+ pingpong+ rescale+ rows+",
    },
    Wait {
        reason: "lg_throttle",
        of_line: "lg",
        kind: ClaimKind::Uncoalesced,
        what: "wait for the queue of global memory",
        turns: "vector_bytes+ tile+",
    },
];

/// Share of samples from which on a reason to wait is a bottleneck, per cent.
const WAITING: f64 = 15.0;
/// Share of wavefronts by bank conflicts from which on they are one.
const WASTEFUL: f64 = 0.05;
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
        for wait in WAITS {
            let share = counters.stalls.get(wait.reason).copied().unwrap_or(0.0);
            if share < WAITING {
                continue;
            }
            let at = counters
                .lines
                .iter()
                .find(|line| line.waits_for.as_deref() == Some(wait.of_line));
            reasons.push(Reason {
                kind: wait.kind,
                evidence: format!("ncu: {share:.0} % of the samples of warps {}", wait.what),
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

fn place(line: &LineProfile) -> String {
    // ncu gives the path that it resolved.
    let from = ["crates/", "lab/"]
        .iter()
        .filter_map(|folder| line.file.find(folder))
        .min();
    format!("{}:{}", &line.file[from.unwrap_or(0)..], line.line)
}
