//! What operations are for which a warp or a block must be together.

use flashcore_ir::fragment::{AOperand, BOperand, MmaElement};
use flashcore_ir::inst::{AtomOp, Scope};
use flashcore_ir::{BF16x2, Cache, Element, F16x2, SharedTile, Val};
use half::{bf16, f16};

use crate::fuzz::emit::{Variable, Writer};
use crate::fuzz::memory::width;
use crate::fuzz::program::{Args, Op};
use crate::fuzz::slot::Slot;

/// Bits of a pair of f16 or bf16 that leave magnitudes below 2.
const BELOW_TWO: u32 = 0xbfff_bfff;
/// Pairs of the smallest normal f16, of the largest one, of the largest bf16.
const SMALLEST_HALVES: u32 = 0x0400_0400;
const LARGEST_HALVES: u32 = 0x7bff_7bff;
const LARGEST_BRAINS: u32 = 0x7f7f_7f7f;

impl<'k> Writer<'k, '_> {
    pub(crate) fn warp(&self, op: Op, args: &Args) -> bool {
        let &[d, a, b, n, ..] = args;
        let (u, s) = (|i| self.u(i), |i| self.get::<i32>(i));
        let set = |value| self.set::<u32>(d, value);
        match op {
            Op::ShflBflyU => set(u(a).shfl_bfly(n % 32)),
            Op::ShflIdxU => set(u(a).shfl_idx(u(b))),
            Op::ShflDownF => self.set(d, self.f(a).shfl_down(n % 32)),
            Op::ShflUpS => self.set(d, s(a).shfl_up(n % 32)),
            Op::ShflIdxH => self.set(d, self.h(a).shfl_idx(u(b) & 31u32)),
            Op::ShflBflyB => self.set(d, self.get::<BF16x2>(a).shfl_bfly(1 << (n % 5))),
            Op::VoteAll => self.set_p(d, self.unforeseen(a).vote_all()),
            Op::VoteAny => self.set_p(d, self.unforeseen(a).vote_any()),
            Op::Ballot => set(self.unforeseen(a).ballot()),
            Op::ReduxAdd => set(u(a).redux_add()),
            Op::ReduxSAdd => self.set(d, s(a).redux_add()),
            Op::ReduxMin => set(u(a).redux_min()),
            Op::ReduxSMin => self.set(d, s(a).redux_min()),
            Op::ReduxMax => set(u(a).redux_max()),
            Op::ReduxSMax => self.set(d, s(a).redux_max()),
            Op::ReduxAnd => set(u(a).redux_and()),
            Op::ReduxOr => set(u(a).redux_or()),
            Op::ReduxXor => set(u(a).redux_xor()),
            Op::ReduceMax => self.set(d, self.f(a).reduce_max(1 << (n % 6))),
            Op::Elect => {
                // Which lane it is, is not said.
                let elected = self.k.elect();
                self.k.if_(elected.divergent(), || self.last_sum(n).reduce_add(1u32));
            }
            Op::SchedulingFence => self.k.scheduling_fence(),
            _ => return self.products(op, args) || self.warp_rows(op, args),
        }
        true
    }

    fn products(&self, op: Op, &[d, a, b, c, n, _]: &Args) -> bool {
        match op {
            Op::MmaExact => self.exact_product::<f16>(d, a, b, c),
            Op::MmaExactBf16 => self.exact_product::<bf16>(d, a, b, c),
            Op::MmaExactHalf => self.exact_half_product(d, a, b, c),
            Op::MmaF16 => {
                // As they are, infinities and NaN too: no sum of 17 of them overflows.
                let word = |i: u32| self.h(n.rotate_left(2 * i).wrapping_add(a));
                self.bounded_product::<f16>(c, &[0, 1, 2, 3].map(word), &[4, 5].map(word), |w| self.magnitude(w));
            }
            Op::MmaBf16 => {
                let word = |i: u32| self.below_two_b(self.get(n.rotate_left(2 * i).wrapping_add(a)));
                self.bounded_product::<bf16>(c, &[0, 1, 2, 3].map(word), &[4, 5].map(word), |w| w.abs());
            }
            Op::MmaHalfAcc => self.half_product(a, b, c, n),
            _ => return false,
        }
        true
    }

    /// Of small integers, whose sums are exact in whatever order: its result is computed with.
    fn exact_product<E: MmaElement>(&self, d: u32, a: u32, b: u32, c: u32) {
        let small = |number: u32, shift: u32| ((self.u(number) >> shift) & 15u32).to_f32() - 8.0;
        let word = |i: u32| E::pack(small(a + i, 3 * i), small(b + i, 2 * i + 1));
        let acc = self.k.acc_unwritten("acc", 1);
        for i in 0..4 {
            acc.var(i).set(small(c + i, 5) * 4.0);
        }
        let (left, right) = self.operands::<E>(&[0, 1, 2, 3].map(word), &[4, 5].map(word));
        self.k.mma(acc, 0, left, right);
        self.k.mma(acc, 0, left, right);
        self.set_all(d, (0..4).map(|i| acc.var(i).get()));
    }

    /// The same with sums in f16.
    fn exact_half_product(&self, d: u32, a: u32, b: u32, c: u32) {
        // Up to 8 · 8 · 16 and twice: whole numbers of f16.
        let small = |number: u32, shift: u32| ((self.u(number) >> shift) & 7u32).to_f32() - 4.0;
        let pair = |i: u32| small(a + i, 3 * i).pack_f16(small(b + i, 2 * i + 1));
        let acc = self.k.acc_f16("acc", 1);
        for i in 0..2 {
            acc.var(i).set(small(c + i, 5).pack_f16(small(c + i, 9)));
        }
        let (left, right) = self.operands::<f16>(&[0, 1, 2, 3].map(pair), &[4, 5].map(pair));
        self.k.mma(acc, 0, left, right);
        self.k.mma(acc, 0, left, right);
        self.set_all(d, (0..2).map(|i| acc.var(i).get()));
    }

    /// Magnitudes of f16 as tensor cores count them: subnormal ones with the exponent of the
    /// smallest normal one.
    pub(crate) fn magnitude(&self, word: Val<'k, F16x2>) -> Val<'k, F16x2> {
        word.abs().max(self.k.constant(SMALLEST_HALVES).reinterpret::<F16x2>())
    }

    /// Magnitudes below 2. NaN becomes a number, the same whichever NaN it is.
    fn below_two(&self, word: Val<'k, F16x2>) -> Val<'k, F16x2> {
        let number = word.min(self.k.constant(LARGEST_HALVES).reinterpret::<F16x2>());
        (number.reinterpret::<u32>() & BELOW_TWO).reinterpret()
    }

    fn below_two_b(&self, word: Val<'k, BF16x2>) -> Val<'k, BF16x2> {
        let number = word.min(self.k.constant(LARGEST_BRAINS).reinterpret::<BF16x2>());
        (number.reinterpret::<u32>() & BELOW_TWO).reinterpret()
    }

    /// Of any numbers: sums may be off by a part of the sum of magnitudes, which a second product
    /// gives.
    fn bounded_product<E: MmaElement>(
        &self,
        c: u32,
        left: &[Val<'k, E::Word>; 4],
        right: &[Val<'k, E::Word>; 2],
        magnitude: impl Fn(Val<'k, E::Word>) -> Val<'k, E::Word> + Copy,
    ) {
        // Sums that overflow in one order need not in another.
        let first = |i: u32| self.f(c + i).min(1e4).max(-1e4);
        let sums = self.k.acc_unwritten("sums", 1);
        let sizes = self.k.acc_unwritten("sizes", 1);
        for i in 0..4 {
            sums.var(i).set(first(i));
            sizes.var(i).set(first(i).abs());
        }
        let (l, r) = self.operands::<E>(left, right);
        self.k.mma(sums, 0, l, r);
        let (l, r) = self.operands::<E>(&left.map(magnitude), &right.map(magnitude));
        self.k.mma(sizes, 0, l, r);
        for i in 0..4 {
            let slot = self.observe_size(sizes.var(i).get(), 1, false);
            self.observe(slot, sums.var(i).get().reinterpret());
        }
    }

    /// With sums in f16.
    fn half_product(&self, a: u32, b: u32, c: u32, n: u32) {
        let word = |i: u32| self.below_two(self.h(n.rotate_left(2 * i).wrapping_add(a).wrapping_add(b)));
        let (left, right) = ([0, 1, 2, 3].map(word), [4, 5].map(word));
        let first = |i: u32| self.below_two(self.h(c + i));
        let sums = self.k.acc_f16("sums", 1);
        let sizes = self.k.acc_unwritten("sizes", 1);
        for i in 0..2 {
            sums.var(i).set(first(i));
            let (low, high) = first(i).abs().to_f32s();
            sizes.var(2 * i).set(low);
            sizes.var(2 * i + 1).set(high);
        }
        let (l, r) = self.operands::<f16>(&left, &right);
        self.k.mma(sums, 0, l, r);
        let (l, r) = self.operands::<f16>(&left.map(|w| self.magnitude(w)), &right.map(|w| self.magnitude(w)));
        self.k.mma(sizes, 0, l, r);
        for i in 0..2 {
            let magnitudes = [2 * i, 2 * i + 1].map(|j| {
                self.observe_size(sizes.var(j).get(), 1, false);
                self.next_place() - 1
            });
            self.observe(Slot::HalfProduct { magnitudes }, sums.var(i).get().reinterpret());
        }
    }

    fn operands<E: MmaElement>(
        &self,
        left: &[Val<'k, E::Word>; 4],
        right: &[Val<'k, E::Word>; 2],
    ) -> (AOperand<E>, BOperand<E>) {
        (self.k.a_operand(left), self.k.b_operand(right))
    }

    /// Reads words of a row that others write, between two barriers.
    fn read_row<E: Element<Word: Variable>>(
        &self,
        tile: SharedTile<'k, E>,
        row: Val<'k, u32>,
        &[d, _, b, n, ..]: &Args,
        before: impl Fn(),
        after: impl Fn(),
    ) {
        let at = self.words_of(tile, row, b, width(n));
        before();
        let words = at.load_words(width(n), Cache::Default);
        after();
        self.set_all(d, words);
    }

    /// What reads or writes rows of the same warp, between warp barriers.
    fn warp_rows(&self, op: Op, args: &Args) -> bool {
        let &[d, a, b, n, c, m] = args;
        let Some(tiles) = &self.tiles else { return false };
        let k = self.k;
        let first_row = self.me & !31u32;
        let row = |number: u32| first_row + (self.u(number) & 31u32);
        let chunk = |number: u32| (self.u(number) & (tiles.h.cols() / 8 - 1)) * 8u32;
        let count = width(n);
        match op {
            Op::WarpReadH => self.read_row(tiles.h, row(a), args, || k.sync_warp(), || k.sync_warp()),
            Op::WarpReadW => self.read_row(tiles.w, row(a), args, || k.sync_warp(), || k.sync_warp()),
            Op::LdMatrix => {
                let at = tiles.h.at(row(a), chunk(b));
                k.sync_warp();
                let words = k.ldmatrix(at, count, m % 2 == 0);
                k.sync_warp();
                self.set_all(d, words);
            }
            Op::StMatrix => {
                // Different rows for all lanes: two stores of one place would race.
                let at = tiles
                    .h
                    .at(first_row + (self.lane ^ (c % 32)), chunk_of(b, tiles.h.cols()));
                let words = self.get_all(a, count);
                k.sync_warp();
                k.stmatrix(at, &words, m % 2 == 0);
                k.sync_warp();
            }
            _ => return false,
        }
        true
    }

    /// What needs the whole block.
    pub(crate) fn block(&self, op: Op, args: &Args) -> bool {
        let &[d, a, b, n, c, _] = args;
        let (k, threads) = (self.k, self.program.threads);
        match op {
            Op::NamedBarrier => k.barrier_among(n % 16, threads),
            Op::FenceCluster => k.fence(Scope::Cluster),
            Op::Dependency => k.dependency_trigger(),
            _ => {
                let Some(tiles) = &self.tiles else { return false };
                let row = |number: u32| self.u(number) & (threads - 1);
                let named = || k.barrier_among(c % 16, threads);
                match op {
                    Op::BlockReadH => self.read_row(tiles.h, row(a), args, || k.barrier(), named),
                    Op::BlockReadW => self.read_row(tiles.w, row(a), args, named, || k.barrier()),
                    Op::TileRed => {
                        let at = tiles.w.at(row(a), self.u(b) & (tiles.w.cols() - 1));
                        k.barrier();
                        at.reduce([AtomOp::Add, AtomOp::Max, AtomOp::Min][c as usize % 3], self.u(n));
                        k.barrier();
                    }
                    Op::ArriveSync => {
                        // The first warp writes and goes on; the others wait for it and read.
                        // Not the barrier that follows.
                        let (id, col) = (1 + n % 15, b % tiles.w.cols());
                        k.barrier();
                        k.if_else(
                            self.me.lt(32).uniform(),
                            || {
                                tiles.w.at(self.me, col).store(self.u(c));
                                k.barrier_arrive(id, threads);
                            },
                            || {
                                k.barrier_among(id, threads);
                                self.set(d, tiles.w.at(self.u(a) & 31u32, col).load());
                            },
                        );
                        k.barrier();
                    }
                    _ => return false,
                }
            }
        }
        true
    }
}

/// The first column of a chunk of 16 bytes that a number chooses.
fn chunk_of(number: u32, cols: u32) -> u32 {
    number % (cols / 8) * 8
}
