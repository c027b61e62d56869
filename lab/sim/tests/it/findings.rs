//! Every kind of finding, with its lines.

use crate::common;

use common::{Case, all};
use flashcore_ir::{Arg, Cache, TileShape};
use flashcore_sim::FindingKind;

/// Sums 256 numbers through shared memory. Without `barrier` between the steps it races.
fn reduction(barrier: bool) -> Case {
    let input: Vec<f32> = (0..256).map(|i| i as f32).collect();
    Case::new(256, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let sums = k.shared_tile::<f32>("sums", TileShape::new(1, 256));
        let t = k.thread_idx();
        sums.at(0, t).store(input.offset(t).load());
        k.barrier();
        let mut half = 128;
        while half > 0 {
            k.if_(t.lt(half).divergent(), || {
                let mine = sums.at(0, t);
                mine.store(mine.load() + mine.plus(half as i32).load());
            });
            if barrier {
                k.barrier();
            }
            half /= 2;
        }
        k.if_(t.eq(0).divergent(), || output.store(sums.at(0, 0).load()));
    })
    .input("input", &input)
    .output("output", 4)
}

#[test]
fn reduction_with_barriers_is_clean() {
    for seed in 0..20 {
        let mut case = reduction(true).seed(seed);
        case.run_clean();
        assert_eq!(case.f32s(1), [255.0 * 128.0]);
    }
}

#[test]
fn reduction_without_barriers_races_under_every_schedule() {
    for seed in 0..20 {
        let finding = reduction(false).seed(seed).run_finding(FindingKind::Race);
        assert!(finding.line().unwrap().file.ends_with("findings.rs"));
        assert!(finding.other_line().is_some());
        assert_eq!(finding.object.as_deref(), Some("sums"));
    }
}

#[test]
fn shuffles_do_not_order_memory() {
    let case = |sync: bool| {
        Case::new(32, |k| {
            let output = k.param_ptr_mut::<f32>("output");
            let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 32));
            let lane = k.lane();
            let value = lane.to_f32();
            tile.at(0, lane).store(value);
            let _ = value.shfl_bfly(1);
            if sync {
                k.sync_warp();
            }
            let neighbour = tile.at(0, lane ^ 1u32).load();
            output.offset(lane).store(neighbour);
        })
        .output("output", 128)
    };
    let mut synced = case(true);
    synced.run_clean();
    let expected: Vec<f32> = (0..32).map(|lane| (lane ^ 1) as f32).collect();
    assert_eq!(synced.f32s(0), expected);
    let finding = case(false).run_finding(FindingKind::Race);
    assert_eq!(
        finding.line().unwrap().line,
        finding.other_line().unwrap().line + 5,
        "{finding}"
    );
}

#[test]
fn out_of_bounds_of_a_buffer_inside_valid_memory() {
    let finding = Case::new(32, |k| {
        let a = k.shared_tile::<f32>("a", TileShape::new(1, 32));
        let _b = k.shared_tile::<f32>("b", TileShape::new(1, 32));
        a.at(0, k.thread_idx() + 1).store(1.0);
    })
    .run_finding(FindingKind::OutOfBounds);
    assert_eq!(finding.object.as_deref(), Some("a"));
    assert_eq!(finding.bytes, Some((128, 132)));
    assert_eq!(finding.element, Some(vec![32]));
    assert_eq!(finding.actor.lanes, 1 << 31);
    assert!(finding.message.contains("in `b`"), "{finding}");

    let finding = Case::new(32, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let i = k.thread_idx();
        output.offset(i).store(input.offset(i).plus(-1).load());
    })
    .input("input", &[0f32; 32])
    .output("output", 128)
    .run_finding(FindingKind::OutOfBounds);
    assert_eq!(finding.object.as_deref(), Some("input"));
    assert_eq!(finding.bytes, Some((-4, 0)));
    assert_eq!(finding.actor.lanes, 1);
}

#[test]
fn misaligned_vectors() {
    let finding = Case::new(32, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let i = k.thread_idx();
        let values = input.offset(i).load_words(4, Cache::Default);
        output.offset(i).store(values[0]);
    })
    .input("input", &[0f32; 64])
    .output("output", 128)
    .run_finding(FindingKind::Misaligned);
    assert_eq!(finding.actor.lanes, 0xeeee_eeee);
}

#[test]
fn reads_of_uninitialised_memory() {
    let finding = Case::new(64, |k| {
        let output = k.param_ptr_mut::<f32>("output");
        let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 64));
        let t = k.thread_idx();
        k.if_(t.lt(63).divergent(), || tile.at(0, t).store(1.0));
        k.barrier();
        output.offset(t).store(tile.at(0, t).load());
    })
    .output("output", 256)
    .run_finding(FindingKind::NeverWritten);
    assert_eq!((finding.actor.warp, finding.actor.lanes), (1, 1 << 31));

    let finding = Case::new(32, |k| {
        let output = k.param_ptr_mut::<f32>("output");
        let t = k.thread_idx();
        let value = k.var_unwritten::<f32>("partial");
        k.if_(t.lt(5).divergent(), || value.set(1.0));
        output.offset(t).store(value.get());
    })
    .output("output", 128)
    .run_finding(FindingKind::NeverWritten);
    assert_eq!(finding.object.as_deref(), Some("partial"));
    assert_eq!(finding.actor.lanes, !0b11111);

    let finding = Case::new(32, |k| {
        let work = k.param_ptr_mut::<f32>("work");
        let t = k.thread_idx();
        work.offset(t).store(work.offset(t).plus(32).load());
    })
    .output("workspace", 256)
    .run_finding(FindingKind::NeverWritten);
    assert!(finding.message.contains("`work`"), "{finding}");
}

#[test]
fn reads_of_bytes_an_earlier_launch_did_not_write() {
    let threads_that_write = |n: u32| {
        let mut first = Case::new(32, |k| {
            let work = k.param_ptr_mut::<f32>("work");
            let t = k.thread_idx();
            k.if_(t.lt(n).divergent(), || work.offset(t).store(k.constant(1.0f32)));
        })
        .output("workspace", 128);
        first.run_clean().written
    };
    // The second launch only reads the workspace, in another slot.
    let second = |n: u32| {
        let mut case = Case::new(32, |k| {
            let out = k.param_ptr_mut::<f32>("out");
            let work = k.param_ptr::<f32>("work");
            let t = k.thread_idx();
            out.offset(t).store(work.offset(t).load());
        })
        .output("out", 128)
        .buffer("workspace", vec![0xff; 128], false);
        case.options.written.insert(1, threads_that_write(n)[&0].clone());
        case
    };
    second(32).run_clean();
    let finding = second(31).run_finding(FindingKind::NeverWritten);
    assert_eq!((finding.bytes, finding.actor.lanes), (Some((124, 126)), 1 << 31));
}

#[test]
fn barrier_mismatch_and_deadlock() {
    let finding = Case::new(64, |k| {
        let warp = k.thread_idx() / 32;
        k.if_(warp.eq(0).uniform(), || k.barrier());
    })
    .run_finding(FindingKind::BarrierMismatch);
    assert!(finding.message.contains("warps 1 have exited"), "{finding}");

    let finding = Case::new(64, |k| {
        let warp = k.thread_idx() / 32;
        k.if_else(
            warp.eq(0).uniform(),
            || {
                k.barrier_among(1, 64);
                k.barrier_among(2, 64);
            },
            || {
                k.barrier_among(2, 64);
                k.barrier_among(1, 64);
            },
        );
    })
    .run_finding(FindingKind::Deadlock);
    assert!(finding.message.contains("warp 0 waits at barrier 1"), "{finding}");
    assert!(finding.message.contains("warp 1 waits at barrier 2"), "{finding}");

    let report = Case::new(64, |k| {
        let warp = k.thread_idx() / 32;
        k.if_else(
            warp.eq(0).uniform(),
            || k.barrier_among(1, 64),
            || k.barrier_among(1, 32),
        );
    })
    .run();
    assert!(
        report.findings.iter().any(|f| f.kind == FindingKind::BarrierMismatch),
        "{}",
        all(&report)
    );
}

#[test]
fn producer_and_consumer_with_named_barriers() {
    let case = |full: bool| {
        Case::new(64, |k| {
            let output = k.param_ptr_mut::<u32>("output");
            let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 32));
            let warp = k.thread_idx() / 32;
            k.if_else(
                warp.eq(0).uniform(),
                || {
                    k.for_uniform(0u32, 8, 1, |i| {
                        if full {
                            k.barrier_among(2, 64);
                        }
                        tile.at(0, k.lane()).store((i * 100 + k.lane()).to_f32());
                        k.barrier_arrive(1, 64);
                    });
                },
                || {
                    let sum = k.var(0.0f32);
                    k.for_uniform(0u32, 8, 1, |_| {
                        if full {
                            k.barrier_arrive(2, 64);
                        }
                        k.barrier_among(1, 64);
                        sum.add_assign(tile.at(0, k.lane() ^ 7u32).load());
                    });
                    output.offset(k.lane()).store(sum.get().to_u32());
                },
            );
        })
        .output("output", 128)
    };
    for seed in 0..20 {
        let mut good = case(true).seed(seed);
        good.run_clean();
        let expected: Vec<u32> = (0..32).map(|lane| 2800 + 8 * (lane ^ 7)).collect();
        assert_eq!(good.u32s(0), expected);
        let report = case(false).seed(seed).run();
        let found = |kind| report.findings.iter().any(|f| f.kind == kind);
        assert!(found(FindingKind::Race), "{}", all(&report));
    }
}

#[test]
fn non_uniform_condition() {
    let finding = Case::new(32, |k| {
        let t = k.thread_idx();
        k.if_(t.lt(16).uniform(), || k.trace("here", t));
    })
    .run_finding(FindingKind::NotUniform);
    assert!(finding.message.contains("0x0000ffff"), "{finding}");
}

#[test]
fn inactive_lanes_in_a_member_mask() {
    let case = Case::new(32, |k| {
        let t = k.thread_idx();
        k.if_(t.lt(16).divergent(), || {
            let _ = t.to_f32().shfl_bfly(1);
        });
    });
    let mut case = case;
    case.run_finding(FindingKind::MissingLanes);
}

#[test]
fn endless_loop() {
    let mut case = Case::new(32, |k| {
        let t = k.thread_idx();
        k.loop_(|l| l.break_if(t.lt(31).divergent()));
    });
    case.options.max_instructions = 10_000;
    let finding = case.run_finding(FindingKind::Livelock);
    assert_eq!(finding.actor.lanes, 1 << 31);
}

#[test]
fn two_blocks_write_one_byte() {
    let finding = Case::new(32, |k| {
        let output = k.param_ptr_mut::<u32>("output");
        let t = k.thread_idx();
        output.offset(t).store(k.block_idx(0));
    })
    .grid(3)
    .output("output", 128)
    .run_finding(FindingKind::BlockRace);
    assert_eq!(finding.actor.block, [1, 0, 0]);
    assert_eq!(finding.other.unwrap().actor.block, [0, 0, 0]);
}

#[test]
fn global_memory_races_within_a_block() {
    let case = |barrier: bool| {
        Case::new(64, |k| {
            let work = k.param_ptr_mut::<u32>("work");
            let t = k.thread_idx();
            work.offset(t).store(t);
            if barrier {
                k.barrier();
            }
            let other = work.offset(k.constant(63u32) - t).load();
            work.offset(t).plus(64).store(other);
        })
        .output("work", 512)
    };
    case(true).run_clean();
    case(false).run_finding(FindingKind::Race);
}

#[test]
fn two_lanes_write_one_word() {
    let finding = Case::new(32, |k| {
        let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 32));
        tile.at(0, k.lane() / 2).store(1.0);
    })
    .run_finding(FindingKind::Race);
    assert!(finding.message.contains("more than one lane"), "{finding}");
}

#[test]
fn neighbouring_halves_do_not_conflict() {
    let values: Vec<half::f16> = (0..64).map(|i| half::f16::from_f32(i as f32)).collect();
    let mut case = Case::new(64, |k| {
        let input = k.param_ptr::<half::f16>("input");
        let output = k.param_ptr_mut::<half::f16>("output");
        let tile = k.shared_tile::<half::f16>("tile", TileShape::new(1, 64));
        let t = k.thread_idx();
        // Lane and lane + 32 of different warps write halves of one word.
        let at = (t % 32u32) * 2 + t / 32;
        tile.at(0, at).store(input.offset(at).load());
        k.barrier();
        output.offset(t).store(tile.at(0, t).load());
    })
    .input("input", &values)
    .output("output", 128);
    case.run_clean();
    assert_eq!(case.buffers[0], case.buffers[1]);
}

#[test]
fn read_only_cache_loads_of_written_memory() {
    // Two parameters point to one buffer, which only a run can detect.
    let mut case = Case::new(32, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let t = k.thread_idx();
        output.offset(t).store(input.offset(t).load_with(Cache::ReadOnly));
    })
    .output("data", 128);
    case.args.push(case.args[0].clone());
    let finding = case.run_finding(FindingKind::ReadOnlyCache);
    assert_eq!(finding.object.as_deref(), Some("input"));
}

#[test]
fn division_by_zero() {
    Case::new(32, |k| {
        let n = k.param::<u32>("n");
        k.trace("quotient", k.thread_idx() / n);
    })
    .arg(Arg::U32(0))
    .run_finding(FindingKind::DivisionByZero);
}

#[test]
fn findings_print_like_compiler_errors() {
    let finding = reduction(false).run_finding(FindingKind::Race);
    let text = finding.to_string();
    assert!(text.starts_with("error[race]: "), "{text}");
    assert!(text.contains("\n --> "), "{text}");
    assert!(text.contains("\n and "), "{text}");
    assert!(serde_json::to_string(&finding).unwrap().contains("\"kind\":\"race\""));
}
