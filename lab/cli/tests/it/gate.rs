//! `flashcore gate`: it writes a baseline, passes against it, and fails against a better one.

use std::path::Path;

use serde_json::Value;

use crate::common::{flashcore, words};

/// One card, no device: some seconds.
const QUICK: &str = "--profile l4 --device sim";

fn edit(path: &Path, change: impl Fn(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).expect("a baseline")).expect("JSON");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("a file");
}

#[test]
fn a_baseline_is_written_and_judged_against() {
    let folder = tempfile::tempdir().expect("a folder");
    let (base, summary) = (folder.path().join("base.json"), folder.path().join("gate.md"));
    // It is written, although not everything could be judged.
    let written = flashcore(&format!("gate --write {} {QUICK} --strict", base.display()));
    assert_eq!(written.code, 3, "{}{}", written.stdout, written.stderr);
    // No assembler, no device, no evidence: each is said.
    for part in [
        "spills are not known here",
        "no device computed the set",
        "no evidence was named",
    ] {
        assert!(words(&written.stdout).contains(part), "{part}\n{}", written.stdout);
    }
    let judge = format!("gate --baseline {} {QUICK}", base.display());
    edit(&base, |baseline| {
        let error = &mut baseline["errors"][0]["frobenius"];
        *error = (error.as_f64().expect("an error") / 1.5).into();
    });
    let ran = flashcore(&format!("{judge} --markdown {}", summary.display()));
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(ran.words().contains("1.50 × the baseline's"), "{}", ran.stdout);
    assert!(ran.words().contains("the gate fails"), "{}", ran.stdout);
    let markdown = std::fs::read_to_string(&summary).expect("a summary");
    assert!(markdown.contains("| error | FAILED | "), "{markdown}");

    let races = flashcore(&format!("{judge} --error 90% --plant drop-barrier --json"));
    assert_eq!(races.code, 1, "{}", races.stderr);
    let races: Value = serde_json::from_str(&races.stdout).expect("JSON");
    let checks = races["judged"]["checks"].as_array().expect("checks");
    let failed: Vec<&Value> = checks.iter().filter(|check| check["outcome"] == "failed").collect();
    assert!(failed.len() == 1 && failed[0]["name"] == "findings", "{races}");
    assert!(races["state"]["device"].is_null());
}
