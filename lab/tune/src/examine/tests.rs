use std::path::PathBuf;

use super::*;
use crate::tests::fake::{Fake, measured_at};
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
        timing: &timing,
        lock: crate::device_lock::DeviceLock::default(),
        interrupt: Interrupt::default(),
    };
    let best = Best {
        id: "cpu/m16n16".to_string(),
        score: 0.5,
        us: 20.0,
    };
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
