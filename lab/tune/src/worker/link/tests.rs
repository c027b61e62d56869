use flashcore_bench::{DeviceIdentity, Mode, Options};

use super::*;
use crate::worker::fake::{Fake, hello_of};

fn problem(seq: usize) -> Problem {
    Problem::builder()
        .heads(32, 32)
        .seq_len(seq)
        .head_dim(128)
        .build()
        .unwrap()
}

fn steps(step: Step) -> Command {
    Command::Steps { steps: vec![step] }
}

fn finish_step() -> Command {
    steps(Step::Finish)
}

#[test]
fn a_large_problem_is_given_the_time_that_it_needs() {
    let usual = Deadlines::default();
    let finish = |seq: usize, device: &str| {
        let needs = Needs::of(&problem(seq), 2, device);
        usual.of(&finish_step(), &needs)
    };
    assert!(finish(64, "cpu") < usual.run + Duration::from_secs(1));
    // 4.4 T operations.
    let cores = thread::available_parallelism().map_or(1, usize::from) as u64;
    assert!(finish(16384, "cpu") > usual.run + Duration::from_secs(4_000 / cores));
    assert!(finish(16384, "cuda:0") < Duration::from_secs(60));
    let load = steps(Step::Load {
        place: 0,
        kind: "normal".to_string(),
        seed: 1,
    });
    let needs = Needs::of(&problem(16384), 2, "cuda:0");
    assert!(usual.of(&load, &needs) > usual.run + Duration::from_secs(10));
}

#[test]
fn a_worker_that_hangs_is_ended_at_every_stage() {
    let open = Command::Open {
        problem: problem(16),
        kernels: vec!["cpu/m16n16".to_string()],
    };
    let time = Command::Time {
        baseline: 0,
        mode: Mode::Screen,
        options: Options {
            budget_ms: 1.0,
            warm_up_max_us: 1.0,
            ..Options::for_cpu()
        },
    };
    let short = Deadlines {
        start: Duration::from_secs(60),
        compile: Duration::from_millis(500),
        run: Duration::from_millis(500),
        time: Duration::from_millis(500),
    };
    let cases = [
        ("open", &open, Stage::Compile),
        ("time", &time, Stage::Time),
        ("steps", &finish_step(), Stage::Run),
    ];
    for (word, command, at) in cases {
        let first = format!("*'\"do\":\"{word}\"'*) read -r never < /dev/zero;;");
        let fake = Fake { first, ..Fake::new() };
        let mut worker = Worker::new(fake.program(&format!("hangs-{word}")), "cpu", short);
        match worker.ask(command).unwrap() {
            Err(Loss::Hung { stage, .. }) => assert_eq!(stage, at),
            other => panic!("{word}: {other:?}"),
        }
        assert_eq!(worker.process(), None);
    }
    let first = "*'\"hello\"'*) read -r never < /dev/zero;;".to_string();
    let fake = Fake { first, ..Fake::new() };
    let short = Deadlines {
        start: Duration::from_millis(500),
        ..short
    };
    let error = Worker::new(fake.program("hangs-hello"), "cpu", short)
        .hello()
        .unwrap_err();
    assert!(error.to_string().contains("while starting within 0.5 s"), "{error}");
}

#[test]
fn a_worker_that_comes_back_as_another_is_refused() {
    let died = std::env::temp_dir().join(format!("flashcore-another-{}", std::process::id()));
    let _ = std::fs::remove_file(&died);
    let mut other = DeviceIdentity::cpu();
    other.driver = "581.1".to_string();
    let (now, then) = (hello_of(&other), hello_of(&DeviceIdentity::cpu()));
    let first = format!(
        "*'\"steps\"'*) touch {0}; exit 3;;\n*'\"hello\"'*) if [ -e {0} ]; then said='{now}'; else said='{then}'; fi;;",
        died.display()
    );
    let fake = Fake { first, ..Fake::new() };
    let mut worker = Worker::new(fake.program("another"), "cpu", Deadlines::default());
    assert!(matches!(worker.ask(&finish_step()), Ok(Err(Loss::Died { .. }))));
    let error = worker.ask(&finish_step()).unwrap_err().to_string();
    assert!(
        error.contains("is not what it was") && error.contains("driver 581.1) now"),
        "{error}"
    );
    std::fs::remove_file(&died).unwrap();
}
