//! [`Forecast`]: what is predicted of a kernel on a card that need not be here. All commands that take the device
//! `predict:CARD` predict by it, from the card's profile, and what it was calibrated with.

use flashcore_ir::Profile;
use flashcore_kernels::{KernelCache, Plan};
use flashcore_problem::Problem;
use thiserror::Error;

use super::card::{CARD_FILE, card};
use super::observe::Observation;
use super::predict::Prediction;
use super::work::Unit;
use crate::own::Declared;
use crate::registers::{Registers, Unknown, offline};

/// What begins the name of a device whose times are predicted; its card follows.
pub const PREDICT: &str = "predict:";

/// The card of `predict:CARD` or `predict:FILE.json`, or what is wrong with it; `None` of other devices.
pub fn predicted_card(device: &str) -> Option<Result<&'static Profile, String>> {
    let name = device.strip_prefix(PREDICT)?;
    let unknown = || {
        let given = match name {
            "" => "a card is missing".to_string(),
            name => format!("card is {name}"),
        };
        format!("{given}; allowed: {}, {CARD_FILE}", Profile::names())
    };
    Some(card(name).unwrap_or_else(|| Err(unknown())))
}

/// What is predicted of a kernel on a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Its time, and the registers of its steps.
    pub prediction: Prediction,
    /// What all warps execute and move, by name: warp instructions by pipe, FLOPs, bytes, wavefronts.
    pub counts: Vec<(&'static str, f64)>,
    /// The assembler that says the registers, such as `ptxas 13.0 for sm_89`; `None`: they are estimated.
    pub assembler: Option<String>,
    /// Bytes a thread that spill, by the assembler.
    pub spilled_bytes: u32,
    /// Where registers are estimated: those that the main step's values need at once, and those that are left.
    pub needed: Option<(u32, u32)>,
}

/// Why nothing is predicted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoForecast {
    /// The model does not cover the kernel or the problem.
    #[error("{0}")]
    Unknown(String),
    /// The assembler refuses the kernel, or could not be run.
    #[error("{0}")]
    NotBuilt(String),
    /// No block fits on an SM, by this limit.
    #[error("no block fits on an SM, by {0}")]
    TooLarge(&'static str),
}

/// Relative error of the estimated registers, for most of 48 kernels (docs/cost-model.md).
const OFF_BY: f64 = 0.1;

/// Whether a kernel is likely to spill, by the registers per thread that its values need and those
/// that its launch leaves ([`registers`](Observation::registers)): it needs
/// more, by more than the error of the estimate. The estimate of a similar kernel that was `built`
/// corrects it.
pub fn is_to_spill(registers: (u32, u32), built: Option<(u32, u32)>) -> bool {
    let part = |(needed, left): (u32, u32)| f64::from(needed) / f64::from(left);
    part(registers) > built.map_or(1.0, part).max(1.0) + OFF_BY
}

impl Forecast {
    /// Of a plan.
    ///
    /// # Errors
    /// The model does not cover it, it does not build, or it does not fit.
    pub fn of(plan: &Plan, kernels: &KernelCache, profile: &'static Profile) -> Result<Forecast, NoForecast> {
        let observed = Observation::with_cache(plan, kernels);
        let observed = observed.map_err(|why| NoForecast::Unknown(why.to_string()))?;
        let assembled = plan.steps().map(|step| offline(&step.kernel, profile.target));
        Forecast::new(&observed, assembled, profile)
    }

    /// Of a user's kernel on a problem.
    ///
    /// # Errors
    /// As [`Forecast::of`], or a problem that it does not serve.
    pub fn of_declared(
        declared: &Declared,
        problem: &Problem,
        profile: &'static Profile,
    ) -> Result<Forecast, NoForecast> {
        let observed = Observation::of_declared(declared, problem);
        let observed = observed.map_err(|why| NoForecast::Unknown(why.to_string()))?;
        Forecast::new(&observed, [declared.registers(profile.target)].into_iter(), profile)
    }

    /// Why it is no kernel to run: it spills, or is likely to by the estimate.
    pub fn spills(&self) -> Option<String> {
        match (&self.assembler, self.needed) {
            (Some(by), _) => (self.spilled_bytes > 0).then(|| format!("{by} spills {} B", self.spilled_bytes)),
            (None, Some((needed, left))) if is_to_spill((needed, left), None) => Some(format!(
                "it would spill: it needs about {needed} registers a thread, where {left} are left"
            )),
            (None, _) => None,
        }
    }

    fn new(
        observed: &Observation,
        assembled: impl Iterator<Item = Result<Registers, Unknown>>,
        profile: &'static Profile,
    ) -> Result<Forecast, NoForecast> {
        let (mut registers, mut assembler, mut spilled_bytes) = (Vec::new(), None, 0);
        for found in assembled {
            registers.push(match found {
                Ok(found) => {
                    spilled_bytes = found.spilled_bytes.max(spilled_bytes);
                    assembler = Some(found.compiler);
                    Some(found.per_thread)
                }
                Err(Unknown::NoAssembler) => None,
                Err(why) => return Err(NoForecast::NotBuilt(why.to_string())),
            });
        }
        let prediction = observed.predict(profile, &registers);
        match prediction.does_not_fit() {
            Some(limit) => Err(NoForecast::TooLarge(limit)),
            None => Ok(Forecast {
                prediction,
                counts: observed.counts(),
                needed: observed.registers(profile.target).filter(|_| assembler.is_none()),
                assembler,
                spilled_bytes,
            }),
        }
    }
}

impl Observation {
    /// What all warps of all launches execute and move, by name. Wavefronts of shared memory are those of the main
    /// step, with those of bank conflicts.
    pub fn counts(&self) -> Vec<(&'static str, f64)> {
        let work = self.total_work();
        let of = |(name, unit): (&'static str, Unit)| (name, work[unit].round());
        let mut counts: Vec<_> = Unit::NAMED.into_iter().map(of).collect();
        let shared = self.accesses().into_iter().filter(|of| of.is_shared());
        let wavefronts: f64 = shared.map(|of| of.transactions).sum();
        counts.push(("shared-memory wavefronts", wavefronts.round()));
        counts
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Chip;

    use super::*;

    #[test]
    fn devices_that_are_predicted_have_a_card() {
        assert!(predicted_card("cuda:0").is_none());
        assert_eq!(predicted_card("predict:L4").unwrap().unwrap().name, "l4");
        assert!(
            predicted_card("predict:l5")
                .unwrap()
                .unwrap_err()
                .contains("allowed: l4")
        );
    }

    #[test]
    fn counts_grow_with_the_rows() {
        let l4 = Profile::named("l4").unwrap();
        let of = |rows: usize| {
            let problem = Problem::builder()
                .heads(2, 2)
                .head_dim(64)
                .seq_len_q(rows)
                .seq_len_kv(128);
            let config = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond".parse().unwrap();
            let plan = Plan::new(&problem.build().unwrap(), &config, Chip::from(l4)).unwrap();
            Forecast::of(&plan, &KernelCache::default(), l4).unwrap()
        };
        let [few, many] = [128, 256].map(of);
        for ((name, few), (_, many)) in few.counts.iter().zip(&many.counts) {
            assert_eq!(*many, 2.0 * few, "{name}");
        }
        assert_eq!(few, of(128));
    }
}
