//! The load of each cluster while items are assigned. Clusters with equal loads are one set.

/// Clusters by number.
pub(super) type Set = [u64; MAX_CLUSTERS / 64];

/// Clusters that have several items, at most: no GPU of these kernels has room for as many blocks, two on each SM.
pub(super) const MAX_CLUSTERS: usize = 320;

/// Sets that there is room for without another allocation.
const ROOM: usize = 128;

const NONE: Set = [0; MAX_CLUSTERS / 64];

/// Clusters with as much to do in as many items, and how many they are.
#[derive(Clone, Copy)]
struct Load {
    load: u64,
    items: u64,
    count: u64,
    clusters: Set,
}

/// All clusters, those with the least to do first.
pub(super) struct Loads {
    /// Sets of clusters, in use from `first` on.
    loads: Vec<Load>,
    first: usize,
    /// What an item adds to `items`: 0 if their number is not needed, so that clusters of equal load are one set.
    item: u64,
}

impl Loads {
    /// `counts_items`: whether [`Self::all`] is asked for items.
    pub(super) fn new(count: usize, counts_items: bool) -> Loads {
        let below = |most: usize| match most {
            0 => 0,
            most => u64::MAX >> (64 - most.min(64)),
        };
        let clusters = std::array::from_fn(|word| below(count.saturating_sub(64 * word)));
        let all = Load {
            load: 0,
            items: 0,
            count: count as u64,
            clusters,
        };
        let mut loads = Vec::with_capacity(ROOM);
        loads.push(all);
        Loads {
            loads,
            first: 0,
            item: u64::from(counts_items),
        }
    }

    /// Assigns items of as much work, more than none, each to the first of the clusters with the least to do.
    /// `assigned` gets the clusters of the next items, one for each, in order.
    pub(super) fn assign(&mut self, cost: u64, mut left: u64, mut assigned: impl FnMut(&Set)) {
        while left > 0 {
            let (taken, count) = self.assign_to_least(cost, left);
            assigned(&taken);
            left -= count;
        }
    }

    /// Assigns an item to each of the clusters with the least to do, or to the first `left` of them: to whom, and how
    /// many they are.
    fn assign_to_least(&mut self, cost: u64, left: u64) -> (Set, u64) {
        let least = self.loads[self.first].load;
        let of_least = self.loads[self.first..].iter().take_while(|of| of.load == least);
        let sum = |(sets, count, all), of: &Load| (sets + 1, count + of.count, both(all, of.clusters));
        let (with_least, count, all) = of_least.fold((0, 0, NONE), sum);
        let takes_all = count <= left;
        let taken = if takes_all { all } else { first_of(all, left) };
        // Clusters that are left with the least to do stay in front.
        let mut place = self.first;
        for _ in 0..with_least {
            let of = self.loads[place];
            let clusters: Set = std::array::from_fn(|word| of.clusters[word] & taken[word]);
            let count = if takes_all { of.count } else { size(&clusters) };
            if count < of.count {
                let rest = &mut self.loads[place];
                rest.clusters = std::array::from_fn(|word| of.clusters[word] & !taken[word]);
                rest.count -= count;
                place += 1;
            } else if place == self.first {
                self.first += 1;
                place += 1;
            } else {
                self.loads.remove(place);
            }
            self.add(Load {
                load: least + cost,
                items: of.items + self.item,
                count,
                clusters,
            });
        }
        (taken, count.min(left))
    }

    /// What each has to do, and in how many items.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        self.loads[self.first..].iter().map(|of| (of.load, of.items))
    }

    /// Adds clusters to those with as much to do. An empty set is dropped.
    fn add(&mut self, added: Load) {
        if added.count == 0 {
            return;
        }
        let key = |of: &Load| (of.load, of.items);
        let mut place = self.loads.len();
        while place > self.first && key(&self.loads[place - 1]) > key(&added) {
            place -= 1;
        }
        match self.loads[self.first..place].last_mut() {
            Some(of) if key(of) == key(&added) => {
                of.clusters = both(of.clusters, added.clusters);
                of.count += added.count;
            }
            _ => self.loads.insert(place, added),
        }
    }
}

fn both(a: Set, b: Set) -> Set {
    std::array::from_fn(|word| a[word] | b[word])
}

/// How many there are in a set.
fn size(set: &Set) -> u64 {
    set.iter().map(|word| u64::from(word.count_ones())).sum()
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
pub(super) fn add_to(list: &mut Vec<u32>, set: &Set) {
    for (word, &bits) in set.iter().enumerate() {
        let mut rest = bits;
        while rest != 0 {
            list.push(64 * word as u32 + rest.trailing_zeros());
            rest &= rest - 1;
        }
    }
}
