//! Other Hopper features: setmaxnreg, elect, stmatrix, plain mbarriers, traps, dependent launches.

use crate::common;

use common::{Case, found};
use flashcore_ir::inst::{AtomOp, Inst};
use flashcore_ir::{Cache, Node, Role, TileShape};
use flashcore_sim::FindingKind;
use half::f16;

#[test]
fn elect_gives_one_lane_that_depends_on_the_seed() {
    let mut lanes = Vec::new();
    for seed in 0..40 {
        let mut case = Case::new(64, |k| {
            let out = k.param_ptr_mut::<u32>("out");
            for round in 0..2 {
                k.if_(k.elect().divergent(), || {
                    out.offset(k.thread_idx() / 32).plus(2 * round).store(k.lane());
                });
            }
        })
        .output("out", 16)
        .seed(seed);
        case.run_clean();
        let got = case.u32s(0);
        assert_eq!(got[..2], got[2..], "the same each time");
        lanes.push(got[0]);
    }
    lanes.sort_unstable();
    lanes.dedup();
    assert!(lanes.len() > 10 && lanes.iter().all(|&lane| lane < 32), "{lanes:?}");
}

/// Stores matrices to shared memory in the layout that `ldmatrix` reads.
#[test]
fn stmatrix_inverts_ldmatrix() {
    let values: Vec<f16> = (0..16 * 16).map(|i| f16::from_bits(i as u16)).collect();
    for (load_transposed, store_transposed) in [(false, false), (true, true), (true, false)] {
        let mut case = Case::new(32, |k| {
            let input = k.param_ptr::<f16>("input");
            let out = k.param_ptr_mut::<f16>("out");
            let (from, to) = (
                k.shared_tile::<f16>("from", TileShape::new(16, 16)),
                k.shared_tile::<f16>("to", TileShape::new(16, 16)),
            );
            let lane = k.lane();
            let words = input.offset(lane * 8).load_words(4, Cache::Default);
            from.at(lane / 2, lane % 2u32 * 8).store_words(&words, Cache::Default);
            k.sync_warp();
            let (row, col) = (lane % 16u32, lane / 16 * 8);
            let words = k.ldmatrix(from.at(row, col), 4, load_transposed);
            k.stmatrix(to.at(row, col), &words, store_transposed);
            k.sync_warp();
            for i in 0..8 {
                out.offset(lane * 8)
                    .plus(i)
                    .store(to.at(lane / 2, lane % 2u32 * 8).plus(i).load());
            }
        })
        .input("input", &values)
        .output("out", 512);
        case.run_clean();
        for row in 0..16 {
            for col in 0..16 {
                let i = 2 * (row * 16 + col);
                let got = u16::from_le_bytes([case.buffers[1][i], case.buffers[1][i + 1]]);
                // Each 8×8 matrix is transposed separately.
                let (r, c) = if load_transposed == store_transposed {
                    (row, col)
                } else {
                    (row / 8 * 8 + col % 8, col / 8 * 8 + row % 8)
                };
                assert_eq!(usize::from(got), r * 16 + c);
            }
        }
    }
}

/// Two warps exchange a number through mbarriers for `rounds` rounds.
fn ping_pong(arrivals: u32, parity_off: bool, rounds: u32) -> Case {
    Case::new(64, move |k| {
        let out = k.param_ptr_mut::<u32>("out");
        let tile = k.shared_tile::<u32>("ball", TileShape::new(1, 32));
        let bars = k.mbarriers("bars", 2);
        let thread = k.thread_idx();
        k.if_(thread.eq(0).divergent(), || {
            bars.at(0).init(arrivals);
            bars.at(1).init(32);
        });
        k.barrier();
        let ball = tile.at(0, k.lane());
        k.if_else(
            thread.lt(32).uniform(),
            || {
                ball.store(0);
                k.for_uniform(0u32, rounds, 1, |round| {
                    bars.at(0).arrive();
                    bars.at(1).wait(round & 1);
                    ball.store(ball.load() + 1);
                });
                out.offset(k.lane()).store(ball.load());
            },
            || {
                k.for_uniform(0u32, rounds, 1, |round| {
                    bars.at(0).wait(if parity_off { k.constant(0) } else { round & 1 });
                    ball.store(ball.load() * 2);
                    bars.at(1).arrive();
                });
            },
        );
    })
    .output("out", 128)
}

#[test]
fn mbarriers_order_accesses_before_an_arrival() {
    for seed in 0..40 {
        let mut case = ping_pong(32, false, 6).seed(seed);
        case.run_clean();
        assert_eq!(case.u32s(0), [63; 32]);
    }
    let too_many = found(ping_pong(33, false, 6), &[FindingKind::Deadlock], 5);
    assert!(
        too_many.message.contains("`bars`[0]") && too_many.message.contains("32 of 33 arrivals"),
        "{too_many}"
    );
    found(ping_pong(31, false, 6), &[FindingKind::Mbarrier, FindingKind::Race], 5);
    found(ping_pong(32, true, 6), &[FindingKind::WrongPhase, FindingKind::Race], 5);
}

/// Two warpgroups that redistribute registers; `change` modifies the settings.
fn registers(change: fn(u32, bool) -> (u32, bool)) -> Case {
    let mut case = Case::new(384, |k| {
        k.min_blocks_per_sm(1);
        let out = k.param_ptr_mut::<u32>("out");
        k.roles(vec![
            Role::new("producer", 4, || {}).registers(24),
            Role::new("consumer", 8, || out.offset(k.thread_idx()).store(1)).registers(240),
        ]);
    })
    .output("out", 4 * 384);
    fn walk(nodes: &[Node], change: fn(u32, bool) -> (u32, bool)) -> Vec<Node> {
        let mut nodes = nodes.to_vec();
        for node in &mut nodes {
            match node {
                Node::Inst {
                    inst: Inst::SetMaxRegs { regs, raise },
                    ..
                } => (*regs, *raise) = change(*regs, *raise),
                Node::If { then, otherwise, .. } => {
                    *then = walk(then, change);
                    *otherwise = walk(otherwise, change);
                }
                _ => {}
            }
        }
        nodes
    }
    case.kernel = case.kernel.with_body(walk(case.kernel.body(), change));
    case
}

#[test]
fn setmaxnreg_takes_from_the_pool() {
    for seed in 0..10 {
        registers(|regs, raise| (regs, raise)).seed(seed).run_clean();
    }
    // The producer keeps 40, so the pool has too few for the consumers.
    let stuck = found(
        registers(|regs, raise| (if raise { regs } else { 40 }, raise)),
        &[FindingKind::Deadlock],
        4,
    );
    assert!(
        stuck.message.contains("registers, of which the block's pool has"),
        "{stuck}"
    );
    let upside_down = |regs, raise| (if raise { 160 } else { regs }, raise);
    found(registers(upside_down), &[FindingKind::Registers], 4);
}

#[test]
fn setmaxnreg_must_be_uniform_in_a_warpgroup() {
    let case = Case::new(128, |k| {
        k.min_blocks_per_sm(1);
        let warp = k.warp_idx();
        // Only half of a warpgroup. (Roles would not build.)
        k.if_(warp.lt(2).uniform(), || {
            k.roles(vec![Role::new("all", 4, || {}).registers(24)]);
        });
    });
    found(case, &[FindingKind::Registers], 4);
}

#[test]
fn traps_are_findings_and_scheduling_fences_are_not() {
    let case = |bad: bool| {
        Case::new(32, move |k| {
            let out = k.param_ptr_mut::<u32>("out").offset(k.lane());
            out.store(1);
            k.scheduling_fence();
            k.trap_if(k.lane().eq(if bad { 7 } else { 40 }));
        })
        .output("out", 128)
    };
    case(false).run_clean();
    let finding = found(case(true), &[FindingKind::Trap], 2);
    assert_eq!(finding.actor.lanes, 1 << 7);
}

#[test]
fn accesses_before_griddepcontrol_wait() {
    let case = |early: bool, told: bool| {
        Case::new(64, move |k| {
            let input = k.param_ptr::<u32>("input").offset(k.thread_idx());
            let out = k.param_ptr_mut::<u32>("out").offset(k.thread_idx());
            if early {
                out.store(input.load());
            }
            // One warp waits; a barrier informs the other.
            k.if_(k.thread_idx().lt(32).uniform(), || k.dependency_wait());
            if told {
                k.barrier();
            }
            out.store(input.load() + 1);
            k.dependency_trigger();
        })
        .input("input", &[5u32; 64])
        .output("out", 256)
    };
    for seed in 0..10 {
        let mut good = case(false, true).seed(seed);
        good.run_clean();
        assert_eq!(good.u32s(1), [6; 64]);
    }
    found(case(true, true), &[FindingKind::BeforeDependency], 4);
    let untold = found(case(false, false), &[FindingKind::BeforeDependency], 4);
    assert_eq!(untold.actor.warp, 1);
}

/// Each kind of access, before the wait.
#[test]
fn every_access_before_griddepcontrol_wait_is_found() {
    let case = |access: usize| {
        Case::new(32, move |k| {
            let out = k.param_ptr_mut::<u32>("out").offset(k.lane());
            let tile = k.shared_tile::<u32>("tile", TileShape::new(1, 128));
            match access {
                0 => out.reduce_add(1u32),
                1 => out.store(out.atomic(AtomOp::Add, 1u32)),
                2 => out.store(out.load_acquire()),
                3 => out.store_release(1u32),
                4 => k.cp_async(tile.at(0, k.lane() * 4), out.offset(k.lane() * 3), None),
                _ => out.store(1u32),
            }
            k.dependency_wait();
        })
        .output("out", 512)
    };
    for access in 0..6 {
        let mut case = case(access);
        let kinds: Vec<_> = case.run().findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds[0], FindingKind::BeforeDependency, "{access}");
    }
}
