//! The load of each cluster while items are dealt. Clusters with equal loads are one set.

use std::collections::VecDeque;

/// Clusters by number.
pub(super) type Set = [u64; MOST_CLUSTERS / 64];

/// Clusters that have several items, at most: no GPU has so many SMs.
pub(super) const MOST_CLUSTERS: usize = 256;

const NONE: Set = [0; MOST_CLUSTERS / 64];

/// Clusters with as much to do in as many items.
#[derive(Clone, Copy)]
struct Load {
    load: u64,
    items: u64,
    clusters: Set,
}

/// All clusters, those with the least to do first.
pub(super) struct Loads {
    loads: VecDeque<Load>,
    /// To be added.
    later: Vec<Load>,
}

impl Loads {
    pub(super) fn new(count: usize) -> Loads {
        let below = |most: usize| match most {
            0 => 0,
            most => u64::MAX >> (64 - most.min(64)),
        };
        let clusters = std::array::from_fn(|word| below(count.saturating_sub(64 * word)));
        let loads = VecDeque::from([Load {
            load: 0,
            items: 0,
            clusters,
        }]);
        let later = Vec::new();
        Loads { loads, later }
    }

    /// Deals items of as much work, each to the first of the clusters with the least to do. `dealt` gets the clusters of
    /// the next items, one for each, in order.
    pub(super) fn deal(&mut self, cost: u64, mut left: u64, mut dealt: impl FnMut(&Set)) {
        while left > 0 {
            let Some(least) = self.loads.front().map(|first| first.load) else {
                return;
            };
            let with_least = self.loads.iter().take_while(|of| of.load == least).count();
            let of_least = self.loads.range(..with_least);
            let taken = first_of(of_least.fold(NONE, |all, of| both(all, of.clusters)), left);
            dealt(&taken);
            left -= taken.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            for _ in 0..with_least {
                let Some(of) = self.loads.pop_front() else { return };
                let clusters = std::array::from_fn(|word| of.clusters[word] & taken[word]);
                self.later.push(Load {
                    clusters: std::array::from_fn(|word| of.clusters[word] & !taken[word]),
                    ..of
                });
                self.later.push(Load {
                    load: least + cost,
                    items: of.items + 1,
                    clusters,
                });
            }
            while let Some(of) = self.later.pop() {
                self.add(of);
            }
        }
    }

    /// What each has to do, and in how many items.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        self.loads.iter().map(|of| (of.load, of.items))
    }

    /// Adds clusters to those with as much to do. An empty set is dropped.
    fn add(&mut self, added: Load) {
        if added.clusters == NONE {
            return;
        }
        let key = |of: &Load| (of.load, of.items);
        let before = self.loads.iter().rposition(|of| key(of) <= key(&added));
        let place = before.map_or(0, |last| last + 1);
        match before.and_then(|last| self.loads.get_mut(last)) {
            Some(of) if key(of) == key(&added) => of.clusters = both(of.clusters, added.clusters),
            _ => self.loads.insert(place, added),
        }
    }
}

fn both(a: Set, b: Set) -> Set {
    std::array::from_fn(|word| a[word] | b[word])
}

/// The first `count` of a set, or all of it.
fn first_of(mut set: Set, count: u64) -> Set {
    let mut left = count;
    for word in &mut set {
        let mut rest = *word;
        let all = u64::from(rest.count_ones());
        (0..left.min(all)).for_each(|_| rest &= rest - 1);
        *word &= !rest;
        left -= left.min(all);
    }
    set
}

/// The clusters of a set, in order.
pub(super) fn each(set: &Set) -> impl Iterator<Item = usize> {
    set.iter().enumerate().flat_map(|(word, &bits)| {
        let mut rest = bits;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(64 * word + bit)
        })
    })
}
