//! What `flashcore tune` shows where there is no GPU: the CPU's kernels tuned, a GPU's time predicted, its kernel
//! simulated.

use super::{flashcore, folder};

#[test]
fn without_a_gpu_tune_shows_all_its_parts() {
    if flashcore_cuda::devices().is_ok_and(|gpus| !gpus.is_empty()) {
        eprintln!("NOT RUN: this machine has a GPU, and the tour is for those without");
        return;
    }
    let home = folder("tour");
    let words = "tune tiny --dtype f32 --seq 512 --heads 8 --head-dim 64 --budget 2s --peers none";
    let output = flashcore(words, &home).output().unwrap();
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    let parts = [
        "Attention on cpu",
        "correct   yes",
        "time ",
        "result ",
        "predicted",
        "NVIDIA L4",
        " tried ",
        "half of 2s",
        "Leaderboard",
        env!("FLASHCORE_BUILD_REVISION"),
        "the default",
        " evidence ",
        "No GPU here",
        // The simulator's time grows with the problem: this one is beyond what it is given.
        "cut from",
        "clean under",
    ];
    let mut rest = out.as_str();
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?} there: {out}"));
        rest = &rest[at..];
    }
    // Piped text is plain, and tables are no wider than a page; lines to be copied are as long as they are.
    assert!(!out.contains('\u{1b}'), "{out}");
    for line in rest.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_search_for_a_card_that_is_not_here_is_predicted() {
    let words = "tune --heads 2 --seq 128 --head-dim 64 --device predict:a100 --trials 12 --json";
    let home = folder("predicted");
    let output = flashcore(words, &home).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (run, board) = (&found["run"], &found["board"]);
    assert_eq!(run["devices"][0]["device"], "predict:a100");
    assert_eq!(found["trials"].as_array().map(Vec::len), Some(12));
    let rows = board["rows"].as_array().unwrap();
    let row = |id: &serde_json::Value| rows.iter().find(|row| row["id"] == *id).unwrap();
    let micros = |id: &serde_json::Value| row(id)["us"].as_f64().unwrap();
    assert!(micros(&board["winner"]) <= micros(&run["default"]["kernel"]), "{text}");
    assert_eq!(row(&board["winner"])["simulated"]["ok"], true, "{text}");
    // Nothing was measured, so no table has it.
    assert!(found["plan"].to_string().contains("it is a prediction"), "{text}");
    // How far the times may be off is said; the cost model's claims are not confirmed by its own times.
    let error = "times are predicted; measured ones may differ by -";
    assert!(run["trust"].as_str().unwrap().starts_with(error), "{text}");
    assert!(found["claims"].is_null(), "{text}");
    // Also in text, whatever the strategy, and when it is shown again.
    let kept = home.join("elite");
    let elite = format!(
        "tune --heads 2 --seq 128 --head-dim 64 --device predict:l4 --strategy elite --trials 40 --folder {}",
        kept.display()
    );
    for words in [elite, format!("tune show {}", kept.display())] {
        let output = flashcore(&words, &home).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(error) && text.contains("% less time than"), "{text}");
        assert!(text.contains("×") && !text.contains('['), "{text}");
    }
}
