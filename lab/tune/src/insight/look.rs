//! [`Advisor`]: looks at a candidate without running it on a device. The simulator runs a few of its blocks, the cost
//! model holds them against the card.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flashcore_check::cost::{Bound, MeasuredCard, Observation, StepFit};
use flashcore_ir::Profile;
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::Problem;
use flashcore_sim::{Class, MemorySite};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::rules::is_to_spill;

/// Accesses of a line that take more than they need.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waste {
    pub(super) line: String,
    /// Passes or sectors, and the fewest there could be.
    pub(super) took: u64,
    pub(super) fewest: u64,
    /// Part of all passes or sectors that is beyond the fewest, of all lines.
    pub(super) beyond: f64,
}

/// What can be seen of a candidate without running it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Look {
    /// Predicted time, µs.
    pub(super) micros: f64,
    pub(super) binds: Bound,
    /// What each thing that can bind takes, µs.
    terms: Vec<(Bound, f64)>,
    /// How many times as long as the next the binding one takes.
    pub(super) lead: f64,
    /// The line that asks most of what binds, and its part of it.
    pub(super) hottest: Option<(String, f64)>,
    /// How the step that does the work fits on the card.
    pub(super) fit: StepFit,
    /// Registers that its values need at a time, and what its launch leaves the compiler, where that is the limit.
    pub(super) registers: Option<(u32, u32)>,
    pub(super) conflicts: Option<Waste>,
    pub(super) scattered: Option<Waste>,
}

impl Look {
    /// What something that can bind takes, µs.
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
        let resources = prediction
            .uses
            .iter()
            .map(|used| (Bound::Resource(used.resource), used.micros));
        let others = [
            (Bound::Latency, prediction.latency_micros),
            (Bound::Launch, prediction.launch_micros),
        ];
        let memory = observed.memory();
        Some(Look {
            micros: prediction.micros,
            binds: prediction.binds,
            terms: resources.chain(others).collect(),
            lead: prediction.lead,
            hottest: hottest.map(|hottest| (hottest.line.to_string(), hottest.share)),
            fit: *prediction.steps.first()?,
            registers: observed.registers(profile.target),
            conflicts: waste(memory, &[Class::LoadShared, Class::StoreShared]),
            scattered: waste(memory, &[Class::LoadGlobal, Class::StoreGlobal, Class::CopyAsync]),
        })
    }
}

/// What accesses of these classes take beyond the fewest, and the line with most of it.
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

/// What the cost model says of a candidate before anybody has compiled it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Its time, µs.
    pub micros: f64,
    /// Whether it is likely to spill, and so not to build: [`is_to_spill`].
    pub spills: bool,
}

/// Looks at candidates for a problem on a card. Clones share what was seen.
#[derive(Clone, Debug)]
pub struct Advisor {
    problem: Problem,
    profile: &'static Profile,
    /// What was measured on the card, in place of its profile's rates.
    measured: Option<MeasuredCard>,
    seen: Arc<Mutex<HashMap<String, Option<Arc<Look>>>>>,
}

impl Advisor {
    /// For a problem on a card.
    ///
    /// ```
    /// use flashcore_ir::Profile;
    /// use flashcore_problem::Problem;
    /// use flashcore_tune::insight::Advisor;
    /// let advisor = Advisor::new(&Problem::named("mission")?, Profile::named("h200").unwrap());
    /// assert_eq!(advisor.profile().name, "h200");
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    pub fn new(problem: &Problem, profile: &'static Profile) -> Advisor {
        Advisor {
            problem: problem.clone(),
            profile,
            measured: None,
            seen: Arc::default(),
        }
    }

    /// The same with what was measured on the card in place of its profile's rates; nothing that was seen is kept.
    #[must_use]
    pub fn measured(self, card: MeasuredCard) -> Advisor {
        Advisor {
            measured: Some(card),
            seen: Arc::default(),
            ..self
        }
    }

    /// What predictions rest on: `profile`, or the SHA-256 of what was measured on the card.
    pub fn rates(&self) -> String {
        match &self.measured {
            None => "profile".to_string(),
            Some(card) => {
                let digits = Sha256::digest(format!("{card:?}"));
                digits.iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }

    /// Predictions, each made once, on all cores. `None`: no plan, or nothing models its cost.
    ///
    /// ```
    /// use flashcore_ir::Profile;
    /// use flashcore_problem::Problem;
    /// use flashcore_tune::insight::Advisor;
    /// let advisor = Advisor::new(&Problem::named("tiny")?, Profile::named("l4").unwrap());
    /// let predicted = advisor.predict(&["scalar/naive-t128-v16".to_string(), "cpu/m64n64".to_string()]);
    /// assert!(predicted[0].is_some_and(|one| one.micros > 1.0 && !one.spills) && predicted[1].is_none());
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    pub fn predict(&self, ids: &[String]) -> Vec<Option<Predicted>> {
        let predicted = |look: Arc<Look>| Predicted {
            micros: look.micros,
            spills: look.registers.is_some_and(|registers| is_to_spill(registers, None)),
        };
        self.look(ids).into_iter().map(|look| look.map(predicted)).collect()
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The card.
    pub fn profile(&self) -> &'static Profile {
        self.profile
    }

    /// What is seen of candidates, each looked at once, on all cores. `None`: no plan, or nothing models its cost.
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
