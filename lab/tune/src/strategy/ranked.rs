//! The best by prediction first: random configs and neighbours of the best eight of them are
//! ordered by the time that the cost model predicts. The first eight are timed, and evolution
//! continues from them. Configs that are likely to spill, which would not build, come last.

use flashcore_check::render;
use flashcore_kernels::Config;
use flashcore_problem::rng::Rng;

use super::{Evolution, Proposal, Strategy};
use crate::error::TuneError;
use crate::insight::{Advisor, Insights, Predicted};
use crate::space::Space;
use crate::trial::History;

/// Random configs whose times are predicted, and as many neighbours.
const DRAWN: usize = 96;
/// The fewest, if a prediction takes long.
const FEWEST: usize = 24;
/// Keys up to which [`DRAWN`] configs are drawn.
const KEYS: usize = 1024;
const FIRST: usize = 8;
/// Most of these that are clusters of two blocks. The model overrates them (`docs/cost-model.md`),
/// so that on long problems all eight would be clusters.
const MOST_PAIRS: usize = 4;
const DRAWS_EACH: usize = 10;

/// Predicts times of configs; `None` if there is no prediction.
pub(super) type Predict = Box<dyn Fn(&[String]) -> Vec<Option<Predicted>> + Send>;

pub(super) struct Ranked {
    predict: Predict,
    drawn: usize,
    rng: Rng,
    /// The best by prediction; `None` before the first proposal.
    first: Option<std::vec::IntoIter<(String, Predicted)>>,
    then: Evolution,
}

impl Ranked {
    /// A prediction for many keys takes up to seconds of a core, so fewer configs are drawn.
    pub(super) fn new(seed: u64, keys: usize, predict: Predict, advisor: Option<Advisor>) -> Ranked {
        let mut then = Evolution::new(seed, advisor);
        // The first by prediction take their place.
        then.founders = usize::MAX;
        Ranked {
            predict,
            drawn: (DRAWN * KEYS / keys.max(KEYS)).max(FEWEST),
            rng: Rng::stream(seed, 4),
            first: None,
            then,
        }
    }

    fn rank(&mut self, space: &Space) -> Vec<(String, Predicted)> {
        let drawn = self.draw(space);
        let mut ranked = self.ordered(&drawn);
        let first = ranked.iter().take(FIRST);
        let mut neighbours: Vec<String> = Vec::new();
        for near in first.flat_map(|(id, _)| space.neighbours(id)) {
            if !drawn.contains(&near) && !neighbours.contains(&near) {
                neighbours.push(near);
            }
        }
        self.rng.shuffle(&mut neighbours);
        neighbours.truncate(self.drawn);
        ranked.extend(self.ordered(&neighbours));
        sort(&mut ranked);
        let mut pairs = 0;
        ranked.retain(|(id, _)| {
            pairs += usize::from(is_pair(id));
            !is_pair(id) || pairs <= MOST_PAIRS
        });
        ranked.truncate(FIRST);
        ranked
    }

    fn draw(&mut self, space: &Space) -> Vec<String> {
        let mut drawn: Vec<String> = Vec::new();
        for _ in 0..self.drawn * DRAWS_EACH {
            match space.sample(&mut self.rng) {
                Some(id) if !drawn.contains(&id) => drawn.push(id),
                Some(_) => {}
                None => break,
            }
            if drawn.len() >= self.drawn {
                break;
            }
        }
        drawn
    }

    fn ordered(&self, ids: &[String]) -> Vec<(String, Predicted)> {
        let all = ids.iter().zip((self.predict)(ids));
        let mut ranked: Vec<_> = all
            .filter_map(|(id, predicted)| Some((id.clone(), predicted?)))
            .collect();
        sort(&mut ranked);
        ranked
    }
}

fn is_pair(id: &str) -> bool {
    matches!(id.parse(), Ok(Config::Wgmma(config)) if config.cluster > 1)
}

/// Last by id, so that the order of the draws does not matter.
fn sort(ranked: &mut [(String, Predicted)]) {
    ranked.sort_by(|(a, of_a), (b, of_b)| {
        let spills = of_a.spills.cmp(&of_b.spills);
        spills.then(of_a.micros.total_cmp(&of_b.micros)).then_with(|| a.cmp(b))
    });
}

impl Strategy for Ranked {
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        let mut first = match self.first.take() {
            Some(first) => first,
            None => self.rank(space).into_iter(),
        };
        let next = first.find(|(id, _)| !history.is_seen(id));
        self.first = Some(first);
        match next {
            Some((id, Predicted { micros, spills })) => {
                let but = if spills { ", likely to spill" } else { "" };
                Ok(Some(Proposal::new(
                    id,
                    format!("predicted {}{but}", render::time(micros, 3)),
                )))
            }
            None => self.then.propose(history, space),
        }
    }

    fn insights(&mut self, history: &History, space: &Space) -> Option<&Insights> {
        self.then.insights(history, space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::CPU;
    use crate::tests::{trial, valley};
    use flashcore_kernels::wgmma;

    fn builds(micros: f64) -> Predicted {
        Predicted { micros, spills: false }
    }

    /// Runs it for a number of trials on the valley with these predictions. Returns the ids in
    /// order.
    fn run(seed: u64, trials: usize, predict: impl Fn(&str) -> Option<f64> + Send + 'static) -> Vec<String> {
        let (space, score) = valley();
        let one = move |id: &String| predict(id).map(builds);
        let mut ranked = Ranked::new(seed, KEYS, Box::new(move |ids| ids.iter().map(&one).collect()), None);
        let mut history = History::default();
        history.add(trial(0, "cpu/m16n16", score("cpu/m16n16")));
        for number in 1..trials {
            let Some(proposal) = ranked.propose(&history, &space).unwrap() else {
                break;
            };
            assert!(!history.is_seen(&proposal.id));
            history.begin(&proposal.id);
            history.add(trial(number, &proposal.id, score(&proposal.id)));
        }
        history.trials().iter().map(|trial| trial.id.clone()).collect()
    }

    #[test]
    fn many_keys_draw_fewer_configs() {
        let drawn = |keys| Ranked::new(1, keys, Box::new(|ids| vec![None; ids.len()]), None).drawn;
        assert_eq!([1024, 2048, 1 << 20].map(drawn), [96, 48, 24]);
    }

    #[test]
    fn the_best_by_prediction_come_first_and_evolution_follows() {
        let (_, score) = valley();
        let tried = run(1, 40, move |id| score(id));
        let (_, score) = valley();
        let of = |id: &String| score(id).unwrap_or(f64::INFINITY);
        let first = &tried[1..=FIRST];
        assert!(first.windows(2).all(|pair| of(&pair[0]) <= of(&pair[1])), "{first:?}");
        // Most of the 120 were drawn: the valley's floor or its neighbourhood is among the first.
        assert!(of(&first[0]) <= 2.0, "{first:?}");
        assert_eq!(tried, run(1, 40, valley().1), "not the same again");
        assert_ne!(tried, run(2, 40, valley().1));
    }

    #[test]
    fn clusters_get_at_most_half_of_the_places() {
        let stages = (2..=6).flat_map(|s| ["-c2", ""].map(|pair| format!("wgmma/m128n64-s{s}{pair}-pingpong-cond")));
        let space = Space::of_list(vec![wgmma::FAMILY], stages.collect());
        let pairs_first = |id: &String| Some(builds(if is_pair(id) { 1.0 } else { 2.0 }));
        let mut ranked = Ranked::new(
            1,
            KEYS,
            Box::new(move |ids| ids.iter().map(pairs_first).collect()),
            None,
        );
        let first: Vec<bool> = ranked.rank(&space).iter().map(|(id, _)| is_pair(id)).collect();
        assert_eq!(first, [true, true, true, true, false, false, false, false]);
    }

    #[test]
    fn configs_that_are_likely_to_spill_come_last() {
        let ids = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512].map(|rows| format!("cpu/m{rows}n64"));
        let space = Space::of_list(vec![CPU], ids.to_vec());
        // The wider the faster, but the widest four spill.
        let rows = |id: &str| -> f64 { id["cpu/m".len()..id.len() - "n64".len()].parse().unwrap() };
        let one = move |id: &String| {
            Some(Predicted {
                micros: 1000.0 - rows(id),
                spills: rows(id) > 128.0,
            })
        };
        let mut ranked = Ranked::new(1, KEYS, Box::new(move |ids| ids.iter().map(one).collect()), None);
        let first = ranked.propose(&History::default(), &space).unwrap().unwrap();
        assert_eq!(
            (first.id.as_str(), first.origin.as_str()),
            ("cpu/m128n64", "predicted 872 µs")
        );
        let order: Vec<f64> = ranked.rank(&space).iter().map(|(id, _)| rows(id)).collect();
        assert_eq!(order, [128.0, 96.0, 64.0, 48.0, 32.0, 16.0, 512.0, 384.0]);
    }

    #[test]
    fn wrong_or_missing_predictions_only_delay() {
        let (_, score) = valley();
        // The deepest are predicted the highest.
        let misled = run(3, 120, move |id| score(id).map(|score| -score));
        assert!(misled.iter().any(|id| id == "cpu/m128n256"));
        let blind = run(3, 120, |_| None);
        assert_eq!(blind.len(), 120);
        assert_eq!(blind, run(3, 120, |_| None));
    }
}
