//! Which config is the default, and why.

use std::collections::HashSet;
use std::convert::Infallible;

use flashcore_ir::Chip;
use flashcore_problem::{Direction, Problem};

use thiserror::Error;

use crate::card::{Proposal, Score, estimated_from};
use crate::size::Size;
use crate::{Config, KernelCache, Plan, Refusal, mma, scalar, wgmma};

/// A config to try before the defaults, such as a row of a plan table.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// The config.
    pub config: Config,
    /// Why, in a sentence.
    pub why: String,
}

/// A config that was looked at, and what came of it.
#[derive(Clone, Debug)]
pub struct Considered {
    /// The config.
    pub config: Config,
    /// Place among the suggestions, if it was one.
    pub suggestion: Option<usize>,
    /// Why it was refused, if it was.
    pub refusal: Option<Refusal>,
}

/// The plan chosen for a problem, and how.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// Why this one, in a sentence.
    pub why: String,
    /// Place among the suggestions, if it was one.
    pub suggestion: Option<usize>,
    /// What was looked at, in order of preference; the last one was taken.
    pub considered: Vec<Considered>,
}

/// No config serves a problem on a target.
#[derive(Clone, Debug, Error)]
#[error("no kernel serves this problem: {}", reasons(considered))]
pub struct NoPlan {
    /// What was tried, and why each was refused.
    pub considered: Vec<Considered>,
}

/// Every refusal once, with the first configs that it is about.
fn reasons(considered: &[Considered]) -> String {
    let refused = considered
        .iter()
        .filter_map(|one| Some((one.refusal.as_ref()?.to_string(), one.config.to_string())));
    let told = grouped(refused).into_iter().map(|(why, ids)| match ids.as_slice() {
        [id] => format!("{id}: {why}"),
        [id, rest @ ..] => format!("{id} and {} more: {why}", rest.len()),
        [] => why,
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Pairs by their first: each once, in the order in which they come, with all that go with it.
pub fn grouped<K: PartialEq, V: PartialEq>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// The default plan for a problem on a GPU; a `Target` stands for its usual card. The address of
/// every tensor's first element is a multiple of `alignment` bytes: 16 for a whole allocation,
/// perhaps less for a slice of one.
///
/// # Errors
/// The refusals of every config in the order they were tried, where none serves.
pub fn select(
    problem: &Problem,
    chip: impl Into<Chip>,
    alignment: u32,
    kernels: &KernelCache,
) -> Result<Choice, NoPlan> {
    select_among(problem, chip, alignment, &[], kernels)
}

/// [`select()`], where `suggestions` are tried first, in their order. One that is refused is passed over, and the
/// refusal kept.
///
/// ```
/// use flashcore_ir::Target;
/// use flashcore_kernels::{KernelCache, Suggestion, select_among};
/// use flashcore_problem::Problem;
/// let suggestion = Suggestion { config: "mma/m64n64-w4x1-s2-b1-qreg-xor-cond".parse()?, why: "it was measured".to_string() };
/// let problem = Problem::named("small")?;
/// let choice = select_among(&problem, Target::Sm90a, 16, &[suggestion], &KernelCache::default())?;
/// assert_eq!((choice.suggestion, choice.why.as_str()), (Some(0), "it was measured"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`select()`].
pub fn select_among(
    problem: &Problem,
    chip: impl Into<Chip>,
    alignment: u32,
    suggestions: &[Suggestion],
    kernels: &KernelCache,
) -> Result<Choice, NoPlan> {
    let judge = |_: &Plan| Ok::<_, Infallible>(Ok(()));
    match select_with(problem, chip, alignment, suggestions, kernels, judge) {
        Ok(selected) => selected.map(|(choice, ())| choice),
        Err(never) => match never {},
    }
}

/// [`select_among`], where a further judge may refuse each plan: the compiler of a device, which may have to spill
/// what another one does not. A plan that it refuses is passed over, and the refusal kept.
///
/// # Errors
/// The inner one as for [`select()`]; the outer one where `judge` could not judge, which ends the search.
pub fn select_with<T, F>(
    problem: &Problem,
    chip: impl Into<Chip>,
    alignment: u32,
    suggestions: &[Suggestion],
    kernels: &KernelCache,
    mut judge: impl FnMut(&Plan) -> Result<Result<T, Refusal>, F>,
) -> Result<Result<(Choice, T), NoPlan>, F> {
    let chip = chip.into();
    let mut considered = Vec::new();
    let suggested = suggestions.iter().enumerate();
    let suggested = suggested.map(|(place, one)| (Proposal::new(one.config, "", None, Score::Order), Some(place)));
    let one_sequence = problem.of_one_sequence();
    let asked = one_sequence.as_ref().unwrap_or(problem);
    let defaults = candidates(asked, chip, alignment).map(|proposal| (proposal, None));
    for (proposal, suggestion) in suggested.chain(defaults) {
        let config = proposal.config;
        // Rows of a table for several head sizes propose the same.
        if considered
            .iter()
            .any(|refused: &Considered| refused.config == config && refused.suggestion.is_none())
        {
            continue;
        }
        let planned = match suggestion {
            // Suggestions were measured on whole allocations.
            Some(_) if alignment < mma::ALIGNMENT => {
                let (needed, given) = (mma::ALIGNMENT, alignment);
                Err(Refusal::Address { needed, given })
            }
            _ => Plan::with_cache(problem, &config, chip, kernels),
        };
        // What serves one sequence serves a batch, or nothing does: another kernel would have other bits.
        let of_one = one_sequence.as_ref().filter(|_| planned.is_err());
        let is_last = of_one.is_some_and(|one| Plan::with_cache(one, &config, chip, kernels).is_ok());
        let judged = match planned {
            Ok(plan) => judge(&plan)?.map(|verdict| (plan, verdict)),
            Err(refusal) => Err(refusal),
        };
        let refusal = judged.as_ref().err().cloned();
        considered.push(Considered {
            config,
            suggestion,
            refusal,
        });
        if let Ok((plan, verdict)) = judged {
            let default = || sentence(&proposal, asked, chip);
            let mut why = suggestion.map_or_else(default, |place| suggestions[place].why.clone());
            if wgmma::gathers_keys(problem) {
                why = format!("{why}; {GATHERED_WHY}");
            }
            let choice = Choice {
                plan,
                why,
                suggestion,
                considered,
            };
            return Ok(Ok((choice, verdict)));
        }
        if is_last {
            break;
        }
    }
    Ok(Err(NoPlan { considered }))
}

/// What is said of every plan that gathers K, whatever chose it.
const GATHERED_WHY: &str =
    "each call gathers K first; pages of a multiple of 8 keys, a whole number of rows apart, are read in place";

/// What [`select()`] tries for a problem, best first, with the row of a card and the score that place each. Some may be
/// refused. All are worked out, which takes longer than a choice.
///
/// ```
/// use flashcore_ir::Target;
/// use flashcore_kernels::{ranking, Score};
/// use flashcore_problem::Problem;
/// let ranking = ranking(&Problem::named("llama8b-prefill-8k")?, Target::Sm90a, 16);
/// assert!(matches!(ranking[0].score, Score::Work(_)));
/// assert!(ranking[0].row.is_some_and(|row| row.ends_with("table wgmma")));
/// assert_eq!(ranking.last().map(|last| (last.config.family(), last.row)), Some(("scalar", None)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn ranking(problem: &Problem, chip: impl Into<Chip>, alignment: u32) -> Vec<Proposal<Config>> {
    let one_sequence = problem.of_one_sequence();
    let (asked, mut seen) = (one_sequence.as_ref().unwrap_or(problem), HashSet::new());
    let candidates = candidates(asked, chip.into(), alignment);
    candidates.filter(|proposal| seen.insert(proposal.config)).collect()
}

/// What to try, best first. Each is worked out when those before it have been refused.
fn candidates(problem: &Problem, chip: Chip, alignment: u32) -> impl Iterator<Item = Proposal<Config>> {
    // Copies of 16 bytes need tensors that start at multiples of 16.
    let wide = (alignment >= mma::ALIGNMENT).then_some(problem);
    let measured = wide.into_iter().flat_map(move |problem| {
        let wgmma = wgmma::each_proposal(problem, chip).map(|proposal| proposal.map(Config::Wgmma));
        let mma = mma::proposals(problem, chip).map(|proposal| proposal.map(Config::Mma));
        wgmma.chain(mma)
    });
    let why = if problem.direction() == Direction::Forward {
        "it serves every problem, and of its tiles this was the fastest on such shapes that there is room for"
    } else {
        "no faster family has a backward pass for this problem; of its default tiles this is the largest that there is \
         room for"
    };
    let scalar = [()]
        .into_iter()
        .flat_map(move |()| scalar::preferred_configs(problem, alignment));
    let scalar = scalar.map(move |config| Proposal::new(Config::Scalar(config), why, None, Score::Order));
    measured.chain(scalar)
}

/// Why a proposal is the default, in a sentence.
fn sentence(proposal: &Proposal<Config>, problem: &Problem, chip: Chip) -> String {
    let kind = if problem.direction() == Direction::Forward {
        format!("{} problems", Size::of(problem, chip))
    } else {
        "backward passes".to_string()
    };
    let other_card = estimated_from(chip).filter(|_| proposal.row.is_some());
    let estimated = other_card.map_or(String::new(), |card| format!("; estimated, from an {card}"));
    let (family, target, why) = (proposal.config.family(), chip.target, proposal.why);
    let head_dim = problem.head_dim();
    format!("{family}'s default for {kind} of head_dim {head_dim} on {target}: {why}{estimated}")
}

#[cfg(test)]
mod tests;
