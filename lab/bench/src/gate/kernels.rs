//! The kernels of the set: chosen, assembled, simulated.

use std::collections::BTreeMap;

use flashcore::unstable::plans::{Plan, PlanTarget, Plans};
use flashcore_check::mutate::plant;
use flashcore_check::registers::{self, Unknown};
use flashcore_ir::{Kernel, Target};
use flashcore_kernels::{KernelCache, select_among};
use flashcore_problem::{InputKind, ProblemBuilder};
use rayon::prelude::*;
use serde::Serialize;

use super::{Card, Computed, Options, SEED};
use crate::{Case, Result, parity};

/// The plan of a problem on a card, or why there is none.
pub(super) struct Chosen<'a> {
    card: &'a Card,
    case: &'a Case,
    plan: Result<Plan, String>,
}

/// A kernel, assembled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Built {
    /// The card.
    pub card: String,
    /// The first problem that has it.
    pub case: String,
    /// The kernel's name; the problem's, if no kernel serves it.
    pub kernel: String,
    /// Registers a thread; `None` where there is no assembler, or it refuses.
    pub registers: Option<u32>,
    /// Bytes a thread that spill.
    pub spilled_bytes: Option<u32>,
    /// What is wrong.
    pub wrong: Option<String>,
}

/// The library's choice for each problem on each card, or the kernel that was named.
pub(super) fn choose<'a>(options: &'a Options, cases: &'a [Case]) -> Result<Vec<Chosen<'a>>> {
    let mut chosen = Vec::new();
    for card in &options.cards {
        let plans = match card.profile {
            Some(profile) => Plans::load(&PlanTarget::Card(profile)).map_err(flashcore::Error::from)?,
            None => Plans::none(),
        };
        for case in cases {
            let plan = match &options.kernel {
                Some(config) => Plan::new(&case.problem, config, card.chip).map_err(|refusal| refusal.to_string()),
                None => {
                    let rows = plans.suggestions(&case.problem);
                    let choice = select_among(&case.problem, card.chip, 16, &rows, &KernelCache::default());
                    choice.map(|choice| choice.plan).map_err(|why| why.to_string())
                }
            };
            chosen.push(Chosen { card, case, plan });
        }
    }
    Ok(chosen)
}

/// Prints and assembles each kernel once, and why spills are unknown where there is no assembler.
pub(super) fn build(chosen: &[Chosen<'_>]) -> (Vec<Built>, Option<String>) {
    let mut built = Vec::new();
    let mut kernels: BTreeMap<(&str, Target), (&Kernel, &Chosen<'_>)> = BTreeMap::new();
    for one in chosen {
        match &one.plan {
            Ok(plan) => {
                for step in plan.steps() {
                    kernels
                        .entry((step.kernel.name(), plan.target))
                        .or_insert((&step.kernel, one));
                }
            }
            Err(why) => built.push(Built {
                card: one.card.name.clone(),
                case: one.case.name.clone(),
                kernel: one.case.problem.to_string(),
                registers: None,
                spilled_bytes: None,
                wrong: Some(why.clone()),
            }),
        }
    }
    let assembled = kernels.into_par_iter().map(|((name, target), (kernel, one))| {
        let mut found = Built {
            card: one.card.name.clone(),
            case: one.case.name.clone(),
            kernel: name.to_string(),
            registers: None,
            spilled_bytes: None,
            wrong: None,
        };
        let mut unknown = None;
        match registers::offline(kernel, target) {
            Ok(used) => {
                (found.registers, found.spilled_bytes) = (Some(used.per_thread), Some(used.spilled_bytes));
                if used.spilled_bytes > 0 {
                    let (bytes, registers) = (used.spilled_bytes, used.per_thread);
                    found.wrong = Some(format!(
                        "spills {bytes} B a thread, with {registers} registers ({})",
                        used.compiler
                    ));
                }
            }
            Err(Unknown::NoAssembler) => unknown = Some(Unknown::NoAssembler.to_string()),
            Err(why) => found.wrong = Some(why.to_string()),
        }
        (found, unknown)
    });
    let (assembled, unknown): (Vec<Built>, Vec<Option<String>>) = assembled.collect::<Vec<_>>().into_iter().unzip();
    built.extend(assembled);
    (built, unknown.into_iter().flatten().next())
}

/// Simulates each kernel once with each mask, on one sequence of two heads: lengths, batch and heads are no part of a
/// kernel.
pub(super) fn simulate(options: &Options, chosen: &[Chosen<'_>], at: &(dyn Fn(&str) + Sync)) -> Vec<Computed> {
    let mut kernels: BTreeMap<(&str, String, String), (&Plan, &Chosen<'_>)> = BTreeMap::new();
    for one in chosen {
        let Ok(plan) = &one.plan else { continue };
        let names: Vec<&str> = plan.steps().map(|step| step.kernel.name()).collect();
        let key = (one.card.name.as_str(), names.join(" "), plan.problem.mask().to_string());
        kernels.entry(key).or_insert((plan, one));
    }
    let count = kernels.len();
    let all = kernels.into_values().enumerate();
    all.map(|(index, (plan, one))| {
        at(&format!(
            "simulating {} of {count}: {} for {}",
            index + 1,
            one.case.name,
            one.card.name
        ));
        simulate_one(options, plan, one)
    })
    .collect()
}

/// The same kernel with less to do: one sequence of two heads, so that blocks still are of more than one. Where it does
/// not serve that, it is simulated as it is.
fn reduced(plan: &Plan, card: &Card) -> Plan {
    let group = plan.problem.group_size();
    let small = ProblemBuilder::from(&plan.problem)
        .batch(1)
        .heads(2 * group, 2)
        .build()
        .ok();
    let small = small.and_then(|small| Plan::new(&small, &plan.config, card.chip).ok());
    let names = |plan: &Plan| {
        plan.steps()
            .map(|step| step.kernel.name().to_string())
            .collect::<Vec<_>>()
    };
    small
        .filter(|small| names(small) == names(plan))
        .unwrap_or_else(|| plan.clone())
}

fn simulate_one(options: &Options, plan: &Plan, one: &Chosen<'_>) -> Computed {
    let mut plan = reduced(plan, one.card);
    if let Some(operator) = options.plant {
        // A kernel without such a place stays as it is.
        let _ = plant(&mut plan, operator, 1);
    }
    let found = parity::simulate(&plan, one.card.chip, InputKind::Normal, SEED);
    let on = format!("sim {}", one.card.name);
    Computed::new(on, one.case, Some(plan.config.to_string()), found)
}
