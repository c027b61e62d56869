//! Passes the revision of the source to the program, for evidence. Only programs do this, so that a
//! commit recompiles no library: `main` calls `flashcore_bench::set_revision`. `bindings/python` uses this
//! file too.
//!
//! The revision is `FLASHCORE_REVISION` (for builds from a copy without a repository), or `git`'s, or
//! `unknown`.

use std::path::Path;
use std::process::Command;

/// Folders of crates. An edit recompiles the program anyhow, and may make a clean tree a modified one.
const CRATES: [&str; 2] = ["crates", "lab"];

fn main() {
    println!("cargo::rerun-if-env-changed=FLASHCORE_REVISION");
    // Cargo runs this program in the crate's folder. A path from its compilation would be wrong in a copy
    // of the repository with its target folder.
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
    let given = std::env::var("FLASHCORE_REVISION").ok();
    let given = given.filter(|text| !text.trim().is_empty());
    let revision = given.or_else(|| from_git(root));
    let revision = revision.as_deref().unwrap_or("unknown").trim();
    println!("cargo::rustc-env=FLASHCORE_BUILD_REVISION={revision}");
}

/// Cargo takes a missing file for a changed one.
fn rerun_if_changed(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

fn from_git(root: &Path) -> Option<String> {
    let revision = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(root, &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    let suffix = if changed { "-modified" } else { "" };
    Some(revision + suffix)
}

/// The output of `git`, if this is the root of a repository.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
    output.status.success().then_some(text)
}
