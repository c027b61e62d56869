//! Names of metrics, as versions and pages of ncu spell them, and the counters that they are read as.

use std::collections::{BTreeMap, BTreeSet};

use super::{KernelProfile, NUMBERS, SHARES, STALLED};

/// Other metrics that measure what a share measures: key, and bases of their names (`dram__throughput` of
/// `dram__throughput.avg.pct_of_peak_sustained_elapsed`), the best first, or labels of ncu's details page. Those of
/// older chips and of ncu before 2022 are among them.
const SHARES_TOO: [(&str, &[&str]); 10] = [
    ("sm_busy", &["Compute (SM) Throughput"]),
    (
        "tensor",
        &[
            "sm__pipe_tensor_active",
            "sm__inst_executed_pipe_tensor",
            "sm__pipe_tensor_op_hmma_cycles_active",
            "sm__inst_executed_pipe_tensor_op_hmma",
        ],
    ),
    ("mufu", &["sm__pipe_xu_cycles_active"]),
    (
        "fma",
        &["sm__inst_executed_pipe_fma", "sm__pipe_fmaheavy_cycles_active"],
    ),
    ("alu", &["sm__inst_executed_pipe_alu"]),
    ("issue", &["smsp__issue_active", "sm__inst_issued", "Issue Slots Busy"]),
    ("l2_read", &["l1tex__m_xbar2l1tex_read_sectors"]),
    ("l2", &["lts__t_sectors", "L2 Cache Throughput"]),
    ("dram", &["dram__throughput", "dram__bytes", "DRAM Throughput"]),
    ("occupancy", &["smsp__warps_active", "Achieved Occupancy"]),
];

/// Other metrics that are a number: key, and names or labels.
const NUMBERS_TOO: [(&str, &[&str]); 6] = [
    (
        "time_ns",
        &[
            "gpu__time_duration.avg",
            "gpu__time_duration.max",
            "gpu__time_active.sum",
            "Duration",
        ],
    ),
    ("registers", &["Registers Per Thread"]),
    ("shared_bytes", &["Dynamic Shared Memory Per Block"]),
    ("bank_conflicts", &["l1tex__data_bank_conflicts_pipe_lsu.sum"]),
    ("dram_bytes", &["dram__sectors_read.sum"]),
    ("instructions", &["sm__inst_executed.sum", "Executed Instructions"]),
];

/// Counters that ncu also gives by loads and by stores: key, and the two names.
const PARTS: [(&str, [&str; 2]); 2] = [
    (
        "wavefronts",
        [
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        ],
    ),
    (
        "bank_conflicts",
        [
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
        ],
    ),
];

/// Bytes of a sector, which some metrics count in place of bytes.
const SECTOR: f64 = 32.0;

/// A metric of a launch: ncu's name, its unit, and its value in base units; `None` where ncu printed no number.
pub(super) type Metric<'t> = (&'t str, &'t str, Option<f64>);

/// What a metric is read as: the counter's key, and how well it fits, the best is 0.
fn meaning(name: &str, unit: &str) -> Option<(&'static str, usize)> {
    let is_exact = |metric: &str| metric == name || metric.replace('%', "pct_of_peak_sustained") == name;
    let shares = SHARES.map(|(key, metric, _)| (key, metric));
    if let Some((key, _)) = shares.into_iter().chain(NUMBERS).find(|(_, metric)| is_exact(metric)) {
        return Some((key, 0));
    }
    for (key, names) in NUMBERS_TOO {
        if let Some(at) = names.iter().position(|known| *known == name) {
            return Some((key, at + 1));
        }
    }
    let (base, rest) = name.split_once('.').unwrap_or((name, ""));
    let of_peak = rest.contains("pct_of_peak_sustained") && (rest.ends_with("_elapsed") || rest.ends_with("_active"));
    // A label has no rollup, and its unit tells a share from a rate.
    let is_label = !name.contains("__") && unit == "%";
    if !of_peak && !is_label {
        return None;
    }
    // The average of all units before the sum, the busiest and the idlest.
    let rollup = ["avg", "sum", "max", "min"]
        .iter()
        .position(|rollup| rest.starts_with(rollup));
    let of_bases = |(key, metric, _): (&'static str, &str, &str)| {
        let others = SHARES_TOO
            .iter()
            .find(|(of, _)| *of == key)
            .map_or(&[][..], |(_, bases)| bases);
        let own = metric.split('.').next().unwrap_or(metric);
        let mut bases = std::iter::once(own).chain(others.iter().copied());
        let at = bases.position(|known| known == base || (is_label && known == name))?;
        Some((key, 1 + 8 * at + rollup.unwrap_or(4)))
    };
    SHARES.into_iter().find_map(of_bases)
}

impl KernelProfile {
    /// From the metrics of a launch. What is not read as any counter goes to `ignored`.
    pub(super) fn from_metrics(
        [kernel, grid, block]: [&str; 3],
        metrics: &[Metric<'_>],
        ignored: &mut BTreeSet<String>,
    ) -> KernelProfile {
        let mut best: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        let mut samples: Vec<(&str, f64)> = Vec::new();
        for (name, unit, value) in metrics {
            let Some(mut value) = *value else {
                ignored.insert(format!("{name} (no number)"));
                continue;
            };
            if let Some(reason) = name.strip_prefix(STALLED) {
                samples.extend((!reason.ends_with("_not_issued")).then_some((reason, value)));
            } else if let Some((key, fit)) = meaning(name, unit) {
                value *= if name.contains("sectors") && key.ends_with("_bytes") {
                    SECTOR
                } else {
                    1.0
                };
                let known = best.entry(key).or_insert((fit, value));
                if fit < known.0 {
                    *known = (fit, value);
                }
            } else if !PARTS.iter().any(|(_, parts)| parts.contains(name)) {
                ignored.insert((*name).to_string());
            }
        }
        for (key, parts) in PARTS {
            let part = |part: &str| metrics.iter().find(|(name, ..)| *name == part)?.2;
            if let (None, Some(loads), Some(stores)) = (best.get(key), part(parts[0]), part(parts[1])) {
                best.insert(key, (0, loads + stores));
            }
        }
        let all: f64 = samples.iter().map(|(_, samples)| samples).sum();
        let stalls = samples.into_iter().filter(|(_, samples)| *samples > 0.0);
        KernelProfile {
            kernel: kernel.to_string(),
            grid: grid.to_string(),
            block: block.to_string(),
            counters: best
                .into_iter()
                .map(|(key, (_, value))| (key.to_string(), value))
                .collect(),
            stalls: stalls
                .map(|(reason, samples)| (reason.to_string(), 100.0 * samples / all))
                .collect(),
            lines: Vec::new(),
        }
    }
}
