//! The kernels of the set: chosen, assembled, simulated.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashcore::unstable::plans::{Plan, PlanTarget, Plans};
use flashcore_check::mutate::plant;
use flashcore_check::own::{Declared, OwnError};
use flashcore_check::registers::{self, Registers, Unknown};
use flashcore_ir::Target;
use flashcore_kernels::KernelCache;
use flashcore_problem::{InputKind, Problem, ProblemBuilder};
use rayon::prelude::*;
use serde::Serialize;

use super::{Card, Computed, Named, Options, SEED};
use crate::stand::chosen_by;
use crate::{BenchError, Case, Result, parity};

/// The kernel of a problem on a card, or why there is none.
pub(super) struct Chosen<'a> {
    pub(super) card: &'a Card,
    pub(super) case: &'a Case,
    pub(super) kernel: Result<Chose, String>,
}

/// A kernel that is judged.
pub(super) enum Chose {
    Ours(Box<Plan>),
    Own(Arc<Declared>),
}

impl Chose {
    /// Its id, or the label of a user's.
    pub(super) fn label(&self) -> String {
        match self {
            Chose::Ours(plan) => plan.config.to_string(),
            Chose::Own(declared) => declared.label.clone(),
        }
    }

    /// The names of its parts, each of which is assembled by itself.
    fn names(&self) -> Vec<&str> {
        match self {
            Chose::Ours(plan) => plan.steps().map(|step| step.kernel.name()).collect(),
            Chose::Own(declared) => vec![&declared.label],
        }
    }

    fn assemble(&self, part: usize, target: Target) -> Result<Registers, Unknown> {
        match self {
            Chose::Ours(plan) => {
                let step = plan.steps().nth(part).unwrap_or(&plan.main);
                registers::offline(&step.kernel, target)
            }
            Chose::Own(declared) => declared.registers(target),
        }
    }
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

impl Built {
    fn of(one: &Chosen<'_>, kernel: String) -> Built {
        Built {
            card: one.card.name.clone(),
            case: one.case.name.clone(),
            kernel,
            registers: None,
            spilled_bytes: None,
            wrong: None,
        }
    }
}

/// The library's choice for each problem on each card, or the kernel that was named. Problems that a user's kernel does
/// not serve are left out: what it says of the first of them comes back.
pub(super) fn choose(options: &Options) -> Result<(Vec<Chosen<'_>>, Option<String>)> {
    let (mut chosen, mut left_out) = (Vec::new(), None);
    for card in &options.cards {
        let plans = match card.profile {
            Some(profile) => Plans::load(&PlanTarget::Card(profile)).map_err(flashcore::Error::from)?,
            None => Plans::none(),
        };
        let own = match &options.kernel {
            Some(Named::Own(word)) => Some(Arc::new(declared(word, card.chip.target)?)),
            _ => None,
        };
        for case in &options.cases {
            let kernel = match (&options.kernel, &own) {
                (_, Some(own)) => match own.launch(&case.problem) {
                    Ok(_) => Ok(Chose::Own(own.clone())),
                    Err(why) => {
                        left_out.get_or_insert(format!("{}: {}: {why}", own.label, case.name));
                        continue;
                    }
                },
                (Some(Named::Config(config)), _) => Plan::new(&case.problem, config, card.chip)
                    .map(|plan| Chose::Ours(Box::new(plan)))
                    .map_err(|refusal| refusal.to_string()),
                _ => {
                    let choice = chosen_by(&plans, &case.problem, card.chip, &KernelCache::default());
                    let choice = choice.map(|choice| Chose::Ours(Box::new(choice.plan)));
                    choice.map_err(|why| why.to_string())
                }
            };
            chosen.push(Chosen { card, case, kernel });
        }
    }
    match left_out {
        Some(why) if chosen.is_empty() => Err(BenchError::Given(format!("it serves none of the problems; {why}"))),
        left_out => Ok((chosen, left_out)),
    }
}

fn declared(word: &str, target: Target) -> Result<Declared> {
    let read = Declared::read(word, target).map_err(|error| match error {
        OwnError::Environment(why) => BenchError::Machine(why),
        error => BenchError::Given(error.to_string()),
    });
    Ok(read?.0)
}

/// Prints and assembles each kernel once, and why spills are unknown where there is no assembler.
pub(super) fn build(chosen: &[Chosen<'_>]) -> (Vec<Built>, Option<String>) {
    let mut built = Vec::new();
    let mut kernels: BTreeMap<(&str, Target), (&Chose, usize, &Chosen<'_>)> = BTreeMap::new();
    for one in chosen {
        match &one.kernel {
            Ok(kernel) => {
                for (part, name) in kernel.names().into_iter().enumerate() {
                    let key = (name, one.card.chip.target);
                    kernels.entry(key).or_insert((kernel, part, one));
                }
            }
            Err(why) => built.push(Built {
                wrong: Some(why.clone()),
                ..Built::of(one, one.case.problem.to_string())
            }),
        }
    }
    let assembled = kernels.into_par_iter().map(|((name, target), (kernel, part, one))| {
        let mut found = Built::of(one, name.to_string());
        let mut unknown = None;
        match kernel.assemble(part, target) {
            Ok(used) => {
                (found.registers, found.spilled_bytes) = (Some(used.per_thread), Some(used.spilled_bytes));
                // A user's kernel may spill: a prediction says how much.
                if used.spilled_bytes > 0 && matches!(kernel, Chose::Ours(_)) {
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
    let mut kernels: BTreeMap<(&str, String, String), (&Chose, &Chosen<'_>)> = BTreeMap::new();
    for one in chosen {
        let Ok(kernel) = &one.kernel else { continue };
        let key = (
            one.card.name.as_str(),
            kernel.names().join(" "),
            one.case.problem.mask().to_string(),
        );
        kernels.entry(key).or_insert((kernel, one));
    }
    let count = kernels.len();
    let all = kernels.into_values().enumerate();
    all.map(|(index, (kernel, one))| {
        at(&format!(
            "simulating {} of {count}: {} for {}",
            index + 1,
            one.case.name,
            one.card.name
        ));
        simulate_one(options, kernel, one)
    })
    .collect()
}

/// The same problem with less to do: one sequence of two heads, so that blocks still are of more than one.
fn reduced(problem: &Problem) -> Option<Problem> {
    let heads = 2 * problem.group_size();
    ProblemBuilder::from(problem).batch(1).heads(heads, 2).build().ok()
}

/// The same kernel with less to do. Where it does not serve that, it is simulated as it is.
fn reduced_plan(plan: &Plan, card: &Card) -> Plan {
    let small = reduced(&plan.problem).and_then(|small| Plan::new(&small, &plan.config, card.chip).ok());
    let names = |plan: &Plan| {
        plan.steps()
            .map(|step| step.kernel.name().to_string())
            .collect::<Vec<_>>()
    };
    small
        .filter(|small| names(small) == names(plan))
        .unwrap_or_else(|| plan.clone())
}

fn simulate_one(options: &Options, kernel: &Chose, one: &Chosen<'_>) -> Computed {
    let chip = one.card.chip;
    let found = match kernel {
        Chose::Ours(plan) => {
            let mut plan = reduced_plan(plan, one.card);
            if let Some(operator) = options.plant {
                // A kernel without such a place stays as it is.
                let _ = plant(&mut plan, operator, 1);
            }
            parity::simulate(&plan, chip, InputKind::Normal, SEED)
        }
        Chose::Own(declared) => {
            let small = reduced(&one.case.problem).filter(|small| declared.launch(small).is_ok());
            let small = small.as_ref().unwrap_or(&one.case.problem);
            parity::simulate_own(declared, small, chip, SEED)
        }
    };
    let on = format!("sim {}", one.card.name);
    Computed::new(on, one.case, Some(kernel.label()), found)
}
