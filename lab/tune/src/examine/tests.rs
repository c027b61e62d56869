use std::path::PathBuf;

use super::*;
use crate::remote::Written;
use crate::tests::fake::{Fake, measured_at};
use crate::witness::output_of_host;
use crate::worker::{Deadlines, Worker};

/// The result of a candidate that is timed against the best, with a worker that does this first.
fn examined(name: &str, first: &str) -> Found {
    let problem = Problem::named("tiny").unwrap();
    let (judge, timing) = (Judge::of_nothing(&problem), Timing::for_cpu());
    let fake = Fake {
        first: first.to_string(),
        ..Fake::new()
    };
    let mut examiner = Examiner {
        judge: &judge,
        worker: Worker::new(fake.program(name), "cpu", Deadlines::default()),
        scratch: PathBuf::new(),
        canvas: None,
        tolerances: Vec::new(),
        timing: &timing,
        lock: crate::device_lock::DeviceLock::default(),
        interrupt: Interrupt::default(),
    };
    let mut best = crate::tests::trial(0, "cpu/m16n16", Some(0.5));
    best.timed.as_mut().unwrap().us = 20.0;
    examiner.examine(1, "cpu/m32n32", Some(&best)).unwrap()
}

#[test]
fn a_candidate_is_not_blamed_for_the_best() {
    let failed = r#""failed":{"verdict":"LAUNCH_FAILED","kernel":"cpu/m16n16","reason":"gone","fatal":false}"#;
    let of_best = [
        ("opens-not", format!("*'\"open\"'*'m16n16'*) said='{failed}';;")),
        ("dies", "*'\"open\"'*'m16n16'*) exit 3;;".to_string()),
        // It opens, and dies while it is timed.
        (
            "dies-later",
            "*'\"open\"'*'[\"cpu/m16n16'*) open=7; said='\"ok\":[]';; *'\"time\"'*[27]) exit 3;;".to_string(),
        ),
    ];
    for (name, first) in of_best {
        let found = examined(name, &first);
        assert_eq!(found.verdict, Verdict::Ambiguous, "{name}: {}", found.reason);
        assert!(
            found.reason.contains("cpu/m16n16 could not be timed with it"),
            "{}",
            found.reason
        );
        // 10 µs where the best took 20.
        assert_eq!(found.timed.unwrap().score, 0.25);
    }
}

#[test]
fn a_candidate_is_blamed_for_its_own_failures() {
    let of_it = [
        ("its-open", "*'\"open\"'*'m32n32'*) exit 3;;"),
        (
            "its-time",
            "*'\"open\"'*'[\"cpu/m32n32'*1) open=7; said='\"ok\":[]';; *'\"time\"'*[27]) exit 3;;",
        ),
    ];
    for (name, first) in of_it {
        let found = examined(name, first);
        assert_eq!(found.verdict, Verdict::LaunchFailed, "{name}: {}", found.reason);
        assert!(found.reason.starts_with("2 times out of 2"), "{}", found.reason);
    }
    assert_eq!(examined("well", "").verdict, Verdict::Faster);
}

#[test]
fn a_candidate_is_not_blamed_for_the_environment() {
    let said = r#"said='"failed":{"verdict":"ENVIRONMENT_FAILED","kernel":null,"reason":"full","fatal":false}'"#;
    for (name, end) in [
        ("killed", "kill -9 $$"),
        ("too-large", "kill -25 $$"),
        ("terminated", "kill -15 $$"),
        ("by-a-shell", "exit 137"),
        (
            "full",
            "echo 'error: No space left on device (os error 28)' >&2; exit 1",
        ),
        (
            "no-memory",
            "echo 'memory allocation of 64 bytes failed' >&2; kill -6 $$",
        ),
        ("says-so", said),
    ] {
        let found = examined(name, &format!("*'\"open\"'*'m32n32'*) {end};;"));
        assert_eq!(found.verdict, Verdict::EnvironmentFailed, "{name}: {}", found.reason);
    }
    // A fault is the candidate's, whatever it says.
    for (name, end) in [("faults", "kill -11 $$"), ("aborts", "kill -6 $$"), ("ends", "exit 3")] {
        let found = examined(name, &format!("*'\"open\"'*'m32n32'*) {end};;"));
        assert_eq!(found.verdict, Verdict::LaunchFailed, "{name}: {}", found.reason);
    }
    // Killed once, it is tried again.
    let marker = std::env::temp_dir().join(format!("flashcore-killed-once-{}", std::process::id()));
    let _ = std::fs::remove_dir(&marker);
    let once = format!(
        "*'\"open\"'*'m32n32'*2) mkdir {} 2>/dev/null && kill -9 $$;",
        marker.display()
    );
    let found = examined("once", &format!("{once} open=2; said='\"ok\":[]';;"));
    assert_eq!(found.verdict, Verdict::Faster, "{}", found.reason);
    std::fs::remove_dir(&marker).unwrap();
}

#[test]
fn a_candidate_is_not_blamed_for_the_best_in_its_second_timing() {
    // Twice as fast; then the best ends the process, alone too.
    let script = "*'\"open\"'*'[\"cpu/m16n16'*) open=7; said='\"ok\":[]';; *'\"time\"'*7) exit 3;;\n\
         *'\"time\"'*2) [ -n \"$n\" ] && exit 3; n=1; said='FIRST';;";
    let found = examined("second-time", &script.replace("FIRST", &measured_at(0.5)));
    assert_eq!(found.verdict, Verdict::Ambiguous, "{}", found.reason);
    assert!(found.reason.contains("could not be timed with it"), "{}", found.reason);
}

#[test]
fn a_candidate_that_is_faster_once_is_not_accepted() {
    // Half the time of the best, and then as long.
    let once = "*'\"time\"'*2) if [ -z \"$n\" ]; then n=1; said='FIRST'; else said='SECOND'; fi;;";
    let script = once
        .replace("FIRST", &measured_at(0.5))
        .replace("SECOND", &measured_at(1.0));
    let found = examined("once", &script);
    assert_eq!(found.verdict, Verdict::Ambiguous, "{}", found.reason);
    assert!(
        found.reason.ends_with("; × 0.500 [0.490, 0.510] the first time"),
        "{}",
        found.reason
    );
    // That of the best, whose score is 0.5.
    assert_eq!(found.timed.unwrap().score, 0.5);
    // Twice half is accepted as it is the second time.
    let script = once
        .replace("FIRST", &measured_at(0.5))
        .replace("SECOND", &measured_at(0.9));
    let found = examined("twice", &script);
    assert_eq!((found.verdict, found.timed.unwrap().score), (Verdict::Faster, 0.45));
}

/// A kernel whose last bits may differ is compared within the tolerance; any other bit for bit.
#[test]
fn only_a_kernel_that_declares_it_may_differ_in_last_bits() {
    let problem = Problem::named("tiny-backward").unwrap();
    let (judge, timing) = (Judge::of_nothing(&problem), Timing::for_cpu());
    let right = output_of_host(&problem, 5).unwrap();
    let (mut close, mut far) = (right.clone(), right.clone());
    close.out[100] ^= 1;
    far.out[101] ^= 0x10;
    let folder = std::env::temp_dir().join(format!("flashcore-twice-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let place = |name: &str| folder.join(name);
    let script = r#"*'"do":"run"'*) n=$((n+1)); said='"ok":null';;
*'"output"'*'"digest"'*) said="\"ok\":\"$n\"";;
*'"digest"'*) said='"ok":"0"';;
*'"lse"'*) : > FOLDER/scratch; said='"ok":null';;
*'"read"'*) cp FOLDER/$n FOLDER/scratch; said='"ok":null';;
*'"outside"'*) said='"ok":null';;"#;
    let script = script.replace("FOLDER", &folder.display().to_string());
    let twice = |name: &str, second: &Written, reproducible: bool| {
        std::fs::write(place("1"), &right.out).unwrap();
        std::fs::write(place("2"), &second.out).unwrap();
        let fake = Fake {
            first: script.clone(),
            ..Fake::new()
        };
        let mut examiner = Examiner {
            judge: &judge,
            worker: Worker::new(fake.program(name), "cpu", Deadlines::default()),
            scratch: place("scratch"),
            canvas: None,
            tolerances: Vec::new(),
            timing: &timing,
            lock: crate::device_lock::DeviceLock::default(),
            interrupt: Interrupt::default(),
        };
        match examiner.twice(reproducible) {
            Ok(said) => Ok(said),
            Err(Stop::Verdict(verdict, reason)) => Err((verdict, reason)),
            Err(_) => panic!("the worker is well"),
        }
    };
    assert_eq!(twice("same", &right, false), Ok(None));
    let said = twice("close", &close, false).unwrap().unwrap();
    assert!(said.contains("last bits, as it declares"), "{said}");
    let (verdict, reason) = twice("far", &far, false).unwrap_err();
    assert_eq!(verdict, Verdict::Unstable);
    assert!(reason.contains("differ in 1 rows by more than last bits"), "{reason}");
    let (verdict, reason) = twice("declares-not", &close, true).unwrap_err();
    assert_eq!(
        (verdict, reason.as_str()),
        (Verdict::Unstable, "two runs on the same inputs differ in the output")
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
