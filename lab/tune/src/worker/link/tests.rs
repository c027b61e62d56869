use std::time::Duration;

use flashcore_bench::{DeviceIdentity, Mode, Options};
use flashcore_problem::Problem;
use serde_json::Value;

use super::*;
use crate::tests::fake::{Fake, hello_of};

fn run() -> Command {
    Command::Outside
}

#[test]
fn a_worker_that_hangs_is_killed_at_every_stage() {
    let open = Command::Open {
        problem: Problem::named("tiny").unwrap(),
        seed: 1,
        own: Vec::new(),
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
        ("open", &open, "compiling"),
        ("time", &time, "timing"),
        ("outside", &run(), "running"),
    ];
    for (word, command, doing) in cases {
        let first = format!("*'\"do\":\"{word}\"'*) read -r never < /dev/zero;;");
        let fake = Fake { first, ..Fake::new() };
        let mut worker = Worker::new(fake.program(&format!("hangs-{word}")), "cpu", short);
        match worker.ask::<Value>(command) {
            Err(Stop::Verdict(Verdict::Hung, why)) => assert!(why.contains(doing), "{why}"),
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
fn a_worker_that_restarts_as_another_one_is_refused() {
    let died = std::env::temp_dir().join(format!("flashcore-another-{}", std::process::id()));
    let _ = std::fs::remove_file(&died);
    let mut other = DeviceIdentity::cpu();
    other.driver = "581.1".to_string();
    let (now, then) = (hello_of(&other), hello_of(&DeviceIdentity::cpu()));
    let first = format!(
        "*'\"outside\"'*) touch {0}; exit 3;;\n*'\"hello\"'*) if [ -e {0} ]; then said='{now}'; else said='{then}'; fi;;",
        died.display()
    );
    let fake = Fake { first, ..Fake::new() };
    let mut worker = Worker::new(fake.program("another"), "cpu", Deadlines::default());
    assert!(matches!(worker.ask::<()>(&run()), Err(Stop::Died(_))));
    let error = worker.ask::<()>(&run()).unwrap_err().reason();
    assert!(
        error.contains("is not what it was") && error.contains("driver 581.1) now"),
        "{error}"
    );
    std::fs::remove_file(&died).unwrap();
}
