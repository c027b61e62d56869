//! Which blocks of a grid are simulated, and how the others follow from them.
//!
//! Along each axis work may change by itself: tiles of queries under a causal mask lie on one, heads on another. Blocks
//! at even distances in the order of the launch could all have the same place on an axis; those chosen here do not.

/// Places on the only axis, and on one of several: that of the middle block, whose other places are of the middle, too.
/// No simple fractions, so that they are no simple places where a kernel takes an axis apart.
const MIDDLE: f64 = 0.472;
const OF_ONE: [f64; 4] = [0.0, 0.236, 0.764, 1.0];
const OF_SEVERAL: [f64; 2] = [0.0, 1.0];

/// An axis of more than one block.
#[derive(Clone, Debug)]
struct Axis {
    /// Blocks from one to the next on it.
    stride: u64,
    extent: u64,
    /// Places of the samples on it, in order, each with its number.
    samples: Vec<(u64, usize)>,
}

/// The axes of a grid, and the samples on them.
#[derive(Clone, Debug)]
pub(crate) struct Axes {
    axes: Vec<Axis>,
    /// The number of the middle block.
    pub(crate) middle: usize,
    /// The blocks to simulate, by number of the sample.
    pub(crate) blocks: Vec<u64>,
}

impl Axes {
    pub(crate) fn of(grid: [u32; 3]) -> Axes {
        let mut axes = Vec::new();
        let mut stride = 1;
        for extent in grid.map(u64::from) {
            if extent > 1 {
                axes.push((stride, extent));
            }
            stride *= extent;
        }
        let place = |extent: u64, share: f64| (share * (extent - 1) as f64).round() as u64;
        let middle: u64 = axes
            .iter()
            .map(|&(stride, extent)| stride * place(extent, MIDDLE))
            .sum();
        let others: &[f64] = if axes.len() == 1 { &OF_ONE } else { &OF_SEVERAL };
        let mut blocks = vec![middle];
        for &(stride, extent) in &axes {
            let at = |share: &f64| middle - stride * place(extent, MIDDLE) + stride * place(extent, *share);
            blocks.extend(others.iter().map(at));
        }
        blocks.sort_unstable();
        blocks.dedup();
        let number = |block: u64| blocks.binary_search(&block).ok();
        let axes = axes.iter().map(|&(stride, extent)| {
            let of = |share: f64| {
                let at = place(extent, share);
                Some((at, number(middle - stride * place(extent, MIDDLE) + stride * at)?))
            };
            let mut samples: Vec<_> = others.iter().copied().chain([MIDDLE]).filter_map(of).collect();
            samples.sort_unstable();
            samples.dedup();
            Axis {
                stride,
                extent,
                samples,
            }
        });
        Axes {
            axes: axes.collect(),
            middle: number(middle).unwrap_or_default(),
            blocks,
        }
    }

    /// The first step of at least so many blocks that shares no factor with the blocks of an axis.
    pub(crate) fn step(&self, least: u64) -> u64 {
        let shares = |step: u64, extent: u64| {
            let (mut a, mut b) = (step, extent);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a > 1
        };
        let is_free = |step: &u64| self.axes.iter().all(|axis| !shares(*step, axis.extent));
        (least..).find(|step| *step == 1 || is_free(step)).unwrap_or(least)
    }

    /// The samples that a block is taken to be made of, with their shares: the middle, and what is more or less along
    /// each axis between the samples on both sides.
    pub(crate) fn mixture(&self, block: u64) -> Vec<(usize, f64)> {
        let mut shares = vec![(self.middle, 1.0 - self.axes.len() as f64)];
        for axis in &self.axes {
            let at = block / axis.stride % axis.extent;
            let after = axis.samples.partition_point(|&(place, _)| place < at);
            let (high, above) = axis.samples[after.min(axis.samples.len() - 1)];
            let (low, below) = axis.samples[after.saturating_sub(1)];
            let share = if high > low {
                (at - low) as f64 / (high - low) as f64
            } else {
                1.0
            };
            shares.extend([(below, 1.0 - share), (above, share)]);
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that is a line along each axis is that of each block, and its sum that of all.
    #[test]
    fn lines_along_axes_are_exact() {
        for grid in [[64, 64, 1], [1, 32, 8], [1000, 1, 1], [2, 3, 4], [1, 1, 1], [2, 1, 1]] {
            let work = |block: u64| {
                let [x, y] = [grid[0], grid[1]].map(u64::from);
                (3 + block % x + 7 * (block / x % y) + 2 * (block / (x * y))) as f64
            };
            let axes = Axes::of(grid);
            for block in 0..grid.iter().map(|&extent| u64::from(extent)).product() {
                let told: f64 = axes
                    .mixture(block)
                    .iter()
                    .map(|&(at, share)| share * work(axes.blocks[at]))
                    .sum();
                assert!((told - work(block)).abs() < 1e-6, "{grid:?} {block}: {told}");
            }
        }
    }

    #[test]
    fn a_step_meets_each_place_of_an_axis() {
        for (grid, least, step) in [([2, 50_001, 1], 2, 5), ([8, 50_000, 2], 8, 9), ([7, 1, 1], 1, 1)] {
            assert_eq!(Axes::of(grid).step(least), step, "{grid:?}");
        }
    }

    #[test]
    fn heads_that_are_launched_together_hide_no_tile() {
        let tiles: Vec<u64> = Axes::of([16, 64, 1]).blocks.iter().map(|block| block % 16).collect();
        assert_eq!((tiles.iter().min(), tiles.iter().max()), (Some(&0), Some(&15)));
    }
}
