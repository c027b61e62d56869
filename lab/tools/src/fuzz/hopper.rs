//! What only Hopper has: products of a warpgroup, mbarriers, copies of tensor boxes.

use std::cell::OnceCell;

use flashcore_ir::fragment::{Acc, MmaElement};
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{
    BF16x2, Cache, E4M3, E4M3x4, Element, F16x2, KernelBuilder, MBarrier, SharedTile, Swizzle, TensorMap, TileShape,
    Val, Var,
};
use half::{bf16, f16};

use crate::fuzz::emit::Writer;
use crate::fuzz::input::{BOX_COLS, BOX_ROWS, POOL};
use crate::fuzz::program::{Args, Need, Op, Program};

/// Threads of a warpgroup.
const WARPGROUP: u32 = 128;
/// Rows of operand A.
const ROWS: u32 = 64;
/// Values and their magnitudes.
type Two<T> = [T; 2];

/// Operands of products, as values and as magnitudes.
struct Operands<'k, E> {
    a: Two<SharedTile<'k, E>>,
    /// A row for each column of the product, or where `b_rows` is, for each step of k.
    b: Two<SharedTile<'k, E>>,
    b_rows: Option<Two<SharedTile<'k, E>>>,
}

/// An mbarrier, and the phase that is waited for next.
struct Phased<'k> {
    bar: MBarrier<'k>,
    parity: Var<'k, u32>,
}

struct Boxes<'k> {
    from: TensorMap<'k>,
    to: TensorMap<'k>,
    loaded: SharedTile<'k, f16>,
    stored: SharedTile<'k, f16>,
}

/// What is declared for Hopper's operations: at the top of a kernel, or for operands when they are
/// first needed.
pub(crate) struct Hopper<'k> {
    halves: OnceCell<Operands<'k, f16>>,
    brains: OnceCell<Operands<'k, bf16>>,
    bytes: OnceCell<Operands<'k, E4M3>>,
    /// One at which every thread arrives, one at which copies do.
    bars: Option<[Phased<'k>; 2]>,
    boxes: Option<Boxes<'k>>,
}

fn swizzled(rows: u32, row_bytes: u32, element_bytes: u32) -> TileShape {
    let swizzle = match row_bytes {
        32 => Swizzle::B32,
        64 => Swizzle::B64,
        _ => Swizzle::B128,
    };
    TileShape::new(rows, row_bytes / element_bytes).swizzled(swizzle)
}

impl<'k> Hopper<'k> {
    /// Declares what the program needs, parameters too, and makes its mbarriers.
    pub(crate) fn new(k: &'k KernelBuilder, program: &Program) -> Hopper<'k> {
        let boxes = program.has_need(Need::TensorMap).then(|| {
            let shape = match program.tiles >> 24 & 1 {
                0 => TileShape::new(BOX_ROWS, BOX_COLS),
                _ => swizzled(BOX_ROWS, 2 * BOX_COLS, 2),
            };
            let (loaded, stored) = (k.shared_tile("loaded", shape), k.shared_tile("stored", shape));
            Boxes {
                from: k.param_tensor_map("pool_boxes", loaded.tensor_box(&[BOX_ROWS])),
                to: k.param_tensor_map_mut("out_boxes", stored.tensor_box(&[BOX_ROWS])),
                loaded,
                stored,
            }
        });
        let waits = |op: &Op| matches!(op, Op::Mbarrier | Op::TensorLoad);
        let bars = program.ops().iter().any(waits).then(|| {
            let bars = k.mbarriers("bars", 2);
            k.if_(k.thread_idx().eq(0).divergent(), || {
                bars.at(0).init(program.threads);
                bars.at(1).init(1);
                k.fence_mbarrier_init();
            });
            k.barrier();
            [0u32, 1].map(|i| Phased {
                bar: bars.at(i),
                parity: k.var(0u32),
            })
        });
        Hopper {
            halves: OnceCell::new(),
            brains: OnceCell::new(),
            bytes: OnceCell::new(),
            bars,
            boxes,
        }
    }
}

impl Phased<'_> {
    /// Waits for the phase, and goes on to the next.
    fn wait(&self) {
        self.bar.wait(self.parity);
        self.parity.set(self.parity.get() ^ 1u32);
    }
}

impl<'k> Writer<'k, '_> {
    pub(crate) fn hopper(&self, op: Op, args: &Args) -> bool {
        match op {
            Op::Mbarrier => self.arrive_and_wait(args),
            Op::TensorLoad => self.load_box(args),
            Op::TensorStore => self.store_box(args),
            _ => return self.warpgroup(op, args),
        }
        true
    }

    /// Each thread writes its row and arrives; when all have, each reads a row.
    fn arrive_and_wait(&self, &[d, a, b, c, ..]: &Args) {
        let (Some([all, _]), Some(tiles)) = (&self.hopper.bars, &self.tiles) else {
            return;
        };
        let col = b % tiles.w.cols();
        tiles.w.at(self.me, col).store(self.u(c));
        all.bar.arrive();
        all.wait();
        let row = self.u(a) & (self.program.threads - 1);
        self.set(d, tiles.w.at(row, col).load());
        self.k.barrier();
    }

    /// A box of the pool of halves, some of it past its end.
    fn load_box(&self, &[d, a, b, n, ..]: &Args) {
        let (Some([_, copies]), Some(boxes)) = (&self.hopper.bars, &self.hopper.boxes) else {
            return;
        };
        let row = self.global.pool_u.plus((n % POOL) as i32).load() & (2 * BOX_ROWS - 1);
        self.k.if_(self.me.eq(0).divergent(), || {
            copies.bar.arrive_expecting(BOX_ROWS * BOX_COLS * 2);
            boxes.loaded.load_tma(0u32, boxes.from.at(&[row]), copies.bar);
        });
        copies.wait();
        let (row, chunk) = (self.u(a) & (BOX_ROWS - 1), self.u(b) & (BOX_COLS / 8 - 1));
        let words = boxes.loaded.at(row, chunk * 8u32).load_words(4, Cache::Default);
        self.set_all(d, words);
        self.k.fence_proxy_async();
        self.k.barrier();
    }

    /// A box that the first threads fill, to the block's place in a tensor that ends within the
    /// last box.
    fn store_box(&self, &[_, a, ..]: &Args) {
        let (k, Some(boxes)) = (self.k, &self.hopper.boxes) else {
            return;
        };
        let chunks = BOX_ROWS * BOX_COLS / 8;
        let words = self.get_all(a, 4);
        for first in (0..chunks).step_by(32) {
            k.if_((self.me - first).lt(32).divergent(), || {
                let (row, chunk) = (self.me / (BOX_COLS / 8), self.me % (BOX_COLS / 8));
                boxes.stored.at(row, chunk * 8u32).store_words(&words, Cache::Default);
            });
        }
        k.fence_proxy_async();
        k.barrier();
        k.if_(self.me.eq(0).divergent(), || {
            boxes.stored.store_tma(0u32, boxes.to.at(&[k.block_idx(0) * BOX_ROWS]));
            k.bulk_commit();
            k.bulk_wait(0);
        });
        k.barrier();
    }

    /// The tiles of operands, shaped as the program's choice says.
    fn product_tiles<'a, E: WgmmaElement>(&self, cell: &'a OnceCell<Operands<'k, E>>) -> &'a Operands<'k, E> {
        cell.get_or_init(|| {
            let choice = self.program.tiles;
            let row_bytes = 32 << (choice >> 20 & 3).min(2);
            let columns = [8, 16, 32, 64][(choice >> 22 & 3) as usize];
            let steps = row_bytes / E::BYTES;
            let column_bytes = 32 << (choice >> 25 & 3).min(2);
            let tile = |name: &str, shape| self.k.shared_tile::<E>(&format!("{name}_{}", E::NAME), shape);
            let two = |names: Two<&str>, shape: TileShape| names.map(|name| tile(name, shape));
            Operands {
                a: two(["a", "sizes_a"], swizzled(ROWS, row_bytes, E::BYTES)),
                b: two(["b", "sizes_b"], swizzled(columns, row_bytes, E::BYTES)),
                b_rows: (E::BYTES == 2)
                    .then(|| two(["b_rows", "sizes_b_rows"], swizzled(steps, column_bytes, E::BYTES))),
            }
        })
    }

    fn warpgroup(&self, op: Op, args: &Args) -> bool {
        let &[_, a, ..] = args;
        match op {
            Op::WgmmaExact => {
                let word = |at| self.small_halves(a, at);
                self.product(self.product_tiles(&self.hopper.halves), args, true, word);
            }
            Op::WgmmaExactE4m3 => {
                let word = |at: Val<'k, u32>| {
                    let small = |shift: u32| (((self.u(a) + at * 0x9e37_79b9) >> shift) & 7u32).to_f32() - 4.0;
                    let (low, high) = (small(9).pack_e4m3(small(20)), small(4).pack_e4m3(small(26)));
                    let word = low.pair(high);
                    [word, word]
                };
                self.product(self.product_tiles(&self.hopper.bytes), args, true, word);
            }
            // As they are, infinities and NaN too.
            Op::WgmmaF16 => self.product(self.product_tiles(&self.hopper.halves), args, false, |at| {
                self.half_at(a, at)
            }),
            Op::WgmmaBf16 => {
                let word = |at: Val<'k, u32>| {
                    let index = (self.u(a) + at) & (POOL - 1);
                    let bits = self.global.pool_b.offset(index * 2u32).load_words(1, Cache::Default)[0];
                    let word: Val<'k, BF16x2> = (bits.reinterpret::<u32>() & 0xbfff_bfffu32).reinterpret();
                    [word, word.abs()]
                };
                self.product(self.product_tiles(&self.hopper.brains), args, false, word);
            }
            Op::WgmmaE4m3 => {
                let word = |at: Val<'k, u32>| {
                    // Up to 240, and no NaN.
                    let bits = (self.u(a) + at * 0x9e37_79b9u32) & 0xf7f7_f7f7u32;
                    // Subnormal ones count with the exponent of the smallest normal one.
                    let is_normal = ((bits & 0x7070_7070u32) + 0x7070_7070u32) & 0x8080_8080u32;
                    let magnitude = bits & 0x7777_7777u32 | (is_normal ^ 0x8080_8080u32) >> 4;
                    [bits.reinterpret::<E4M3x4>(), magnitude.reinterpret()]
                };
                self.product(self.product_tiles(&self.hopper.bytes), args, false, word);
            }
            Op::WgmmaRegs => self.product_of_registers(args, false),
            Op::WgmmaExactRegs => self.product_of_registers(args, true),
            _ => return false,
        }
        true
    }

    fn half_at(&self, number: u32, at: Val<'k, u32>) -> Two<Val<'k, F16x2>> {
        let index = (self.u(number) + at) & (POOL - 1);
        let word = self.global.pool_h.offset(index * 2u32).load_words(1, Cache::Default)[0];
        [word, self.magnitude(word)]
    }

    /// Pairs of whole numbers from -8 to 7, and of the first four's magnitudes.
    fn small_halves(&self, number: u32, at: Val<'k, u32>) -> Two<Val<'k, F16x2>> {
        let small = |shift: u32| (((self.u(number) + at * 0x9e37_79b9) >> shift) & 15u32).to_f32() - 8.0;
        let word = <f16 as MmaElement>::pack(small(9), small(20));
        [word, word.abs()]
    }

    /// Fills a tile and that of its magnitudes, word by word; `word` gets the index of each.
    fn fill<E: Element>(&self, tiles: &Two<SharedTile<'k, E>>, word: &impl Fn(Val<'k, u32>) -> Two<Val<'k, E::Word>>) {
        let [values, sizes] = tiles;
        let per_row = values.cols() / E::PER_WORD;
        self.k
            .for_divergent(self.me, values.rows() * per_row, WARPGROUP, |index| {
                let (row, col) = (index / per_row, index % per_row * E::PER_WORD);
                let [value, size] = word(index);
                values.at(row, col).store_words(&[value], Cache::Default);
                sizes.at(row, col).store_words(&[size], Cache::Default);
            });
    }

    /// A product of operands in shared memory; exact ones are computed with.
    fn product<E: WgmmaElement>(
        &self,
        operands: &Operands<'k, E>,
        args: &Args,
        exact: bool,
        word: impl Fn(Val<'k, u32>) -> Two<Val<'k, E::Word>>,
    ) {
        let &[d, _, _, c, n, m] = args;
        let k = self.k;
        let by_rows = operands.b_rows.as_ref().filter(|_| m % 2 == 0);
        let right = by_rows.unwrap_or(&operands.b);
        self.fill(&operands.a, &word);
        self.fill(right, &word);
        k.fence_proxy_async();
        k.barrier();
        let accs = self.accumulators(
            if by_rows.is_some() {
                right[0].cols()
            } else {
                right[0].rows()
            },
            c,
            exact,
        );
        k.wgmma_fence();
        for ((&acc, a), b) in accs.iter().zip(operands.a).zip(*right) {
            let b = if by_rows.is_some() { b.mn_major() } else { b.k_major() };
            k.wgmma_ss(acc, a.k_major(), b, n % 4 != 0);
            k.wgmma_commit();
        }
        k.wgmma_wait(0);
        self.results::<E>(accs, d, n, (!exact).then(|| operands.a[0].k_major().steps()));
        k.barrier();
    }

    /// A product with A in registers; results of exact ones are computed with.
    fn product_of_registers(&self, args: &Args, exact: bool) {
        let &[d, a, b, c, n, _] = args;
        let k = self.k;
        let operands = self.product_tiles(&self.hopper.halves);
        if exact {
            self.fill(&operands.b, &|at| self.small_halves(a, at));
        } else {
            self.fill(&operands.b, &|at| self.half_at(a, at));
        }
        k.fence_proxy_async();
        k.barrier();
        let words = [0, 1, 2, 3].map(|i| match exact {
            true => self.small_halves(b, self.me + 131 * i),
            false => [self.h(b + i), self.magnitude(self.h(b + i))],
        });
        let left = [0, 1].map(|of| k.wgmma_a::<f16>(&words.map(|word| word[of])));
        let accs = self.accumulators(operands.b[0].rows(), c, exact);
        k.wgmma_fence();
        for ((&acc, a), tile) in accs.iter().zip(left).zip(operands.b) {
            let b = tile.k_major();
            // The same registers for each step of k.
            k.wgmma_rs(acc, &vec![a; b.steps() as usize], b, n % 4 != 0);
            k.wgmma_commit();
        }
        k.wgmma_wait(0);
        self.results::<f16>(accs, d, n, (!exact).then(|| operands.b[0].k_major().steps()));
        k.barrier();
    }

    /// Accumulators of `columns` columns with first values, and others with their magnitudes.
    fn accumulators(&self, columns: u32, c: u32, exact: bool) -> Two<Acc<'k>> {
        let accs = ["sums", "sizes"].map(|name| self.k.acc_unwritten(name, columns / 8));
        let first = if exact {
            ((self.u(c) & 0xffu32).to_f32()) - 128.0
        } else {
            // Sums that overflow in one order need not in another.
            self.f(c).min(1e4).max(-1e4)
        };
        // ptxas 12.0 and 13.0 take a value that accumulators begin with for still being in its
        // register afterwards, if something else computes the same. An exchange is a value of its
        // own, of which they must not see that lanes get their own, that all lanes have the same,
        // or that another one is the same.
        let beyond = (self.u(c) * (2 * self.next_place() as u32 + 1)) & 32u32;
        let first = (first + self.lane.to_f32()).shfl_idx(self.lane + beyond);
        let sizes = first.abs();
        for i in 0..columns / 2 {
            accs[0].var(i).set(first);
            accs[1].var(i).set(sizes);
        }
        accs
    }

    /// Computes with eight columns of an exact product; otherwise (`bounded` has the steps)
    /// compares them.
    fn results<E: WgmmaElement>(&self, [sums, sizes]: Two<Acc<'k>>, d: u32, n: u32, bounded: Option<u32>) {
        let first = n % sums.tiles() * 4;
        for i in 0..4 {
            let sum = sums.var(first + i).get();
            let Some(steps) = bounded else {
                self.set(d + i, sum);
                continue;
            };
            let slot = self.observe_size(sizes.var(first + i).get(), steps, E::BYTES == 1);
            self.observe(slot, sum.reinterpret());
        }
    }
}
