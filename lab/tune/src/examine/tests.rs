use flashcore_problem::Problem;

use super::*;
use crate::worker::Deadlines;
use crate::worker::fake::{Fake, measured_at};

/// What becomes of a candidate beside the best, with a worker that does this first.
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
        compilers: None,
        timing: &timing,
        scratch: PathBuf::new(),
        canvas: None,
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
fn what_the_best_does_is_not_the_candidates_fault() {
    let failed = r#""failed":{"verdict":"LAUNCH_FAILED","kernel":"cpu/m16n16","reason":"gone","fatal":false}"#;
    let of_best = [
        ("opens-not", format!("*'\"open\"'*'m16n16'*) said='{failed}';;")),
        ("dies", "*'\"open\"'*'m16n16'*) exit 3;;".to_string()),
        // It opens, and then dies of being timed.
        (
            "dies-later",
            "*'\"open\"'*'[\"cpu/m16n16'*) open=7; said='\"opened\":[]';; *'\"time\"'*[27]) exit 3;;".to_string(),
        ),
    ];
    for (name, first) in of_best {
        let found = examined(name, &first);
        assert_eq!(found.verdict, Verdict::Ambiguous, "{name}: {}", found.reason);
        assert!(
            found.reason.contains("cpu/m16n16 could not be timed beside it"),
            "{}",
            found.reason
        );
        // 10 µs where the best took 20.
        assert_eq!(found.timed.unwrap().score, 0.25);
    }
}

#[test]
fn what_the_candidate_does_is() {
    let of_it = [
        ("its-open", "*'\"open\"'*'m32n32'*) exit 3;;"),
        (
            "its-time",
            "*'\"open\"'*'[\"cpu/m32n32'*1) open=7; said='\"opened\":[]';; *'\"time\"'*[27]) exit 3;;",
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
fn what_the_best_does_the_second_time_is_not_the_candidates_fault_either() {
    // Twice as fast; then the best ends the process, alone too.
    let script = "*'\"open\"'*'[\"cpu/m16n16'*) open=7; said='\"opened\":[]';; *'\"time\"'*7) exit 3;;\n\
         *'\"time\"'*2) [ -n \"$n\" ] && exit 3; n=1; said='FIRST';;";
    let found = examined("second-time", &script.replace("FIRST", &measured_at(0.5)));
    assert_eq!(found.verdict, Verdict::Ambiguous, "{}", found.reason);
    assert!(
        found.reason.contains("could not be timed beside it"),
        "{}",
        found.reason
    );
}

#[test]
fn what_is_faster_once_is_not_accepted() {
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
