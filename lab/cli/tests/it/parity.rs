//! `flashcore parity`: kernels that are right, a planted mistake, and the command that repeats it.

use crate::common::json::json;
use crate::common::{command, flashcore, run, shown, words};

#[test]
fn kernels_of_the_host_are_right_and_no_pytorch_is_said() {
    let ran = flashcore("parity 8 --device cpu --seed 3");
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    let words = ran.words();
    assert!(words.contains("8 right on cpu, seed 3"), "{words}");
    assert!(
        words.contains("no SDPA as a second witness: it needs a Python with PyTorch"),
        "{words}"
    );
    assert!(words.contains("pip install torch"), "{words}");
}

#[test]
fn json_has_every_key() {
    let report = json("parity 4 --device cpu --peers none --json");
    assert_eq!(report["passed"], 4);
    assert_eq!(report["mismatches"], serde_json::json!([]));
    assert!(
        report["sdpa"]["by"].is_null() && report["sdpa"]["absent"].is_null(),
        "{report}"
    );
    assert_eq!(report["families"]["cpu"]["problems"], 4);
}

/// Problems without a row that sees two keys are few, and counted.
#[test]
fn trivial_problems_are_counted() {
    let ran = flashcore("parity 40 --device cpu --with lengths --peers none");
    let words = ran.words();
    let (before, _) = words
        .split_once(" problems: no row sees two keys, or zeros would pass")
        .expect("a count");
    let trivial = before.rsplit(' ').next().and_then(|count| count.parse().ok());
    assert!(trivial.is_some_and(|trivial: u32| trivial <= 14), "{words}");
    let one = json("parity --only 2 --device cpu --with lengths --peers none --json");
    assert_eq!(one["trivial"], 0);
}

#[test]
fn a_mismatch_has_the_command_that_repeats_it() {
    let found = flashcore("parity 2 --device sim:l4 --family mma --plant drop-barrier --peers none");
    assert_eq!(found.code, 1, "{}", found.stdout);
    let mut lines = found.stdout.lines();
    let line = lines.find_map(|line| line.split_once("flashcore parity --only "));
    let (_, rest) = line.expect("a command that repeats it, in one line");
    let again = flashcore(&format!("parity --only {rest} --peers none"));
    assert_eq!(again.code, 1, "{}", again.stdout);
    let (_, mismatch) = again.stdout.split_once("mismatch").expect("a mismatch");
    assert!(found.stdout.contains(mismatch), "{}", again.stdout);
}

/// A stand-in for a Python with PyTorch.
#[cfg(unix)]
#[test]
fn what_pytorch_refuses_is_said() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("python");
    // Asked to import PyTorch it says nothing; as SDPA it refuses the first problem.
    let script = "#!/bin/sh\ncase \"$2\" in *'import torch') exit 0 ;; esac\necho '{\"version\": \"9.9\"}'\nIFS= read -r line\n\
                  echo '{\"error\": \"planted\"}'\n/bin/cat > /dev/null\n";
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let mut words = command("parity 1 --device cpu");
    let ran = run(words.env("FLASHCORE_PYTHON", &path));
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    let text = ran.words();
    assert!(text.contains("PyTorch 9.9 agrees with float64 on 0 problems"), "{text}");
    assert!(
        text.contains("1 not judged, such as: SDPA refuses it: planted"),
        "{text}"
    );
    assert!(shown("parity 1 --device cpu --peers none").contains("1 right"));
}

/// Other kernels that are right say nothing of a family that was asked for.
#[test]
fn a_family_that_serves_no_problem_is_no_success() {
    let found = flashcore("parity 2 --device sim:l4 --family wgmma --peers none");
    assert_eq!((found.code, found.stdout.as_str()), (1, ""));
    assert!(
        words(&found.stderr)
            .contains("no problem was computed by family wgmma: it served none on the simulator for l4"),
        "{}",
        found.stderr
    );
}

/// No kernel is wrong where none serves a problem.
#[test]
fn problems_that_nothing_serves_are_one_refusal() {
    let found = flashcore("parity 2 --device sim:l4 --family mma --dtype e4m3 --peers none");
    assert_eq!((found.code, found.stdout.as_str()), (1, ""));
    let said = words(&found.stderr);
    assert!(said.starts_with("error: none of 200 problems is served"), "{said}");
    assert!(said.contains("help: give more problems, another --dtype"), "{said}");
}
