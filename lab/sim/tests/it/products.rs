//! Warpgroup products against f64: all input types, operand orders and swizzles, A in shared memory
//! and in registers.

use crate::common;

use common::{Bytes, Case, found};
use flashcore_ir::fragment::{AOperand, FragmentLayout};
use flashcore_ir::wgmma::{WGMMA_M64K16_A, WGMMA_M64K32_A, WGMMA_M64N8_ACC, WgmmaElement};
use flashcore_ir::{
    Cache, E4M3, GlobalPtr, Inst, Kernel, KernelBuilder, Node, Operand, SharedTile, Swizzle, TileShape, Val,
};
use flashcore_problem::rng::Rng;
use flashcore_sim::FindingKind;
use half::{bf16, f16};

/// A variant of a product.
#[derive(Clone, Copy, Debug)]
struct Way {
    swizzle: Swizzle,
    n: u32,
    depth: u32,
    /// A in registers, or A with rows along k.
    a_in_registers: bool,
    a_transposed: bool,
    b_transposed: bool,
}

/// Rounds a value to an element, and gives the element's exact value.
trait Round: Bytes + Copy {
    type Element: WgmmaElement;
    fn round(value: f32) -> (Self, f64);
}
impl Round for f16 {
    type Element = f16;
    fn round(value: f32) -> (f16, f64) {
        let half = f16::from_f32(value);
        (half, half.to_f64())
    }
}
impl Round for bf16 {
    type Element = bf16;
    fn round(value: f32) -> (bf16, f64) {
        let half = bf16::from_f32(value);
        (half, half.to_f64())
    }
}

/// Small multiples of 1/8 as e4m3 bits.
#[derive(Clone, Copy)]
struct Eighth(u8);
impl Bytes for Eighth {
    fn bytes(&self) -> Vec<u8> {
        vec![self.0]
    }
}
impl Round for Eighth {
    type Element = E4M3;
    fn round(value: f32) -> (Eighth, f64) {
        // 1, 1.125, …, 1.875 with a sign: exponent 7, three bits of mantissa.
        let eighths = ((value.abs() * 8.0) as u8) % 8;
        let sign = u8::from(value < 0.0) << 7;
        let value = (1.0 + f64::from(eighths) / 8.0).copysign(f64::from(value));
        (Eighth(sign | 7 << 3 | eighths), value)
    }
}

/// Copies a row-major matrix into a tile, word by word.
fn fill<'k, E: WgmmaElement>(k: &'k KernelBuilder, tile: SharedTile<'k, E>, from: GlobalPtr<'k, E>) {
    let words_per_row = tile.cols() / E::PER_WORD;
    k.for_divergent(k.thread_idx(), tile.rows() * words_per_row, 128, |word| {
        let (row, col) = (word / words_per_row, word % words_per_row * E::PER_WORD);
        let words = from.offset(word * E::PER_WORD).load_words(1, Cache::Default);
        tile.at(row, col).store_words(&words, Cache::Default);
    });
}

/// Operand A of every step from a row-major matrix, by the fragment layout.
fn registers<'k, E: WgmmaElement>(k: &'k KernelBuilder, from: GlobalPtr<'k, E>, depth: u32) -> Vec<AOperand<E>> {
    let layout: FragmentLayout = if E::BYTES == 2 { WGMMA_M64K16_A } else { WGMMA_M64K32_A };
    // The layout is linear: an origin per thread plus an offset per register.
    let (thread, lane) = (k.thread_idx(), k.lane());
    let row = thread / 32 * 16 + lane / 4;
    let col = lane % 4u32 * (layout.per_reg);
    let first = from.offset(row * depth + col);
    let mut operands = Vec::new();
    for step in 0..depth / layout.cols {
        let words: Vec<Val<'_, E::Word>> = (0..4)
            .map(|reg| {
                let (r, c) = layout.at(0, reg, 0);
                let at = r * depth + c + step * layout.cols;
                first.plus(at as i32).load_words(1, Cache::Default)[0]
            })
            .collect();
        operands.push(k.wgmma_a::<E>(&[words[0], words[1], words[2], words[3]]));
    }
    operands
}

fn product<T: Round>(way: Way, seed: u64, integers: bool) {
    let Way { n, depth, swizzle, .. } = way;
    let mut rng = Rng::new(seed);
    let mut matrix = |rows: u32, cols: u32| -> (Vec<T>, Vec<f64>) {
        let value = |rng: &mut Rng| {
            if integers {
                rng.below(17) as f32 - 8.0
            } else {
                4.0 * rng.unit() - 2.0
            }
        };
        (0..rows * cols).map(|_| T::round(value(&mut rng))).unzip()
    };
    let (a_rows, a_cols) = if way.a_transposed { (depth, 64) } else { (64, depth) };
    let (b_rows, b_cols) = if way.b_transposed { (depth, n) } else { (n, depth) };
    let ((a, a64), (b, b64)) = (matrix(a_rows, a_cols), matrix(b_rows, b_cols));
    let mut case = Case::new(128, |k| {
        let (pa, pb) = (k.param_ptr::<T::Element>("a"), k.param_ptr::<T::Element>("b"));
        let out = k.param_ptr_mut::<f32>("out");
        let shape = |rows, cols| TileShape::new(rows, cols).swizzled(swizzle).in_slabs();
        let b_tile = k.shared_tile::<T::Element>("b", shape(b_rows, b_cols));
        fill(k, b_tile, pb);
        let acc = k.acc_unwritten("acc", n / 8);
        let b = if way.b_transposed {
            b_tile.mn_major()
        } else {
            b_tile.k_major()
        };
        if way.a_in_registers {
            let a = registers(k, pa, depth);
            k.fence_proxy_async();
            k.barrier();
            k.wgmma_fence();
            k.wgmma_rs(acc, &a, b, false);
        } else {
            let a_tile = k.shared_tile::<T::Element>("a", shape(a_rows, a_cols));
            fill(k, a_tile, pa);
            k.fence_proxy_async();
            k.barrier();
            k.wgmma_fence();
            let a = if way.a_transposed {
                a_tile.mn_major()
            } else {
                a_tile.k_major()
            };
            k.wgmma_ss(acc, a, b, false);
        }
        k.wgmma_commit();
        k.wgmma_wait(0);
        for i in 0..n / 2 {
            out.offset(k.thread_idx() * (n / 2))
                .plus(i as i32)
                .store(acc.var(i).get());
        }
    })
    .input("a", &a)
    .input("b", &b)
    .output("out", 4 * 64 * n as usize);
    case.run_clean();
    let got = case.f32s(2);
    for (lane, reg, _, row, col8) in WGMMA_M64N8_ACC.elements() {
        for tile in 0..n / 8 {
            let col = 8 * tile + col8;
            let (mut sum, mut size) = (0.0, 0.0);
            for i in 0..depth {
                let x = a64[if way.a_transposed {
                    i * 64 + row
                } else {
                    row * depth + i
                } as usize];
                let y = b64[if way.b_transposed { i * n + col } else { col * depth + i } as usize];
                sum += x * y;
                size += (x * y).abs();
            }
            let value = f64::from(got[(lane * (n / 2) + 4 * tile + reg) as usize]);
            let bound = if integers { 0.0 } else { size * 2f64.powi(-21) };
            assert!((value - sum).abs() <= bound, "{way:?} ({row}, {col}): {value} {sum}");
        }
    }
}

/// Every swizzle, width and order.
fn ways(sixteen_bit: bool) -> Vec<Way> {
    let mut ways = Vec::new();
    for (swizzle, n) in [
        (Swizzle::B128, 64),
        (Swizzle::B64, 128),
        (Swizzle::B32, 32),
        (Swizzle::B128, 192),
    ] {
        for (a_in_registers, a_transposed, b_transposed) in [
            (false, false, false),
            (true, false, false),
            (false, false, true),
            (true, false, true),
            (false, true, false),
            (false, true, true),
        ] {
            if sixteen_bit || !a_transposed && !b_transposed {
                ways.push(Way {
                    swizzle,
                    n,
                    depth: 128,
                    a_in_registers,
                    a_transposed,
                    b_transposed,
                });
            }
        }
    }
    ways
}

#[test]
fn products_of_halves() {
    for (i, way) in ways(true).into_iter().enumerate() {
        product::<f16>(way, i as u64, true);
        product::<f16>(way, i as u64, false);
        product::<bf16>(way, i as u64, false);
    }
}

#[test]
fn products_of_bytes() {
    for (i, way) in ways(false).into_iter().enumerate() {
        product::<Eighth>(way, i as u64, false);
    }
}

#[test]
fn odd_widths() {
    for n in [8, 24, 80, 176, 256] {
        let way = Way {
            swizzle: Swizzle::B64,
            n,
            depth: 64,
            a_in_registers: true,
            a_transposed: false,
            b_transposed: false,
        };
        product::<f16>(way, 7, true);
    }
}

// Errors

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    NoProxyFence,
    NoBarrier,
    NothingWritten,
    WriteWhileRead,
    TouchAccumulator,
    TouchOperand,
    NotFencedAgain,
    DifferentWarps,
    MissingWarp,
    NoWait,
    OtherShape,
}

/// `acc = x·yᵀ` of constant tiles, A in registers.
fn constant(plant: Plant) -> Case {
    Case::new(128, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let shape = TileShape::new(64, 64).swizzled(Swizzle::B128).stages(2);
        let tile = k.shared_tile::<f16>("tile", shape);
        let warp = k.warp_idx();
        let one = k.constant(1.0f32).pack_f16(1.0);
        let write = |stage: u32| {
            k.for_divergent(k.thread_idx(), 64 * 32, 128, |word| {
                let at = tile.at_stage(stage, word / 32, word % 32u32 * 2);
                at.store_words(&[one], Cache::Default);
            });
        };
        if plant != Plant::NothingWritten {
            write(0);
            write(1);
        }
        if plant != Plant::NoProxyFence {
            k.fence_proxy_async();
        }
        if plant != Plant::NoBarrier {
            k.barrier();
        }
        let acc = k.acc("acc", 8);
        let words: Vec<_> = (0..4).map(|_| k.var(one)).collect();
        let a: Vec<_> = (0..4)
            .map(|_| k.wgmma_a::<f16>(&[words[0].get(), words[1].get(), words[2].get(), words[3].get()]))
            .collect();
        let b = tile.k_major();
        k.wgmma_fence();
        match plant {
            Plant::DifferentWarps => k.if_else(
                warp.lt(2).uniform(),
                || k.wgmma_rs(acc, &a, b, true),
                || k.wgmma_rs(acc, &a, b.stage(1), true),
            ),
            Plant::MissingWarp => k.if_(warp.lt(3).uniform(), || k.wgmma_rs(acc, &a, b, true)),
            _ => k.wgmma_rs(acc, &a, b, true),
        }
        k.wgmma_commit();
        match plant {
            Plant::WriteWhileRead => tile.at(k.thread_idx() / 2, 0).store_words(&[one], Cache::Default),
            Plant::TouchAccumulator => acc.var(3).mul_assign(2.0),
            Plant::TouchOperand => {
                // The operand's registers are internal to the kernel: write one of them.
                k.wgmma_fence();
            }
            Plant::OtherShape => {
                let part = k.acc("part", 4);
                k.wgmma_fence();
                k.wgmma_rs(part, &a, tile.k_major().rows(0, 32), true);
                k.wgmma_commit();
            }
            _ => {}
        }
        if plant != Plant::NoWait {
            k.wgmma_wait(0);
        }
        if plant == Plant::NotFencedAgain {
            acc.var(0).set(1.0);
            k.wgmma_rs(acc, &a, b, true);
            k.wgmma_commit();
            k.wgmma_wait(0);
        }
        if plant != Plant::NoWait {
            out.offset(k.thread_idx()).store(acc.var(5).get());
        }
    })
    .output("out", 512)
}

#[test]
fn faulty_products() {
    use FindingKind::*;
    for seed in 0..10 {
        let mut case = constant(Plant::Nothing).seed(seed);
        case.run_clean();
        assert_eq!(case.f32s(0), [64.0; 128]);
    }
    constant(Plant::OtherShape).run_clean();
    for (plant, kind) in [
        (Plant::NoProxyFence, MissingFence),
        (Plant::NoBarrier, Race),
        (Plant::NothingWritten, NeverWritten),
        (Plant::WriteWhileRead, Race),
        (Plant::TouchAccumulator, InFlight),
        (Plant::NotFencedAgain, MissingFence),
        (Plant::DifferentWarps, Warpgroup),
        (Plant::MissingWarp, Deadlock),
        (Plant::NoWait, MissingWait),
    ] {
        found(constant(plant), &[kind], 6);
    }
}

/// Changes the instructions of a finished kernel with `change`.
fn mutate(kernel: &Kernel, change: &mut impl FnMut(&mut Inst) -> bool) -> Kernel {
    fn walk(nodes: &[Node], change: &mut impl FnMut(&mut Inst) -> bool) -> Vec<Node> {
        let mut out = nodes.to_vec();
        for node in &mut out {
            match node {
                Node::Inst { inst, .. } => {
                    change(inst);
                }
                Node::If { then, otherwise, .. } => {
                    *then = walk(then, change);
                    *otherwise = walk(otherwise, change);
                }
                Node::Loop { body, .. } => *body = walk(body, change),
                Node::BreakIf { .. } => {}
            }
        }
        out
    }
    kernel.with_body(walk(kernel.body(), change))
}

#[test]
fn mismatched_descriptors() {
    let high = |f: fn(u64) -> u64| {
        let mut case = constant(Plant::Nothing);
        case.kernel = mutate(&case.kernel, &mut |inst| match inst {
            Inst::Pack {
                hi: Operand::Imm(hi), ..
            } => {
                *hi = f(*hi);
                true
            }
            _ => false,
        });
        case.run()
    };
    for (f, part) in [
        (
            (|hi| hi + 1) as fn(u64) -> u64,
            "a stride of 1040 bytes between groups of 8 rows, but the tile has 1024",
        ),
        (|hi| hi & 0x3fff_ffff, "swizzle mode 0, but the tile has 1"),
        (|hi| hi | 3 << 30, "swizzle mode 3, but the tile has 1"),
    ] {
        let report = high(f);
        let finding = report
            .findings
            .iter()
            .find(|f| f.kind == FindingKind::Descriptor)
            .unwrap();
        assert!(finding.message.contains(part), "{finding}");
    }
    // A start address after the tile.
    let mut case = constant(Plant::Nothing);
    case.kernel = mutate(&case.kernel, &mut |inst| match inst {
        Inst::Bin {
            b: Operand::Imm(step @ (2 | 4 | 6)),
            ..
        } => {
            *step += 0x800;
            true
        }
        _ => false,
    });
    found(case, &[FindingKind::OutOfBounds], 2);
}

#[test]
fn operand_registers_written_in_flight() {
    let mut case = constant(Plant::TouchOperand);
    // Replaces the fence between the product and its wait by a write to an operand register.
    let mut operand = None;
    case.kernel.for_each_inst(&mut |inst, _| {
        if let Inst::Wgmma(flashcore_ir::inst::WgmmaInst::Mma {
            a: flashcore_ir::inst::WgmmaA::Regs(first),
            ..
        }) = inst
        {
            operand = Some(*first);
        }
    });
    let mut fences = 0;
    case.kernel = mutate(&case.kernel, &mut |inst| {
        if matches!(inst, Inst::Wgmma(flashcore_ir::inst::WgmmaInst::Fence)) {
            fences += 1;
            if fences == 2 {
                *inst = Inst::Mov {
                    dst: operand.unwrap(),
                    src: Operand::Imm(0),
                };
            }
        }
        true
    });
    let finding = found(case, &[FindingKind::InFlight], 4);
    assert!(finding.message.starts_with("writes registers"), "{finding}");
}
