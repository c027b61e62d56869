//! Asynchronous copies: clean with waits, reported without.

use crate::common;

use common::Case;
use flashcore_ir::TileShape;
use flashcore_sim::FindingKind;

const ROWS: u32 = 8;
const COLS: u32 = 64;
const STEPS: u32 = 6;

#[derive(Clone, Copy, PartialEq)]
enum Mutant {
    None,
    NoWait,
    NoBarrierAfterWait,
    NoBarrierBeforeReuse,
    WaitsForTooFew,
    NoCommit,
}

/// Sums tiles from two stages of copies. Each thread reads what others copied.
fn double_buffered(mutant: Mutant) -> Case {
    let input: Vec<f32> = (0..ROWS * COLS * STEPS).map(|i| i as f32).collect();
    Case::new(128, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let tile = k.shared_tile::<f32>("tile", TileShape::new(ROWS, COLS).stages(2));
        let t = k.thread_idx();
        let copy = |step: flashcore_ir::Val<'_, u32>| {
            // 512 elements per tile, 4 per thread.
            let (row, col) = (t / 16, t % 16u32 * 4);
            k.if_(step.lt(STEPS).uniform(), || {
                let from = input.offset(step * (ROWS * COLS) + t * 4);
                k.cp_async(tile.at_stage(step % 2u32, row, col), from, None);
            });
            if mutant != Mutant::NoCommit {
                k.cp_async_commit();
            }
        };
        let sum = k.var(0.0f32);
        copy(k.constant(0));
        k.for_uniform(0u32, STEPS, 1, |step| {
            copy(step + 1);
            if mutant != Mutant::NoWait {
                k.cp_async_wait(if mutant == Mutant::WaitsForTooFew { 2 } else { 1 });
            }
            if mutant != Mutant::NoBarrierAfterWait {
                k.barrier();
            }
            for i in 0..4 {
                let e = k.constant(511u32) - t - 128 * i;
                sum.add_assign(tile.at_stage(step % 2u32, e / COLS, e % COLS).load());
            }
            if mutant != Mutant::NoBarrierBeforeReuse {
                k.barrier();
            }
        });
        output.offset(t).store(sum.get());
    })
    .input("input", &input)
    .output("output", 512)
}

#[test]
fn double_buffered_pipeline_is_clean_under_fifty_schedules() {
    for seed in 0..50 {
        let mut case = double_buffered(Mutant::None).seed(seed);
        case.run_clean();
        let expected: Vec<f32> = (0..128)
            .map(|t| {
                let tile = ROWS * COLS;
                let elements = (0..STEPS).flat_map(|step| (0..4).map(move |i| step * tile + 511 - t - 128 * i));
                elements.map(|e| e as f32).sum()
            })
            .collect();
        assert_eq!(case.f32s(1), expected);
    }
}

#[test]
fn faulty_pipelines_are_found_under_every_schedule() {
    for (mutant, expected) in [
        (Mutant::NoWait, FindingKind::MissingWait),
        (Mutant::NoBarrierAfterWait, FindingKind::MissingWait),
        (Mutant::NoBarrierBeforeReuse, FindingKind::Race),
        (Mutant::WaitsForTooFew, FindingKind::MissingWait),
        (Mutant::NoCommit, FindingKind::MissingWait),
    ] {
        for seed in 0..10 {
            let report = double_buffered(mutant).seed(seed).run();
            assert!(
                report.findings.iter().any(|f| f.kind == expected),
                "{}",
                common::all(&report)
            );
        }
    }
}

#[test]
fn destination_is_poison_until_the_wait() {
    let case = |wait: bool| {
        Case::new(32, |k| {
            let input = k.param_ptr::<f32>("input");
            let output = k.param_ptr_mut::<f32>("output");
            let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 128));
            let lane = k.lane();
            k.cp_async(tile.at(0, lane * 4), input.offset(lane * 4), None);
            k.cp_async_commit();
            if wait {
                k.cp_async_wait(0);
            }
            // The thread's own copy needs no barrier.
            output.offset(lane).store(tile.at(0, lane * 4).load());
        })
        .input("input", &[1.0f32; 128])
        .output("output", 128)
    };
    let mut good = case(true);
    good.run_clean();
    assert_eq!(good.f32s(1), [1.0; 32]);
    let mut bad = case(false);
    let finding = bad.run_finding(FindingKind::MissingWait);
    assert!(finding.message.contains("own copy"), "{finding}");
    assert!(bad.f32s(1).iter().all(|x| x.is_nan()));
}

#[test]
fn tails_are_zero_filled_and_not_read_past_the_end() {
    let mut case = Case::new(32, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 128));
        let lane = k.lane();
        // 50 elements: lane 12 has two, later lanes none.
        let there = (lane * 4).min(50);
        let bytes = (k.constant(50u32) - there).min(4) * 4;
        k.cp_async(tile.at(0, lane * 4), input.offset(lane * 4), Some(bytes));
        k.cp_async_commit();
        k.cp_async_wait(0);
        for i in 0..4 {
            output
                .offset(lane * 4)
                .plus(i)
                .store(tile.at(0, lane * 4).plus(i).load());
        }
    })
    .input("input", &(1..=50).map(|i| i as f32).collect::<Vec<_>>())
    .output("output", 512);
    case.run_clean();
    let expected: Vec<f32> = (1..=128).map(|i| if i <= 50 { i as f32 } else { 0.0 }).collect();
    assert_eq!(case.f32s(1), expected);
}

#[test]
fn copies_out_of_bounds_or_misaligned() {
    let finding = Case::new(32, |k| {
        let input = k.param_ptr::<f32>("input");
        let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 132));
        let lane = k.lane();
        k.cp_async(tile.at(0, lane * 4).plus(4), input.offset(lane * 4).plus(4), None);
    })
    .input("input", &[0f32; 128])
    .run_finding(FindingKind::OutOfBounds);
    assert_eq!(finding.object.as_deref(), Some("input"));
    let finding = Case::new(32, |k| {
        let input = k.param_ptr::<f32>("input");
        let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 132));
        let lane = k.lane();
        k.cp_async(tile.at(0, lane * 4).plus(1), input.offset(lane * 4), None);
    })
    .input("input", &[0f32; 128])
    .run_finding(FindingKind::Misaligned);
    assert_eq!(finding.object.as_deref(), Some("tile"));
}
