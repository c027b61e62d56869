//! Kernels for a robust-kbench task, honest and cheating, under the judge. The task has no tensors,
//! so Python alone is enough.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flashcore_bench::BenchError;
use flashcore_bench::kbench::{Floor, Job, Report, Status, verify};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kbench/toy")
}

fn job(kernel: &str) -> Job {
    Job {
        task: folder(),
        kernel: folder().join(kernel),
        device: "cpu".to_string(),
        multi: false,
        trials: 5,
        atol: None,
        rtol: None,
        seed: 7,
        warmup: 1,
        repetitions: 2,
        rounds: 2,
        floor: Floor::of("cpu"),
        include: Vec::new(),
        deadline: Duration::from_secs(600),
    }
}

fn judged(kernel: &str) -> Report {
    verify("python3", &job(kernel), |_| {}).unwrap()
}

/// The checks that failed, and the detail of the first.
fn failed(report: &Report) -> (Vec<&str>, &str) {
    let ids = report.failed().map(|check| check.id.as_str()).collect();
    (ids, report.failed().next().map_or("", |check| check.detail.as_str()))
}

#[test]
fn honest_kernels_pass() {
    let report = judged("honest.py");
    assert!(report.passes(), "{report:#?}");
    assert_eq!(report.verdict(), "passes the benchmark's protocol and every check");
    let times = report.times.as_ref().expect("times");
    assert_eq!(
        (times.candidate.samples, times.reference.samples, times.rounds),
        (4, 2, 2)
    );
    assert!(
        times.floor_us > 0.0 && times.candidate.mean_us > times.floor_us,
        "{times:?}"
    );
    assert!(report.kernel_sha256.len() == 64 && report.machine.device == "CPU");
    let text = report.markdown("honest.py");
    assert!(text.contains("| stale | computes anew | pass |"), "{text}");
    // What only a GPU has is not claimed.
    let skipped = report.checks.iter().filter(|check| check.status == Status::Skip);
    let skipped: Vec<&str> = skipped.map(|check| check.id.as_str()).collect();
    assert_eq!(skipped, ["poison", "caller", "graph"]);

    let all = Job {
        multi: true,
        ..job("honest.py")
    };
    let report = verify("python3", &all, |_| {}).unwrap();
    assert_eq!(report.checks[0].detail, "20 of 20 trials, two calls each");
}

#[test]
fn each_cheat_passes_the_protocol_and_fails_for_its_reason() {
    for (kernel, check, why) in [
        (
            "cached.py",
            "stale",
            "is that of the values which the inputs held before",
        ),
        ("no_max.py", "values", "inputs all 8 times as large: "),
        ("fixed_length.py", "lengths", "keys 16: "),
        ("late.py", "stream", "without waiting for the device"),
        ("changes_inputs.py", "inputs", "input 0 was changed"),
        ("one_buffer.py", "memory", "two calls return the same memory"),
    ] {
        let report = judged(kernel);
        let (ids, detail) = failed(&report);
        assert!(report.passes_protocol() && !report.passes(), "{kernel}: {report:#?}");
        // Timed calls find some, too, by what they write.
        assert!(ids.iter().all(|id| [check, "clock"].contains(id)), "{kernel}: {ids:?}");
        let detail = if ids[0] == check {
            detail
        } else {
            &found(&report, check).detail
        };
        assert!(detail.contains(why), "{kernel}: {detail}");
    }
    // Wrong from the eleventh call on, whatever is checked.
    let report = judged("first_calls.py");
    assert!(
        report.passes_protocol() && failed(&report).0[..2] == ["clock", "seeds"],
        "{report:#?}"
    );
    assert!(
        report
            .verdict()
            .starts_with("passes the benchmark's protocol and fails: clock, seeds, ")
    );
}

fn found<'r>(report: &'r Report, id: &str) -> &'r flashcore_bench::kbench::Check {
    report.checks.iter().find(|check| check.id == id).expect(id)
}

/// Kernels that fabricate a time or a result have none. Each verdict follows from what is written, not from how long
/// anything takes.
#[test]
fn fabricated_times_and_results_are_refused() {
    for (kernel, check, why) in [
        (
            "patched_clock.py",
            "clock",
            "it replaces time.monotonic, time.perf_counter, time.time",
        ),
        ("background.py", "clock", "timed ones: "),
        ("patched_judge.py", "protocol", "0 of 5 trials: "),
        ("lazy.py", "protocol", "the output is Lazy, not an array"),
    ] {
        let report = judged(kernel);
        assert_eq!(failed(&report).0, [check], "{kernel}: {report:#?}");
        assert!(failed(&report).1.contains(why), "{kernel}: {report:#?}");
        assert!(report.times.is_none(), "{kernel}: {:?}", report.times);
    }
    // It is as fast as its table of outputs, and right. Which of two reasons is found first is chance.
    let report = judged("remembered.py");
    assert_eq!(failed(&report).0, ["clock"], "{report:#?}");
    let reasons = ["it remembers outputs", "its time does not grow"];
    assert!(reasons.iter().any(|why| failed(&report).1.contains(why)), "{report:#?}");
    assert!(report.times.is_none());
    // The function that it is compared with has been started before.
    assert!(judged("overwrites.py").passes());
    // They write to every pipe: a whole report, and a line without an end.
    for kernel in ["forged.py", "endless.py"] {
        let error = verify("python3", &job(kernel), |_| {}).unwrap_err();
        assert!(
            matches!(&error, BenchError::Failed(why) if why.contains("its results are forged")),
            "{kernel}: {error}"
        );
    }
}

/// A time that the device cannot reach is refused with the floor: an honest kernel's, where the device is said to be
/// slow, and that of a loop which makes no call.
#[test]
fn a_time_below_the_roofline_is_refused_with_its_floor() {
    let slow = |bytes_per_us: f64, kernel: &str| Job {
        floor: Floor {
            device: "a slow card".to_string(),
            bytes_per_us,
            cache_bytes_per_us: bytes_per_us,
            ..Floor::of("cpu")
        },
        repetitions: 300_000,
        ..job(kernel)
    };
    // 416 bytes: 416 s, and 10 µs, where asking for 200,000 calls takes less than 2 s.
    let honest = Job {
        repetitions: 2,
        ..slow(1e-6, "honest.py")
    };
    for (job, floor) in [(honest, "4.16e+08 us"), (slow(41.6, "instant.py"), "10 us")] {
        let report = verify("python3", &job, |_| {}).unwrap();
        let why = format!("a slow card moving 416 B needs {floor} at least (its roofline floor)");
        assert_eq!(failed(&report).0, ["clock"], "{report:#?}");
        assert!(failed(&report).1.contains(&why), "{report:#?}");
        assert!(report.times.is_none());
    }
}

/// On a device that is made up: streams, graphs and fresh memory are a GPU's.
#[test]
fn checks_that_need_a_gpu_find_what_is_planted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut script = std::process::Command::new("python3");
    script
        .arg("-B")
        .arg(root.join("tests/data/kbench/judge_test.py"))
        .arg(root.join("src/kbench/judge"));
    let output = script.output().unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && said.contains("all as planted"),
        "{said}{errors}"
    );
}

#[test]
fn a_wrong_kernel_fails_the_protocol_and_is_not_timed() {
    let report = judged("wrong.py");
    assert_eq!(failed(&report).0, ["protocol"]);
    assert!(failed(&report).1.contains("0 of 5 trials: "), "{report:#?}");
    assert!(report.times.is_none() && report.checks.len() == 1, "{report:#?}");
    // A tolerance that takes anything.
    let lax = Job {
        atol: Some(1e9),
        ..job("wrong.py")
    };
    assert!(verify("python3", &lax, |_| {}).unwrap().passes_protocol());
}

#[test]
fn a_kernel_may_refuse_other_sizes() {
    let report = judged("refuses.py");
    assert!(report.passes(), "{report:#?}");
    assert_eq!(
        report.notes,
        ["it refuses 2 of 4 other sizes, such as keys 16 (made for 10 keys)"]
    );
}

#[test]
fn kernels_that_hang_or_end_the_process_are_failures() {
    let short = Job {
        deadline: Duration::from_secs(2),
        ..job("hangs.py")
    };
    let error = verify("python3", &short, |_| {}).unwrap_err();
    assert!(
        matches!(&error, BenchError::Failed(why) if why.contains("it was stopped after 2 s")),
        "{error}"
    );
    let error = verify("python3", &job("dies.py"), |_| {}).unwrap_err();
    let expected = "at: correct for the benchmark's seeds";
    assert!(
        matches!(&error, BenchError::Failed(why) if why.contains(expected)),
        "{error}"
    );
}

#[test]
fn an_environment_that_fails_is_no_verdict_on_the_kernel() {
    for (kernel, why) in [
        ("killed.py", "was ended from outside (signal 9)"),
        ("no_space.py", "ran out of"),
    ] {
        let error = verify("python3", &job(kernel), |_| {}).unwrap_err();
        assert!(
            matches!(&error, BenchError::Machine(said) if said.contains(why)),
            "{kernel}: {error}"
        );
    }
}

/// Python would wait for it until the deadline.
#[cfg(unix)]
#[test]
fn a_task_of_what_is_no_file_is_refused() {
    let task = tempfile::tempdir().unwrap();
    std::fs::copy(folder().join("func_forward.py"), task.path().join("func_forward.py")).unwrap();
    let config = task.path().join("config_forward.json");
    let made = std::process::Command::new("mkfifo").arg(&config).status().unwrap();
    assert!(made.success());
    let job = Job {
        task: task.path().to_path_buf(),
        ..job("honest.py")
    };
    let error = verify("python3", &job, |_| {}).unwrap_err();
    assert!(
        matches!(&error, BenchError::Given(why) if why.contains("config_forward.json: it is a pipe (FIFO)")),
        "{error}"
    );
}

#[test]
fn what_cannot_be_judged_is_said() {
    let no_task = Job {
        task: folder().join(".."),
        ..job("honest.py")
    };
    let error = verify("python3", &no_task, |_| {}).unwrap_err();
    assert!(
        matches!(&error, BenchError::Given(why) if why.contains("config_forward.json")),
        "{error}"
    );
    let error = verify("python3", &job("func_forward.py"), |_| {}).unwrap_err();
    assert!(
        matches!(&error, BenchError::Failed(why) if why.contains("no function `forward`")),
        "{error}"
    );
    let on_gpu = Job {
        device: "cuda".to_string(),
        ..job("honest.py")
    };
    let error = verify("python3", &on_gpu, |_| {}).unwrap_err();
    assert!(
        matches!(&error, BenchError::Machine(why) if why.contains("runs on the CPU only")),
        "{error}"
    );
    let error = verify("no-such-python", &job("honest.py"), |_| {}).unwrap_err();
    assert!(matches!(&error, BenchError::Machine(_)), "{error}");
}
