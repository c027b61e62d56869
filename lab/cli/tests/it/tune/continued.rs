//! `tune --resume` without a problem: the folder says what was asked for.

use std::path::Path;

use super::{flashcore, folder, json, said_of, trials};

#[test]
fn a_run_that_was_interrupted_is_continued_without_its_flags() {
    let home = folder("continued");
    let typed = "tune tiny --device cpu --strategy random --seed 3 --seq 24 --peers none --trials";
    let whole = json(&mut flashcore(&format!("{typed} 4 --json"), &home));
    let kept = Path::new(whole["folder"].as_str().unwrap());
    // Another one ended, and is not what is meant.
    json(&mut flashcore(&format!("{typed} 2 --json"), &home));
    let text = std::fs::read_to_string(kept.join("trials.jsonl")).unwrap();
    let begun: String = text.split_inclusive('\n').take(2).collect();
    std::fs::write(kept.join("trials.jsonl"), begun).unwrap();
    std::fs::remove_file(kept.join("board.json")).unwrap();
    let output = flashcore("tune --resume --json", &home).output().unwrap();
    let (out, said) = said_of(&output);
    assert!(output.status.success() && said.contains("note: continuing "), "{said}");
    let resumed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(resumed["folder"], whole["folder"]);
    assert_eq!((trials(&resumed).len(), trials(&whole).len()), (4, 4));
    // Of one that ended the folder is named, and the budget counts what was spent before.
    let more = format!("tune --resume --folder {} --trials 6 --json", kept.display());
    assert_eq!(trials(&json(&mut flashcore(&more, &home))).len(), 6);
    std::fs::remove_dir_all(&home).unwrap();
}
