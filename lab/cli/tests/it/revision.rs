//! The revision that evidence names is that of the source that was built, also in a worktree, and after an edit.

use std::path::Path;
use std::process::Command;

use crate::common::json::json;

/// What the build script passed to `main`.
const REVISION: &str = env!("FLASHCORE_BUILD_REVISION");

/// What `git` says of this repository; `None` where there is none.
fn git(args: &[&str]) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
    output.status.success().then_some(text)
}

#[test]
fn it_is_heads_and_says_if_sources_were_modified() {
    if option_env!("FLASHCORE_REVISION").is_some_and(|given| !given.trim().is_empty()) {
        eprintln!("FLASHCORE_REVISION was set for this build: skipped");
        return;
    }
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        eprintln!("no repository here: skipped");
        assert_eq!(REVISION, "unknown");
        return;
    };
    assert_eq!(REVISION.trim_end_matches("-modified"), head);
    let sources = [
        "lab/bench",
        "lab/check",
        "lab/cli",
        "crates/cpu",
        "crates/cuda",
        "crates/ir",
        "crates/kernels",
        "crates/problem",
        "lab/sim",
    ]
    .map(|folder| format!("{folder}/src"));
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let args: Vec<&str> = status.into_iter().chain(sources.iter().map(String::as_str)).collect();
    if git(&args).is_some_and(|changed| !changed.is_empty()) {
        assert!(
            REVISION.ends_with("-modified"),
            "{} was built of modified sources",
            REVISION
        );
    }
}

#[test]
fn a_bench_names_the_revision_that_main_passed_on() {
    let bench = "bench tiny --device cpu --peers none --no-store --kernel cpu/m16n16 --budget 0.01 --json";
    assert_eq!(json(bench)["report"]["run"]["revision"], REVISION);
}
