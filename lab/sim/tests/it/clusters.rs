//! Clusters: distributed shared memory, multicast, and their errors.

use crate::common;

use common::{Case, found};
use flashcore_ir::{Cache, Swizzle, TileShape};
use flashcore_sim::FindingKind;
use half::f16;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Nothing,
    NoBarrier,
    RelaxedBarrier,
    NoEndBarrier,
    NoStart,
    WrongRank,
    ArriveTwice,
    WaitWithoutArrival,
    OneBlockStays,
    LocalAddress,
    PastTheTile,
}

/// Each of four blocks passes its numbers to the next block. It adds what it received and what it
/// reads from the block after next.
fn ring(plant: Plant) -> Case {
    Case::new(64, |k| {
        k.in_clusters_of(4);
        let out = k.param_ptr_mut::<u32>("out");
        let tile = k.shared_tile::<u32>("tile", TileShape::new(2, 64));
        let (thread, rank) = (k.thread_idx(), k.cluster_rank());
        let mine = tile.at(0, thread);
        mine.store(rank * 1000 + thread);
        if plant != Plant::NoStart {
            k.cluster_arrive_relaxed();
            k.cluster_wait();
        }
        let next = (rank + 1) % 4u32;
        let to = match plant {
            Plant::WrongRank => rank + 1,
            _ => next,
        };
        let there = tile.at(1, thread).in_block(to);
        match plant {
            Plant::PastTheTile => there.plus(64).store(rank * 1000 + thread),
            _ => there.store(rank * 1000 + thread),
        }
        match plant {
            Plant::NoBarrier => k.barrier(),
            Plant::RelaxedBarrier => {
                k.cluster_arrive_relaxed();
                k.cluster_wait();
            }
            Plant::ArriveTwice => {
                k.cluster_arrive();
                k.cluster_barrier();
            }
            Plant::WaitWithoutArrival => k.cluster_wait(),
            Plant::OneBlockStays => k.if_(rank.ne(2).uniform(), || k.cluster_barrier()),
            _ => k.cluster_barrier(),
        }
        let got = tile.at(1, thread).load();
        let after_next = tile.at(0, thread).in_block((rank + 2) % 4u32).load();
        out.offset(k.block_idx(0) * 64 + thread).store(got + after_next);
        if plant != Plant::NoEndBarrier && plant != Plant::OneBlockStays {
            k.cluster_barrier();
        }
        if plant == Plant::LocalAddress {
            // The address in another block is not valid in this block.
            out.store(tile.at(0, (rank + 1) * (1 << 22)).load());
        }
    })
    .grid(8)
    .cluster(4)
    .output("out", 4 * 8 * 64)
}

#[test]
fn ring_exchange_between_blocks() {
    for seed in 0..40 {
        let mut case = ring(Plant::Nothing).seed(seed);
        case.run_clean();
        let expected: Vec<u32> = (0..512)
            .map(|i| {
                let (rank, thread) = (i / 64 % 4, i % 64);
                ((rank + 3) % 4 + (rank + 2) % 4) * 1000 + 2 * thread
            })
            .collect();
        assert_eq!(case.u32s(0), expected, "seed {seed}");
    }
}

#[test]
fn faulty_ring_exchanges() {
    use FindingKind::*;
    for (plant, kinds) in [
        (Plant::NoBarrier, &[Race][..]),
        (Plant::RelaxedBarrier, &[Race]),
        (Plant::NoEndBarrier, &[PeerLifetime]),
        (Plant::NoStart, &[PeerLifetime]),
        (Plant::WrongRank, &[OutOfBounds]),
        (Plant::ArriveTwice, &[BarrierMismatch]),
        (Plant::WaitWithoutArrival, &[BarrierMismatch]),
        (Plant::OneBlockStays, &[Race, PeerLifetime, NeverWritten]),
        (Plant::LocalAddress, &[OutOfBounds]),
        (Plant::PastTheTile, &[OutOfBounds]),
    ] {
        let finding = found(ring(plant), kinds, 6);
        assert!(
            finding.line().is_some_and(|line| line.file.ends_with("clusters.rs")),
            "{finding}"
        );
    }
}

/// A block passes a number to the other through the other's mbarrier.
fn mailbox(cluster_scope: bool) -> Case {
    Case::new(32, |k| {
        k.in_clusters_of(2);
        let out = k.param_ptr_mut::<u32>("out");
        let tile = k.shared_tile::<u32>("box", TileShape::new(1, 32));
        let bar = k.mbarriers("letters", 1).at(0);
        let (lane, rank) = (k.lane(), k.cluster_rank());
        k.if_(lane.eq(0).divergent(), || {
            bar.init(32);
            k.fence_mbarrier_init();
        });
        k.cluster_barrier();
        tile.at(0, lane).in_block(rank ^ 1).store(rank * 100 + lane);
        if cluster_scope {
            bar.in_block(rank ^ 1).arrive_cluster();
        } else {
            bar.in_block(rank ^ 1).arrive();
        }
        bar.wait_cluster(0);
        out.offset(k.block_idx(0) * 32 + lane)
            .store(tile.at(0, lane ^ 1).load());
        k.cluster_barrier();
    })
    .grid(2)
    .cluster(2)
    .output("out", 256)
}

#[test]
fn remote_stores_need_cluster_scope_arrivals() {
    for seed in 0..20 {
        let mut case = mailbox(true).seed(seed);
        case.run_clean();
        let expected: Vec<u32> = (0..64).map(|i| (1 - i / 32) * 100 + ((i % 32) ^ 1)).collect();
        assert_eq!(case.u32s(0), expected);
    }
    found(mailbox(false), &[FindingKind::MissingFence], 6);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shared {
    Nothing,
    ReleasedAtHome,
    HalfTheBytes,
    NoEndBarrier,
    WrongMask,
    NoFenceAfterReads,
}

/// Two blocks each multicast half of every tile to both, and sum its columns.
fn multicast(plant: Shared) -> Case {
    const ROWS: u32 = 16;
    const STEPS: u32 = 5;
    let values: Vec<f16> = (0..ROWS * STEPS * 64).map(|i| f16::from_f32((i % 61) as f32)).collect();
    Case::new(64, |k| {
        k.in_clusters_of(2);
        let shape = TileShape::new(ROWS, 64).swizzled(Swizzle::B128).stages(2);
        let tile = k.shared_tile::<f16>("tile", shape);
        let map = k.param_tensor_map("map", tile.tensor_box(&[ROWS / 2]));
        let out = k.param_ptr_mut::<f32>("out");
        let ring = k.pipeline("ring", 2, 1);
        let ring = if plant == Shared::ReleasedAtHome {
            ring
        } else {
            ring.across_cluster()
        };
        k.start_pipelines(&[ring]);
        let (lane, rank) = (k.lane(), k.cluster_rank());
        let warp = k.warp_idx();
        k.if_else(
            warp.eq(0).uniform(),
            || {
                let fill = ring.producer();
                k.if_(k.elect().divergent(), || {
                    k.for_uniform(0u32, STEPS, 1, |step| {
                        fill.acquire();
                        let bytes = tile.stage_bytes();
                        fill.expect(if plant == Shared::HalfTheBytes {
                            bytes / 2
                        } else {
                            bytes
                        });
                        let mask = k.constant(if plant == Shared::WrongMask { 5u16 } else { 3 });
                        let from = map.at(&[step * ROWS + rank * (ROWS / 2)]).multicast(mask);
                        tile.load_tma_part(fill.stage(), rank, from, fill.full());
                        fill.advance();
                    });
                });
            },
            || {
                let read = ring.consumer();
                let (even, odd) = (k.var(0.0f32), k.var(0.0f32));
                k.for_uniform(0u32, STEPS, 1, |_| {
                    read.wait();
                    for row in 0..ROWS {
                        let word = tile.at_stage(read.stage(), row, lane * 2).load_words(1, Cache::Default)[0];
                        let (lo, hi) = word.to_f32s();
                        even.add_assign(lo);
                        odd.add_assign(hi);
                    }
                    // All lanes have read before one arrives. The proxy fence orders the reads
                    // before the next copy.
                    if plant != Shared::NoFenceAfterReads {
                        k.fence_proxy_async();
                    }
                    k.sync_warp();
                    read.release();
                    read.advance();
                });
                let at = out.offset(k.block_idx(0) * 64 + lane * 2);
                at.store(even.get());
                at.plus(1).store(odd.get());
            },
        );
        if plant != Shared::NoEndBarrier {
            k.cluster_barrier();
        }
    })
    .grid(2)
    .cluster(2)
    .tensor("values", &values, 64, false)
    .output("out", 512)
}

#[test]
fn multicast_tiles() {
    for seed in 0..40 {
        let mut case = multicast(Shared::Nothing).seed(seed);
        case.run_clean();
        let sum = |col: u32| (0..80).map(|row| ((row * 64 + col) % 61) as f32).sum::<f32>();
        let expected: Vec<f32> = (0..128).map(|i| sum(i % 64)).collect();
        assert_eq!(case.f32s(1), expected, "seed {seed}");
    }
}

#[test]
fn faulty_multicasts() {
    use FindingKind::*;
    for (plant, kinds) in [
        // The other block's copies do not wait for this block's readers.
        (Shared::ReleasedAtHome, &[Race, MissingWait][..]),
        (Shared::HalfTheBytes, &[TransactionBytes]),
        (Shared::NoEndBarrier, &[PeerLifetime]),
        (Shared::WrongMask, &[OutOfBounds]),
        (Shared::NoFenceAfterReads, &[MissingFence]),
    ] {
        found(multicast(plant), kinds, 8);
    }
}

#[test]
fn findings_name_the_block() {
    let mut case = ring(Plant::NoBarrier);
    let report = case.run();
    let finding = report.findings.iter().find(|f| f.kind == FindingKind::Race).unwrap();
    let other = finding.other.as_ref().unwrap();
    assert_ne!(finding.actor.block, other.actor.block, "{finding}");
    assert!(finding.actor.warp < 2 && other.actor.warp < 2, "{finding}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sent {
    Nothing,
    NoProxyFence,
    NoWait,
    NoFree,
    HalfTheBytes,
    OtherMbarrier,
    NoEndBarrier,
    PastTheTile,
}

/// Two blocks send each other a row at each of five steps, through two stages, and add up what comes.
fn sent(plant: Sent) -> Case {
    const STEPS: u32 = 5;
    Case::new(32, |k| {
        k.in_clusters_of(2);
        let row = TileShape::new(1, 32).stages(2);
        let (mine, theirs) = (k.shared_tile::<u32>("mine", row), k.shared_tile::<u32>("theirs", row));
        let out = k.param_ptr_mut::<u32>("out");
        let ring = k.pipeline("ring", 2, 1).across_cluster();
        k.start_pipelines(&[ring]);
        let (lane, rank) = (k.lane(), k.cluster_rank());
        let (fill, read, sum) = (ring.producer(), ring.consumer(), k.var(0u32));
        k.for_uniform(0u32, STEPS, 1, |step| {
            if plant != Sent::NoFree {
                fill.acquire();
            }
            let stage = fill.stage();
            mine.at_stage(stage, 0, lane).store(rank * 100 + step * 10 + lane);
            if plant != Sent::NoProxyFence {
                k.fence_proxy_async();
            }
            k.sync_warp();
            k.if_(k.elect().divergent(), || {
                let announced = if plant == Sent::HalfTheBytes { 64 } else { 128 };
                fill.expect(announced);
                let other = rank ^ 1;
                let at = if plant == Sent::OtherMbarrier { rank } else { other };
                let past = i32::from(plant == Sent::PastTheTile);
                let to = theirs.at_stage(stage, 0, 0).plus(36 * past).in_block(other);
                k.bulk_send(to, mine.at_stage(stage, 0, 0), 128, fill.full().in_block(at));
            });
            fill.advance();
            if plant != Sent::NoWait {
                read.wait();
            }
            sum.set(sum + theirs.at_stage(read.stage(), 0, lane).load());
            k.fence_proxy_async();
            k.sync_warp();
            read.release();
            read.advance();
        });
        out.offset(k.block_idx(0) * 32 + lane).store(sum.get());
        if plant != Sent::NoEndBarrier {
            k.cluster_barrier();
        }
    })
    .grid(2)
    .cluster(2)
    .output("out", 256)
}

#[test]
fn rows_are_sent_to_another_block() {
    for seed in 0..40 {
        let mut case = sent(Sent::Nothing).seed(seed);
        case.run_clean();
        let expected: Vec<u32> = (0..64).map(|i| 5 * ((1 - i / 32) * 100 + i % 32) + 100).collect();
        assert_eq!(case.u32s(0), expected, "seed {seed}");
    }
}

#[test]
fn faulty_sends() {
    use FindingKind::*;
    for (plant, kinds) in [
        (Sent::NoProxyFence, &[MissingFence][..]),
        (Sent::NoWait, &[MissingWait, NeverWritten]),
        // The copy may still read the row, and the other block the one before.
        (Sent::NoFree, &[Race]),
        (Sent::HalfTheBytes, &[TransactionBytes]),
        (Sent::OtherMbarrier, &[Mbarrier]),
        (Sent::NoEndBarrier, &[PeerLifetime]),
        (Sent::PastTheTile, &[OutOfBounds]),
    ] {
        found(sent(plant), kinds, 8);
    }
}
