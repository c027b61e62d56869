//! Strategies without a population.

use flashcore_problem::rng::Rng;

use super::{Proposal, Strategy};
use crate::error::TuneError;
use crate::space::Space;
use crate::trial::History;

#[derive(Debug, Default)]
pub(super) struct Exhaustive {
    /// Ids left, whether or not they may be proposed: checking all of them takes minutes.
    left: Option<std::vec::IntoIter<String>>,
}

impl Strategy for Exhaustive {
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        let left = self
            .left
            .get_or_insert_with(|| space.configs().collect::<Vec<_>>().into_iter());
        let next = left.find(|id| !history.is_seen(id) && space.admits(id).is_ok());
        Ok(next.map(|id| Proposal::new(id, "next in order")))
    }
}

#[derive(Debug)]
pub(super) struct RandomSearch(pub(super) Rng);

impl Strategy for RandomSearch {
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        Ok(fresh(history, space, &mut self.0).map(|id| Proposal::new(id, "drawn")))
    }
}

/// Draws before the whole space is searched for an untried config.
const DRAWS: usize = 200;

/// A random config that was not tried; `None` if all were.
pub(super) fn fresh(history: &History, space: &Space, rng: &mut Rng) -> Option<String> {
    for _ in 0..DRAWS {
        if let Some(id) = space.sample(rng).filter(|id| !history.is_seen(id)) {
            return Some(id);
        }
    }
    space
        .configs()
        .find(|id| !history.is_seen(id) && space.admits(id).is_ok())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use flashcore_kernels::mma;

    #[test]
    fn a_large_space_is_not_checked_before_the_first_trial() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let space = Space::new(vec![mma::FAMILY], move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        assert!(space.configs().count() > 5000);
        let mut exhaustive = Exhaustive::default();
        let mut history = History::default();
        for _ in 0..3 {
            let next = exhaustive.propose(&history, &space).unwrap().unwrap();
            history.begin(&next.id);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        // Nor near the end, when draws find nothing new: only the new config is checked.
        let mut rng = Rng::new(1);
        let left = space.configs().last().unwrap();
        space
            .configs()
            .filter(|id| *id != left)
            .for_each(|id| history.begin(&id));
        let before = asked.load(Ordering::Relaxed);
        assert_eq!(fresh(&history, &space, &mut rng), Some(left));
        assert!(asked.load(Ordering::Relaxed) - before <= DRAWS + 1);
    }
}
