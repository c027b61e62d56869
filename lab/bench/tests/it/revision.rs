//! The revision that evidence names is that of the source that was built, also in a worktree, and after an edit.

use std::path::Path;
use std::process::Command;

use flashcore_bench::revision;

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
        assert_eq!(revision(), "unknown");
        return;
    };
    assert_eq!(revision().trim_end_matches("-modified"), head);
    let sources = [
        "lab/bench",
        "lab/check",
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
            revision().ends_with("-modified"),
            "{} was built of modified sources",
            revision()
        );
    }
}
