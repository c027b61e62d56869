//! Bulk copies of tensor boxes: strides, edges, swizzles, stores, and their errors.

use crate::common;

use common::{Case, found};
use flashcore_ir::proof::LaunchRefusal;
use flashcore_ir::{Cache, Swizzle, TileShape};
use flashcore_sim::{FindingKind, SimError, simulate};
use half::f16;

/// `count` different f16 numbers.
fn halves(count: usize) -> Vec<f16> {
    (0..count).map(|i| f16::from_bits(i as u16)).collect()
}

fn bits(bytes: &[u8]) -> Vec<u16> {
    bytes
        .chunks_exact(2)
        .map(|w| u16::from_le_bytes([w[0], w[1]]))
        .collect()
}

/// Loads one box into a tile and stores every element at its row and column, using the tile's
/// address computation.
fn load(
    shape: TileShape,
    outer: &'static [u32],
    at: &'static [i32],
    tensor: (Vec<u64>, Vec<u64>),
    len: usize,
) -> Vec<u16> {
    let (mut rows, mut cols) = (0, 0);
    let mut case = Case::new(32, |k| {
        let tile = k.shared_tile::<f16>("tile", shape);
        (rows, cols) = (tile.rows(), tile.cols());
        let map = k.param_tensor_map("map", tile.tensor_box(outer));
        let out = k.param_ptr_mut::<f16>("out");
        let bar = k.mbarriers("bar", 1).at(0);
        k.if_(k.elect().divergent(), || {
            bar.init(1);
            k.fence_mbarrier_init();
            bar.arrive_expecting(tile.stage_bytes());
            let at: Vec<_> = at.iter().map(|&x| k.constant(x as u32)).collect();
            tile.load_tma(0, map.at(&at), bar);
        });
        k.sync_warp();
        bar.wait(0);
        k.for_divergent(k.lane(), rows * cols, 32, |i| {
            let (row, col) = (i / cols, i % cols);
            out.offset(i).store(tile.at(row, col).load());
        });
    })
    .tensor_of("tensor", &halves(len), tensor.0, tensor.1, false)
    .output("out", (2 * rows * cols) as usize);
    case.run_clean();
    bits(&case.buffers[1])
}

#[test]
fn boxes_of_strided_tensors_in_every_swizzle() {
    // [batch 2][seq 20][heads 3][head_dim 64] with rows padded to 72, mapped as (head_dim, seq,
    // heads, batch).
    let strides = vec![3 * 72 * 2, 72 * 2, 20 * 3 * 72 * 2];
    let tensor = || (vec![64, 20, 3, 2], strides.clone());
    let len = 2 * 20 * 3 * 72;
    for shape in [
        TileShape::new(16, 64).swizzled(Swizzle::B128),
        TileShape::new(16, 64).swizzled(Swizzle::B64).in_slabs(),
        TileShape::new(16, 64).swizzled(Swizzle::B32).in_slabs(),
        TileShape::new(16, 64),
    ] {
        // Starts at row 12; 8 rows remain.
        let got = load(shape, &[16, 1, 1], &[12, 2, 1], tensor(), len);
        for row in 0..16 {
            for col in 0..64 {
                let there = row + 12 < 20;
                let index = ((20 + row + 12) * 3 + 2) * 72 + col;
                let expected = if there { index as u16 } else { 0 };
                assert_eq!(got[row * 64 + col], expected, "{shape:?} ({row}, {col})");
            }
        }
    }
}

#[test]
fn elements_outside_the_tensor_are_zero() {
    // 40 columns in tiles of 64, starting at row -3, two heads at once.
    let tensor = (vec![40, 10, 2], vec![96, 960]);
    let shape = TileShape::new(16, 64).swizzled(Swizzle::B128);
    let got = load(shape, &[8, 2], &[-3, 0], tensor, 2 * 480);
    for row in 0..16 {
        for col in 0..64 {
            let (head, seq) = (row / 8, row as i32 % 8 - 3);
            let there = seq >= 0 && col < 40;
            let expected = if there { head as i32 * 480 + seq * 48 + col } else { 0 };
            assert_eq!(i32::from(got[row * 64 + col as usize]), expected, "({row}, {col})");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    NoProxyFence,
    NoBarrier,
    NoWaitBeforeReuse,
    NoWaitAtEnd,
    NoCommit,
    OtherTileAddress,
    ReadBack,
}

/// Writes a tile twice and stores it to two places of a tensor of 12 rows.
fn store(plant: Plant) -> Case {
    Case::new(64, |k| {
        let shape = TileShape::new(8, 64).swizzled(Swizzle::B128).stages(2);
        let tile = k.shared_tile::<f16>("tile", shape);
        let map = k.param_tensor_map_mut("map", tile.tensor_box(&[8]));
        let out = k.param_ptr_mut::<u32>("out");
        let tensor = k.param_ptr_mut::<f16>("tensor");
        let thread = k.thread_idx();
        let store = |round: u32| {
            k.for_divergent(thread, 8 * 32, 64, |i| {
                let word = (i + 1000 * (round + 1)).to_f32().pack_f16(1.0);
                tile.at(i / 32, i % 32u32 * 2).store_words(&[word], Cache::Default);
            });
            if plant != Plant::NoProxyFence {
                k.fence_proxy_async();
            }
            if plant != Plant::NoBarrier {
                k.barrier();
            }
            k.if_(thread.eq(0).divergent(), || {
                let stage = if plant == Plant::OtherTileAddress { 2 } else { 0 };
                tile.store_tma(stage, map.at(&[k.constant(8 * round)]));
                if plant != Plant::NoCommit {
                    k.bulk_commit();
                }
                let forgotten = match plant {
                    Plant::NoWaitBeforeReuse => round == 0,
                    Plant::NoWaitAtEnd => round == 1,
                    _ => false,
                };
                if !forgotten {
                    k.bulk_wait_read(0);
                }
            });
            k.barrier();
        };
        store(0);
        store(1);
        k.if_(thread.eq(0).divergent(), || {
            if plant != Plant::ReadBack && plant != Plant::NoWaitAtEnd {
                k.bulk_wait(0);
            }
            if plant == Plant::Nothing || plant == Plant::ReadBack {
                out.store(tensor.load_words(1, Cache::Default)[0].reinterpret());
            }
        });
    })
    .tensor("tensor", &vec![f16::from_f32(7.0); 12 * 64], 64, true)
    .output("out", 4)
    .arg(flashcore_ir::Arg::Buffer {
        slot: 0,
        byte_offset: 0,
    })
}

#[test]
fn stores_write_only_inside_the_tensor() {
    for seed in 0..10 {
        let mut case = store(Plant::Nothing).seed(seed);
        case.run_clean();
        let got = bits(&case.buffers[0]);
        for row in 0..12 {
            for col in 0..64 {
                let i = row % 8 * 32 + col / 2;
                let first = f16::from_f32((i + 1000 * (row / 8 + 1)) as f32);
                let expected = if col % 2 == 0 { first } else { f16::ONE };
                assert_eq!(got[row * 64 + col], expected.to_bits(), "({row}, {col})");
            }
        }
        assert_eq!(case.u32s(1)[0] & 0xffff, u32::from(f16::from_f32(1000.0).to_bits()));
    }
}

#[test]
fn faulty_stores() {
    use FindingKind::*;
    for (plant, kind) in [
        (Plant::NoProxyFence, MissingFence),
        (Plant::NoBarrier, Race),
        (Plant::NoWaitBeforeReuse, Race),
        (Plant::NoWaitAtEnd, MissingWait),
        (Plant::NoCommit, Race),
        (Plant::OtherTileAddress, OutOfBounds),
        (Plant::ReadBack, Race),
    ] {
        let finding = found(store(plant), &[kind], 5);
        assert!(!finding.lines.is_empty(), "{finding}");
    }
}

/// Loads a tile of 96 rows of 64, with the error `plant`.
fn loads(plant: u32) -> Case {
    Case::new(64, |k| {
        let shape = TileShape::new(32, 64).swizzled(Swizzle::B128).stages(3);
        let tile = k.shared_tile::<f16>("tile", shape);
        let map = k.param_tensor_map("map", tile.tensor_box(&[16]));
        let out = k.param_ptr_mut::<f16>("out");
        let bars = k.mbarriers("bars", 2);
        let (bar, other) = (bars.at(0), bars.at(1));
        let thread = k.thread_idx();
        k.if_(thread.eq(0).divergent(), || {
            bar.init(1);
            if plant == 1 {
                bar.init(1);
            }
            other.init(1);
            k.fence_mbarrier_init();
        });
        if plant != 2 {
            k.barrier();
        }
        if plant == 3 {
            tile.at(thread / 2, 0).store(k.constant(0x3c00u16).reinterpret::<f16>());
            k.barrier();
        }
        k.if_(thread.eq(32).divergent(), || {
            bar.arrive_expecting(2 * 16 * 128);
            let part = if plant == 4 { 7 } else { 1 };
            let stage = if plant == 4 { 2 } else { 0 };
            tile.load_tma_part(0, 0, map.at(&[k.constant(0)]), bar);
            tile.load_tma_part(stage, part, map.at(&[k.constant(16)]), bar);
            if plant == 5 {
                other.arrive_expecting(16 * 128);
                tile.load_tma_part(1, 0, map.at(&[k.constant(32)]), other);
            }
            if plant == 6 {
                bar.arrive();
            }
        });
        match plant {
            5 => other.wait(0),
            7 => bar.wait(1),
            _ => bar.wait(0),
        }
        if plant == 8 {
            bar.wait(0);
        }
        out.offset(thread).store(tile.at(thread / 2, 3).load());
    })
    .tensor("tensor", &halves(96 * 64), 64, false)
    .output("out", 128)
}

#[test]
fn faulty_loads() {
    use FindingKind::*;
    for seed in 0..10 {
        let mut case = loads(0).seed(seed);
        case.run_clean();
        let got = bits(&case.buffers[1]);
        assert!((0..64).all(|thread| got[thread] == (thread / 2 * 64 + 3) as u16));
    }
    for (plant, kinds) in [
        (1, &[Mbarrier][..]),
        (2, &[Mbarrier]),
        (3, &[MissingFence]),
        (4, &[OutOfBounds]),
        (5, &[MissingWait]),
        (6, &[Mbarrier]),
        (7, &[MissingWait, NeverWritten]),
        (8, &[WrongPhase]),
    ] {
        let finding = found(loads(plant), kinds, 6);
        assert!(
            finding.line().is_some_and(|line| line.file.ends_with("bulk.rs")),
            "{finding}"
        );
    }
}

#[test]
fn mismatched_tensor_maps_are_refused() {
    let refuse = |change: fn(&mut flashcore_ir::TensorMapRecipe)| {
        let mut case = loads(0);
        let mut launch = case.launch();
        if let flashcore_ir::Arg::TensorMap(recipe) = &mut launch.args[0] {
            change(recipe);
        }
        simulate(&case.kernel, &launch, &mut case.buffers, &case.options).unwrap_err()
    };
    let boxes = refuse(|recipe| recipe.box_dims[1] = 32);
    assert!(
        matches!(boxes, SimError::Launch(LaunchRefusal::ArgumentBoxes { .. })),
        "{boxes}"
    );
    let stride = refuse(|recipe| recipe.byte_strides[0] = 120);
    assert!(matches!(stride, SimError::TensorMap { .. }), "{stride}");
    assert!(stride.to_string().contains("multiple of 16 B"), "{stride}");
    let reach = refuse(|recipe| recipe.dims[1] = 97);
    assert!(reach.to_string().contains("reaches over"), "{reach}");
}
