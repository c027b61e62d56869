//! A Hopper matrix product with a producer and a consumer warpgroup. It is correct and clean under
//! every schedule; each planted fault is found under every schedule.

use crate::common;

use common::{Case, found};
use flashcore_ir::{KernelBuilder, Role, Swizzle, TileShape};
use flashcore_problem::rng::Rng;
use flashcore_sim::FindingKind;
use half::f16;

/// Rows of A, columns of B.
const M: u32 = 64;
const N: u32 = 64;
/// Depth of a stage, and number of stages' worth of data.
const K: u32 = 64;
const STEPS: u32 = 5;

/// Faults to plant in the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    FewerBytes,
    MoreBytes,
    TooManyArrivers,
    NoReaderWait,
    NoAcquire,
    EarlyRelease,
    NoReaderAdvance,
    NoWgmmaFence,
    NoWgmmaWait,
    OneWarpWaits,
    NoInitFence,
    NoStart,
    StoreWithoutWait,
}

/// `out = A·Bᵀ`, A of 64 × 320, B of 64 × 320, through a ring of two stages.
fn gemm(plant: Plant) -> Case {
    let values = |seed: u64, rows: u32| -> Vec<f16> {
        let mut rng = Rng::new(seed);
        let count = rows * K * STEPS;
        (0..count).map(|_| f16::from_f32(rng.below(9) as f32 - 4.0)).collect()
    };
    let (a, b) = (values(1, M), values(2, N));
    // The tiles of successive steps are 64 columns apart: a separate dimension.
    let tensor = |rows: u32| {
        let (rows, steps, row_bytes) = (u64::from(rows), u64::from(STEPS), u64::from(2 * K * STEPS));
        (vec![u64::from(K), rows, steps], vec![row_bytes, u64::from(2 * K)])
    };
    let ((a_dims, a_strides), (b_dims, b_strides)) = (tensor(M), tensor(N));
    Case::new(256, move |k| body(k, plant))
        .tensor_of("a", &a, a_dims, a_strides, false)
        .tensor_of("b", &b, b_dims, b_strides, false)
        .output("out", (4 * M * N) as usize)
}

/// `A·Bᵀ` in f64 of row-major matrices with `depth` columns.
fn reference(a: &[f64], b: &[f64], depth: usize) -> Vec<f64> {
    let rows = |m: &[f64]| m.chunks_exact(depth).map(<[f64]>::to_vec).collect::<Vec<_>>();
    let (a, b) = (rows(a), rows(b));
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum();
    a.iter().flat_map(|x| b.iter().map(move |y| dot(x, y))).collect()
}

fn f16s(bytes: &[u8]) -> Vec<f64> {
    let words = bytes.chunks_exact(2);
    words.map(|w| f16::from_le_bytes([w[0], w[1]]).to_f64()).collect()
}

fn body(k: &KernelBuilder, plant: Plant) {
    k.min_blocks_per_sm(1);
    let shape = |rows| TileShape::new(rows, K).swizzled(Swizzle::B128).stages(2);
    let (a_tile, b_tile) = (k.shared_tile::<f16>("a", shape(M)), k.shared_tile::<f16>("b", shape(N)));
    let a_map = k.param_tensor_map("a_map", a_tile.tensor_box(&[M, 1]));
    let b_map = k.param_tensor_map("b_map", b_tile.tensor_box(&[N, 1]));
    let out = k.param_ptr_mut::<f32>("out");
    let ring = k.pipeline("ring", 2, if plant == Plant::TooManyArrivers { 5 } else { 4 });
    match plant {
        Plant::NoStart => {}
        Plant::NoInitFence => {
            let fenceless = k.mbarriers("unused", 1).at(0);
            k.if_(k.thread_idx().eq(0).divergent(), || fenceless.init(1));
            k.barrier();
            let map = a_map.at(&[k.constant(0), k.constant(0)]);
            k.if_(k.thread_idx().eq(0).divergent(), || {
                fenceless.arrive_expecting(a_tile.stage_bytes());
                a_tile.load_tma(0, map, fenceless);
                fenceless.wait(0);
            });
            k.start_pipelines(&[ring]);
        }
        _ => k.start_pipelines(&[ring]),
    }
    let fill = || {
        let fill = ring.producer();
        k.for_uniform(0u32, STEPS, 1, |step| {
            if plant != Plant::NoAcquire {
                fill.acquire();
            }
            let bytes = a_tile.stage_bytes() + b_tile.stage_bytes();
            fill.expect(match plant {
                Plant::FewerBytes => bytes / 2,
                Plant::MoreBytes => bytes + 16,
                _ => bytes,
            });
            let at = [k.constant(0), step];
            a_tile.load_tma(fill.stage(), a_map.at(&at), fill.full());
            b_tile.load_tma(fill.stage(), b_map.at(&at), fill.full());
            fill.advance();
        });
    };
    let multiply = || {
        let read = ring.consumer();
        let acc = k.acc_unwritten("acc", N / 8);
        acc.zero();
        if plant != Plant::NoWgmmaFence {
            k.wgmma_fence();
        }
        let (a, b) = (a_tile.k_major(), b_tile.k_major());
        k.for_uniform(0u32, STEPS, 1, |_| {
            match plant {
                Plant::NoReaderWait => {}
                Plant::OneWarpWaits => {
                    let warp = k.warp_idx();
                    k.if_(warp.eq(4).uniform(), || read.wait());
                }
                _ => read.wait(),
            }
            let stage = read.stage();
            k.wgmma_ss(acc, a.stage(stage), b.stage(stage), true);
            k.wgmma_commit();
            if plant == Plant::EarlyRelease {
                read.release();
            }
            if plant != Plant::NoWgmmaWait {
                k.wgmma_wait(0);
            }
            if plant != Plant::EarlyRelease {
                read.release();
            }
            if plant != Plant::NoReaderAdvance {
                read.advance();
            }
        });
        if plant == Plant::NoWgmmaWait {
            k.wgmma_wait(0);
        }
        if plant == Plant::StoreWithoutWait {
            k.wgmma_fence();
            k.wgmma_ss(acc, a, b, true);
            k.wgmma_commit();
        }
        // Accumulator layout: row 16·warp + lane/4 (+ 8), columns in pairs.
        let (thread, lane) = (k.thread_idx() - 128, k.lane());
        let row = thread / 32 * 16 + lane / 4;
        let first = out.offset(row * N + lane % 4u32 * 2);
        for j in 0..N / 8 {
            for r in 0..4 {
                let at = 8 * j + r % 2 + r / 2 * 8 * N;
                first.plus(at as i32).store(acc.var(4 * j + r).get());
            }
        }
        if plant == Plant::StoreWithoutWait {
            k.wgmma_wait(0);
        }
    };
    k.roles(vec![
        Role::new("producer", 4, || {
            let warp = k.warp_idx();
            k.if_(warp.eq(0).uniform(), || k.if_(k.elect().divergent(), fill));
        })
        .registers(40),
        Role::new("consumer", 4, multiply).registers(232),
    ]);
}

#[test]
fn pipelined_product_is_correct_and_clean() {
    let mut case = gemm(Plant::Nothing);
    let expected = reference(&f16s(&case.buffers[0]), &f16s(&case.buffers[1]), (K * STEPS) as usize);
    for seed in 0..60 {
        case.options.seed = seed;
        case.buffers[2].fill(0xcc);
        case.run_clean();
        // Small integers are exact.
        let got: Vec<f64> = case.f32s(2).into_iter().map(f64::from).collect();
        assert_eq!(got, expected, "seed {seed}");
    }
}

#[test]
fn planted_faults_are_found_under_every_schedule() {
    use FindingKind::*;
    for (plant, kinds) in [
        (Plant::FewerBytes, &[TransactionBytes][..]),
        (Plant::MoreBytes, &[TransactionBytes]),
        (Plant::TooManyArrivers, &[Deadlock]),
        (Plant::NoReaderWait, &[MissingWait, NeverWritten]),
        (Plant::OneWarpWaits, &[MissingWait]),
        // The overwritten data is in flight or being read.
        (Plant::NoAcquire, &[MissingWait, Race]),
        (Plant::EarlyRelease, &[Race]),
        (Plant::NoReaderAdvance, &[WrongPhase]),
        (Plant::NoWgmmaFence, &[MissingFence]),
        (Plant::NoWgmmaWait, &[Race]),
        (Plant::NoInitFence, &[MissingFence]),
        (Plant::NoStart, &[Mbarrier]),
        (Plant::StoreWithoutWait, &[InFlight]),
    ] {
        let finding = found(gemm(plant), kinds, 8);
        let line = finding.line().unwrap();
        assert!(line.file.ends_with("warpgroups.rs"), "{plant:?}: {finding}");
    }
}
