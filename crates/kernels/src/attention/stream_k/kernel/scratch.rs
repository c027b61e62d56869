//! Numbers that the threads of the block leave for each other, and searches among them.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, TileShape, Val};

use super::{MAX_SHARED, Places};
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::lengths::last_at_most;

/// Where they are. A search of the line is a chain of loads, and shared memory answers sooner.
#[derive(Clone, Copy)]
pub(super) enum Scratch<'k> {
    Shared(SharedTile<'k, u32>),
    Global(GlobalPtr<'k, u32>),
}

impl<'k> Scratch<'k> {
    /// `words` of them in shared memory, or else at a pointer parameter of this name.
    pub(super) fn declare(k: &'k Args<'k, Forward>, name: &str, words: Option<u32>, of: fn(&Places) -> u64) -> Self {
        let global = k.part(name, true, move |request| request.scheduled(of));
        words.map_or(Scratch::Global(global), |words| {
            Scratch::Shared(k.shared_tile(name, TileShape::new(1, words)))
        })
    }

    #[track_caller]
    pub(super) fn load(&self, index: Val<'k, u32>) -> Val<'k, u32> {
        match self {
            Scratch::Shared(tile) => tile.at(0, index).load(),
            Scratch::Global(ptr) => ptr.offset(index).load(),
        }
    }

    #[track_caller]
    pub(super) fn store(&self, index: Val<'k, u32>, words: &[Val<'k, u32>]) {
        match self {
            Scratch::Shared(tile) => tile.at(0, index).store_words(words, Cache::Default),
            Scratch::Global(ptr) => ptr.offset(index).store_words(words, Cache::Default),
        }
    }

    /// The last of `count` places, one or more and at most [`MAX_SHARED`] in shared memory, whose value is at most
    /// `most`; the first if there is none. A place has `words` words, the value is word `word` of them. In shared
    /// memory the places behind them are [padded].
    #[track_caller]
    pub(super) fn last_at_most(
        &self,
        k: &'k KernelBuilder,
        count: Val<'k, u32>,
        most: Val<'k, u32>,
        [words, word]: [u32; 2],
    ) -> Val<'k, u32> {
        match self {
            Scratch::Global(ptr) => last_at_most(k, count, most, |place| ptr.offset(place * words + word).load()),
            Scratch::Shared(tile) => last_padded(k, *tile, count, most, [words, word]),
        }
    }
}

/// Places that one step of a search tells apart.
const WAYS: u32 = 8;

/// The last of `count` places of a tile whose value is at most `most`, with few loads that wait for each other: a step
/// reads seven places at once.
#[track_caller]
fn last_padded<'k>(
    k: &'k KernelBuilder,
    tile: SharedTile<'k, u32>,
    count: Val<'k, u32>,
    most: Val<'k, u32>,
    [words, word]: [u32; 2],
) -> Val<'k, u32> {
    let found = k.var(0u32);
    let mut stride = 1;
    while stride * WAYS < MAX_SHARED {
        stride *= WAYS;
    }
    let mut ways = MAX_SHARED.div_ceil(stride);
    while stride > 0 {
        let step = || {
            let first = tile.at(0, found.get() * words + word);
            let is_before = (1..ways).map(|way| {
                let value = first.plus((way * stride * words) as i32).load();
                value.le(most).select(1u32, 0u32)
            });
            let passed = is_before.reduce(|sum, one| sum + one).unwrap_or(k.constant(0));
            found.set(passed.fma(stride, found.get()));
        };
        match stride {
            1 => step(),
            _ => k.if_(count.gt(stride).uniform(), step),
        }
        (stride, ways) = (stride / WAYS, WAYS);
    }
    found.get().min(count - 1)
}

/// One past the places that a search of `count` of them reads: those from `count` on have to hold values that are not
/// below the last one.
#[track_caller]
pub(super) fn padded<'k>(k: &'k KernelBuilder, count: Val<'k, u32>) -> Val<'k, u32> {
    let mut end = k.constant(WAYS);
    let mut places = WAYS;
    while places < MAX_SHARED {
        let next = (places * WAYS).min(MAX_SHARED);
        end = count.gt(places).select(next, end);
        places = next;
    }
    end
}
