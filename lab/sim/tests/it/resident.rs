//! Blocks that communicate through global memory: what they compute, and their errors.

use crate::common;

use common::{Case, found};
use flashcore_ir::inst::{AtomOp, Scope};
use flashcore_ir::{Chip, GlobalPtr, KernelBuilder, Target, TileShape, Val};
use flashcore_sim::FindingKind;

/// A chip that holds two blocks of 1,024 threads.
const SMALL: Chip = Chip {
    target: Target::Sm90a,
    sms: 1,
};

fn wait_for<'k>(k: &'k KernelBuilder, condition: impl Fn() -> Val<'k, bool>) {
    k.loop_(|l| l.break_if(condition().divergent()));
}

fn leads(k: &KernelBuilder) -> Val<'_, bool> {
    k.thread_idx().eq(0)
}

/// Each of two blocks waits for the other's flag. `in_order`: one sets its flag first.
fn two_waits(in_order: bool) -> Case {
    Case::new(64, |k| {
        let flags = k.param_ptr_mut::<u32>("flags");
        k.if_(leads(k).divergent(), || {
            k.if_else(
                k.block_idx(0).eq(0).uniform(),
                || {
                    wait_for(k, || flags.plus(1).load_acquire().eq(1));
                    flags.store_release(1);
                },
                || {
                    if in_order {
                        flags.plus(1).store_release(1);
                    }
                    wait_for(k, || flags.load_acquire().eq(1));
                    flags.plus(1).store_release(1);
                },
            );
        });
        k.barrier();
    })
    .grid(2)
    .buffer("flags", vec![0; 8], true)
}

#[test]
fn blocks_that_wait_for_each_other_are_a_deadlock() {
    for seed in 0..20 {
        two_waits(true).seed(seed).run_clean();
        let finding = two_waits(false).seed(seed).run_finding(FindingKind::Deadlock);
        let (line, other) = (finding.line().unwrap(), finding.other_line().unwrap());
        assert!(
            line.file.ends_with("resident.rs") && line.line != other.line,
            "{finding}"
        );
        let [one, two] = [finding.actor, finding.other.as_ref().unwrap().actor].map(|actor| actor.block);
        assert_ne!(one, two, "{finding}");
        for part in [
            "warp 0 of block (0, 0, 0) waits for bytes 4..8 of `flags`",
            "warp 0 of block (1, 0, 0) waits for bytes 0..4 of `flags`",
            &format!("resident.rs:{}", line.line),
            &format!("resident.rs:{}", other.line),
        ] {
            assert!(finding.message.contains(part), "{part}: {finding}");
        }
        assert!(!finding.message.contains("started"), "{finding}");
    }
}

/// Blocks add a number each to a sum, one after another, from the first or from the last one on.
fn chain(blocks: u32, is_reversed: bool) -> Case {
    let mut case = Case::new(1024, |k| {
        let (turn, sum) = (k.param_ptr_mut::<u32>("turn"), k.param_ptr_mut::<f32>("sum"));
        let mine = if is_reversed {
            k.constant(blocks - 1) - k.block_idx(0)
        } else {
            k.block_idx(0)
        };
        k.if_(leads(k).divergent(), || {
            wait_for(k, || turn.load_acquire().eq(mine));
            sum.store(sum.load() + (mine + 1).to_f32().recip());
            turn.store_release(mine + 1);
        });
    })
    .grid(blocks)
    .buffer("turn", vec![0; 4], true)
    .buffer("sum", vec![0; 4], true);
    case.options.chip = SMALL;
    case
}

#[test]
fn a_chain_of_blocks_needs_its_predecessors() {
    let expected = (0..9).fold(0f32, |sum, i| sum + 1.0 / (i + 1) as f32);
    for seed in 0..10 {
        let mut case = chain(9, false).seed(seed);
        case.run_clean();
        assert_eq!((case.u32s(0), case.f32s(1)), (vec![9], vec![expected]));
        // All blocks of the reversed chain fit a larger chip.
        let mut case = chain(9, true).seed(seed);
        case.options.chip.sms = 5;
        case.run_clean();
        assert_eq!(case.f32s(1), [expected]);
        let finding = chain(9, true).seed(seed).run_finding(FindingKind::Deadlock);
        for part in [
            "block (0, 0, 0) waits for",
            "block (1, 0, 0) waits for",
            "block (2, 0, 0) and others have not started: 1 SMs of sm_90a hold 2 blocks",
        ] {
            assert!(finding.message.contains(part), "{part}: {finding}");
        }
    }
    let mut shuffled = chain(9, false);
    shuffled.options.shuffle_blocks = true;
    shuffled.run_finding(FindingKind::Deadlock);
    let mut part = chain(9, true);
    part.options.first_blocks = Some(2);
    let finding = part.run_finding(FindingKind::Deadlock);
    assert!(
        finding.message.contains("7 blocks of the launch are not simulated"),
        "{finding}"
    );
}

#[test]
fn a_warp_at_a_barrier_behind_a_flag_is_no_finding_of_its_own() {
    let mut case = Case::new(64, |k| {
        let flag = k.param_ptr_mut::<u32>("flag");
        k.if_(leads(k).divergent(), || wait_for(k, || flag.load_acquire().eq(1)));
        k.barrier();
    })
    .grid(3)
    .buffer("flag", vec![0; 4], true);
    let finding = case.run_finding(FindingKind::Deadlock);
    assert_eq!(
        finding.message.matches("waits for bytes 0..4 of `flag`").count(),
        3,
        "{finding}"
    );
}

#[test]
fn a_loop_that_gives_up_is_not_a_deadlock() {
    let mut case = Case::new(32, |k| {
        let (flag, tries) = (k.param_ptr_mut::<u32>("flag"), k.param_ptr_mut::<u32>("tries"));
        let tried = k.var(0u32);
        wait_for(k, || {
            tried.add_assign(1u32);
            flag.load_acquire().eq(1) | tried.get().eq(500)
        });
        tries.offset(k.block_idx(0) * 32 + k.lane()).store(tried.get());
    })
    .grid(2)
    .buffer("flag", vec![0; 4], true)
    .output("tries", 256);
    case.run_clean();
    assert_eq!(case.u32s(1), [500; 64]);
}

#[test]
fn a_waiting_loop_may_look_at_other_memory() {
    // The first block's second warp waits for a flag that changes, or a word of shared memory.
    let mut case = Case::new(64, |k| {
        let flag = k.param_ptr_mut::<u32>("flag");
        let stop = k.shared_tile::<u32>("stop", TileShape::new(1, 1)).at(0, 0);
        k.if_(leads(k).divergent(), || stop.store(0u32));
        k.barrier();
        k.if_else(
            k.thread_idx().lt(32).uniform(),
            || {
                wait_for(k, || (k.block_idx(0).eq(0)) | flag.plus(1).load_acquire().eq(1));
                k.if_(k.lane().eq(0).divergent(), || stop.reduce_add(1u32));
            },
            || {
                wait_for(k, || {
                    let stopped = stop.atomic(AtomOp::Add, 0u32);
                    flag.load_acquire().eq(1) | stopped.eq(1)
                });
                flag.plus(1).store_release(1);
            },
        );
    })
    .grid(2)
    .buffer("flag", vec![0; 8], true);
    for seed in 0..20 {
        case.options.seed = seed;
        case.buffers[0] = vec![0; 8];
        case.run_clean();
    }
}

/// Blocks add to words with a lock around plain accesses; `fences` around the critical section.
fn locked(fences: [bool; 2]) -> Case {
    Case::new(32, |k| {
        let (lock, count) = (k.param_ptr_mut::<u32>("lock"), k.param_ptr_mut::<u32>("count"));
        let fence = |there: bool| {
            if there {
                k.fence(Scope::Device);
            }
        };
        k.if_(leads(k).divergent(), || {
            wait_for(k, || lock.atomic(AtomOp::Exch, 1u32).eq(0));
            fence(fences[0]);
            count.store(count.load() + 1u32);
            fence(fences[1]);
            lock.reduce_add(u32::MAX);
        });
    })
    .grid(12)
    .buffer("lock", vec![0; 4], true)
    .buffer("count", vec![0; 4], true)
}

#[test]
fn a_lock_needs_both_fences() {
    for seed in 0..10 {
        let mut case = locked([true; 2]).seed(seed);
        case.run_clean();
        assert_eq!((case.u32s(0), case.u32s(1)), (vec![0], vec![12]));
    }
    found(locked([false, true]), &[FindingKind::BlockRace], 10);
    found(locked([true, false]), &[FindingKind::BlockRace], 10);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Combine {
    Correct,
    NoFirstFence,
    NoSecondFence,
    NoWarpSync,
}

/// The thread's number of a block's row.
fn row<'k>(rows: GlobalPtr<'k, f32>, block: Val<'k, u32>, k: &'k KernelBuilder) -> GlobalPtr<'k, f32> {
    rows.offset(block * 32 + k.lane())
}

/// Each block stores a row of 32 numbers; the last one adds up all rows.
fn combine(plant: Combine) -> Case {
    const BLOCKS: u32 = 10;
    Case::new(32, |k| {
        let (rows, count) = (k.param_ptr_mut::<f32>("rows"), k.param_ptr_mut::<u32>("count"));
        let out = k.param_ptr_mut::<f32>("out").offset(k.lane());
        row(rows, k.block_idx(0), k).store((k.block_idx(0) * 100 + k.lane()).to_f32());
        if plant != Combine::NoWarpSync {
            k.sync_warp();
        }
        let ticket = k.var(0u32);
        k.if_(leads(k).divergent(), || {
            if plant != Combine::NoFirstFence {
                k.fence(Scope::Device);
            }
            ticket.set(count.atomic(AtomOp::Add, 1u32));
            if plant != Combine::NoSecondFence {
                k.fence(Scope::Device);
            }
        });
        k.sync_warp();
        k.if_(ticket.get().shfl_idx(0u32).eq(BLOCKS - 1).uniform(), || {
            let sum = k.var(0f32);
            k.for_uniform(0u32, BLOCKS, 1, |block| sum.add_assign(row(rows, block, k).load()));
            out.store(sum.get());
            // For the next launch.
            k.if_(leads(k).divergent(), || count.store(0u32));
        });
    })
    .grid(BLOCKS)
    .output("rows", 10 * 128)
    .buffer("count", vec![0; 4], true)
    .output("out", 128)
}

#[test]
fn the_last_block_combines() {
    for seed in 0..20 {
        let mut case = combine(Combine::Correct).seed(seed);
        case.run_clean();
        let expected: Vec<f32> = (0..32).map(|lane| (4500 + 10 * lane) as f32).collect();
        assert_eq!((case.u32s(1), case.f32s(2)), (vec![0], expected));
    }
    for plant in [Combine::NoFirstFence, Combine::NoSecondFence, Combine::NoWarpSync] {
        let finding = found(combine(plant), &[FindingKind::BlockRace], 20);
        let blocks = [finding.actor.block, finding.other.as_ref().unwrap().actor.block];
        assert!(blocks[0] != blocks[1] && finding.bytes.is_some(), "{finding}");
        assert!(finding.message.contains("of `rows`"), "{finding}");
        assert_ne!(finding.line(), finding.other_line(), "{finding}");
    }
}

#[test]
fn sums_depend_on_the_schedule_only_in_their_last_bits() {
    // Without communication, and with a block that reads what the others have added.
    for reads in [false, true] {
        let run = |seed: u64| {
            let mut case = Case::new(32, |k| {
                let (floats, whole) = (k.param_ptr_mut::<f32>("floats"), k.param_ptr_mut::<u32>("whole"));
                let number = k.block_idx(0) * 32 + k.lane() + 1;
                floats.offset(k.lane()).reduce_add(number.to_f32().recip());
                whole.offset(k.lane()).reduce_add(number * 77_777);
                if reads {
                    k.trace("sum", whole.plus(32).load_acquire());
                }
            })
            .grid(40)
            .buffer("floats", vec![0; 128], true)
            .buffer("whole", vec![0; 256], true)
            .seed(seed);
            case.run_clean();
            (case.f32s(0), case.u32s(1))
        };
        let (floats, whole) = run(0);
        let others: Vec<_> = (1..5).map(run).collect();
        assert!(others.iter().all(|other| other.1 == whole), "integers, reads: {reads}");
        assert!(others.iter().any(|other| other.0 != floats), "f32, reads: {reads}");
        for other in &others {
            assert!(
                other.0.iter().zip(&floats).all(|(a, b)| (a - b).abs() < 1e-6),
                "reads: {reads}"
            );
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Sums {
    Correct,
    NoWait,
    OnlyReadWait,
    WaitAfterRelease,
    NoAcquire,
}

/// Blocks add a row to a sum in bulk; the first one waits for all and copies the sum.
fn bulk_sums(plant: Sums) -> Case {
    const BLOCKS: u32 = 6;
    Case::new(32, |k| {
        let tile = k.shared_tile::<f32>("row", TileShape::new(1, 32));
        let (sum, count) = (k.param_ptr_mut::<f32>("sum"), k.param_ptr_mut::<u32>("count"));
        let out = k.param_ptr_mut::<f32>("out").offset(k.lane());
        tile.at(0, k.lane()).store((k.block_idx(0) + k.lane()).to_f32());
        k.fence_proxy_async();
        k.sync_warp();
        k.if_(leads(k).divergent(), || {
            k.bulk_add(sum, tile.at(0, 0), 128u32);
            k.bulk_add(sum, tile.at(0, 0), 128u32);
            k.bulk_commit();
            let wait = || match plant {
                Sums::NoWait => {}
                Sums::OnlyReadWait => k.bulk_wait_read(0),
                _ => k.bulk_wait(0),
            };
            if plant != Sums::WaitAfterRelease {
                wait();
            }
            count.add_release(1);
            // The block may not end before its row has been read.
            match plant {
                Sums::WaitAfterRelease => wait(),
                _ => k.bulk_wait_read(0),
            }
        });
        k.if_(k.block_idx(0).eq(0).uniform(), || {
            wait_for(k, || match plant {
                Sums::NoAcquire => count.atomic(AtomOp::Max, 0u32).eq(BLOCKS),
                _ => count.load_acquire().eq(BLOCKS),
            });
            out.store(sum.offset(k.lane()).load());
        });
    })
    .grid(BLOCKS)
    .buffer("sum", vec![0; 128], true)
    .buffer("count", vec![0; 4], true)
    .output("out", 128)
}

#[test]
fn bulk_sums_are_complete_after_their_wait() {
    for seed in 0..20 {
        let mut case = bulk_sums(Sums::Correct).seed(seed);
        case.run_clean();
        let expected: Vec<f32> = (0..32).map(|lane| (30 + 12 * lane) as f32).collect();
        assert_eq!((case.f32s(0), case.f32s(2)), (expected.clone(), expected));
    }
    for plant in [
        Sums::NoWait,
        Sums::OnlyReadWait,
        Sums::WaitAfterRelease,
        Sums::NoAcquire,
    ] {
        // The last sum may be that of the block that reads.
        let finding = found(bulk_sums(plant), &[FindingKind::BlockRace, FindingKind::Race], 20);
        assert!(finding.message.contains("of `sum`"), "{plant:?}: {finding}");
    }
}

#[test]
fn every_unordered_block_is_found() {
    // Of six blocks that add with atomics or read, one does not signal; the last write or read of a
    // word is mostly another one's.
    for reads in [false, true] {
        let case = |forgets: u32| {
            Case::new(32, |k| {
                let (data, count) = (k.param_ptr_mut::<u32>("data"), k.param_ptr_mut::<u32>("count"));
                let word = data.offset(k.lane());
                let block = k.block_idx(0);
                k.if_(block.ne(0).uniform(), || {
                    if reads {
                        k.trace("word", word.load())
                    } else {
                        word.reduce_add(1u32)
                    }
                    k.sync_warp();
                    k.if_((leads(k) & block.ne(forgets)).divergent(), || count.add_release(1));
                    k.if_((leads(k) & block.eq(forgets)).divergent(), || count.add_relaxed(1));
                });
                k.if_(block.eq(0).uniform(), || {
                    wait_for(k, || count.load_acquire().eq(5));
                    word.store(7u32);
                });
            })
            .grid(6)
            .buffer("data", vec![0; 128], true)
            .buffer("count", vec![0; 4], true)
        };
        for seed in 0..5 {
            case(9).seed(seed).run_clean();
        }
        for forgets in 1..6 {
            let finding = found(case(forgets), &[FindingKind::BlockRace], 5);
            let other = finding.other.unwrap().actor.block;
            assert_eq!(other, [forgets, 0, 0], "reads: {reads}");
        }
    }
}
