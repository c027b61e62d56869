//! Memory operations of one lane: on read-only pools, and on its own words and rows.

use flashcore_ir::inst::{AtomOp, Scope};
use flashcore_ir::{Cache, SharedPtr};
use half::f16;

use crate::fuzz::emit::{F_COLS, Tiles, Writer};
use crate::fuzz::input::{POOL, SCRATCH};
use crate::fuzz::program::{Args, Op};

/// 32-bit words of an access.
fn width(choice: u32) -> u32 {
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
    pub(crate) fn memory(&self, op: Op, &[d, a, b, n, c, m]: &Args) -> bool {
        let (count, cache) = (width(n), load_cache(c));
        macro_rules! load {
            ($pool:ident, $set:ident) => {{
                let words = self.pool(self.global.$pool, a, count).load_words(count, cache);
                for (i, word) in (0..).zip(words) {
                    self.$set(d + i, word);
                }
            }};
        }
        // Words of this thread's own: some are stored, then some loaded.
        macro_rules! scratch {
            ($scratch:ident, $get:ident, $set:ident) => {{
                let at = |words: u32| self.global.$scratch.offset(self.aligned(a, SCRATCH, words));
                let words: Vec<_> = (0..count).map(|i| self.$get(b + i)).collect();
                at(count).store_words(&words, store_cache(c));
                let count = width(m);
                // The path for memory that is only read, is not for these.
                for (i, word) in (0..).zip(at(count).load_words(count, store_cache(m))) {
                    self.$set(d + i, word);
                }
            }};
        }
        macro_rules! atom {
            ($scratch:ident, $get:ident, $set:ident, $op:expr) => {{
                let at = self.global.$scratch.offset(self.aligned(a, SCRATCH, 1));
                match $op {
                    AtomOp::Exch => self.$set(d, at.atomic(AtomOp::Exch, self.$get(b))),
                    op if n % 2 == 0 => self.$set(d, at.atomic(op, self.$get(b))),
                    op => at.reduce(op, self.$get(b)),
                }
            }};
        }
        match op {
            Op::LoadU => load!(pool_u, set_u),
            Op::LoadS => load!(pool_s, set_s),
            Op::LoadF => load!(pool_f, set_f),
            Op::LoadH => load!(pool_h, set_h),
            Op::LoadB => load!(pool_b, set_b),
            Op::LoadHalf => {
                let at = self.global.pool_h.offset(self.u(a) & (2 * POOL - 1));
                self.set_f(d, at.load_with(cache).to_f32());
            }
            Op::LoadBrain => {
                let at = self.global.pool_b.offset(self.u(a) & (2 * POOL - 1));
                self.set_f(d, at.load_with(cache).to_f32());
            }
            Op::ScratchU => scratch!(scratch_u, u, set_u),
            Op::ScratchS => scratch!(scratch_s, s, set_s),
            Op::ScratchF => scratch!(scratch_f, f, set_f),
            Op::AtomU => atom!(scratch_u, u, set_u, atomic(c)),
            Op::AtomS => atom!(scratch_s, s, set_s, atomic(c)),
            Op::AtomF => atom!(scratch_f, f, set_f, if c % 2 == 0 { AtomOp::Add } else { AtomOp::Exch }),
            Op::RedAdd => self.sum(a, 0).reduce_add(self.u(b)),
            Op::RedMax => self.sum(a, 1).reduce(AtomOp::Max, self.u(b)),
            Op::RedMin => self.sum(a, 2).reduce(AtomOp::Min, self.u(b)),
            Op::FenceBlock => self.k.fence(Scope::Block),
            Op::FenceDevice => self.k.fence(Scope::Device),
            _ => return false,
        }
        true
    }

    /// The first of `count` words of this thread's row of the tile of halves; a number chooses
    /// where.
    fn own_h(&self, tiles: &Tiles<'k>, number: u32, count: u32) -> SharedPtr<'k, f16> {
        let col = self.aligned(number, tiles.h.cols() / 2, count) * 2u32;
        tiles.h.at(self.me, col)
    }

    fn own_w(&self, tiles: &Tiles<'k>, number: u32, count: u32) -> SharedPtr<'k, u32> {
        tiles.w.at(self.me, self.aligned(number, tiles.w.cols(), count))
    }

    /// Fills the tiles, each thread its row, so that all of them may be read.
    pub(crate) fn fill_tiles(&self) {
        let Some(tiles) = &self.tiles else { return };
        for chunk in 0..tiles.h.cols() / 8 {
            let words = self
                .global
                .pool_h
                .offset((self.me & (POOL / 4 - 1)) * 8u32)
                .load_words(4, Cache::Default);
            tiles.h.at(self.me, 8 * chunk).store_words(&words, Cache::Default);
        }
        for chunk in 0..tiles.w.cols() / 4 {
            let words = self
                .global
                .pool_u
                .offset((self.me & (POOL / 4 - 1)) * 4u32)
                .load_words(4, Cache::Default);
            tiles.w.at(self.me, 4 * chunk).store_words(&words, Cache::Default);
        }
        for col in 0..F_COLS {
            tiles
                .f
                .at(self.me, col)
                .store(self.global.pool_f.offset(self.me).load());
        }
        self.k.barrier();
    }

    pub(crate) fn tile_rows(&self, op: Op, &[d, a, b, n, c, m]: &Args) -> bool {
        let Some(tiles) = &self.tiles else { return false };
        let (k, count) = (self.k, width(n));
        match op {
            Op::TileStoreH => {
                let words: Vec<_> = (0..count).map(|i| self.h(b + i)).collect();
                self.own_h(tiles, a, count).store_words(&words, Cache::Default);
            }
            Op::TileLoadH => {
                let words = self.own_h(tiles, a, count).load_words(count, Cache::Default);
                (0..).zip(words).for_each(|(i, word)| self.set_h(d + i, word));
            }
            Op::TileStoreW => {
                let words: Vec<_> = (0..count).map(|i| self.u(b + i)).collect();
                self.own_w(tiles, a, count).store_words(&words, Cache::Default);
            }
            Op::TileLoadW => {
                let words = self.own_w(tiles, a, count).load_words(count, Cache::Default);
                (0..).zip(words).for_each(|(i, word)| self.set_u(d + i, word));
            }
            Op::TileHalf => {
                let at = |number: u32| tiles.h.at(self.me, self.u(number) & (tiles.h.cols() - 1));
                at(a).store(self.f(b).to_f16());
                self.set_f(d, at(c).load().to_f32());
            }
            Op::TileAtomW => {
                let at = self.own_w(tiles, a, 1);
                match atomic(c) {
                    op if n % 2 == 0 || op == AtomOp::Exch => self.set_u(d, at.atomic(op, self.u(b))),
                    op => at.reduce(op, self.u(b)),
                }
            }
            Op::TileAtomF => {
                let at = tiles.f.at(self.me, self.u(a) & (F_COLS - 1));
                self.set_f(d, at.atomic(AtomOp::Add, self.f(b)));
                at.reduce_add(self.f(c));
            }
            Op::CopyH => {
                let source = self.pool(self.global.pool_h, b, 4);
                let bytes = (m % 2 == 0).then(|| self.u(c) % 17u32);
                k.cp_async(self.own_h(tiles, a, 4), source, bytes);
                k.cp_async_commit();
                k.cp_async_wait(0);
            }
            Op::CopyW => {
                let source = self.pool(self.global.pool_u, b, count);
                let bytes = (m % 2 == 0).then(|| self.u(c) % (4 * count + 1));
                k.cp_async_l1(self.own_w(tiles, a, count), source, 4 * count, bytes);
                k.cp_async_commit();
                k.cp_async_wait(0);
            }
            Op::CopyGroups => {
                // Two groups: the first is read while the second may still be in flight.
                let first = tiles.w.at(self.me, 0);
                let second = tiles.w.at(self.me, 4);
                k.cp_async_l1(first, self.pool(self.global.pool_u, a, 4), 16, None);
                k.cp_async_commit();
                k.cp_async_l1(second, self.pool(self.global.pool_u, b, count), 4 * count, None);
                k.cp_async_commit();
                k.cp_async_wait(1);
                (0..)
                    .zip(first.load_words(4, Cache::Default))
                    .for_each(|(i, word)| self.set_u(d + i, word));
                k.cp_async_wait(0);
                self.set_u(c, second.load());
            }
            _ => return false,
        }
        true
    }
}
