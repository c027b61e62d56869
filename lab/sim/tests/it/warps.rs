//! Warps: divergence, loops, exchanges, tensor cores, traces, counts, determinism.

use crate::common;

use common::Case;
use flashcore_ir::fragment::{MMA_K16N8_B, MMA_M16K16_A, MMA_M16N8_ACC_F16, MMA_M16N8_ACC_F32};
use flashcore_ir::inst::AtomOp;
use flashcore_ir::{Arg, Cache, Swizzle, TileShape};
use flashcore_problem::rng::Rng;
use flashcore_sim::Class;
use half::{bf16, f16};

#[test]
fn divergent_loops_and_nested_branches() {
    let mut case = Case::new(64, |k| {
        let output = k.param_ptr_mut::<u32>("output");
        let t = k.thread_idx();
        let sum = k.var(0u32);
        // Lane t sums 0..t without multiples of 3, and counts down if even.
        k.for_divergent(0u32, t, 1, |i| {
            k.if_else(
                (i % 3u32).eq(0).divergent(),
                || k.if_((t % 2u32).eq(0).divergent(), || sum.add_assign(1000)),
                || sum.add_assign(i),
            );
        });
        output.offset(t).store(sum.get());
    })
    .output("output", 256);
    case.run_clean();
    let expected: Vec<u32> = (0..64u32)
        .map(|t| {
            (0..t)
                .map(|i| match (i % 3, t % 2) {
                    (0, 0) => 1000,
                    (0, _) => 0,
                    _ => i,
                })
                .sum()
        })
        .collect();
    assert_eq!(case.u32s(0), expected);
}

#[test]
fn lanes_leave_a_loop_one_by_one() {
    let steps = |n: u32| {
        let (mut n, mut steps) = (n, 0);
        while n != 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        steps
    };
    let mut case = Case::new(128, |k| {
        let output = k.param_ptr_mut::<u32>("output");
        let t = k.thread_idx();
        let (n, steps) = (k.var(t + 1), k.var(0u32));
        k.loop_(|l| {
            l.break_if(n.get().eq(1).divergent());
            let odd = (n.get() & 1u32).eq(1);
            n.set(odd.select(n.get() * 3 + 1, n.get() >> 1u32));
            steps.add_assign(1);
        });
        output.offset(t).store(steps.get());
    })
    .output("output", 512);
    case.run_clean();
    let expected: Vec<u32> = (1..=128).map(steps).collect();
    assert_eq!(case.u32s(0), expected);
}

#[test]
fn exchanges() {
    let mut case = Case::new(32, |k| {
        let output = k.param_ptr_mut::<u32>("output");
        let lane = k.lane();
        let values = [
            lane.shfl_bfly(5),
            lane.shfl_down(3),
            lane.shfl_idx(lane * 7),
            lane.lt(5).ballot(),
            lane.redux_add(),
            lane.redux_max(),
            lane.lt(32).vote_all().select(1u32, 0u32),
            lane.gt(31).vote_any().select(1u32, 0u32),
            lane.to_f32().reduce_sum(32).to_u32(),
            lane.to_f32().reduce_max(4).to_u32(),
        ];
        for (i, value) in values.into_iter().enumerate() {
            output.offset(lane).plus(32 * i as i32).store(value);
        }
    })
    .output("output", 1280);
    case.run_clean();
    let got = case.u32s(0);
    let expected: [fn(u32) -> u32; 10] = [
        |l| l ^ 5,
        |l| if l + 3 < 32 { l + 3 } else { l },
        |l| l * 7 % 32,
        |_| 0b11111,
        |_| 496,
        |_| 31,
        |_| 1,
        |_| 0,
        |_| 496,
        |l| l | 3,
    ];
    for (i, expected) in expected.iter().enumerate() {
        for lane in 0..32u32 {
            assert_eq!(got[32 * i + lane as usize], expected(lane), "value {i}, lane {lane}");
        }
    }
}

/// A 16×16 matrix times a 16×8 one, with fragments loaded by `ldmatrix`.
fn product(swizzle: Swizzle, transposed: bool, a: &[f16], b: &[f16]) -> Vec<f32> {
    let mut case = Case::new(32, |k| {
        let (pa, pb) = (k.param_ptr::<f16>("a"), k.param_ptr::<f16>("b"));
        let output = k.param_ptr_mut::<f32>("output");
        let ta = k.shared_tile::<f16>("a", TileShape::new(16, 16).swizzled(swizzle));
        // B as [n][k], or transposed as [k][n].
        let (rows, cols) = if transposed { (16, 8) } else { (8, 16) };
        let tb = k.shared_tile::<f16>("b", TileShape::new(rows, cols));
        let lane = k.lane();
        let words = pa.offset(lane * 8).load_words(4, Cache::Default);
        ta.at(lane / 2, lane % 2u32 * 8).store_words(&words, Cache::Default);
        k.if_(lane.lt(16).divergent(), || {
            let words = pb.offset(lane * 8).load_words(4, Cache::Default);
            let per_row = cols / 8;
            tb.at(lane / per_row, lane % per_row * 8)
                .store_words(&words, Cache::Default);
        });
        k.sync_warp();
        // Matrices of A: rows 0–7, rows 8–15, then the next 8 columns.
        let fa = k.ldmatrix(ta.at(lane % 16u32, lane / 16 * 8), 4, false);
        let fb = if transposed {
            k.ldmatrix(tb.at(lane % 16u32, 0u32), 2, true)
        } else {
            k.ldmatrix(tb.at(lane % 8u32, lane / 8 % 2u32 * 8), 2, false)
        };
        let acc = k.acc("acc", 1);
        let a = k.a_operand::<f16>(&[fa[0], fa[1], fa[2], fa[3]]);
        let b = k.b_operand::<f16>(&[fb[0], fb[1]]);
        k.mma(acc, 0, a, b);
        for i in 0..4 {
            output.offset(lane * 4).plus(i as i32).store(acc.var(i).get());
        }
    })
    .input("a", a)
    .input("b", b)
    .output("output", 512);
    case.run_clean();
    let got = case.f32s(2);
    let mut matrix = vec![0.0; 128];
    for (lane, reg, _, row, col) in MMA_M16N8_ACC_F32.elements() {
        matrix[(8 * row + col) as usize] = got[(4 * lane + reg) as usize];
    }
    matrix
}

#[test]
fn tensor_core_products_of_small_integers_are_exact() {
    let mut rng = Rng::new(1);
    for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B128] {
        for transposed in [false, true] {
            let mut integers = |n| -> Vec<f16> { (0..n).map(|_| f16::from_f32(rng.below(17) as f32 - 8.0)).collect() };
            let (a, b) = (integers(256), integers(128));
            let got = product(swizzle, transposed, &a, &b);
            for row in 0..16 {
                for col in 0..8 {
                    let expected: f32 = (0..16)
                        .map(|k| {
                            a[16 * row + k].to_f32() * b[if transposed { 8 * k + col } else { 16 * col + k }].to_f32()
                        })
                        .sum();
                    assert_eq!(got[8 * row + col], expected, "{row}, {col}");
                }
            }
        }
    }
    // The test and the simulator use the same layouts.
    assert_eq!((MMA_M16K16_A.regs, MMA_K16N8_B.regs), (4, 2));
}

#[test]
fn all_product_types_are_exact_on_small_integers() {
    // A and B straight from memory into fragments: word `reg` of lane `lane` holds two neighbours.
    let mut rng = Rng::new(2);
    let mut integers = |n: usize| -> Vec<i32> { (0..n).map(|_| rng.below(13) as i32 - 6).collect() };
    let (a, b, c) = (integers(256), integers(128), integers(128));
    let expected: Vec<f32> = (0..128)
        .map(|i| {
            let (row, col) = (i / 8, i % 8);
            let sum: i32 = (0..16).map(|k| a[16 * row + k] * b[8 * k + col]).sum();
            (sum + c[i]) as f32
        })
        .collect();
    let words = |layout: flashcore_ir::fragment::FragmentLayout, matrix: &[i32], bits: fn(f32) -> u16| -> Vec<u32> {
        let mut words = vec![0u32; 32 * layout.regs as usize];
        for (lane, reg, element, row, col) in layout.elements() {
            let value = bits(matrix[(row * layout.cols + col) as usize] as f32);
            words[(layout.regs * lane + reg) as usize] |= u32::from(value) << (16 * element);
        }
        words
    };
    let f16_bits: fn(f32) -> u16 = |x| f16::from_f32(x).to_bits();
    let bf16_bits: fn(f32) -> u16 = |x| bf16::from_f32(x).to_bits();

    // bf16, f32 accumulators.
    let mut start = vec![0f32; 128];
    for (lane, reg, _, row, col) in MMA_M16N8_ACC_F32.elements() {
        start[(4 * lane + reg) as usize] = c[(8 * row + col) as usize] as f32;
    }
    let mut case = Case::new(32, |k| {
        let (pa, pb) = (k.param_ptr::<bf16>("a"), k.param_ptr::<bf16>("b"));
        let pc = k.param_ptr_mut::<f32>("c");
        let lane = k.lane();
        let fa = pa.offset(lane * 8).load_words(4, Cache::Default);
        let fb = pb.offset(lane * 4).load_words(2, Cache::Default);
        let acc = k.acc("acc", 1);
        let at = pc.offset(lane * 4);
        for i in 0..4 {
            acc.var(i).set(at.plus(i as i32).load());
        }
        let (a, b) = (
            k.a_operand::<bf16>(&[fa[0], fa[1], fa[2], fa[3]]),
            k.b_operand::<bf16>(&[fb[0], fb[1]]),
        );
        k.mma(acc, 0, a, b);
        for i in 0..4 {
            at.plus(i as i32).store(acc.var(i).get());
        }
    })
    .input("a", &words(MMA_M16K16_A, &a, bf16_bits))
    .input("b", &words(MMA_K16N8_B, &b, bf16_bits))
    .buffer("c", start.iter().flat_map(|x| x.to_le_bytes()).collect(), true);
    case.run_clean();
    let got = case.f32s(2);
    for (lane, reg, _, row, col) in MMA_M16N8_ACC_F32.elements() {
        assert_eq!(got[(4 * lane + reg) as usize], expected[(8 * row + col) as usize]);
    }

    // f16, f16 accumulators, from zero.
    let mut case = Case::new(32, |k| {
        let (pa, pb) = (k.param_ptr::<f16>("a"), k.param_ptr::<f16>("b"));
        let output = k.param_ptr_mut::<f32>("output");
        let lane = k.lane();
        let fa = pa.offset(lane * 8).load_words(4, Cache::Default);
        let fb = pb.offset(lane * 4).load_words(2, Cache::Default);
        let acc = k.acc_f16("acc", 1);
        let (a, b) = (
            k.a_operand::<f16>(&[fa[0], fa[1], fa[2], fa[3]]),
            k.b_operand::<f16>(&[fb[0], fb[1]]),
        );
        k.mma(acc, 0, a, b);
        for i in 0..2 {
            let (low, high) = acc.var(i).get().to_f32s();
            output.offset(lane * 4).plus(2 * i as i32).store(low);
            output.offset(lane * 4).plus(2 * i as i32 + 1).store(high);
        }
    })
    .input("a", &words(MMA_M16K16_A, &a, f16_bits))
    .input("b", &words(MMA_K16N8_B, &b, f16_bits))
    .output("output", 512);
    case.run_clean();
    let got = case.f32s(2);
    for (lane, reg, element, row, col) in MMA_M16N8_ACC_F16.elements() {
        let i = (8 * row + col) as usize;
        let without_c = expected[i] - c[i] as f32;
        assert_eq!(got[(4 * lane + 2 * reg + element) as usize], without_c);
    }
}

#[test]
fn ldmatrix_needs_a_barrier_even_for_own_rows() {
    let mut case = Case::new(32, |k| {
        let tile = k.shared_tile::<f16>("tile", TileShape::new(32, 8));
        let lane = k.lane();
        let zero = k.constant(0.0f32).pack_f16(0.0);
        tile.at(lane, 0).store_words(&[zero; 4], Cache::Default);
        let words = k.ldmatrix(tile.at(lane, 0), 4, false);
        k.trace("word", words[0]);
    });
    case.run_finding(flashcore_sim::FindingKind::Race);
}

#[test]
fn atomic_sums_do_not_depend_on_order() {
    let mut case = Case::new(64, |k| {
        let output = k.param_ptr_mut::<u32>("output");
        let counter = k.shared_tile::<f32>("counter", TileShape::new(1, 4));
        let t = k.thread_idx();
        k.if_(t.lt(4).divergent(), || counter.at(0, t).store(0.0));
        k.barrier();
        counter.at(0, t % 4u32).reduce_add(1.0);
        k.barrier();
        k.if_(t.lt(4).divergent(), || {
            output.offset(t).reduce_add(counter.at(0, t).load().to_u32());
        });
    })
    .grid(100)
    .buffer("output", vec![0; 16], true);
    case.run_clean();
    assert_eq!(case.u32s(0), [1600; 4]);

    // With returned old values: tickets, each used once.
    let mut case = Case::new(32, |k| {
        let next = k.param_ptr_mut::<u32>("next");
        let output = k.param_ptr_mut::<u32>("output");
        let ticket = next.atomic(AtomOp::Add, 1u32);
        output.offset(ticket).store(k.block_idx(0));
    })
    .grid(8)
    .buffer("next", vec![0; 4], true)
    .output("output", 1024);
    case.run_clean();
    assert_eq!(case.u32s(0), [256]);
    let mut blocks = case.u32s(1);
    assert!(!blocks.is_sorted(), "blocks take turns");
    blocks.sort_unstable();
    assert_eq!(blocks, (0..256).map(|i| i / 32).collect::<Vec<_>>());
}

#[test]
fn results_do_not_depend_on_host_threads() {
    let run = |threads: usize| {
        let mut case = Case::new(64, |k| {
            let sums = k.param_ptr_mut::<f32>("sums");
            let clash = k.param_ptr_mut::<u32>("clash");
            let t = k.thread_idx();
            sums.offset(t % 4u32)
                .reduce_add((k.block_idx(0) * 64 + t).to_f32() * 0.1);
            clash.offset(t).store(k.block_idx(0));
        })
        .grid(150)
        .buffer("sums", vec![0; 16], true)
        .output("clash", 256);
        case.options.host_threads = threads;
        let report = case.run();
        (case.buffers, common::all(&report))
    };
    assert_eq!(run(1), run(2));
}

#[test]
fn traces_and_counts() {
    let mut case = Case::new(64, |k| {
        let scale = k.param::<f32>("scale");
        let t = k.thread_idx();
        let x = t.to_f32() * scale;
        k.if_(t.lt(40).divergent(), || k.trace("x", x));
    })
    .arg(Arg::F32(0.5));
    case.options.trace = true;
    let report = case.run_clean();
    assert_eq!(report.traces.len(), 2);
    let mut second = report.traces.iter().filter(|t| t.warp == 1);
    let second = second.next().unwrap();
    assert_eq!((second.label.as_str(), second.lanes), ("x", 0xff));
    assert_eq!(second.f32(7), Some(19.5));
    assert_eq!(second.f32(8), None);
    assert_eq!(report.counts.get(Class::Fma).warps, 2);
    assert_eq!(report.counts.get(Class::Fma).lanes, 64);
    assert_eq!(report.counts.get(Class::Convert).lanes, 64);
    assert_eq!(report.counts.get(Class::Tensor).lanes, 0);
}

#[test]
fn bank_conflicts_are_counted_by_line() {
    let run = |pad: u32| {
        let mut case = Case::new(32, |k| {
            let tile = k.shared_tile::<f32>("tile", TileShape::new(32, 32).padded(pad));
            let lane = k.lane();
            for row in 0..32 {
                tile.at(k.constant(row), lane).store(0.0);
            }
            k.sync_warp();
            k.trace("column", tile.at(lane, 3).load());
        });
        case.options.memory_counts = true;
        let report = case.run_clean();
        report
            .memory
            .iter()
            .find(|m| m.class == Class::LoadShared)
            .unwrap()
            .transactions
    };
    assert_eq!((run(0), run(1)), (32, 1));
}

#[test]
fn bank_conflicts_of_asynchronous_copies() {
    // Eight lanes that fill whole sectors (along rows) land in one pass; down a column each lane
    // needs a pass.
    let run = |along_rows: bool| {
        let mut case = Case::new(32, |k| {
            let input = k.param_ptr::<f32>("input");
            let tile = k.shared_tile::<f32>("tile", TileShape::new(32, 32).swizzled(Swizzle::B128));
            let lane = k.lane();
            let place = if along_rows {
                tile.at(lane / 8, lane % 8 * 4u32)
            } else {
                tile.at(lane, 4)
            };
            k.cp_async(place, input.offset(lane * 4), None);
            k.cp_async_commit();
            k.cp_async_wait(0);
        })
        .input("input", &[0f32; 128]);
        case.options.memory_counts = true;
        let report = case.run_clean();
        let landing = report.memory.iter().find(|m| m.class == Class::StoreShared).unwrap();
        (landing.requests, landing.transactions, landing.ideal)
    };
    assert_eq!(run(false), (1, 32, 4));
    assert_eq!(run(true), (1, 4, 4));
}
