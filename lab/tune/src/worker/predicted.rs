//! A card that is not here: the cost model's times in place of a device. The offline assembler judges what it can.

use std::cell::RefCell;
use std::collections::HashMap;

use flashcore_bench::{DeviceIdentity, Interval};
use flashcore_check::cost::Observation;
use flashcore_check::own::Declared;
use flashcore_check::registers::{Assembler, Unknown, assemble, offline};
use flashcore_ir::{Chip, Profile};
use flashcore_kernels::{Config, Plan};
use flashcore_problem::Problem;

use super::devices::{Device, Open};
use super::own::Kernels;
use super::protocol::Failed;
use super::replayed::summary;
use crate::insight::is_to_spill;
use crate::setup::PREDICT;
use crate::trial::Verdict;

/// A predicted time, µs, with the error that the simulator saw of a kernel of the user; or why there is none.
type Predicted = Result<(f64, Option<f64>), (Verdict, String)>;

pub(super) struct Card {
    profile: &'static Profile,
    /// By problem and kernel: the best is opened with every candidate.
    known: RefCell<HashMap<String, Predicted>>,
    own: Kernels,
}

impl Card {
    pub(super) fn new(profile: &'static Profile) -> Card {
        Card {
            profile,
            known: RefCell::default(),
            own: Kernels::new(Some(Chip::from(profile))),
        }
    }

    fn predict(&self, problem: &Problem, id: &str, (own, seed): (&[Declared], u64)) -> Predicted {
        let refused = |why: &dyn std::fmt::Display| (Verdict::Refused, why.to_string());
        let spills = |why: String| Err((Verdict::BuildFailed, why));
        if let Some(own) = own.iter().find(|own| own.label == id) {
            return self.predict_own(problem, own, seed);
        }
        let config: Config = id.parse().map_err(|why| refused(&why))?;
        let plan = Plan::new(problem, &config, Chip::from(self.profile)).map_err(|why| refused(&why))?;
        let observed = Observation::of(&plan).map_err(|why| refused(&why))?;
        let mut registers = Vec::new();
        for step in plan.steps() {
            registers.push(match offline(&step.kernel, self.profile.target) {
                Ok(found) if found.spilled_bytes > 0 => {
                    return spills(format!("{} spills {} B", found.compiler, found.spilled_bytes));
                }
                Ok(found) => Some(found.per_thread),
                Err(Unknown::NoAssembler) => None,
                Err(why) => return spills(why.to_string()),
            });
        }
        let needed = observed
            .registers(self.profile.target)
            .filter(|_| registers.contains(&None));
        if let Some((needed, left)) = needed.filter(|registers| is_to_spill(*registers, None)) {
            return spills(format!(
                "it would spill: it needs about {needed} registers a thread, where {left} are left"
            ));
        }
        let prediction = observed.predict(self.profile, &registers);
        match prediction.does_not_fit() {
            Some(limit) => Err((Verdict::LaunchFailed, format!("no block fits on an SM, by {limit}"))),
            None => Ok((prediction.micros, None)),
        }
    }

    /// A kernel of the user, which may spill.
    fn predict_own(&self, problem: &Problem, declared: &Declared, seed: u64) -> Predicted {
        let looked = self.own.look(declared, problem, seed);
        let error = looked.map_err(|failed| (failed.verdict, failed.reason))?;
        let with = Assembler::default();
        let registers = match assemble(&declared.ptx, &declared.entry, self.profile.target, &with) {
            Ok((found, _)) => Some(found.per_thread),
            Err(Unknown::NoAssembler) => None,
            Err(why) => return Err((Verdict::BuildFailed, why.to_string())),
        };
        if error.is_none() {
            let why = "nothing judges it here: it serves no small problem".to_string();
            return Err((Verdict::Refused, why));
        }
        let observed = Observation::of_declared(declared, problem);
        let observed = observed.map_err(|why| (Verdict::Refused, why.to_string()))?;
        let prediction = observed.predict(self.profile, &[registers]);
        match prediction.does_not_fit() {
            Some(limit) => Err((Verdict::LaunchFailed, format!("no block fits on an SM, by {limit}"))),
            None => Ok((prediction.micros, error)),
        }
    }
}

impl Device for Card {
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity {
            device: format!("{PREDICT}{}", self.profile.name),
            name: self.profile.title.to_string(),
            uuid: String::new(),
            driver: String::new(),
            architecture: self.profile.target.name().to_string(),
            units: self.profile.sms,
            l2_bytes: self.profile.l2_bytes,
        }
    }

    fn computes(&self) -> bool {
        false
    }

    fn own(&self) -> Option<&Kernels> {
        Some(&self.own)
    }

    fn open(
        &self,
        problem: &Problem,
        kernels: &[String],
        own: (&[Declared], u64),
        work: &mut dyn FnMut(Open<'_>),
    ) -> Result<(), Failed> {
        let mut known = self.known.borrow_mut();
        let row = |id: &String| {
            let predicted = known.entry(format!("{problem} {id}"));
            // The model errs alike on like kernels: a ratio of two predictions is taken as it is.
            match predicted.or_insert_with(|| self.predict(problem, id, own)) {
                Ok((us, error)) => Ok(((id.clone(), summary(*us, Interval::new(*us, *us))), *error)),
                Err((verdict, why)) => Err(Failed::new(*verdict, Some(id), why)),
            }
        };
        let rows: Vec<_> = kernels.iter().map(row).collect::<Result<_, _>>()?;
        let (rows, errors) = rows.into_iter().unzip();
        work(Open::Replayed(rows, errors));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_the_card_have_times_and_others_are_refused() {
        let problem = Problem::builder()
            .heads(2, 2)
            .seq_len(128)
            .head_dim(64)
            .build()
            .unwrap();
        let card = Card::new(Profile::named("l4").unwrap());
        let served = ["mma/m64n64-w4x1-s2-b1-qreg-xor-cond".to_string()];
        let mut opened = Vec::new();
        let mut work = |open: Open<'_>| opened = open.opened();
        card.open(&problem, &served, (&[], 0), &mut work).unwrap();
        assert_eq!(opened.len(), 1);
        let of_hopper = ["wgmma/m128n64-s2-pingpong-spec".to_string()];
        let failed = card.open(&problem, &of_hopper, (&[], 0), &mut |_| {
            panic!("it is no kernel of an L4")
        });
        assert_eq!(failed.unwrap_err().verdict, Verdict::Refused);
    }
}
