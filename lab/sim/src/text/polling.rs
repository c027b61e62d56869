//! Which strong loads poll: those whose value decides whether a loop that they are in goes on.

use std::ops::RangeInclusive;

use flashcore_ir::types::Reg;
use rustc_hash::FxHashSet;

use super::cold::{Access, Cold, Strength, What};
use super::{Code, Step};

impl Code {
    pub(super) fn find_polling(&mut self) {
        let is_strong = |step: &Step| match step {
            Step::Cold(Cold {
                what: What::Access(access),
                ..
            }) => !access.writes && access.strength != Strength::Weak,
            _ => false,
        };
        let loads = (0..self.items.len()).filter(|&at| is_strong(&self.items[at].step));
        let loads: Vec<usize> = loads.collect();
        if loads.is_empty() {
            return;
        }
        let loops: Vec<RangeInclusive<usize>> = (0..self.items.len()).filter_map(|at| self.loop_to(at)).collect();
        for load in loads {
            let decides =
                |range: &&RangeInclusive<usize>| range.contains(&load) && self.decides(load, (*range).clone());
            if loops.iter().any(|range| decides(&range))
                && let Step::Cold(Cold {
                    what: What::Access(Access { polls, .. }),
                    ..
                }) = &mut self.items[load].step
            {
                *polls = true;
            }
        }
    }

    /// The loop that a jump back ends.
    fn loop_to(&self, at: usize) -> Option<RangeInclusive<usize>> {
        let Step::Jump(jump) = &self.items[at].step else {
            return None;
        };
        let first = self.begins[self.labels[jump.label as usize] as usize] as usize;
        (first <= at).then_some(first..=at)
    }

    /// Whether a condition within a range depends on what an item of it loads.
    fn decides(&self, load: usize, range: RangeInclusive<usize>) -> bool {
        let steps = || self.items[range.clone()].iter().map(|item| &item.step);
        let mut from: FxHashSet<Reg> = Code::accessed(&self.items[load].step)[1].iter().copied().collect();
        loop {
            let known = from.len();
            for step in steps() {
                let [reads, writes] = Code::accessed(step);
                if reads.iter().any(|reg| from.contains(reg)) {
                    from.extend(writes);
                }
            }
            if from.len() == known {
                break;
            }
        }
        steps().any(|step| match step {
            Step::Jump(jump) => jump.guard.is_some_and(|(pred, _)| from.contains(&pred)),
            Step::Exit(Some((pred, _))) => from.contains(pred),
            _ => false,
        })
    }
}
