//! Names of metrics, as versions and pages of ncu spell them, and the counters that they are read as.

use std::collections::{BTreeMap, BTreeSet};

use super::{COUNTERS, Counter, KernelProfile, STALLED, counters};

/// Bytes of a sector, which some metrics count in place of bytes.
const SECTOR: f64 = 32.0;

/// A metric of a launch: ncu's name, its unit, and its value in base units; `None` where ncu printed no number.
pub(super) type Metric<'t> = (&'t str, &'t str, Option<f64>);

/// What a metric is read as: the counter's key, and how well it fits, the best is 0.
fn meaning(name: &str, unit: &str) -> Option<(&'static str, usize)> {
    if let Some((key, _)) = counters().find(|(_, metric)| metric == name) {
        return Some((key, 0));
    }
    for counter in COUNTERS.iter().filter(|counter| counter.title.is_none()) {
        if let Some(at) = counter.also.iter().position(|known| *known == name) {
            return Some((counter.key, at + 1));
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
    let of_bases = |counter: &Counter| {
        let own = counter.metric.split('.').next().unwrap_or(counter.metric);
        let mut bases = std::iter::once(own).chain(counter.also.iter().copied());
        let at = bases.position(|known| known == base || (is_label && known == name))?;
        Some((counter.key, 1 + 8 * at + rollup.unwrap_or(4)))
    };
    let mut shares = COUNTERS.iter().filter(|counter| counter.title.is_some());
    shares.find_map(of_bases)
}

/// Counters that ncu also gives by loads and by stores: key, and the two names.
fn parts() -> impl Iterator<Item = (&'static str, [&'static str; 2])> {
    COUNTERS
        .iter()
        .filter_map(|counter| Some((counter.key, counter.parts?)))
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
            } else if !parts().any(|(_, parts)| parts.contains(name)) {
                ignored.insert((*name).to_string());
            }
        }
        for (key, parts) in parts() {
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
