//! Ctrl-C and other signals that end a search: the first one ends it after the candidates in progress, a
//! second one at once. The message says what was kept and how to continue.

use std::ffi::OsString;
use std::path::Path;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flashcore_check::programs::quoted;
use flashcore_ir::files;
use flashcore_tune::Interrupt;
use flashcore_tune::journal::read_trials;

use crate::failure::INTERRUPTED;
use crate::first_run::invocation;
use crate::tune::args::Budget;
use crate::{CODE, Failure, Page, style};

pub(crate) struct CtrlC {
    pub(crate) interrupt: Interrupt,
    over: Arc<AtomicBool>,
}

impl CtrlC {
    pub(crate) fn watch(folder: &Path) -> Result<CtrlC, Failure> {
        let watch = CtrlC {
            interrupt: Interrupt::default(),
            over: Arc::default(),
        };
        let (interrupt, over) = (watch.interrupt.clone(), watch.over.clone());
        let folder = folder.to_path_buf();
        let pressed = move || {
            let is_first = interrupt.ask();
            let is_over = over.load(Ordering::SeqCst);
            if is_first && !is_over {
                return style::eprint("\nending after the candidates in progress; Ctrl-C again ends at once\n");
            }
            if !is_over {
                style::eprint(&format!("\n{}", kept(&folder)));
            }
            exit(i32::from(INTERRUPTED));
        };
        on_signals(pressed).map_err(|error| Failure::environment(format!("Ctrl-C cannot be watched: {error}")))?;
        Ok(watch)
    }

    /// The search is over and kept: from now on Ctrl-C ends the program at once.
    pub(crate) fn is_over(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// Calls this for each signal that ends the program, on a separate thread.
#[cfg(unix)]
fn on_signals(mut signalled: impl FnMut() + Send + 'static) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut watched = vec![SIGINT, SIGTERM];
    // Under `nohup` it is ignored, so that the search goes on without its terminal.
    let status = files::read_text_capped("/proc/self/status".as_ref(), files::SMALL).unwrap_or_default();
    if !is_ignored(&status, SIGHUP) {
        watched.push(SIGHUP);
    }
    let mut signals = signal_hook::iterator::Signals::new(watched)?;
    let watch = move || signals.forever().for_each(|_| signalled());
    std::thread::Builder::new().name("signals".to_string()).spawn(watch)?;
    Ok(())
}

#[cfg(not(unix))]
fn on_signals(signalled: impl FnMut() + Send + 'static) -> std::io::Result<()> {
    ctrlc::set_handler(signalled).map_err(std::io::Error::other)
}

/// Whether a process ignores a signal, by Linux's `/proc/self/status`.
#[cfg(unix)]
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// What was kept, and how to continue.
pub(crate) fn kept(folder: &Path) -> Page {
    let mut page = Page::default();
    match read_trials(folder) {
        Err(_) => page.field("kept", "no trial yet"),
        Ok(trials) => {
            let text = format!("{} in {}", style::count(trials.len(), "trial"), folder.display());
            page.field("kept", text);
            // Not wrapped: it is to be copied.
            let command = resume_command(folder, None);
            page.line(format_args!("  resume    {CODE}{command}{CODE:#}"));
        }
    }
    page
}

/// The same for a search that ended by an error; `None` if there is no trial to continue with.
pub(crate) fn left(folder: &Path) -> Option<Page> {
    let is_any = read_trials(folder).is_ok_and(|trials| !trials.is_empty());
    is_any.then(|| kept(folder))
}

pub(crate) fn resume_command(folder: &Path, budget: Option<Budget>) -> String {
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

/// The arguments of a run, changed so that they continue it in a folder, with another budget if given.
fn resumed(words: impl IntoIterator<Item = OsString>, folder: &Path, budget: Option<Budget>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--resume") => {}
            Some("--folder") => drop(words.next()),
            Some(joined) if joined.starts_with("--folder=") => {}
            Some("--budget" | "--trials") if budget.is_some() => drop(words.next()),
            Some(joined)
                if budget.is_some() && ["--budget=", "--trials="].iter().any(|flag| joined.starts_with(flag)) => {}
            _ => kept.push(word),
        }
    }
    if let Some(budget) = budget {
        kept.extend(budget.to_string().split(' ').map(OsString::from));
    }
    kept.extend(["--resume".into(), "--folder".into(), folder.as_os_str().to_os_string()]);
    kept
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
            resume(&["tune", "small", "--seed", "3"]),
            "tune small --seed 3 --resume --folder '/runs/one two'"
        );
        let again = ["tune", "--resume", "--folder", "elsewhere", "--proposer", "it's me"];
        assert_eq!(
            resume(&again),
            r"tune --proposer 'it'\''s me' --resume --folder '/runs/one two'"
        );
        assert_eq!(resume(&["tune", "--folder=x"]), resume(&["tune"]));
        // What was interrupted keeps its budget; what has spent it needs another one.
        assert!(resume(&["tune", "--trials", "60"]).starts_with("tune --trials 60 --resume"));
        for typed in [
            ["tune", "--trials", "60", "--json"].as_slice(),
            &["tune", "--budget=60s", "--json"],
            &["tune", "--json"],
        ] {
            let more = with(typed, Some(Budget::Trials(120)));
            assert_eq!(more, "tune --json --trials 120 --resume --folder '/runs/one two'");
        }
    }
}
