//! Memory operations of one lane: on read-only pools, and on its own words and rows.

use flashcore_ir::inst::{AtomOp, Scope};
use flashcore_ir::pointer::AddressSpace;
use flashcore_ir::{Cache, Element, GlobalPtr, Ptr, SharedPtr, SharedTile, Source};

use crate::fuzz::emit::{F_COLS, Variable, Writer};
use crate::fuzz::input::{POOL, SCRATCH};
use crate::fuzz::program::{Args, Op};

pub(crate) fn width(choice: u32) -> u32 {
    1 << (choice % 3)
}

fn load_cache(choice: u32) -> Cache {
    [Cache::Default, Cache::ReadOnly, Cache::L2, Cache::Streaming][choice as usize % 4]
}

fn store_cache(choice: u32) -> Cache {
    [Cache::Default, Cache::L2, Cache::Streaming][choice as usize % 3]
}

fn atomic(choice: u32) -> AtomOp {
    [AtomOp::Add, AtomOp::Max, AtomOp::Min, AtomOp::Exch][choice as usize % 4]
}

impl<'k> Writer<'k, '_> {
    fn load<E: Element<Word: Variable>>(&self, pool: GlobalPtr<'k, E>, &[d, a, _, n, c, _]: &Args) {
        let words = self.pool(pool, a, width(n)).load_words(width(n), load_cache(c));
        self.set_all(d, words);
    }

    /// Stores some words of this thread's own, then loads some.
    fn scratch<E: Element<Word: Variable>>(&self, scratch: GlobalPtr<'k, E>, &[d, a, b, n, c, m]: &Args) {
        let at = |words: u32| scratch.offset(self.aligned(a, SCRATCH, words));
        let words = self.get_all(b, width(n));
        at(width(n)).store_words(&words, store_cache(c));
        // The path for memory that is only read, is not for these.
        let count = width(m);
        self.set_all(d, at(count).load_words(count, store_cache(m)));
    }

    /// An atomic operation, or one without a result, as a number chooses.
    fn atom<S: AddressSpace, E: Element + Variable>(&self, at: Ptr<'k, S, E>, op: AtomOp, &[d, _, b, n, ..]: &Args) {
        match op == AtomOp::Exch || n % 2 == 0 {
            true => self.set(d, at.atomic(op, self.get::<E>(b))),
            false => at.reduce(op, self.get::<E>(b)),
        }
    }

    pub(crate) fn memory(&self, op: Op, args: &Args) -> bool {
        let (&[d, a, b, _, c, _], global) = (args, &self.global);
        let own = || self.aligned(a, SCRATCH, 1);
        match op {
            Op::LoadU => self.load(global.pool_u, args),
            Op::LoadS => self.load(global.pool_s, args),
            Op::LoadF => self.load(global.pool_f, args),
            Op::LoadH => self.load(global.pool_h, args),
            Op::LoadB => self.load(global.pool_b, args),
            Op::LoadHalf => {
                let at = global.pool_h.offset(self.u(a) & (2 * POOL - 1));
                self.set(d, at.load_with(load_cache(c)).to_f32());
            }
            Op::LoadBrain => {
                let at = global.pool_b.offset(self.u(a) & (2 * POOL - 1));
                self.set(d, at.load_with(load_cache(c)).to_f32());
            }
            Op::ScratchU => self.scratch(global.scratch_u, args),
            Op::ScratchS => self.scratch(global.scratch_s, args),
            Op::ScratchF => self.scratch(global.scratch_f, args),
            Op::AtomU => self.atom(global.scratch_u.offset(own()), atomic(c), args),
            Op::AtomS => self.atom(global.scratch_s.offset(own()), atomic(c), args),
            Op::AtomF => {
                let op = if c % 2 == 0 { AtomOp::Add } else { AtomOp::Exch };
                self.atom(global.scratch_f.offset(own()), op, args);
            }
            Op::RedAdd => self.sum(a, 0).reduce_add(self.u(b)),
            Op::RedMax => self.sum(a, 1).reduce(AtomOp::Max, self.u(b)),
            Op::RedMin => self.sum(a, 2).reduce(AtomOp::Min, self.u(b)),
            Op::FenceBlock => self.k.fence(Scope::Block),
            Op::FenceDevice => self.k.fence(Scope::Device),
            _ => return false,
        }
        true
    }

    /// The first of `count` words of a row of a tile; a number chooses where.
    pub(crate) fn words_of<E: Element>(
        &self,
        tile: SharedTile<'k, E>,
        row: impl Source<'k, u32>,
        number: u32,
        count: u32,
    ) -> SharedPtr<'k, E> {
        let word = self.aligned(number, tile.cols() / E::PER_WORD, count);
        tile.at(row, if E::PER_WORD == 1 { word } else { word * E::PER_WORD })
    }

    fn own<E: Element>(&self, tile: SharedTile<'k, E>, number: u32, count: u32) -> SharedPtr<'k, E> {
        self.words_of(tile, self.me, number, count)
    }

    fn store_own<E: Element<Word: Variable>>(&self, tile: SharedTile<'k, E>, &[_, a, b, n, ..]: &Args) {
        let words = self.get_all(b, width(n));
        self.own(tile, a, width(n)).store_words(&words, Cache::Default);
    }

    fn load_own<E: Element<Word: Variable>>(&self, tile: SharedTile<'k, E>, &[d, a, _, n, ..]: &Args) {
        let words = self.own(tile, a, width(n)).load_words(width(n), Cache::Default);
        self.set_all(d, words);
    }

    /// Fills a tile, each thread its row, from a pool.
    fn fill_tile<E: Element>(&self, tile: SharedTile<'k, E>, pool: GlobalPtr<'k, E>) {
        let elements = 4 * E::PER_WORD;
        for chunk in 0..tile.cols() / elements {
            let from = pool.offset((self.me & (POOL / 4 - 1)) * elements);
            let words = from.load_words(4, Cache::Default);
            tile.at(self.me, elements * chunk).store_words(&words, Cache::Default);
        }
    }

    /// Fills the tiles, so that all of them may be read.
    pub(crate) fn fill_tiles(&self) {
        let Some(tiles) = &self.tiles else { return };
        self.fill_tile(tiles.h, self.global.pool_h);
        self.fill_tile(tiles.w, self.global.pool_u);
        for col in 0..F_COLS {
            tiles
                .f
                .at(self.me, col)
                .store(self.global.pool_f.offset(self.me).load());
        }
        self.k.barrier();
    }

    pub(crate) fn tile_rows(&self, op: Op, args: &Args) -> bool {
        let Some(tiles) = &self.tiles else { return false };
        let &[d, a, b, n, c, m] = args;
        let (k, count) = (self.k, width(n));
        match op {
            Op::TileStoreH => self.store_own(tiles.h, args),
            Op::TileLoadH => self.load_own(tiles.h, args),
            Op::TileStoreW => self.store_own(tiles.w, args),
            Op::TileLoadW => self.load_own(tiles.w, args),
            Op::TileHalf => {
                let at = |number: u32| tiles.h.at(self.me, self.u(number) & (tiles.h.cols() - 1));
                at(a).store(self.f(b).to_f16());
                self.set(d, at(c).load().to_f32());
            }
            Op::TileAtomW => self.atom(self.own(tiles.w, a, 1), atomic(c), args),
            Op::TileAtomF => {
                let at = tiles.f.at(self.me, self.u(a) & (F_COLS - 1));
                self.set(d, at.atomic(AtomOp::Add, self.f(b)));
                at.reduce_add(self.f(c));
            }
            Op::CopyH => {
                let source = self.pool(self.global.pool_h, b, 4);
                let bytes = (m % 2 == 0).then(|| self.u(c) % 17u32);
                k.cp_async(self.own(tiles.h, a, 4), source, bytes);
                k.cp_async_commit();
                k.cp_async_wait(0);
            }
            Op::CopyW => {
                let source = self.pool(self.global.pool_u, b, count);
                let bytes = (m % 2 == 0).then(|| self.u(c) % (4 * count + 1));
                k.cp_async_with(self.own(tiles.w, a, count), source, 4 * count, bytes, Cache::Default);
                k.cp_async_commit();
                k.cp_async_wait(0);
            }
            Op::CopyGroups => {
                // Two groups: the first is read while the second may still be in flight.
                let first = tiles.w.at(self.me, 0);
                let second = tiles.w.at(self.me, 4);
                k.cp_async_with(first, self.pool(self.global.pool_u, a, 4), 16, None, Cache::Default);
                k.cp_async_commit();
                k.cp_async_with(
                    second,
                    self.pool(self.global.pool_u, b, count),
                    4 * count,
                    None,
                    Cache::Default,
                );
                k.cp_async_commit();
                k.cp_async_wait(1);
                self.set_all(d, first.load_words(4, Cache::Default));
                k.cp_async_wait(0);
                self.set(c, second.load());
            }
            _ => return false,
        }
        true
    }
}
