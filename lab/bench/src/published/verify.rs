//! What is wrong with what is published: bundles from which figures cannot be computed again, and pages that state
//! speeds outside of figures.

use std::path::Path;
use std::process::Command;

use flashcore::KernelId;
use flashcore_check::programs;
use flashcore_ir::files;
use serde_json::Value;

use super::{BEGIN, Bundle, CONFIDENCE, CURRENT, Current, END, FOLDER, files_in, given, path_of, read};
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
/// What a number of a speed or of a ratio has behind it. There are two letters µ.
const UNITS: [&str; 10] = ["TFLOP/s", "TB/s", "GB/s", "µs", "μs", "us", "×", "x", "times", "%"];
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
        for figure in &self.figures {
            let missing = figure.bundles.iter().filter(|name| !path_of(root, name).is_file());
            let fault = |name| {
                format!(
                    "{CURRENT}: figure `{}` is made of `{name}`, and there is no such bundle",
                    figure.id
                )
            };
            faults.extend(missing.map(fault));
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
    // In the order of the file: the reader sorts runs by when they were made.
    for run in lines.chunk_by(|_, line| !line.starts_with(BUNDLE)) {
        let header: Value = serde_json::from_slice(run[0]).unwrap_or_default();
        if header["bundle"]["rows"] != hash_of_rows(run[1..].iter().copied()) {
            let key = header["bundle"]["key"].as_str().unwrap_or_default();
            faults.push(format!("the rows of run {key} are not those that were published"));
        }
    }
    for (header, results) in &bundle.runs {
        faults.extend(in_header(root, header));
        if results.is_empty() {
            faults.push(format!("run {} has no rows", header.key));
        }
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
    let confidence = header.options.confidence;
    if confidence != CONFIDENCE {
        faults.push(format!(
            "its intervals have confidence {confidence}; pages say {CONFIDENCE}"
        ));
    }
    // `FILE`, also in `FILE.toml`, `OUT/x`, `--to=FILE_1`; not `M64`.
    let is_named_in_capitals = |part: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        let capitals = part.bytes().filter(u8::is_ascii_uppercase).count();
        capitals > 1 && part.starts_with(|c: char| c.is_ascii_uppercase()) && part.bytes().all(is_allowed)
    };
    let is_placeholder = |word: &&String| {
        let in_capitals = word.split(['/', '.', '=', ',']).any(is_named_in_capitals);
        in_capitals || word.starts_with('/') || word.contains(['<', '>', '|'])
    };
    if let Some(word) = header.identity.command.iter().find(is_placeholder) {
        faults.push(format!("the command has `{word}`, which cannot be typed as it stands"));
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
    if let Some(sample) = recorded.samples.iter().find(|sample| sample.total_us <= 0.0) {
        let label = &subjects[sample.subject].info.label;
        faults.push(format!("{name}: {label} has a time of 0 in round {}", sample.round));
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
pub(super) fn loose_speeds(page: &str) -> Vec<String> {
    let behind = |part: &str| part.split_once(END).map(|(_, behind)| behind.to_string());
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_string();
    text.extend(parts.filter_map(behind));
    let prose: Vec<&str> = text.split("```").step_by(2).collect();
    let words: Vec<&str> = prose.iter().flat_map(|prose| prose.split_whitespace()).collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied().unwrap_or_default();
        match behind_number(word) {
            Some(unit) if UNITS.contains(&unit) => found.push(word.to_string()),
            Some("") if UNITS.contains(&without_marks(next)) => found.push(format!("{word} {next}")),
            None if without_marks(word) == "×" && is_digit_first(without_marks(next)) => {
                found.push(format!("{word} {next}"));
            }
            None if without_marks(word).strip_prefix('×').is_some_and(is_digit_first) => found.push(word.to_string()),
            _ => {}
        }
    }
    found
}

fn is_digit_first(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

/// A word without marks around it, such as those of Markdown; those of code stay.
fn without_marks(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric() && !"×%`".contains(c))
}

/// What is behind the number, or the range of numbers, that a word begins with: nothing in `2,870` and `40–50`, `µs` in
/// `37µs`. `None` of other words, and of a number at the end of a clause.
fn behind_number(word: &str) -> Option<&str> {
    let trimmed = word.trim_start_matches(|c: char| !c.is_alphanumeric() && !"×`".contains(c));
    let behind = trimmed.trim_start_matches(|c: char| c.is_ascii_digit() || ".,-–−".contains(c));
    let ends_clause = behind.is_empty() && trimmed.ends_with(['.', ',']);
    (is_digit_first(trimmed) && !ends_clause).then(|| without_marks(behind))
}

/// What git prints; `None` if it fails.
fn git(root: &Path, words: &[&str]) -> Option<String> {
    let git = programs::find("git".as_ref()).ok()?;
    let ran = Command::new(git).arg("-C").arg(root).args(words).output().ok()?;
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
