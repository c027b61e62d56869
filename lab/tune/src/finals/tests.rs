use std::path::PathBuf;

use flashcore_problem::Problem;

use super::*;
use crate::examine::Timing;
use crate::interrupt::Interrupt;
use crate::judge::Judge;
use crate::tests::fake::{Fake, met};
use crate::tests::trial;
use crate::worker::{Deadlines, Worker};

const START: &str = "cpu/m16n16";
const A: &str = "cpu/m32n32";
const B: &str = "cpu/m48n48";

/// The board of finals between [`START`], [`A`] and [`B`] by a worker with these answers.
fn held(name: &str, first: String) -> Board {
    let trials = [(START, 1.0), (A, 0.8), (B, 0.9)].into_iter().enumerate();
    let trials = trials.map(|(number, (id, score))| trial(number, id, Some(score)));
    held_after(name, first, trials.collect(), 4)
}

/// The same after other trials, with so many finalists besides the first.
fn held_after(name: &str, first: String, trials: Vec<Trial>, keep: usize) -> Board {
    let problem = Problem::named("tiny").unwrap();
    let (judge, timing) = (Judge::of_nothing(&problem), Timing::for_cpu());
    let fake = Fake { first, ..Fake::new() };
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
    let mut history = History::default();
    trials.into_iter().for_each(|trial| history.add(trial));
    let board = Board::new(START, None, false, 0.03);
    let gate = Gatekeeper::new(&problem, None);
    let simulated = |board, _: &mut Worker| board;
    let held = hold(&history, &mut examiner, board, keep, &gate, &simulated, &mut ());
    held.unwrap().unwrap()
}

/// Lines of a worker's `case`: the kernels that were opened last, and the answer to `time` then.
fn on_time(meetings: &[(&[&str], String)]) -> String {
    let list = |ids: &[&str]| ids.join("\\\",\\\"");
    let mut lines = String::new();
    for (number, (ids, _)) in meetings.iter().enumerate() {
        let open = number + 11;
        lines += &format!(
            "*'\"open\"'*'[\"{}\"]'*) open={open}; said='\"ok\":[]';;\n",
            list(ids).replace('\\', "")
        );
    }
    for (number, (_, then)) in meetings.iter().enumerate() {
        lines += &format!("*'\"time\"'*{}) {then};;\n", number + 11);
    }
    lines
}

fn says(finalists: &[(&str, f64)]) -> String {
    format!("said='{}'", met(finalists))
}

#[test]
fn a_gain_that_is_not_confirmed_does_not_win() {
    let board = held(
        "lead",
        on_time(&[
            (&[START, A, B], says(&[(START, 1.0), (A, 0.8), (B, 0.9)])),
            (&[START, A], says(&[(START, 1.0), (A, 0.99)])),
            (&[START, B], says(&[(START, 1.0), (B, 0.92)])),
        ]),
    );
    assert_eq!(board.winner.as_deref(), Some(B), "{board:?}");
    let row = |id: &str| board.rows.iter().find(|row| row.id == id).unwrap();
    assert_eq!(row(A).verdict, Some(Verdict::Ambiguous));
    assert_eq!(
        (row(A).ratio.unwrap().value, row(A).first_ratio.unwrap().value),
        (0.99, 0.8)
    );
    // The gain is the second time's, and so are both times.
    assert!((row(B).us - 9.2).abs() < 1e-9 && row(START).us == 10.0, "{board:?}");
    let (gain, _) = board.gain_of_winner().unwrap();
    assert!((gain - 0.08).abs() < 1e-9, "{gain}");
    assert_eq!(board.rows[0].id, B);
}

#[test]
fn a_finalist_that_kills_its_worker_is_struck_and_the_others_are_timed() {
    let dies = || "exit 3".to_string();
    let board = held(
        "dies",
        on_time(&[
            (&[START, A, B], dies()),
            (&[START], says(&[(START, 1.0)])),
            (&[START, A], dies()),
            (&[START, B], says(&[(START, 1.0), (B, 0.9)])),
        ]),
    );
    let struck: Vec<(&str, Verdict)> = board.struck.iter().map(|one| (one.id.as_str(), one.verdict)).collect();
    assert_eq!(struck, [(A, Verdict::LaunchFailed)], "{board:?}");
    assert_eq!((board.winner.as_deref(), board.head_to_head.ok), (Some(B), true));
}

#[test]
fn a_failure_that_no_finalist_causes_ends_the_finals() {
    let board = held(
        "nobody",
        on_time(&[
            (&[START, A, B], "exit 3".to_string()),
            (&[START], says(&[(START, 1.0)])),
            (&[START, A], says(&[(START, 1.0), (A, 0.8)])),
            (&[START, B], says(&[(START, 1.0), (B, 0.9)])),
        ]),
    );
    assert!(board.struck.is_empty(), "{board:?}");
    assert!(
        board
            .head_to_head
            .why
            .unwrap()
            .ends_with("which finalist caused it is not known")
    );
}

#[test]
fn the_last_accepted_candidate_is_a_finalist() {
    let accepted = Trial {
        verdict: Verdict::Faster,
        ..trial(3, "cpu/m64n64", Some(0.95))
    };
    let mut trials: Vec<Trial> = [(START, 1.0), (A, 0.8), (B, 0.9)]
        .into_iter()
        .enumerate()
        .map(|(number, (id, score))| Trial {
            verdict: Verdict::Ambiguous,
            ..trial(number, id, Some(score))
        })
        .collect();
    trials.push(accepted);
    let first = on_time(&[
        (
            &[START, A, "cpu/m64n64"],
            says(&[(START, 1.0), (A, 1.0), ("cpu/m64n64", 0.9)]),
        ),
        (&[START, "cpu/m64n64"], says(&[(START, 1.0), ("cpu/m64n64", 0.9)])),
    ]);
    let board = held_after("accepted", first, trials, 2);
    assert_eq!(board.winner.as_deref(), Some("cpu/m64n64"), "{board:?}");
    assert_eq!(board.rows.len(), 3);
}

#[test]
fn a_first_candidate_that_fails_in_the_confirmation_is_struck() {
    let dies = || "exit 3".to_string();
    let first = on_time(&[
        (&[START, A, B], says(&[(START, 1.0), (A, 0.8), (B, 0.9)])),
        (&[START, A], dies()),
        (&[START], dies()),
        (&[A, B], says(&[(A, 1.0), (B, 1.1)])),
    ]);
    let board = held("found-out", first);
    assert_eq!(
        (board.winner.as_deref(), board.is_start_bad()),
        (Some(A), true),
        "{board:?}"
    );
    assert!(
        board
            .start_failed
            .as_deref()
            .is_some_and(|why| why.starts_with("LAUNCH_FAILED in the finals"))
    );
    assert_eq!(board.struck.len(), 1);
    assert_eq!(board.gain_of_winner(), None);
}

/// Every row of a finalist's output is compared with the witness's; float64 decides which is wrong.
#[test]
fn one_wrong_row_is_found_by_the_witness() {
    let problem = Problem::named("tiny").unwrap();
    let (judge, timing, seed) = (Judge::of_nothing(&problem), Timing::for_cpu(), 5);
    let right = output_of_host(&problem, seed).unwrap();
    let mut wrong = right.clone();
    let row = problem.o_layout().offset(0, 5, 0, 0) * problem.out_dtype().size_bytes();
    wrong.out[row + 1] ^= 0x40;
    let folder = std::env::temp_dir().join(format!("flashcore-agrees-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (given, scratch) = (folder.join("given"), folder.join("scratch"));
    let done = r#"said='"ok":null'"#;
    let first = format!(
        "*'\"lse\"'*) : > {to}; {done};;\n*'\"read\"'*) cp {from} {to}; {done};;\n*'\"outside\"'*) said='\"ok\":null';;",
        from = given.display(),
        to = scratch.display()
    );
    let fake = Fake { first, ..Fake::new() };
    let mut examiner = Examiner {
        judge: &judge,
        worker: Worker::new(fake.program("agrees"), "cpu", Deadlines::default()),
        scratch,
        canvas: None,
        tolerances: Vec::new(),
        timing: &timing,
        lock: crate::device_lock::DeviceLock::default(),
        interrupt: Interrupt::default(),
    };
    let mut agrees = |output: &Written, of_witness: &Written| {
        std::fs::write(&given, &output.out).unwrap();
        let witness = Witness {
            id: "scalar/x".to_string(),
            seed,
            output: of_witness.clone(),
        };
        match examiner.agrees(0, &witness) {
            Ok(()) => Ok(()),
            Err(Stop::Verdict(verdict, reason)) => Err((verdict, reason)),
            Err(_) => panic!("the worker is well"),
        }
    };
    assert_eq!(agrees(&right, &right), Ok(()));
    assert_eq!(agrees(&right, &wrong), Ok(()));
    let (verdict, reason) = agrees(&wrong, &right).unwrap_err();
    assert_eq!(verdict, Verdict::Wrong);
    assert!(
        reason.starts_with("row 5 of head 0 of sequence 0, one of 1"),
        "{reason}"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
