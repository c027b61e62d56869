//! The load of each cluster while items are assigned. Clusters with equal loads are one set.

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
    /// Those from `first` on.
    loads: Vec<Load>,
    first: usize,
}

impl Loads {
    pub(super) fn new(count: usize) -> Loads {
        let below = |most: usize| match most {
            0 => 0,
            most => u64::MAX >> (64 - most.min(64)),
        };
        let clusters = std::array::from_fn(|word| below(count.saturating_sub(64 * word)));
        let all = Load {
            load: 0,
            items: 0,
            clusters,
        };
        Loads {
            loads: vec![all],
            first: 0,
        }
    }

    /// Assigns items of as much work, more than none, each to the first of the clusters with the least to do.
    /// `assigned` gets the clusters of the next items, one for each, in order.
    pub(super) fn assign(&mut self, cost: u64, mut left: u64, mut assigned: impl FnMut(&Set)) {
        while left > 0 {
            let loads = &self.loads[self.first..];
            let Some(least) = loads.first().map(|first| first.load) else {
                return;
            };
            let of_least = loads.iter().take_while(|of| of.load == least);
            let (with_least, all) = of_least.fold((0, NONE), |(count, all), of| (count + 1, both(all, of.clusters)));
            let taken = first_of(all, left);
            assigned(&taken);
            left -= taken.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            // Those that are left with the least to do stay in front.
            let mut place = self.first;
            for _ in 0..with_least {
                let of = self.loads[place];
                let rest = std::array::from_fn(|word| of.clusters[word] & !taken[word]);
                if rest != NONE {
                    self.loads[place].clusters = rest;
                    place += 1;
                } else if place == self.first {
                    self.first += 1;
                    place += 1;
                } else {
                    self.loads.remove(place);
                }
                self.add(Load {
                    load: least + cost,
                    items: of.items + 1,
                    clusters: std::array::from_fn(|word| of.clusters[word] & taken[word]),
                });
            }
        }
    }

    /// What each has to do, and in how many items.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        self.loads[self.first..].iter().map(|of| (of.load, of.items))
    }

    /// Adds clusters to those with as much to do. An empty set is dropped.
    fn add(&mut self, added: Load) {
        if added.clusters == NONE {
            return;
        }
        let key = |of: &Load| (of.load, of.items);
        let mut place = self.loads.len();
        while place > self.first && key(&self.loads[place - 1]) > key(&added) {
            place -= 1;
        }
        match self.loads[self.first..place].last_mut() {
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
        let all = u64::from(word.count_ones());
        if left < all {
            let mut rest = *word;
            (0..left).for_each(|_| rest &= rest - 1);
            *word &= !rest;
        }
        left -= left.min(all);
    }
    set
}

/// Adds the clusters of a set to a list, in order.
pub(super) fn add_to(list: &mut Vec<usize>, set: &Set) {
    for (word, &bits) in set.iter().enumerate() {
        let mut rest = bits;
        while rest != 0 {
            list.push(64 * word + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
}
