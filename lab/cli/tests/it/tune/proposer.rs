//! Searches in which another program says what to try.

use std::io::Write;
use std::process::{Command, Stdio};

use flashcore_tune::{Trial, Verdict};

use super::{flashcore, folder, said_of, words};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/tune/examples/propose.py");

fn has_python() -> bool {
    let there = Command::new("python3").arg("--version").output().is_ok();
    if !there {
        eprintln!("NOT RUN: there is no python3");
    }
    there
}

#[test]
fn a_proposer_that_dies_leaves_finals_and_how_to_go_on() {
    let home = folder("proposer");
    let run = home.join("one run");
    let script = home.join("once.sh");
    let answer = r#"{"propose": ["cpu/m32n32", "mma/m64n64-w4x1-s2-b1-qreg-xor-cond", "nonsense"]}"#;
    std::fs::write(&script, format!("read line; echo '{answer}'\n")).unwrap();
    let mut command = flashcore("tune tiny --device cpu --trials 9", &home);
    let proposer = format!("sh {}", script.display());
    let output = command
        .args(["--proposer", &proposer, "--folder"])
        .arg(&run)
        .output()
        .unwrap();
    let (out, err) = said_of(&output);
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(words(&err).contains("the search ended early: proposer `sh"), "{err}");
    assert!(run.join("board.json").exists());
    // What cannot run here is data, with its reason.
    let lines = std::fs::read_to_string(run.join("trials.jsonl")).unwrap();
    let trials: Vec<Trial> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(trials.len(), 4);
    assert!(trials[1].verdict.is_timed());
    for trial in &trials[2..] {
        assert_eq!(trial.verdict, Verdict::Refused, "{trial:?}");
        assert!(trial.reason.contains("no config of the families searched"), "{trial:?}");
        assert!(trial.timed.is_none() && trial.seconds == 0.0);
    }
    let go_on = format!(
        "--proposer 'sh {}' --resume --folder '{}'",
        script.display(),
        run.display()
    );
    assert!(out.contains(&go_on), "{out}");
    assert!(out.contains("tune tiny --device cpu --trials 9"), "{out}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// What no proposer would say is shown as it said it, and no budget is blamed.
#[test]
fn a_proposer_that_says_nonsense_is_quoted() {
    let home = folder("nonsense");
    let output = flashcore("tune small --device replay:shipped --trials 9", &home)
        .args(["--proposer", "echo nonsense"])
        .output()
        .unwrap();
    let (out, err) = said_of(&output);
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    let (out, err) = (words(&out), words(&err));
    assert!(
        err.contains("proposer `echo nonsense`: it wrote `nonsense`, which is no JSON"),
        "{err}"
    );
    assert!(
        out.contains("only it was tried; `echo nonsense` proposed nothing else"),
        "{out}"
    );
    assert!(!out.contains("give --budget"), "{out}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// The example of a proposer turns levers of what is fast, words too, and never makes a config that cannot be.
#[test]
fn the_example_of_a_proposer_proposes_what_may_be_tried() {
    if !has_python() {
        return;
    }
    let home = folder("propose");
    let kept = home.join("run");
    let output = flashcore("tune small --device replay:shipped --trials 30 --folder", &home)
        .arg(&kept)
        .args(["--proposer", &format!("python3 {SCRIPT}")])
        .output()
        .unwrap();
    let (out, err) = said_of(&output);
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    // Kept output says what it is evidence of.
    let identity = format!(
        "revision {}; driver of the times 580.159.04",
        env!("FLASHCORE_BUILD_REVISION")
    );
    assert!(words(&out).contains(&identity), "{out}");
    let lines = std::fs::read_to_string(kept.join("trials.jsonl")).unwrap();
    let trials: Vec<Trial> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(trials.len(), 30);
    let refused = trials.iter().filter(|trial| trial.verdict == Verdict::Refused);
    assert_eq!(refused.count(), 0, "{trials:#?}");
    let origins: Vec<&str> = trials.iter().map(|trial| trial.origin.as_str()).collect();
    assert!(
        origins
            .iter()
            .any(|why| why.contains("rescale") || why.contains("pingpong")),
        "{origins:#?}"
    );
    let fastest = |trials: &[Trial]| trials.iter().filter_map(Trial::score).fold(f64::INFINITY, f64::min);
    assert!(fastest(&trials) < 0.6 * fastest(&trials[..1]), "{origins:#?}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// Several proposals are on their way at once on a GPU: what is claimed meanwhile is no reason to propose the same
/// again.
#[test]
fn the_example_of_a_proposer_follows_a_claim_once() {
    if !has_python() {
        return;
    }
    let claim = serde_json::json!({
        "about": "mma/a", "kind": "latency", "evidence": "made up", "line": null, "lever": "stages", "from": "2", "to": "3",
        "proposes": "mma/b", "expected": -9.0,
    });
    let near = serde_json::json!({"lever": "cols", "to": "64", "id": "mma/c"});
    let told = serde_json::json!({
        "trials": [], "best": "mma/a", "turned_down": [], "claims": [claim], "record": [],
        "fastest": [{"id": "mma/a", "levers": {"stages": "2", "cols": "32"}, "neighbours": [near]}],
    });
    let mut script = Command::new("python3")
        .arg(SCRIPT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut questions = script.stdin.take().unwrap();
    write!(questions, "{told}\n{told}\n").unwrap();
    drop(questions);
    let output = script.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let proposed: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let proposed: Vec<&serde_json::Value> = proposed.iter().map(|answer| &answer["propose"][0]).collect();
    assert_eq!(proposed, ["mma/b", "mma/c"]);
}
