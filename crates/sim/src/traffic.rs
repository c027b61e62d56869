//! What memory accesses cost: passes over the banks of shared memory, sectors of global memory.
//!
//! Shared memory has 32 banks of 4 bytes. A request of 8 bytes a lane is served half a warp at a
//! time, one of 16 bytes a quarter; within such a phase, each bank delivers one word a pass.

/// Accesses of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) requests: u64,
    pub(crate) transactions: u64,
    pub(crate) ideal: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, other: Traffic) {
        self.requests += other.requests;
        self.transactions += other.transactions;
        self.ideal += other.ideal;
    }
}

/// Passes that accesses of `bytes` a lane at these offsets take.
pub(crate) fn shared(offsets: &[u32; 32], mask: u32, bytes: u32) -> Traffic {
    let lanes_a_phase = match bytes {
        16 => 8,
        8 => 16,
        _ => 32,
    };
    let mut traffic = Traffic {
        requests: 1,
        ..Traffic::default()
    };
    for first in (0..32).step_by(lanes_a_phase) {
        let lanes = (first..first + lanes_a_phase).filter(|lane| mask >> lane & 1 != 0);
        let words_a_lane = (bytes as usize / 4).max(1);
        let mut words: Vec<u32> = lanes
            .flat_map(|lane| (0..words_a_lane as u32).map(move |i| offsets[lane] / 4 + i))
            .collect();
        words.sort_unstable();
        words.dedup();
        let mut in_bank = [0u64; 32];
        for word in &words {
            in_bank[(word % 32) as usize] += 1;
        }
        traffic.transactions += in_bank.iter().copied().max().unwrap_or(0);
        traffic.ideal += (words.len() as u64).div_ceil(32);
    }
    traffic
}

/// Sectors of 32 bytes that accesses of `bytes` a lane at these addresses touch.
pub(crate) fn global(addresses: &[u64; 32], mask: u32, bytes: u32) -> Traffic {
    let mut sectors: Vec<u64> = (0..32)
        .filter(|lane| mask >> lane & 1 != 0)
        .flat_map(|lane| [addresses[lane] / 32, (addresses[lane] + u64::from(bytes) - 1) / 32])
        .collect();
    sectors.sort_unstable();
    sectors.dedup();
    let mut all: Vec<u64> = (0..32)
        .filter(|lane| mask >> lane & 1 != 0)
        .map(|lane| addresses[lane])
        .collect();
    all.sort_unstable();
    all.dedup();
    Traffic {
        requests: 1,
        transactions: sectors.len() as u64,
        ideal: (all.len() as u64 * u64::from(bytes)).div_ceil(32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(f: impl Fn(u32) -> u32) -> [u32; 32] {
        std::array::from_fn(|lane| f(lane as u32))
    }

    #[test]
    fn passes_over_the_banks() {
        let count = |f: &dyn Fn(u32) -> u32, bytes| shared(&offsets(f), u32::MAX, bytes).transactions;
        assert_eq!(count(&|lane| 4 * lane, 4), 1, "a row");
        assert_eq!(count(&|_| 64, 4), 1, "one word for all");
        assert_eq!(count(&|lane| 128 * lane, 4), 32, "a column of an unpadded tile");
        assert_eq!(count(&|lane| 132 * lane, 4), 1, "a column of a padded one");
        assert_eq!(count(&|lane| 16 * lane, 16), 4, "16 bytes a lane");
        assert_eq!(count(&|lane| 128 * lane, 16), 32, "16 bytes a lane, one bank group");
        assert_eq!(count(&|lane| 2 * lane, 2), 1, "halves");
    }
}
