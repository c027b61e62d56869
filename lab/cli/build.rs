//! Notes which revision of the source is built, so that evidence can say so. Only programs do this, so that a commit
//! compiles no library again: `main` passes the revision to `flashcore_bench::set_revision`.
//!
//! `FLASHCORE_REVISION` wins, for builds from a copy without a repository; otherwise `git` is asked; otherwise
//! it is `unknown`. `bindings/python` uses this file too.

use std::path::Path;
use std::process::Command;

/// Folders of crates. An edit in one compiles the program again anyhow, and may make a clean tree a modified one.
const CRATES: [&str; 2] = ["crates", "lab"];

fn main() {
    println!("cargo::rerun-if-env-changed=FLASHCORE_REVISION");
    // Cargo runs this in the crate's folder. A path from when this program was compiled would be that of another copy of the
    // repository where a target folder was copied, and the revision that one's.
    let root = Path::new("../..");
    for file in ["lab/cli/build.rs", "Cargo.lock"] {
        rerun_if_changed(&root.join(file));
    }
    for folder in CRATES {
        for entry in std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten() {
            rerun_if_changed(&entry.path().join("src"));
        }
    }
    // The log of HEAD grows with every commit and checkout. In a worktree it is not below `.git`.
    if let Some(log) = git(root, &["rev-parse", "--git-path", "logs/HEAD"]) {
        rerun_if_changed(&root.join(log));
    }
    let given = std::env::var("FLASHCORE_REVISION")
        .ok()
        .filter(|text| !text.trim().is_empty());
    let revision = given
        .or_else(|| from_git(root))
        .unwrap_or_else(|| "unknown".to_string());
    println!("cargo::rustc-env=FLASHCORE_BUILD_REVISION={}", revision.trim());
}

/// What is not there would be taken for changed each time.
fn rerun_if_changed(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

fn from_git(root: &Path) -> Option<String> {
    let revision = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(root, &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    Some(if changed {
        format!("{revision}-modified")
    } else {
        revision
    })
}

/// What `git` says of the repository whose root this is; nothing where this is none, or only a folder inside of one.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}
