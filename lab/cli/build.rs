//! Passes the revision of the source to the program, for evidence. Only programs do this, so that a
//! commit recompiles no library: `main` calls `flashcore_bench::set_revision`. The build
//! script of `bindings/python` calls this one, which `scripts/release/sdist.sh` packs, too.
//!
//! The revision is `FLASHCORE_REVISION` (for builds from a copy without a repository), or `git`'s with a
//! hash of the sources that differ from it (`1a2b3c4d5e6f-modified-9f8e7d6c`), or that of
//! `.cargo_vcs_info.json` in a package (`-modified` without a hash), or `unknown`.

use std::path::Path;
use std::process::Command;

/// Folders of crates, and what of a crate is source.
const CRATES: [&str; 2] = ["crates", "lab"];
const OF_A_CRATE: [&str; 5] = ["Cargo.toml", "cards", "data", "museum", "src"];
/// Other sources. The package and the command have the same, so that their revisions can be compared.
const OTHERS: [&str; 6] = [
    "Cargo.lock",
    "Cargo.toml",
    "bindings/python/Cargo.toml",
    "bindings/python/build.rs",
    "bindings/python/src",
    "lab/cli/build.rs",
];
/// Python's sources, which are watched file by file: its folder has compiled files, too.
const PYTHON: &str = "bindings/python/python/flashcore_attn";
/// What `cargo package` and `scripts/release/sdist.sh` leave in a package.
const PACKAGED: &str = ".cargo_vcs_info.json";

pub(crate) fn main() {
    println!("cargo::rerun-if-env-changed=FLASHCORE_REVISION");
    // Cargo runs this program in the crate's folder. A path from its compilation would be wrong in a copy
    // of the repository with its target folder.
    let root = Path::new("../..");
    let sources = sources(root);
    for source in &sources {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    // The log of HEAD grows with every commit and checkout. In a worktree it is not below `.git`.
    if let Some(log) = git(root, &["rev-parse", "--git-path", "logs/HEAD"]) {
        // Cargo takes a missing file for a changed one.
        if root.join(&log).exists() {
            println!("cargo::rerun-if-changed={}", root.join(log).display());
        }
    }
    let given = std::env::var("FLASHCORE_REVISION").ok();
    let given = given.filter(|text| !text.trim().is_empty());
    let revision = given.or_else(|| from_git(root, &sources));
    #[expect(clippy::disallowed_methods, reason = "a file of the package that is built")]
    let revision = revision.or_else(|| from_package(&std::fs::read_to_string(PACKAGED).ok()?));
    let revision = revision.as_deref().unwrap_or("unknown").trim();
    println!("cargo::rustc-env=FLASHCORE_BUILD_REVISION={revision}");
}

/// What a build is made of, as paths from `root`. The revision depends on what Cargo watches and on nothing else: after
/// an edit that Cargo does not see, command and package would differ until the next commit.
pub(crate) fn sources(root: &Path) -> Vec<String> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let mut sources = OTHERS.map(String::from).to_vec();
    for folder in CRATES {
        for name in names(folder) {
            sources.extend(OF_A_CRATE.map(|part| format!("{folder}/{name}/{part}")));
        }
    }
    let python = names(PYTHON).filter(|name| name.ends_with(".py"));
    sources.extend(python.map(|name| format!("{PYTHON}/{name}")));
    sources.retain(|source| root.join(source).exists());
    sources
}

pub(crate) fn from_git(root: &Path, sources: &[String]) -> Option<String> {
    let revision = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let listed = |command: &[&str], sources: &[&str]| {
        let names = git(root, &[command, &["-z", "--"], sources].concat())?;
        let names = names.split('\0').filter(|name| !name.is_empty());
        Some(names.map(String::from).collect::<Vec<_>>())
    };
    let mut sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let mut changed = listed(&["diff", "HEAD", "--name-only", "--no-renames"], &sources)?;
    // Cargo sees new files in folders.
    sources.retain(|source| root.join(source).is_dir());
    changed.extend(listed(&["ls-files", "--others", "--exclude-standard"], &sources)?);
    if changed.is_empty() {
        return Some(revision);
    }
    changed.sort();
    changed.dedup();
    // FNV-1a: as good as any for telling a developer's few builds apart, and in no need of a crate.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for name in changed {
        // A deleted file has no content, and a link may lead anywhere.
        let path = root.join(&name);
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        #[expect(
            clippy::disallowed_methods,
            reason = "a source of this build, which the compiler reads, too"
        )]
        let content = if is_file {
            std::fs::read(&path).unwrap_or_default()
        } else {
            Vec::new()
        };
        let length = content.len().to_le_bytes();
        for byte in name.bytes().chain([0]).chain(length).chain(content) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Some(format!("{revision}-modified-{:08x}", hash as u32 ^ (hash >> 32) as u32))
}

/// The revision in what `cargo package` says of the commit. Cargo itself writes the file, in this form.
pub(crate) fn from_package(text: &str) -> Option<String> {
    let text: String = text.split_whitespace().collect();
    let revision = text.split_once("\"sha1\":\"")?.1.get(..12)?;
    let modified = if text.contains("\"dirty\":true") {
        "-modified"
    } else {
        ""
    };
    Some(format!("{revision}{modified}"))
}

/// The output of `git`, if this is the root of the project's repository.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    if [".git", "lab/cli/build.rs"]
        .iter()
        .any(|name| !root.join(name).exists())
    {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
    output.status.success().then_some(text)
}
