//! Mistakes with asynchronous copies, planted in a small pipeline of two stages.

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::source;
use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, TileShape};
use flashcore_sim::{FindingKind, SimOptions, SimReport, simulate};

const THREADS: u32 = 64;
const TILES: u32 = 4;

/// Sums `TILES` rows of 256 numbers by columns, each row copied while the one before is added up.
fn kernel() -> Kernel {
    Kernel::build("column_sums", THREADS, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 4 * THREADS).stages(2));
        let me = k.thread_idx();
        let copy = |row: u32| {
            k.cp_async(
                tile.at_stage(row % 2, 0, me * 4),
                input.offset(me * 4).plus((row * 4 * THREADS) as i32),
                None,
            );
            k.cp_async_commit();
        };
        let sum = k.var(0.0);
        copy(0);
        for row in 0..TILES {
            if row + 1 < TILES {
                copy(row + 1);
                k.cp_async_wait(1);
            } else {
                k.cp_async_wait(0);
            }
            k.barrier(); // the row is there
            for part in 0..4 {
                let value = tile.at_stage(row % 2, 0, me).plus((part * THREADS) as i32).load();
                sum.add_assign(value);
            }
            k.barrier(); // the row has been read
        }
        output.offset(me).store(sum.get());
    })
    .unwrap()
}

fn launch() -> Launch {
    let buffer = |name, bytes, written| BufferSpec {
        name,
        bytes,
        written,
        align: 16,
    };
    let arg = |slot| Arg::Buffer { slot, byte_offset: 0 };
    Launch {
        grid: [1, 1, 1],
        block: [THREADS, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: 2 * 16 * THREADS,
        programmatic: false,
        buffers: vec![
            buffer("input", u64::from(16 * THREADS * TILES), false),
            buffer("output", u64::from(4 * THREADS), true),
        ],
        args: vec![arg(0), arg(1)],
    }
}

fn run(kernel: &Kernel, seed: u64) -> (SimReport, Vec<f32>) {
    let input: Vec<u8> = (0..4 * THREADS * TILES)
        .flat_map(|n| (n as f32).to_le_bytes())
        .collect();
    let mut buffers = [input, vec![0xff; 4 * THREADS as usize]];
    let options = SimOptions {
        seed,
        ..SimOptions::default()
    };
    let report = simulate(kernel, &launch(), &mut buffers, &options).unwrap();
    let words = buffers[1]
        .chunks_exact(4)
        .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    (report, words.collect())
}

/// The findings of a kernel under some schedules: kind and the quoted line.
fn findings(kernel: &Kernel) -> Vec<(FindingKind, String)> {
    let of = |seed| run(kernel, seed).0.findings;
    (0..5)
        .flat_map(of)
        .filter_map(|finding| {
            let line = finding.line()?;
            Some((finding.kind, source::quote(line.file, line.line)?))
        })
        .collect()
}

fn planted(operator: Operator, line: &str) -> Vec<Mutation> {
    let found: Vec<Mutation> = mutations(&kernel())
        .into_iter()
        .filter(|m| m.operator == operator)
        .filter(|m| source::quote(m.line.file, m.line.line).is_some_and(|quote| quote.contains(line)))
        .collect();
    assert!(!found.is_empty(), "nowhere to plant {operator} in `{line}`");
    found
}

#[test]
fn the_pipeline_as_it_is_is_clean_and_right() {
    for seed in 0..50 {
        let (report, sums) = run(&kernel(), seed);
        assert!(report.is_clean(), "{:?}", report.findings);
        let sum_of = |me: u32| (0..TILES * 4).map(|part| (me + part * THREADS) as f32).sum::<f32>();
        assert_eq!(sums, (0..THREADS).map(sum_of).collect::<Vec<_>>());
    }
}

#[test]
fn a_dropped_wait_is_found_where_the_bytes_are_read() {
    for line in ["k.cp_async_wait(1)", "k.cp_async_wait(0)"] {
        for mutation in planted(Operator::DropWait, line) {
            let found = findings(&mutation.apply(&kernel()));
            let missing = |(kind, line): &(FindingKind, String)| {
                *kind == FindingKind::MissingWait && line.contains("let value = tile.at_stage(")
            };
            assert!(found.iter().any(missing), "{mutation}: {found:?}");
        }
    }
}

#[test]
fn a_wait_for_one_group_too_few_is_found() {
    for mutation in planted(Operator::WeakenWait, "k.cp_async_wait(") {
        let found = findings(&mutation.apply(&kernel()));
        assert!(
            found.iter().any(|(kind, _)| *kind == FindingKind::MissingWait),
            "{mutation}: {found:?}"
        );
    }
}

#[test]
fn a_group_that_is_never_closed_is_found() {
    // Dropped, the first commit only makes one group of two; the last one leaves its copy in no group.
    let commits = planted(Operator::DropCommit, "k.cp_async_commit()");
    let last = commits.last().unwrap();
    let found = findings(&last.apply(&kernel()));
    assert!(
        found.iter().any(|(kind, _)| *kind == FindingKind::MissingWait),
        "{found:?}"
    );
}

#[test]
fn a_dropped_barrier_after_the_wait_is_found() {
    for mutation in planted(Operator::DropBarrier, "the row is there") {
        let found = findings(&mutation.apply(&kernel()));
        let unordered = |(kind, _): &(FindingKind, String)| {
            matches!(
                kind,
                FindingKind::MissingWait | FindingKind::Race | FindingKind::NeverWritten
            )
        };
        assert!(found.iter().any(unordered), "{mutation}: {found:?}");
    }
}

#[test]
fn a_dropped_barrier_before_the_next_copy_is_found() {
    // The last one orders nothing: no copy follows it.
    let barriers = planted(Operator::DropBarrier, "the row has been read");
    for mutation in &barriers[..barriers.len() - 2] {
        let found = findings(&mutation.apply(&kernel()));
        assert!(
            found.iter().any(|(kind, _)| *kind == FindingKind::Race),
            "{mutation}: {found:?}"
        );
    }
}
