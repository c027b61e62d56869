//! Notes which revision of the source is built, so that evidence can say so.
//!
//! `FLASHCORE_REVISION` wins, for builds from a copy without a repository; otherwise `git` is asked; otherwise
//! it is `unknown`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=FLASHCORE_REVISION");
    println!("cargo::rerun-if-changed=build.rs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // The log of HEAD grows with every commit and checkout.
    let log = root.join(".git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    let given = std::env::var("FLASHCORE_REVISION")
        .ok()
        .filter(|text| !text.trim().is_empty());
    let revision = given
        .or_else(|| from_git(&root))
        .unwrap_or_else(|| "unknown".to_string());
    println!("cargo::rustc-env=FLASHCORE_BUILD_REVISION={}", revision.trim());
}

fn from_git(root: &Path) -> Option<String> {
    if !root.join(".git").exists() {
        return None;
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let revision = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    Some(if changed {
        format!("{revision}-modified")
    } else {
        revision
    })
}
