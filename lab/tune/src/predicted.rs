//! A search for a card that is not here: the cost model orders configs, and the offline assembler and
//! the simulator judge the best of them. Its times are predictions.

use std::collections::HashSet;

use flashcore_bench::Interval;
use flashcore_check::cost::Observation;
use flashcore_check::registers::{Unknown, offline};
use flashcore_ir::{Chip, Profile};
use flashcore_kernels::{Config, Plan};
use flashcore_problem::Problem;
use flashcore_problem::rng::Rng;
use serde::Serialize;

use crate::board::{Board, BoardRow, Check};
use crate::gate::Gatekeeper;
use crate::insight::Advisor;
use crate::judge::Judge;
use crate::{TuneError, simulated};

/// Configs that are assembled and simulated, besides the default.
const FINALISTS: usize = 6;
/// The best so far whose neighbours are predicted next.
const PARENTS: usize = 4;
/// Configs that are predicted together.
const BATCH: usize = 24;

/// What the search found.
#[derive(Clone, Debug, Serialize)]
pub struct PredictedSearch {
    /// Configs whose times were predicted.
    pub looked: usize,
    /// Those that were assembled and simulated, the fastest by prediction first; the default is among them.
    pub finalists: Vec<Finalist>,
    /// The assembler, such as `ptxas 13.0 for sm_89`; `None` where there is none, so that spills are unknown.
    pub assembler: Option<String>,
    /// How far the predictions may be off, and why, in a sentence.
    pub trust: String,
}

/// A config at the end of the search.
#[derive(Clone, Debug, Serialize)]
pub struct Finalist {
    /// The config.
    pub id: String,
    /// Predicted time, µs.
    pub us: f64,
    /// The ends of the prediction, µs.
    pub between: Interval,
    /// Registers a thread of each step, where there is an assembler.
    pub registers: Option<Vec<u32>>,
    /// Whether the assembler takes it without spilling, and the simulator finds nothing on small problems.
    pub judged: Check,
}

impl PredictedSearch {
    /// Searches for a problem on a card, from its default on. `more` is asked with the number of configs looked at
    /// whether to go on.
    ///
    /// ```no_run
    /// use flashcore_ir::Profile;
    /// use flashcore_problem::Problem;
    /// use flashcore_tune::PredictedSearch;
    /// let (problem, l4) = (Problem::named("mission")?, Profile::named("l4").expect("a card"));
    /// let default = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond";
    /// let found = PredictedSearch::run(&problem, l4, default, 1, |looked| looked < 200)?;
    /// println!("{} at {} µs", found.finalists[0].id, found.finalists[0].us);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The default has no plan or no prediction there.
    pub fn run(
        problem: &Problem,
        profile: &'static Profile,
        default: &str,
        seed: u64,
        mut more: impl FnMut(usize) -> bool,
    ) -> Result<PredictedSearch, TuneError> {
        let (chip, advisor) = (Chip::from(profile), Advisor::new(problem, profile));
        let gate = Gatekeeper::new(problem, Some(chip));
        let space = gate.space(gate.families(), false);
        let mut rng = Rng::stream(seed, 5);
        let mut seen = HashSet::from([default.to_string()]);
        let mut ranked: Vec<(String, f64)> = Vec::new();
        let mut batch = vec![default.to_string()];
        let mut drawn = 0;
        while !batch.is_empty() {
            for (id, predicted) in batch.iter().zip(advisor.predict(&batch)) {
                match predicted {
                    Some(predicted) if !predicted.spills || id == default => {
                        ranked.push((id.clone(), predicted.micros));
                    }
                    _ => {}
                }
            }
            ranked.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
            if !more(seen.len()) {
                break;
            }
            // Neighbours of the best and random configs in turn, then neighbours alone.
            let parents = ranked.iter().take(PARENTS);
            let mut near: Vec<String> = parents.flat_map(|(id, _)| space.neighbours(id)).collect();
            near.retain(|id| !seen.contains(id));
            near.sort();
            near.dedup();
            near.truncate(BATCH);
            if drawn < 10 * BATCH {
                let random = (0..BATCH).filter_map(|_| space.sample(&mut rng));
                near.extend(random.filter(|id| !seen.contains(id)).collect::<HashSet<_>>());
                drawn += BATCH;
            }
            near.sort();
            near.dedup();
            seen.extend(near.iter().cloned());
            batch = near;
        }
        if !ranked.iter().any(|(id, _)| id == default) {
            return Err(TuneError::nothing(format!(
                "the default {default} has no prediction on this card"
            )));
        }
        let mut best: Vec<String> = ranked.into_iter().map(|(id, _)| id).collect();
        let place = best.iter().position(|id| id == default).unwrap_or(0);
        if place >= FINALISTS {
            best.swap(FINALISTS, place);
        }
        best.truncate(FINALISTS + 1);
        finals(problem, profile, &best, seen.len())
    }
}

/// Assembles and simulates configs, and predicts them with the registers that they have.
fn finals(
    problem: &Problem,
    profile: &'static Profile,
    ids: &[String],
    looked: usize,
) -> Result<PredictedSearch, TuneError> {
    let (chip, mut assembler, mut finalists) = (Chip::from(profile), None, Vec::new());
    let mut trust = String::new();
    for id in ids {
        let config: Config = id
            .parse()
            .map_err(|error| TuneError::nothing(format!("{id}: {error}")))?;
        let plan = Plan::new(problem, &config, chip).map_err(|why| TuneError::nothing(format!("{id}: {why}")))?;
        let (mut registers, mut judged) = (Some(Vec::new()), Ok(()));
        for step in plan.steps() {
            match offline(&step.kernel, profile.target) {
                Ok(found) => {
                    if found.spilled_bytes > 0 {
                        judged = Err(format!("{} spills {} B", found.compiler, found.spilled_bytes));
                    }
                    registers.get_or_insert_default().push(found.per_thread);
                    assembler = Some(found.compiler);
                }
                Err(Unknown::NoAssembler) => registers = None,
                Err(why) => (registers, judged) = (None, Err(why.to_string())),
            }
        }
        let known: Vec<Option<u32>> = match &registers {
            Some(registers) => registers.iter().copied().map(Some).collect(),
            None => plan.steps().map(|_| None).collect(),
        };
        let observed = Observation::of(&plan).map_err(|why| TuneError::nothing(format!("{id}: {why}")))?;
        let prediction = observed.predict_measured(profile, None, &known);
        trust = prediction.trust.words();
        finalists.push(Finalist {
            id: id.clone(),
            us: prediction.micros,
            between: Interval {
                lo: prediction.low_micros,
                hi: prediction.high_micros,
            },
            registers,
            judged: judged.into(),
        });
    }
    simulate(problem, chip, &mut finalists)?;
    finalists.sort_by(|a, b| b.judged.ok.cmp(&a.judged.ok).then(a.us.total_cmp(&b.us)));
    Ok(PredictedSearch {
        looked,
        finalists,
        assembler,
        trust,
    })
}

/// Runs the finalists that were not refused under the simulator.
fn simulate(problem: &Problem, chip: Chip, finalists: &mut [Finalist]) -> Result<(), TuneError> {
    let judge = Judge::new(problem, 1)?;
    let mut board = Board::new("", None, true, 0.0);
    let sound = finalists.iter().filter(|finalist| finalist.judged.ok);
    board.rows = sound
        .map(|finalist| BoardRow::new(&finalist.id, finalist.us, finalist.between))
        .collect();
    for row in simulated::look(board, &judge, chip, &[]).rows {
        let finalist = finalists.iter_mut().find(|finalist| finalist.id == row.id);
        if let (Some(finalist), Some(check)) = (finalist, row.simulated) {
            finalist.judged = check;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Problem {
        Problem::builder()
            .heads(2, 2)
            .seq_len(128)
            .head_dim(64)
            .build()
            .unwrap()
    }

    #[test]
    fn the_best_by_prediction_is_no_slower_than_the_default_and_is_clean() {
        let default = "mma/m64n64-w4x1-s2-b1-qreg-xor-always";
        let l4 = Profile::named("l4").unwrap();
        let found = PredictedSearch::run(&small(), l4, default, 1, |looked| looked < 40).unwrap();
        let of_default = found.finalists.iter().find(|finalist| finalist.id == default).unwrap();
        assert!(found.looked >= 40 && found.finalists[0].judged.ok);
        assert!(found.finalists[0].us <= of_default.us, "{found:?}");
        let again = PredictedSearch::run(&small(), l4, default, 1, |looked| looked < 40).unwrap();
        assert_eq!(again.finalists[0].id, found.finalists[0].id);
    }

    #[test]
    fn a_default_that_the_card_refuses_is_an_error() {
        let l4 = Profile::named("l4").unwrap();
        let refused = PredictedSearch::run(&small(), l4, "wgmma/m128n64-s2-pingpong-spec", 1, |_| false);
        assert!(refused.unwrap_err().to_string().contains("no prediction on this card"));
    }
}
