//! Numbers that the threads of the block leave for each other.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, TileShape, Val};

/// Where they are. A search of the line is a chain of loads, and shared memory answers sooner.
#[derive(Clone, Copy)]
pub(super) enum Scratch<'k> {
    Shared(SharedTile<'k, u32>),
    Global(GlobalPtr<'k, u32>),
}

impl<'k> Scratch<'k> {
    /// `words` of them in shared memory, or else at a pointer parameter of this name.
    pub(super) fn declare(k: &'k KernelBuilder, name: &str, words: Option<u32>) -> Self {
        let global = k.param_ptr_mut(name);
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
}
