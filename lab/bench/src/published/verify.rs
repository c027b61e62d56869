//! What is wrong with what is published: bundles from which figures cannot be computed again, and pages that state
//! speeds outside of figures.

use std::path::Path;
use std::process::Command;

use flashcore::KernelId;
use flashcore_ir::files;

use super::{BEGIN, Bundle, Current, END, FOLDER, files_in, given, read};
use crate::store::{BUNDLE, BundleHeader, Recorded, hash_of_rows};
use crate::{CaseResult, Result};

/// Bytes of a bundle, and of all of them.
const MOST_BYTES: usize = 64 << 10;
const MOST_IN_ALL: usize = 1 << 20;
/// Rounds that all subjects of a problem have.
const ROUNDS: usize = 8;
/// Digits of a commit.
const DIGITS: usize = 40;
/// Tags of builds that were measured and are in no branch.
const TAGS: &str = "measured/*";
/// What a number of a speed or of a ratio has behind it.
const UNITS: [&str; 6] = ["TFLOP/s", "TB/s", "GB/s", "µs", "×", "times"];
/// What cuts a text off.
const CUT: [&str; 2] = ["...", "…"];

impl Current {
    /// All that is wrong in a repository, a sentence each, with the file that it is in.
    ///
    /// # Errors
    /// A shallow clone, in which ancestors cannot be told; a folder that cannot be read.
    pub fn faults(&self, root: &Path) -> Result<Vec<String>> {
        if git(root, &["rev-parse", "--is-shallow-repository"]).as_deref() != Some("false") {
            let why = "it is no whole clone, so revisions cannot be looked up: `git fetch --unshallow`";
            return Err(given(root, why));
        }
        let (mut faults, mut in_all) = (Vec::new(), 0);
        for path in &files_in(&root.join(FOLDER), "jsonl")? {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let bytes = files::read_capped(path, files::LARGE).map_err(|error| given(path, &error.to_string()))?;
            in_all += bytes.len();
            let mut found = in_bundle(root, path, &bytes);
            if !self
                .figures
                .iter()
                .any(|figure| figure.bundles.iter().any(|bundle| *bundle == name))
            {
                found.push("no figure of current.toml is made of it".to_string());
            }
            faults.extend(found.into_iter().map(|fault| format!("{FOLDER}/{name}.jsonl: {fault}")));
        }
        if in_all > MOST_IN_ALL {
            faults.push(format!("{FOLDER}/: {in_all} bytes of bundles; at most {MOST_IN_ALL}"));
        }
        for page in &self.checked {
            let loose = loose_speeds(&read(&root.join(page))?);
            let fault = |text| format!("{}: `{text}` is in no figure", page.display());
            faults.extend(loose.into_iter().map(fault));
        }
        Ok(faults)
    }
}

fn in_bundle(root: &Path, path: &Path, bytes: &[u8]) -> Vec<String> {
    let mut faults = Vec::new();
    if bytes.len() > MOST_BYTES {
        faults.push(format!("{} bytes; at most {MOST_BYTES}", bytes.len()));
    }
    let text = String::from_utf8_lossy(bytes);
    if let Some(cut) = CUT.into_iter().find(|cut| text.contains(cut)) {
        faults.push(format!("`{cut}`: something was cut off"));
    }
    // The reader refuses unknown keys.
    let bundle = match Bundle::read(path) {
        Ok(bundle) => bundle,
        Err(error) => {
            faults.push(error.to_string());
            return faults;
        }
    };
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    // Runs are read in the order in which they were made, and a file may have another one.
    let runs = lines.chunk_by(|_, line| !line.starts_with(BUNDLE));
    let hashes: Vec<String> = runs.map(|run| hash_of_rows(run[1..].iter().copied())).collect();
    for (header, results) in &bundle.runs {
        if !hashes.contains(&header.rows) {
            faults.push(format!(
                "the rows of run {} are not those that were published",
                header.key
            ));
        }
        faults.extend(in_header(root, header));
        for (result, recorded) in results {
            faults.extend(in_row(header, result, recorded));
        }
    }
    faults
}

fn in_header(root: &Path, header: &BundleHeader) -> Vec<String> {
    let mut faults = Vec::new();
    if header.identity.command.is_empty() {
        faults.push("there is no command".to_string());
    }
    let is_placeholder = |word: &&String| {
        let capitals = word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        capitals || word.starts_with('/') || word.contains(['<', '>', '|'])
    };
    if let Some(word) = header.identity.command.iter().find(is_placeholder) {
        faults.push(format!("the command has `{word}`, which nobody else can type"));
    }
    let revision = &header.identity.revision;
    if revision.len() != DIGITS || !revision.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        faults.push(format!(
            "revision `{revision}` is not {DIGITS} digits: the build's tree was modified, or is unknown"
        ));
    } else if git(root, &["merge-base", "--is-ancestor", revision, "HEAD"]).is_none()
        && git(root, &["tag", "--points-at", revision, TAGS]).is_none_or(|tags| tags.is_empty())
    {
        faults.push(format!(
            "revision {revision} is no ancestor of HEAD, and has no tag {TAGS}"
        ));
    }
    faults
}

fn in_row(header: &BundleHeader, result: &CaseResult, recorded: &Recorded) -> Vec<String> {
    let (mut faults, name) = (Vec::new(), &result.case.name);
    let subjects = &result.measurement.subjects;
    for (subject, found) in subjects.iter().zip(&result.inspections) {
        let label = &subject.info.label;
        match found {
            Some(found) if found.passed() => {}
            Some(_) => faults.push(format!("{name}: {label} was rejected")),
            None => faults.push(format!("{name}: {label} was not inspected")),
        }
        if let Some(id) = &subject.info.kernel
            && id.parse::<KernelId>().is_err()
        {
            faults.push(format!("{name}: `{id}` is no kernel's id"));
        }
        if subject.info.is_peer() && header.peers.get(label).is_none_or(|versions| versions.is_empty()) {
            faults.push(format!("{name}: the version of {label} is not known"));
        }
    }
    let has = |subject: usize, round: u32| {
        let mut samples = recorded.samples.iter();
        samples.any(|sample| (sample.subject, sample.round) == (subject, round))
    };
    let rounds = 0..result.measurement.rounds;
    let common = rounds
        .filter(|round| (0..subjects.len()).all(|subject| has(subject, *round)))
        .count();
    if common < ROUNDS {
        faults.push(format!(
            "{name}: all subjects were timed in {common} rounds; at least {ROUNDS}"
        ));
    }
    faults
}

/// Numbers with a unit of speed or of a ratio that are in no figure and no code.
fn loose_speeds(page: &str) -> Vec<String> {
    let behind = |part: &str| part.split_once(END).map(|(_, behind)| behind.to_string());
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_string();
    text.extend(parts.filter_map(behind));
    let prose: Vec<&str> = text.split("```").step_by(2).collect();
    let words: Vec<&str> = prose.iter().flat_map(|prose| prose.split_whitespace()).collect();
    let is_number = |word: &str| word.trim_matches(['(', '*', '|']).parse::<f64>().is_ok();
    let is_unit = |word: &str| UNITS.contains(&word.trim_end_matches(['.', ',', ';', ':', ')']));
    let pairs = words.windows(2).filter(|pair| is_number(pair[0]) && is_unit(pair[1]));
    pairs.map(|pair| pair.join(" ")).collect()
}

/// What git prints; `None` if it fails.
fn git(root: &Path, words: &[&str]) -> Option<String> {
    let ran = Command::new("git").arg("-C").arg(root).args(words).output().ok()?;
    ran.status
        .success()
        .then(|| String::from_utf8_lossy(&ran.stdout).trim().to_string())
}

/// The 40 digits of a commit of a repository.
///
/// # Errors
/// A revision that the repository does not have, such as one of a modified tree.
pub fn whole_revision(root: &Path, revision: &str) -> Result<String> {
    let commit = format!("{revision}^{{commit}}");
    git(root, &["rev-parse", "--verify", "--quiet", &commit]).ok_or_else(|| {
        let why = format!("revision {revision} is no commit of it; build from a commit, without changes");
        given(root, &why)
    })
}
