//! The folders of runs, in the user's data folder.

use std::cmp::Reverse;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::TuneError;
use crate::journal::{Header, RUN, read_header};

/// The folder of all runs: `flashcore/tune` in `$XDG_DATA_HOME` or in `~/.local/share`, if any.
pub fn folder() -> Option<PathBuf> {
    Some(flashcore::unstable::files::data_folder()?.join("tune"))
}

/// Creates the folder of a new run in a folder of runs, named by problem, device and a number. Runs
/// that begin at once get different folders.
pub fn new_folder(runs: &Path, case: &str, device: &str) -> Result<PathBuf, TuneError> {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let part = |text: &str| text.replace(|c| !is_kept(c), "-");
    let device = device.strip_prefix("replay:").map_or(device, |_| "replay");
    let base = format!("{}-{}", part(case), part(device));
    std::fs::create_dir_all(runs).map_err(|error| TuneError::file(runs, error))?;
    let mut number = 1_u64;
    loop {
        let path = runs.join(format!("{base}-{number}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(TuneError::file(&path, error)),
        }
    }
}

/// The contents of a folder of runs.
#[derive(Debug, Default)]
pub struct Found {
    /// The runs, the latest first.
    pub runs: Vec<(PathBuf, Header)>,
    /// Runs that cannot be read, in the order of their names, and why.
    pub unreadable: Vec<(PathBuf, TuneError)>,
}

/// Reads all runs in a folder of runs, which need not exist. Folders without a run are skipped.
pub fn look(runs: &Path) -> Result<Found, TuneError> {
    let entries = match std::fs::read_dir(runs) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::default()),
        Err(error) => return Err(TuneError::file(runs, error)),
    };
    let mut found = Found::default();
    let folders = entries.flatten().map(|entry| entry.path());
    for folder in folders.filter(|folder| folder.join(RUN).exists()) {
        match read_header(&folder) {
            Ok(header) => found.runs.push((folder, header)),
            Err(why) => found.unreadable.push((folder, why)),
        }
    }
    let latest = |(path, header): &(PathBuf, Header)| Reverse((header.started_at, path.clone()));
    found.runs.sort_by_key(latest);
    found.unreadable.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// The latest run of a problem on these devices; an error if there is none, with the latest of another problem.
pub fn latest(runs: &Path, case: &str, devices: &[String]) -> Result<PathBuf, TuneError> {
    let mut there = look(runs).unwrap_or_default().runs;
    there.retain(|(_, header)| header.devices.iter().map(|device| &device.device).eq(devices));
    if let Some((path, _)) = there.iter().find(|(_, header)| header.case == case) {
        return Ok(path.clone());
    }
    let mut why = format!("no run of {case} on {} is in {}", devices.join(", "), runs.display());
    if let Some((path, other)) = there.first() {
        let (case, path) = (&other.case, path.display());
        why.push_str(&format!(
            "; name the problem of the run with its flags: the latest is of {case}, in {path}"
        ));
    }
    Err(TuneError::Usage(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_folders_are_unique_and_are_no_runs() {
        let runs = std::env::temp_dir().join(format!("flashcore-runs-{}", std::process::id()));
        let new = |case, device| new_folder(&runs, case, device).unwrap();
        assert!(new("d128 s1024/x", "cuda:0").ends_with("d128-s1024-x-cuda-0-1"));
        assert!(new("d128 s1024/x", "cuda:0").ends_with("d128-s1024-x-cuda-0-2"));
        assert!(new("small", "replay:/a/b.json").ends_with("small-replay-1"));
        assert!(look(&runs).unwrap().runs.is_empty());
        let error = latest(&runs, "small", &["cpu".to_string()]).unwrap_err();
        assert!(error.to_string().contains("small on cpu"));
        std::fs::remove_dir_all(&runs).unwrap();
    }

    #[test]
    fn an_unreadable_run_is_reported() {
        let runs = std::env::temp_dir().join(format!("flashcore-runs-unreadable-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&runs);
        assert!(look(&runs).unwrap().unreadable.is_empty());
        let broken = new_folder(&runs, "small", "cpu").unwrap();
        // A run that has not begun is not reported.
        new_folder(&runs, "small", "cpu").unwrap();
        std::fs::write(broken.join(RUN), "{").unwrap();
        let found = look(&runs).unwrap();
        assert!(found.runs.is_empty());
        let [(folder, why)] = found.unreadable.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!(*folder, broken);
        assert!(why.to_string().contains("run.json: its JSON is wrong: EOF"), "{why}");
        std::fs::remove_dir_all(&runs).unwrap();
        std::fs::write(&runs, "no folder").unwrap();
        assert!(look(&runs).is_err());
        std::fs::remove_file(&runs).unwrap();
    }

    #[test]
    fn runs_that_begin_at_once_have_different_folders() {
        let runs = std::env::temp_dir().join(format!("flashcore-runs-at-once-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&runs);
        let together = std::sync::Barrier::new(8);
        let begin = || {
            together.wait();
            (0..20).map(|_| new_folder(&runs, "tiny", "cpu").unwrap()).collect()
        };
        let mut folders: Vec<PathBuf> = std::thread::scope(|scope| {
            let begun: Vec<_> = (0..8).map(|_| scope.spawn(begin)).collect();
            begun
                .into_iter()
                .flat_map(|one| -> Vec<PathBuf> { one.join().unwrap() })
                .collect()
        });
        folders.sort();
        folders.dedup();
        assert_eq!(folders.len(), 160);
        std::fs::remove_dir_all(&runs).unwrap();
    }
}
