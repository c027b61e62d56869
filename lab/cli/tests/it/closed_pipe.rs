//! A reader that goes away (`| head`) ends neither the command nor its verdict.

use flashcore_bench::problems::cases;
use flashcore_bench::store::Store;
use flashcore_bench::{DeviceIdentity, LaunchMode, Mode, Options, RunIdentity, Sample, SubjectInfo};
use std::path::Path;

use crate::common::{command, run, run_unread};

/// Exit code of a command without findings whose output was not read to the end.
const UNREAD: i32 = 141;

/// Runs a command twice, the second time for a reader that has gone before the first line, and expects one exit code,
/// or the one that says so.
fn expect(code: i32, arguments: &str) {
    let read = run(&mut command(arguments));
    assert_eq!(read.code, code, "flashcore {arguments}\n{}{}", read.stdout, read.stderr);
    assert!(!read.stdout.is_empty(), "flashcore {arguments} prints nothing");
    let unread = run_unread(&mut command(arguments));
    assert_eq!(
        unread.code,
        if code == 0 { UNREAD } else { code },
        "flashcore {arguments}, with standard output closed\n{}",
        unread.stderr
    );
    assert!(!unread.stderr.contains("panicked"), "{}", unread.stderr);
}

#[test]
fn output_that_is_not_read_is_told() {
    expect(0, "explain llama8b-prefill-8k --ptx");
    expect(0, "check tiny --json");
    expect(0, "parity 2 --device cpu --peers none");
}

#[test]
fn findings_are_findings() {
    expect(
        1,
        "check tiny --kernel scalar/tiled-m16n16-w4-v16 --plant drop-warp-barrier",
    );
    expect(1, "check museum/shuffle-as-fence");
    expect(1, "check museum/no-opt-in --json");
}

/// Stores a measurement of a kernel that takes so many µs.
fn record(path: &Path, us: f64) {
    let store = Store::at(path);
    let run = RunIdentity::now(DeviceIdentity::cpu());
    let run = store.begin_run(&run, &Options::default(), None).unwrap();
    let subjects = [(SubjectInfo::new("scalar/x", LaunchMode::Plain), None)];
    let case = &cases("small-set", None).unwrap()[0];
    run.begin_measurement(case, Mode::Hot, 0, &subjects).unwrap();
    for round in 0..12 {
        run.add_sample(&Sample {
            subject: 0,
            round,
            position: 0,
            runs: 1,
            total_us: us + 0.1 * f64::from(round % 3),
            at_us: 0.0,
        })
        .unwrap();
    }
    run.finish().unwrap();
}

#[test]
fn a_gate_that_is_not_passed_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    record(&a, 300.0);
    record(&b, 400.0);
    let (a, b) = (a.display(), b.display());
    expect(1, &format!("evidence compare {a} {b} --slower 3%"));
    expect(0, &format!("evidence compare {b} {a} --slower 3%"));
}

#[test]
fn a_search_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let space = home.path().join("space.json");
    std::fs::write(&space, serde_json::to_string(&crate::tune::table()).unwrap()).unwrap();
    let search = |name: &str| {
        let folder = home.path().join(name);
        let mut command = command("tune tiny --trials 20 --seed 1 --folder");
        command
            .arg(&folder)
            .arg("--device")
            .arg(format!("replay:{}", space.display()));
        command.env("XDG_DATA_HOME", home.path());
        (command, folder)
    };
    let trials = |folder: &Path| {
        let mut shown = command("tune show --json");
        let shown = run(shown.arg(folder).env("XDG_DATA_HOME", home.path()));
        let shown: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
        shown["trials"].as_array().expect("a list").len()
    };
    let (mut read, folder) = search("read");
    let read = run(&mut read);
    assert_eq!(read.code, 0, "{}", read.stderr);
    let all = trials(&folder);
    assert!(all > 5, "{all} trials");
    let (mut left, folder) = search("left");
    let left = run_unread(&mut left);
    assert_eq!(left.code, UNREAD, "{}", left.stderr);
    assert_eq!(trials(&folder), all);
}
