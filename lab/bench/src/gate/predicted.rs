//! What is predicted of the kernels: their time, what they execute and move, and their registers. Nothing of the
//! machine is in it but the version of the assembler, so that it is the same in every run.

use std::collections::BTreeMap;

use flashcore_check::cost::Forecast;
use flashcore_check::render;
use flashcore_ir::Profile;
use flashcore_kernels::KernelCache;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::State;
use super::baseline::{Baseline, rounded};
use super::kernels::{Chose, Chosen};
use crate::problems::stored_name;
use crate::{BenchError, Result};

/// Registers that no assembler says.
const ESTIMATED: &str = "an estimate";
const SPILLED: &str = "bytes a thread spilled";

/// What is predicted of a kernel on a problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The card.
    pub card: String,
    /// Name of the problem.
    #[serde(deserialize_with = "stored_name")]
    pub case: String,
    /// The kernel.
    pub kernel: String,
    /// Why nothing is predicted.
    pub unknown: Option<String>,
    /// Time, µs.
    pub micros: f64,
    /// Ends of its interval, µs.
    pub interval: [f64; 2],
    /// By name: warp instructions by pipe, FLOPs, bytes, wavefronts of shared memory, registers.
    pub counts: BTreeMap<String, f64>,
    /// What says the registers: an assembler, such as `ptxas 13.0 for sm_89`, or an estimate.
    pub registers_by: String,
}

/// Predicts what was chosen for each card with a profile.
pub(super) fn predict(chosen: &[Chosen<'_>], at: &(dyn Fn(&str) + Sync)) -> Vec<Row> {
    at("predicting");
    let cache = KernelCache::default();
    let one = |one: &Chosen<'_>| {
        let (kernel, profile) = (one.kernel.as_ref().ok()?, one.card.profile?);
        Some(Row::of(one, kernel, &cache, profile))
    };
    chosen.par_iter().filter_map(one).collect()
}

impl Row {
    fn of(one: &Chosen<'_>, kernel: &Chose, cache: &KernelCache, profile: &'static Profile) -> Row {
        let forecast = match kernel {
            Chose::Ours(plan) => Forecast::of(plan, cache, profile),
            Chose::Own(declared) => Forecast::of_declared(declared, &one.case.problem, profile),
        };
        let mut row = Row {
            card: one.card.name.clone(),
            case: one.case.name.clone(),
            kernel: kernel.label(),
            unknown: None,
            micros: 0.0,
            interval: [0.0; 2],
            counts: BTreeMap::new(),
            registers_by: ESTIMATED.to_string(),
        };
        let forecast = match forecast {
            Ok(forecast) => forecast,
            Err(why) => {
                row.unknown = Some(why.to_string());
                return row;
            }
        };
        let prediction = &forecast.prediction;
        row.micros = rounded(prediction.micros);
        row.interval = [prediction.low_micros, prediction.high_micros].map(rounded);
        let counts = forecast.counts.iter().filter(|(_, count)| *count > 0.0);
        row.counts = counts.map(|(name, count)| (name.to_string(), *count)).collect();
        for (index, step) in (1..).zip(&prediction.steps) {
            let name = match prediction.steps.len() {
                1 => "registers a thread".to_string(),
                _ => format!("registers a thread of part {index}"),
            };
            row.counts.insert(name, f64::from(step.registers));
        }
        if let Some(assembler) = forecast.assembler {
            row.registers_by = assembler;
            let spilled = f64::from(forecast.spilled_bytes);
            row.counts.insert(SPILLED.to_string(), spilled);
        }
        row
    }

    /// Its time and that of the baseline, in a sentence.
    pub(super) fn beside(&self, old: &Row) -> String {
        let [now, was] = [self.micros, old.micros].map(|us| render::time(us, 4));
        let (case, card, kernel) = (&self.case, &self.card, &self.kernel);
        format!("{case} on {card} by {kernel}: PREDICTED {now}, was {was}")
    }

    /// What is worse than it was by more than a share, in a sentence. Of another kernel only the time is compared, and
    /// what it spills, which the time does not have.
    pub(super) fn worse_than(&self, old: &Row, allowed: f64) -> Option<String> {
        let grew = |now: f64, old: f64| now > old * (1.0 + allowed);
        let times = |now: f64, old: f64| {
            if old > 0.0 {
                return format!("{:.3} × the baseline's", now / old);
            }
            "the baseline has".to_string()
        };
        let mut parts = Vec::new();
        if grew(self.micros, old.micros) {
            let [now, was] = [self.micros, old.micros].map(|us| render::time(us, 4));
            parts.push(format!("PREDICTED {now}, {} {was}", times(self.micros, old.micros)));
        }
        let same = self.kernel == old.kernel;
        for (name, &now) in self.counts.iter().filter(|(name, _)| same || *name == SPILLED) {
            let was = old.counts.get(name).copied().unwrap_or(0.0);
            if grew(now, was) {
                parts.push(format!("{name} {now}, {} {was}", times(now, was)));
            }
        }
        let was = if same {
            String::new()
        } else {
            format!(" (it was {})", old.kernel)
        };
        let (case, card, kernel) = (&self.case, &self.card, &self.kernel);
        (!parts.is_empty()).then(|| format!("{case} on {card} by {kernel}{was}: {}", parts.join("; ")))
    }
}

impl Baseline {
    /// Refuses predictions that were made with registers from another source than those of the baseline.
    ///
    /// # Errors
    /// [`BenchError::Machine`] with both sources.
    pub fn check_registers(&self, state: &State) -> Result<()> {
        for now in state.predicted.iter().flatten().filter(|row| row.unknown.is_none()) {
            let Some(old) = self.of_row(now).filter(|old| old.unknown.is_none()) else {
                continue;
            };
            if old.registers_by != now.registers_by {
                return Err(BenchError::Machine(format!(
                    "the baseline's registers are by {}, and here by {}: their predictions are not to be compared; name \
                     that ptxas by FLASHCORE_PTXAS, or unset it for estimates, or write the baseline again",
                    old.registers_by, now.registers_by
                )));
            }
        }
        Ok(())
    }

    /// The row of the same card and problem.
    pub(super) fn of_row(&self, row: &Row) -> Option<&Row> {
        let is_same = |old: &&Row| old.card == row.card && old.case == row.case;
        self.predicted.iter().flatten().find(is_same)
    }
}
