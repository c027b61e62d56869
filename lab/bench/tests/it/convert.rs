//! `scripts/convert_evidence.py`: stores of earlier builds become folders of runs.

use std::path::Path;
use std::process::Command;

use flashcore_bench::store::{Selector, Store};
use flashcore_bench::{Stop, Turns};

use super::evidence::folder;

/// A store as the builds of schema 2 made it, with a run that ended and a measurement that was cut off.
const OLD: &str = include_str!("old_store.sql");
const FILL: &str = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.stdin.read())";

fn python() -> Command {
    let mut command = Command::new("python3");
    command.stdin(std::process::Stdio::piped());
    command
}

#[test]
fn an_old_store_is_refused_with_the_script_that_converts_it() {
    if python()
        .args(["-c", "import sqlite3"])
        .output()
        .map_or(true, |ran| !ran.status.success())
    {
        eprintln!("NOT RUN: no python3 with sqlite3 here");
        return;
    }
    let folder = folder("old");
    let old = folder.join("host.sqlite");
    let mut fill = python().arg("-c").arg(FILL).arg(&old).spawn().unwrap();
    std::io::Write::write_all(&mut fill.stdin.take().unwrap(), OLD.as_bytes()).unwrap();
    assert!(fill.wait().unwrap().success());

    // The file itself, and the folder in whose place it lies.
    for path in [&old, &folder.join("host")] {
        let read = Store::open(path).and_then(|store| store.runs(&Selector::All));
        let error = read.unwrap_err().to_string();
        assert!(error.contains("python3 scripts/convert_evidence.py"), "{error}");
        assert!(error.contains(old.to_str().unwrap()), "{error}");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/convert_evidence.py");
    let ran = python().arg(script).arg(&old).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("2 runs added"), "{said}");
    assert!(!old.exists(), "a store that is converted is not mentioned again");

    let store = Store::open(&folder.join("host")).unwrap();
    let runs = store.runs(&Selector::All).unwrap();
    let [whole, cut] = &runs[..] else { panic!("{runs:?}") };
    assert_eq!((whole.key.as_str(), whole.finished, whole.samples), ("a1-1", true, 4));
    assert_eq!((whole.floor_us, whole.options.threshold), (Some(0.75), 0.02));
    assert_eq!(
        (whole.identity.revision.as_str(), whole.identity.device.units),
        ("4c6384e2a5a9", 132)
    );
    let recorded = &store.measurements(whole).unwrap()[0];
    let measured = &recorded.measurement;
    assert_eq!(
        (measured.stop, measured.turns, measured.rounds),
        (Stop::Narrow, Some(Turns::Steady), 2)
    );
    assert_eq!(
        recorded.case.problem,
        flashcore_problem::Problem::named("mission").unwrap()
    );
    let times: Vec<f64> = recorded.samples.iter().map(flashcore_bench::Sample::run_us).collect();
    assert_eq!(times, [10.0, 5.0, 5.25, 10.5]);
    assert_eq!(measured.subjects[1].ratio.unwrap().value, 0.5);
    assert_eq!(measured.readings[0].throttle, ["SW_POWER_CAP", "SYNC_BOOST"]);
    assert!(recorded.inspections[0].is_none() && recorded.inspections[1].as_ref().unwrap().passed());
    // The old store had no note of how it ended.
    assert!(!cut.finished);
    assert_eq!(store.measurements(cut).unwrap()[0].measurement.stop, Stop::CutOff);
    std::fs::remove_dir_all(folder).unwrap();
}
