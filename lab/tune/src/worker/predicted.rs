//! A card that is not here: the cost model's times in place of a device. The offline assembler judges what it can.

use std::cell::RefCell;
use std::collections::HashMap;

use flashcore_bench::{DeviceIdentity, Interval};
use flashcore_check::cost::{Forecast, NoForecast};
use flashcore_check::own::Declared;
use flashcore_ir::{Chip, Profile};
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::Problem;

use super::devices::{Device, Told};
use super::own::Kernels;
use crate::own::Bad;
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
        if let Some(declared) = own.iter().find(|own| own.label == id) {
            let looked = self.own.look(declared, problem, seed);
            let error = looked.map_err(|failed| (failed.verdict, failed.reason))?;
            if error.is_none() {
                return Err(refused(&"nothing judges it here: it serves no small problem"));
            }
            // It may spill.
            let forecast = Forecast::of_declared(declared, problem, self.profile).map_err(verdict)?;
            return Ok((forecast.prediction.micros, error));
        }
        let config: Config = id.parse().map_err(|why| refused(&why))?;
        let plan = Plan::new(problem, &config, Chip::from(self.profile)).map_err(|why| refused(&why))?;
        let forecast = Forecast::of(&plan, &KernelCache::default(), self.profile).map_err(verdict)?;
        match forecast.spills() {
            Some(why) => Err((Verdict::BuildFailed, why)),
            None => Ok((forecast.prediction.micros, None)),
        }
    }
}

fn verdict(why: NoForecast) -> (Verdict, String) {
    let verdict = match why {
        NoForecast::Unknown(_) => Verdict::Refused,
        NoForecast::NotBuilt(_) => Verdict::BuildFailed,
        NoForecast::TooLarge(_) => Verdict::LaunchFailed,
    };
    (verdict, why.to_string())
}

impl Device for Card {
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity::predicted(self.profile)
    }

    fn own(&self) -> Option<&Kernels> {
        Some(&self.own)
    }

    fn told(&self, problem: &Problem, id: &str, own: (&[Declared], u64)) -> Result<Told, Bad> {
        let mut known = self.known.borrow_mut();
        let predicted = known.entry(format!("{problem} {id}"));
        let (us, error) = predicted.or_insert_with(|| self.predict(problem, id, own)).clone()?;
        // The model errs alike on like kernels: a ratio of two predictions is taken as it is.
        Ok((us, Interval::new(us, us), error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::devices::Open;
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
