//! Bulk copies of bytes, sums into global memory, and their errors.

use crate::common;

use common::{Case, found};
use flashcore_ir::TileShape;
use flashcore_sim::FindingKind;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    NoLoadWait,
    NoProxyFence,
    NoEndWait,
    OddBytes,
    PastTheEnd,
}

/// Each block copies a row of 64 numbers to shared memory, from there to its row of `copy`, doubles
/// it, and adds it to `sum`.
fn copy_and_add(plant: Plant) -> Case {
    let row: Vec<f32> = (0..64u8).map(f32::from).collect();
    let sum: Vec<u8> = [0.5f32; 64].iter().flat_map(|x| x.to_le_bytes()).collect();
    Case::new(32, |k| {
        let row = k.shared_tile::<f32>("row", TileShape::new(1, 64));
        let from = k.param_ptr::<f32>("from");
        let copy = k.param_ptr_mut::<f32>("copy").offset(k.block_idx(0) * 64);
        let sum = k.param_ptr_mut::<f32>("sum");
        let bytes = k.param::<u32>("bytes");
        let full = k.mbarriers("full", 1).at(0);
        let elected = k.elect();
        k.if_(elected.divergent(), || {
            full.init(1);
            k.fence_mbarrier_init();
            full.arrive_expecting(256);
            k.bulk_load(row.at(0, 0), from, 256, full);
        });
        k.sync_warp();
        if plant != Plant::NoLoadWait {
            full.wait(0);
        }
        k.if_(elected.divergent(), || {
            k.bulk_store(copy, row.at(0, 0), bytes);
            k.bulk_commit();
            k.bulk_wait_read(0);
        });
        k.sync_warp();
        for i in [0, 32] {
            let at = row.at(0, k.lane() + i);
            at.store(at.load() * 2.0);
        }
        if plant != Plant::NoProxyFence {
            k.fence_proxy_async();
        }
        k.sync_warp();
        k.if_(elected.divergent(), || {
            let past = i32::from(plant == Plant::PastTheEnd);
            k.bulk_add(sum.plus(4 * past), row.at(0, 0), 256);
            k.bulk_commit();
            if plant != Plant::NoEndWait {
                k.bulk_wait(0);
            }
        });
    })
    .grid(3)
    .input("from", &row)
    .output("copy", 3 * 256)
    .buffer("sum", sum, true)
    .arg(flashcore_ir::Arg::U32(if plant == Plant::OddBytes { 40 } else { 256 }))
}

#[test]
fn bytes_are_copied_and_added() {
    let mut case = copy_and_add(Plant::Nothing);
    case.run_clean();
    for (i, value) in case.f32s(1).into_iter().enumerate() {
        assert_eq!(value, (i % 64) as f32);
    }
    for (i, value) in case.f32s(2).into_iter().enumerate() {
        assert_eq!(value, 0.5 + 3.0 * 2.0 * i as f32);
    }
}

#[test]
fn planted_errors_are_found() {
    for (plant, kind) in [
        (Plant::NoLoadWait, FindingKind::MissingWait),
        (Plant::NoProxyFence, FindingKind::MissingFence),
        (Plant::NoEndWait, FindingKind::MissingWait),
        (Plant::OddBytes, FindingKind::Misaligned),
        (Plant::PastTheEnd, FindingKind::OutOfBounds),
    ] {
        found(copy_and_add(plant), &[kind], 4);
    }
}
