//! [`Advisor`]: observes a candidate without a device. The simulator runs a few of its blocks, and
//! the cost model predicts its time on the card.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flashcore_bench::profile;
use flashcore_check::cost::{Bound, MeasuredCard, Observation, StepFit};
use flashcore_check::own::sha256;
use flashcore_ir::Profile;
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::Problem;
use flashcore_sim::{Class, MemorySite};
use rayon::prelude::*;

use super::is_to_spill;

/// Accesses of a line that use more passes or sectors than necessary.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waste {
    pub(super) line: String,
    /// Passes or sectors, and the necessary number.
    pub(super) took: u64,
    pub(super) fewest: u64,
    /// Share of unnecessary passes or sectors, of all lines.
    pub(super) beyond: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Look {
    pub(super) micros: f64,
    pub(super) binds: Bound,
    /// Time of each possible bound, µs.
    terms: Vec<(Bound, f64)>,
    /// Ratio of the binding time to the next.
    pub(super) lead: f64,
    pub(super) hottest: Option<(String, f64)>,
    pub(super) fit: StepFit,
    /// Registers that its values need, and those that its launch leaves, if that is the limit.
    pub(super) registers: Option<(u32, u32)>,
    pub(super) conflicts: Option<Waste>,
    pub(super) scattered: Option<Waste>,
}

impl Look {
    pub(super) fn micros_of(&self, bound: Bound) -> f64 {
        let term = self.terms.iter().find(|(other, _)| *other == bound);
        term.map_or(0.0, |(_, micros)| *micros)
    }

    fn at(
        problem: &Problem,
        config: &Config,
        profile: &'static Profile,
        measured: Option<&MeasuredCard>,
    ) -> Option<Look> {
        let kernels = KernelCache::default();
        let plan = Plan::with_cache(problem, config, profile, &kernels).ok()?;
        let observed = Observation::with_cache(&plan, &kernels).ok()?;
        let prediction = observed.predict_measured(profile, measured, &[]);
        if prediction.does_not_fit().is_some() {
            return None;
        }
        let hottest = match prediction.binds {
            Bound::Resource(resource) => observed.hottest(resource, profile),
            Bound::Latency | Bound::Launch => None,
        };
        let memory = observed.memory();
        Some(Look {
            micros: prediction.micros,
            binds: prediction.binds,
            terms: prediction.terms(),
            lead: prediction.lead,
            hottest: hottest.map(|hottest| (hottest.line.to_string(), hottest.share)),
            fit: *prediction.steps.first()?,
            registers: observed.registers(profile.target),
            conflicts: waste(memory, &[Class::LoadShared, Class::StoreShared]),
            scattered: waste(memory, &[Class::LoadGlobal, Class::StoreGlobal, Class::CopyAsync]),
        })
    }
}

/// Unnecessary passes or sectors of these classes, and the line with most of them.
fn waste(memory: &[MemorySite], classes: &[Class]) -> Option<Waste> {
    let of_class = || memory.iter().filter(|site| classes.contains(&site.class));
    let beyond = |site: &MemorySite| site.transactions.saturating_sub(site.ideal);
    let (all, wasted) = of_class().fold((0, 0), |(all, wasted), site| {
        (all + site.transactions, wasted + beyond(site))
    });
    let worst = of_class()
        .max_by_key(|site| beyond(site))
        .filter(|site| beyond(site) > 0)?;
    Some(Waste {
        line: format!("{}:{}", worst.line.file, worst.line.line),
        took: worst.transactions,
        fewest: worst.ideal,
        beyond: wasted as f64 / all as f64,
    })
}

/// Prediction for a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Its time, µs.
    pub micros: f64,
    /// Whether it is likely to spill, so that it does not build: [`is_to_spill`].
    pub spills: bool,
}

/// Observes candidates for a problem on a card. Clones share the observations.
#[derive(Clone, Debug)]
pub struct Advisor {
    pub(crate) problem: Problem,
    pub(crate) profile: &'static Profile,
    pub(crate) measured: Option<MeasuredCard>,
    seen: Arc<Mutex<HashMap<String, Option<Arc<Look>>>>>,
}

impl Advisor {
    /// For a problem on a card.
    pub fn new(problem: &Problem, profile: &'static Profile) -> Advisor {
        Advisor {
            problem: problem.clone(),
            profile,
            measured: profile.rates().cloned(),
            seen: Arc::default(),
        }
    }

    /// The same with measured rates in place of the profile's, without the earlier observations.
    #[must_use]
    pub fn measured(self, card: MeasuredCard) -> Advisor {
        Advisor {
            measured: Some(card),
            seen: Arc::default(),
            ..self
        }
    }

    /// Source of the rates: `profile`, or the SHA-256 of measured rates.
    pub fn rates(&self) -> String {
        match &self.measured {
            None => "profile".to_string(),
            Some(card) => sha256(format!("{card:?}")),
        }
    }

    /// The main kernel of a config as PTX, and what is predicted of it. `None` as of [`predict`](Self::predict).
    pub(crate) fn source(&self, id: &str) -> Option<(String, profile::Predicted)> {
        let kernels = KernelCache::default();
        let plan = Plan::with_cache(&self.problem, &id.parse().ok()?, self.profile, &kernels).ok()?;
        let observed = Observation::with_cache(&plan, &kernels).ok()?;
        let measured = self.measured.as_ref();
        let prediction = observed.predict_measured(self.profile, measured, &[]);
        let predicted = profile::Predicted::of(&observed, &prediction, self.profile, measured);
        Some((plan.main.kernel.to_ptx(), predicted))
    }

    /// Predicts candidates on all cores, each once. `None`: no plan, or no model of its cost.
    pub fn predict(&self, ids: &[String]) -> Vec<Option<Predicted>> {
        let predicted = |look: Arc<Look>| Predicted {
            micros: look.micros,
            spills: look.registers.is_some_and(|registers| is_to_spill(registers, None)),
        };
        self.look(ids).into_iter().map(|look| look.map(predicted)).collect()
    }

    /// Observes candidates on all cores, each once. `None`: no plan, or no model of its cost.
    pub(super) fn look(&self, ids: &[String]) -> Vec<Option<Arc<Look>>> {
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new: Vec<&String> = ids.iter().filter(|id| !seen().contains_key(*id)).collect();
        new.sort();
        new.dedup();
        let looked: Vec<(String, Option<Arc<Look>>)> = new
            .into_par_iter()
            .map(|id| {
                let config = id.parse::<Config>().ok();
                let look =
                    config.and_then(|config| Look::at(&self.problem, &config, self.profile, self.measured.as_ref()));
                (id.clone(), look.map(Arc::new))
            })
            .collect();
        seen().extend(looked);
        let known = seen();
        ids.iter().map(|id| known.get(id).cloned().flatten()).collect()
    }
}
