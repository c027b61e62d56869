//! Which block is the last to finish its piece of a tile that a [schedule](super::schedule) has cut: it merges the pieces.
//!
//! A tile in pieces has a word of [`Combined`](super::schedule::Combined) with the number of its pieces, in the low half, and
//! of those that are finished, in the high half. A count releases the partials that the block has written and acquires
//! those of blocks that counted before, so the block that counts the last one reads them all. It sets the number back to 0: a
//! schedule serves any number of launches.
//!
//! Ranges of the last round are cut into pieces at both ends at most, and all blocks come to the end of theirs at about the
//! same time. So a block counts both of its pieces at its end: it waits once for its writes and for the counts, which no copy
//! and no product of another tile waits for.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedPtr, SharedTile, TileShape, Val, Var};

use super::schedule::{COMBINED_WORDS, FINISHED, InPieces};

/// Pieces of tiles that a block has at most, each of another tile.
const PIECES: u32 = 2;

/// In place of a tile: no piece.
const NONE: u32 = u32::MAX;

/// The pieces that a block has finished.
pub(crate) struct Arrivals<'k> {
    combined: GlobalPtr<'k, u32>,
    /// Places in `combined` of the tile whose piece began in a block before, and of the one that begins in this block.
    tiles: [Var<'k, u32>; PIECES as usize],
    /// The words of the tiles that this block is to merge; of others the first is 0.
    last: SharedTile<'k, u32>,
}

impl<'k> Arrivals<'k> {
    /// [`Schedule::add_to_main`](super::schedule::Schedule::add_to_main) gives the argument.
    #[track_caller]
    pub(crate) fn declare(k: &'k KernelBuilder) -> Self {
        Arrivals {
            combined: k.param_ptr_mut("schedule_combined"),
            tiles: [k.var(NONE), k.var(NONE)],
            last: k.shared_tile("last", TileShape::new(PIECES, COMBINED_WORDS)),
        }
    }

    /// Remembers the item's piece of a tile, if it is one.
    pub(crate) fn add(&self, k: &'k KernelBuilder, slot: Val<'k, u32>) {
        let block = k.block_idx(0);
        // A piece in block `b` of a tile that begins in block `i` has slot `i + b + 1`, from 0 on.
        let place = slot - 2 - block;
        let (is_piece, begins_here) = (slot.ne(0), place.eq(block));
        for (tile, mine) in self.tiles.iter().zip([!begins_here, begins_here]) {
            tile.set((is_piece & mine).select(place, *tile));
        }
    }

    /// Counts the block's pieces, and calls `merge` with the tiles that have no other ones left. All threads have met at a
    /// barrier since they wrote partials.
    pub(crate) fn for_each_complete(&self, k: &'k KernelBuilder, merge: impl FnOnce(&InPieces<'k>)) {
        let [before, own] = self.tiles.each_ref().map(|tile| tile.get());
        k.if_((before & own).ne(NONE).uniform(), || {
            let thread = k.thread_idx();
            k.if_(thread.lt(PIECES).divergent(), || {
                let mine = self.last.at(thread, 0);
                mine.store_words(&[k.constant(0u32); COMBINED_WORDS as usize], Cache::Default);
                let place = thread.eq(0).select(before, own);
                k.if_(place.ne(NONE).divergent(), || self.count(k, place, mine));
            });
            // Now all threads know what they merge.
            k.barrier();
            k.for_uniform(0u32, PIECES, 1, |tile| {
                let words = self.last.at(tile, 0).load_words(COMBINED_WORDS, Cache::Default);
                k.if_(words[0].ne(0).uniform(), || merge(&InPieces::of_words(&words)));
            });
        });
    }

    /// Counts a finished piece of a tile. If it is the last one, the words of the tile go to `to`.
    fn count(&self, k: &'k KernelBuilder, place: Val<'k, u32>, to: SharedPtr<'k, u32>) {
        let tile = self.combined.offset(place * COMBINED_WORDS);
        // Of the first word other blocks change the high half.
        let others = [1, 2, 3].map(|word| tile.plus(word).load());
        // After the block's partials, and before it reads those of others.
        let counts = tile.fetch_add(1u32 << FINISHED);
        let pieces = InPieces::count_of(counts);
        let finished = (counts >> FINISHED) + 1;
        k.if_(finished.eq(pieces).divergent(), || {
            tile.store(pieces);
            let [a, b, c] = others;
            to.store_words(&[pieces, a, b, c], Cache::Default);
        });
    }
}
