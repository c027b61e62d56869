//! The revision that evidence names is that of the source that was built, also in a worktree, and after an edit.

#[path = "../../build.rs"]
#[allow(dead_code)] // its main
mod build;

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
    assert_eq!(REVISION.split("-modified-").next(), Some(head.as_str()));
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
            REVISION.contains("-modified-"),
            "{} was built of modified sources",
            REVISION
        );
    }
}

#[test]
fn each_state_of_the_sources_has_its_own_revision() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let git = |args: &[&str]| {
        let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let done = Command::new("git").arg("-C").arg(root).args(who).args(args).output();
        done.is_ok_and(|output| output.status.success())
    };
    if !git(&["init", "-q"]) {
        eprintln!("no git here: skipped");
        return;
    }
    write("crates/a/src/lib.rs", "1");
    write("lab/cli/build.rs", "1");
    write("docs/a.md", "1");
    assert!(git(&["add", "."]) && git(&["commit", "-q", "-m", "a"]));
    let revision = || build::from_git(root, &build::sources(root)).unwrap();
    let head = revision();
    assert_eq!(head.len(), 12, "{head}");
    write("docs/a.md", "2");
    assert_eq!(revision(), head, "a page is no source");

    write("crates/a/src/lib.rs", "2");
    let edited = revision();
    let hash = edited.strip_prefix(&format!("{head}-modified-")).unwrap();
    assert!(
        hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{edited}"
    );
    write("crates/a/cards/x.json", "1");
    assert_ne!(revision(), edited, "a card's file is a source");
    std::fs::remove_file(root.join("crates/a/cards/x.json")).unwrap();
    write("crates/a/src/new.rs", "2");
    let grown = revision();
    assert!(git(&["add", "crates"]));
    assert_eq!(revision(), grown, "what is staged is the same source");
    write("crates/a/src/new.rs", "3");
    let all = [&head, &edited, &grown, &revision()];
    assert!((0..4).all(|at| !all[..at].contains(&all[at])), "{all:?}");
    std::fs::remove_file(root.join("crates/a/src/new.rs")).unwrap();
    assert!(git(&["reset", "-q"]));
    assert_eq!(revision(), edited, "the same source has the same revision");
}

#[test]
fn a_bench_names_the_revision_that_main_passed_on() {
    let bench = "bench tiny --device cpu --peers none --store none --kernel cpu/m16n16 --budget 0.01 --json";
    assert_eq!(json(bench)["report"]["run"]["revision"], REVISION);
}

#[test]
fn a_package_names_the_commit_that_it_was_packaged_from() {
    let packaged =
        r#"{ "git": { "sha1": "cad32d8d6a4b2f0e1c3d5b7a9f8e7d6c5b4a3f2e"DIRTY }, "path_in_vcs": "lab/cli" }"#;
    let of = |dirty| build::from_package(&packaged.replace("DIRTY", dirty));
    assert_eq!(of("").as_deref(), Some("cad32d8d6a4b"));
    assert_eq!(of(r#", "dirty": true"#).as_deref(), Some("cad32d8d6a4b-modified"));
    assert_eq!(build::from_package("{}"), None);
}
