//! Ctrl-C during a search, and the other signals that ask a program to end: the first one ends it after the candidates at
//! hand, a second one at once. Either way the message says what was kept and how to go on.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flashcore_tune::Interrupt;
use flashcore_tune::journal::read_trials;

use crate::failure::Failure;
use crate::first_run::invocation;
use crate::style::{self, CODE};
use crate::tune::args::Budget;

/// What a program that was interrupted exits with, by whichever signal: 128 and the number of that of Ctrl-C, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Watches for Ctrl-C, SIGTERM and SIGHUP.
pub(crate) struct CtrlC {
    /// Asks the search to end.
    pub(crate) interrupt: Interrupt,
    folder: PathBuf,
    over: Arc<AtomicBool>,
}

impl CtrlC {
    /// From now on, for the search that is kept in a folder.
    pub(crate) fn watch(folder: &Path) -> Result<CtrlC, Failure> {
        let watch = CtrlC {
            interrupt: Interrupt::default(),
            folder: folder.to_path_buf(),
            over: Arc::default(),
        };
        let (interrupt, over) = (watch.interrupt.clone(), watch.over.clone());
        let kept = watch.folder.clone();
        let pressed = move || {
            let is_first = interrupt.ask();
            // Whoever sent it may have taken the terminal away: what cannot be said is no reason to fail.
            if is_first && !over.load(Ordering::SeqCst) {
                let _ = writeln!(
                    anstream::stderr(),
                    "\nending after the candidates at hand; Ctrl-C again ends at once"
                );
                return;
            }
            if !over.load(Ordering::SeqCst) {
                let _ = write!(anstream::stderr(), "\n{}", said(&kept));
            }
            exit(i32::from(INTERRUPTED));
        };
        on_signals(pressed).map_err(|error| Failure::environment(format!("Ctrl-C cannot be watched: {error}")))?;
        Ok(watch)
    }

    /// The search is over and all of it kept: from now on Ctrl-C ends the program, as anywhere.
    pub(crate) fn is_over(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// What was kept, and how to go on.
    pub(crate) fn said(&self) -> String {
        said(&self.folder)
    }
}

/// Calls this for each signal that asks the program to end, on a thread of its own.
#[cfg(unix)]
fn on_signals(mut asked: impl FnMut() + Send + 'static) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut watched = vec![SIGINT, SIGTERM];
    // `nohup` has it ignored, so that a program goes on without its terminal.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !is_ignored(&status, SIGHUP) {
        watched.push(SIGHUP);
    }
    let mut signals = signal_hook::iterator::Signals::new(watched)?;
    let watch = move || signals.forever().for_each(|_| asked());
    std::thread::Builder::new().name("signals".to_string()).spawn(watch)?;
    Ok(())
}

#[cfg(not(unix))]
fn on_signals(asked: impl FnMut() + Send + 'static) -> std::io::Result<()> {
    ctrlc::set_handler(asked).map_err(std::io::Error::other)
}

/// Whether a process ignores a signal, by Linux's `/proc/self/status`; where that is not there nobody says so.
#[cfg(unix)]
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn said(folder: &Path) -> String {
    let nothing = || style::field("kept", "nothing was tried yet");
    read_trials(folder).map_or_else(|_| nothing(), |trials| of_trials(trials.len(), folder))
}

/// The same where a search ended by an error; `None` where no trial is kept, or none that can be gone on with.
pub(crate) fn left(folder: &Path) -> Option<String> {
    let trials = read_trials(folder).ok()?;
    (!trials.is_empty()).then(|| of_trials(trials.len(), folder))
}

/// So many trials, where they are, and what to type to go on.
fn of_trials(trials: usize, folder: &Path) -> String {
    let trials = style::count(trials as u64, "trial");
    // Not wrapped: it is to be copied.
    style::field("kept", &format!("{trials} in {}", folder.display()))
        + &format!("  resume    {CODE}{}{CODE:#}\n", resume_command(folder))
}

/// What to type to take this run up again: the words that began it, and its folder.
pub(crate) fn resume_command(folder: &Path) -> String {
    command(folder, None)
}

/// What to type to go on with a run that has ended: the same with another budget, for the one it had is spent.
pub(crate) fn go_on_command(folder: &Path, budget: Budget) -> String {
    command(folder, Some(budget))
}

fn command(folder: &Path, budget: Option<Budget>) -> String {
    let mut words = std::env::args_os();
    let typed = words.next().unwrap_or_default();
    let program = match invocation() {
        "flashcore" => quoted(&typed),
        by_cargo => by_cargo.to_string(),
    };
    let words = resumed(words, folder, budget);
    let words = words.iter().map(|word| quoted(word));
    std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ")
}

/// The arguments of a run, changed so that they take it up again from a folder, with another budget if one is given.
fn resumed(words: impl IntoIterator<Item = OsString>, folder: &Path, budget: Option<Budget>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--resume") => {}
            Some("--folder") => drop(words.next()),
            Some(joined) if joined.starts_with("--folder=") => {}
            Some("--budget") if budget.is_some() => drop(words.next()),
            Some(joined) if budget.is_some() && joined.starts_with("--budget=") => {}
            _ => kept.push(word),
        }
    }
    if let Some(budget) = budget {
        kept.extend(["--budget".into(), budget.to_string().into()]);
    }
    kept.extend(["--resume".into(), "--folder".into(), folder.as_os_str().to_os_string()]);
    kept
}

/// A word as a shell reads it again.
pub(crate) fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+%@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_signal_that_is_ignored_is_left_so() {
        let status = "Name:\tflashcore\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, 1) && is_ignored(status, 13));
        assert!(!is_ignored(status, 2) && !is_ignored(status, 15) && !is_ignored("", 1));
    }

    #[test]
    fn what_is_to_be_typed_is_what_was_typed_and_the_folder() {
        let with = |typed: &[&str], budget| {
            let words = resumed(typed.iter().map(OsString::from), Path::new("/runs/one two"), budget);
            words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
        };
        let resume = |typed: &[&str]| with(typed, None);
        assert_eq!(
            resume(&["tune", "mission", "--seed", "3"]),
            "tune mission --seed 3 --resume --folder '/runs/one two'"
        );
        let again = ["tune", "--resume", "--folder", "elsewhere", "--proposer", "it's me"];
        assert_eq!(
            resume(&again),
            r"tune --proposer 'it'\''s me' --resume --folder '/runs/one two'"
        );
        assert_eq!(resume(&["tune", "--folder=x"]), resume(&["tune"]));
        // What was interrupted keeps its budget; what has spent it needs another one.
        assert!(resume(&["tune", "--budget", "60"]).starts_with("tune --budget 60 --resume"));
        for typed in [
            ["tune", "--budget", "60", "--json"].as_slice(),
            &["tune", "--budget=60", "--json"],
            &["tune", "--json"],
        ] {
            let more = with(typed, Some(Budget::Trials(120)));
            assert_eq!(more, "tune --json --budget 120 --resume --folder '/runs/one two'");
        }
    }
}
