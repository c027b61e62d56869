//! Small kernels made to be watched: by the simulator, and on a GPU by a profiler or a sanitizer,
//! whose word on them is compared.
//!
//! [`banks`] are patterns of accesses to shared memory, whose passes over the banks ncu counts
//! instruction by instruction. [`races`] are mistakes in synchronisation and the same kernels
//! without them, which compute-sanitizer's racecheck judges. [`blocks`] communicate, and are compared
//! with the simulator by their results. [`watched`] runs them, and `agree_with_tools.py` (in `scripts`
//! of 1b152dbd) asked the tools. The counts are in `ncu-counts.json`, which CI holds the simulator to.

mod banks;
mod blocks;
mod probe;
mod races;
mod races_hopper;
mod watched;

use std::path::Path;

use flashcore_sim::SimOptions;
use serde::Deserialize;

use probe::What;

/// What ncu has counted (`git show 1b152dbd:scripts/agree_with_tools.py`).
#[derive(Deserialize)]
struct Counted {
    kernels: Vec<CountedKernel>,
}

#[derive(Deserialize)]
struct CountedKernel {
    name: String,
    lines: Vec<CountedLine>,
}

#[derive(Deserialize)]
struct CountedLine {
    what: What,
    ncu: u64,
}

#[test]
fn the_simulator_counts_what_ncu_has_counted() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/ncu-counts.json");
    let counted: Counted = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut checked = 0;
    for probe in banks::all() {
        let kernel = counted.kernels.iter().find(|kernel| kernel.name == probe.name);
        let kernel = kernel.unwrap_or_else(|| panic!("{}: not counted; ask ncu anew", probe.name));
        // Lines move when the source does: what counts is that there are as many of each.
        let mut theirs: Vec<(What, u64)> = kernel.lines.iter().map(|line| (line.what, line.ncu)).collect();
        let mut ours: Vec<(What, u64)> = probe
            .counts()
            .unwrap()
            .iter()
            .map(|line| (line.what, line.count))
            .collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, theirs, "{}", probe.name);
        checked += ours.len();
    }
    assert!(checked >= 900, "{checked}");
}

#[test]
fn every_mistake_is_found_and_nothing_else() {
    for race in races::all().into_iter().chain(blocks::all()) {
        let (racy, clean) = (race.racy(), race.clean());
        for schedule in 0..5 {
            let found = racy.simulate(schedule).unwrap().findings;
            let kinds: Vec<_> = found.iter().map(|finding| finding.kind.name()).collect();
            assert!(
                kinds.contains(&race.kind),
                "{} under schedule {schedule}: {kinds:?}",
                race.name
            );
            let found = clean.simulate(schedule).unwrap().findings;
            assert!(
                found.is_empty(),
                "{} mended, schedule {schedule}: {found:#?}",
                race.name
            );
        }
    }
}

#[test]
fn probes_of_banks_are_clean() {
    let probes = banks::all();
    for probe in &probes {
        let found = probe.simulate(0).unwrap().findings;
        assert!(found.is_empty(), "{}: {found:#?}", probe.name);
    }
}

#[test]
fn blocks_that_communicate_give_one_result() {
    for race in blocks::all() {
        let results = [0, 1, 2].map(|seed| {
            let mut case = race.clean().case;
            let options = SimOptions {
                seed,
                ..SimOptions::default()
            };
            case.simulate(&options).unwrap();
            case.buffers
        });
        assert!(results[0].iter().flatten().any(|&byte| byte != 0));
        assert!(results.iter().all(|result| *result == results[0]), "{}", race.name);
    }
}
