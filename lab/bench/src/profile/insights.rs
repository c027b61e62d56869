//! What the counters of a launch say about making it faster: what was measured, the lever that it points to, and what
//! that gains at most. They hold for kernels of anybody: [`flashcore tune`] turns its own counters into claims about
//! its levers, and times them.
//!
//! [`flashcore tune`]: https://docs.rs/flashcore-tune

use std::sync::LazyLock;

use flashcore_check::render::thousands;
use serde::{Deserialize, Serialize};

use super::{Goals, KernelProfile, listed};

/// A bottleneck, and what may remove it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Insight {
    /// What it is.
    #[serde(skip)]
    pub cause: Cause,
    /// What was measured.
    pub evidence: String,
    /// What to change.
    pub lever: String,
    /// Share of the launch's time that this saves at most, per cent.
    pub saves_at_most: f64,
}

/// What makes a launch take longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// Bank conflicts in shared memory.
    BankConflicts,
    /// The bandwidth of device memory.
    DeviceMemory,
    /// Too few warps that can issue.
    Idle,
    /// A pipe of the SM that has more to do than others.
    Pipe,
    /// What warps wait for.
    Wait(&'static Wait),
}

/// A reason to wait. Meaning: Nsight Compute documentation, "Warp Stall Reasons".
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Wait {
    /// ncu's name of it for a launch, and for a line.
    pub names: [&'static str; 2],
    /// What warps wait for.
    pub what: &'static str,
    /// What helps, and names of levers.
    pub helps: &'static str,
    /// Levers with the direction that may help, such as `stages+ warps-`.
    pub turns: &'static str,
}

/// Every known reason.
static WAITS: LazyLock<Vec<Wait>> = LazyLock::new(|| listed(include_str!("waits.json")));

/// Share of samples from which on a reason to wait is a bottleneck, per cent.
const WAITING: f64 = 15.0;
/// Share of wavefronts by bank conflicts from which on they are one.
const WASTEFUL: f64 = 0.05;
/// Busy share from which on a unit binds, per cent.
const BOUND: f64 = 60.0;
/// Share of tensor cores that is none, and of the FMA pipe that does products, per cent.
const NO_TENSOR: f64 = 1.0;
const PRODUCTS: f64 = 20.0;
/// A product takes the tensor cores at most a quarter of the FMA pipe's time: fp16 on an L4, 121 against 30 TFLOP/s
/// (datasheet); newer chips take less.
const BY_TENSOR: f64 = 0.25;

/// What the counters of a launch point to, the largest gain first; empty if nothing stands out.
pub fn insights(profile: &KernelProfile, goals: &Goals) -> Vec<Insight> {
    let mut found = Vec::new();
    let mut add = |cause, saves_at_most: f64, evidence: String, lever: &str| {
        let (lever, saves_at_most) = (lever.to_string(), saves_at_most.clamp(0.0, 100.0));
        found.push(Insight {
            cause,
            evidence,
            lever,
            saves_at_most,
        });
    };
    let get = |key: &str| profile.get(key);
    // Excess counts where copies land, too, which `wavefronts` leaves out.
    let excess = get("wavefronts_excess").or_else(|| get("bank_conflicts"));
    if let (Some(excess), Some(all)) = (excess, get("wavefronts")) {
        let share = excess / all.max(excess).max(1.0);
        if share >= WASTEFUL {
            let [excess, all] = [excess, all].map(|count| thousands(count as u64));
            let evidence = format!("{excess} of {all} shared-memory wavefronts are bank conflicts");
            // Without its busy share, all of the time may be shared memory's.
            let saves = share * get("shared").unwrap_or(100.0);
            let lever = "swizzle or pad the tiles in shared memory (lever xor)";
            add(Cause::BankConflicts, saves, evidence, lever);
        }
    }
    let (sm, dram) = (get("sm_busy").or_else(|| busiest(profile)), get("dram"));
    let memory_binds = dram.is_some_and(|dram| dram >= BOUND && Some(dram) > sm);
    match (dram, sm) {
        (Some(dram), _) if memory_binds => {
            let evidence = format!("device memory is busy {dram:.0} % of the time: it binds");
            let lever = "read fewer bytes: all heads of a K/V group in one tile, fp8 K and V; other levers gain what is \
                         left (levers gqa, splits)";
            add(Cause::DeviceMemory, 100.0 - dram, evidence, lever);
        }
        (_, Some(sm)) if sm < goals.sm => {
            let occupancy =
                get("occupancy").map_or(String::new(), |share| format!(", {share:.0} % of warps are active"));
            let evidence = format!(
                "the SM's busiest unit is busy {sm:.0} % of the time, {:.0} % is the goal{occupancy}",
                goals.sm
            );
            let lever = "hide latency: smaller tiles or fewer registers for more warps, more stages, split K/V where \
                         blocks are too few (levers tile, min_blocks, stages, splits)";
            add(Cause::Idle, 100.0 - 100.0 * sm / goals.sm.max(1.0), evidence, lever);
        }
        _ => {}
    }
    if let (Some(tensor), Some(fma)) = (get("tensor"), get("fma"))
        && tensor < NO_TENSOR
        && fma >= PRODUCTS
    {
        let evidence = format!("tensor cores are idle ({tensor:.1} %), the FMA pipe is busy {fma:.0} % of the time");
        add(
            Cause::Pipe,
            fma * (1.0 - BY_TENSOR),
            evidence,
            "compute Q·Kᵀ and P·V with mma or wgmma (families mma, wgmma)",
        );
    }
    if let (Some(mufu), Some(fma)) = (get("mufu"), get("fma"))
        && mufu >= BOUND
        && Some(mufu) >= busiest(profile)
        && mufu > fma
    {
        // Both pipes are equally busy at best.
        let evidence =
            format!("exponentials bind: their pipe is busy {mufu:.0} % of the time, the FMA pipe {fma:.0} %");
        add(
            Cause::Pipe,
            (mufu - fma) / 2.0,
            evidence,
            "compute a part of the exponentials by a polynomial on the FMA pipe",
        );
    }
    for wait in WAITS.iter().filter(|_| !memory_binds) {
        let share = profile.stalls.get(wait.names[0]).copied().unwrap_or(0.0);
        if share >= WAITING {
            let evidence = format!("{share:.0} % of the samples of warps wait for {}", wait.what);
            add(Cause::Wait(wait), share, evidence, wait.helps);
        }
    }
    found.sort_by(|a, b| b.saves_at_most.total_cmp(&a.saves_at_most));
    found
}

/// The largest busy share of a pipe of the SM, where ncu was not asked for the largest.
fn busiest(profile: &KernelProfile) -> Option<f64> {
    let pipes = ["tensor", "mufu", "fma", "alu", "issue", "shared"];
    pipes.iter().filter_map(|key| profile.get(key)).reduce(f64::max)
}
