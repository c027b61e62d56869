//! Flags in global memory: acquire, release, and their errors.

use crate::common;

use common::{Case, found};
use flashcore_ir::KernelBuilder;
use flashcore_ir::inst::AtomOp;
use flashcore_sim::FindingKind;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Signal {
    Store,
    Sum,
    /// A sum without release.
    Relaxed,
    /// A release that is read by a plain load.
    PlainLoad,
    /// A release that is not followed by an acquire.
    NoAcquire,
}

/// One warp writes 32 numbers and signals; another waits for the signal and copies them.
fn hand_over(k: &KernelBuilder, signal: Signal, is_writer: flashcore_ir::Val<'_, bool>) {
    let data = k.param_ptr_mut::<u32>("data").offset(k.lane());
    let flag = k.param_ptr_mut::<u32>("flag");
    let out = k.param_ptr_mut::<u32>("out").offset(k.lane());
    k.if_else(
        is_writer.uniform(),
        || {
            data.store(k.lane() + 7);
            k.sync_warp();
            k.if_(k.lane().eq(0).divergent(), || match signal {
                Signal::Store | Signal::PlainLoad | Signal::NoAcquire => flag.store_release(1),
                Signal::Sum => flag.add_release(1),
                Signal::Relaxed => flag.add_relaxed(1),
            });
        },
        || {
            k.loop_(|l| {
                let value = match signal {
                    Signal::PlainLoad => flag.load(),
                    Signal::NoAcquire => flag.atomic(AtomOp::Add, 0u32),
                    Signal::Store | Signal::Sum | Signal::Relaxed => flag.load_acquire(),
                };
                l.break_if(value.eq(1).divergent());
            });
            out.store(data.load());
        },
    );
}

fn with_buffers(case: Case) -> Case {
    case.buffer("data", vec![0; 128], true)
        .buffer("flag", vec![0; 4], true)
        .output("out", 128)
}

fn between_warps(signal: Signal) -> Case {
    with_buffers(Case::new(64, |k| hand_over(k, signal, k.thread_idx().lt(32))))
}

/// One of two blocks writes, the other one reads.
fn between_blocks(signal: Signal, writer: u32) -> Case {
    with_buffers(Case::new(32, |k| hand_over(k, signal, k.block_idx(0).eq(writer)))).grid(2)
}

#[test]
fn a_release_orders_what_an_acquire_reads() {
    let expected: Vec<u32> = (7..39).collect();
    for signal in [Signal::Store, Signal::Sum] {
        for seed in 0..8 {
            let mut case = between_warps(signal).seed(seed);
            case.run_clean();
            assert_eq!(case.u32s(2), expected);
        }
        for (seed, writer) in (0..8).flat_map(|seed| [(seed, 0), (seed, 1)]) {
            let mut case = between_blocks(signal, writer).seed(seed);
            case.run_clean();
            assert_eq!(case.u32s(2), expected);
        }
    }
}

#[test]
fn missing_order_is_found() {
    for signal in [Signal::Relaxed, Signal::PlainLoad, Signal::NoAcquire] {
        found(between_warps(signal), &[FindingKind::Race], 8);
        for writer in [0, 1] {
            let finding = found(between_blocks(signal, writer), &[FindingKind::BlockRace], 8);
            let mut blocks = [finding.actor.block, finding.other.as_ref().unwrap().actor.block];
            blocks.sort_unstable();
            assert_eq!(blocks, [[0, 0, 0], [1, 0, 0]], "{finding}");
            assert!(
                finding.other_line().is_some_and(|line| line.file.ends_with("flags.rs")),
                "{finding}"
            );
        }
    }
}

#[test]
fn sums_are_added_up() {
    let mut case = Case::new(64, |k| {
        let total = k.param_ptr_mut::<f32>("total");
        total.add_relaxed(0.5);
        total.plus(1).add_release(1.0);
    })
    .grid(4)
    .buffer("total", vec![0; 8], true);
    case.run_clean();
    assert_eq!(case.f32s(0), [128.0, 256.0]);
}
