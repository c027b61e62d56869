//! Progress of a simulation, a search, or many problems, on standard error: one line, kept up to date, on a
//! terminal; plain lines from time to time elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flashcore_sim::Progress;

use crate::{Failure, style};

/// Seconds between plain lines; 0 for none.
const VARIABLE: &str = "FLASHCORE_PROGRESS";
const SECONDS: u64 = 30;
/// The first plain line comes no later: it shows that the command is at work.
const FIRST: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(200);

pub(crate) struct Shown(Option<(Sender<()>, JoinHandle<()>)>);

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // A panic of the thread must not fail the command.
            let _ = thread.join();
        }
    }
}

/// Shows how many of `total` blocks of `what` are simulated. `estimate` is roughly the time in seconds
/// that all of them take; it is shown until the first block is done.
pub(crate) fn show(progress: Arc<Progress>, total: u64, what: String, estimate: Option<f64>) -> Shown {
    watch(&format!("simulating {what}"), move |elapsed| {
        line(&what, progress.blocks(), total, elapsed, estimate)
    })
}

/// Shows what `line` says of the time since the start, until the result is dropped. `first` is shown on a terminal
/// until then.
pub(crate) fn watch(first: &str, line: impl Fn(Duration) -> String + Send + 'static) -> Shown {
    let is_terminal = std::io::stderr().is_terminal();
    let interval = if is_terminal {
        Some(TICK)
    } else {
        // `check` has refused another value.
        from_env().unwrap_or_default()
    };
    let Some(interval) = interval else { return Shown(None) };
    let spinner = is_terminal.then(|| style::spinner(first));
    let (stop, stopped) = mpsc::channel::<()>();
    let started = Instant::now();
    let thread = std::thread::spawn(move || {
        let mut wait = interval.min(FIRST);
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = interval;
            let text = line(started.elapsed());
            match &spinner {
                Some(spinner) => spinner.say(&text),
                None => style::eprint(&format!("{text}\n")),
            }
        }
    });
    Shown(Some((stop, thread)))
}

/// The same where standard error is no terminal; on a terminal nothing, for commands that draw a bar there.
pub(crate) fn lines(line: impl Fn(Duration) -> String + Send + 'static) -> Shown {
    if std::io::stderr().is_terminal() {
        Shown(None)
    } else {
        watch("", line)
    }
}

/// Refuses a value of the environment that is no number of seconds.
pub(crate) fn check() -> Result<(), Failure> {
    from_env().map(drop)
}

fn from_env() -> Result<Option<Duration>, Failure> {
    interval(std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned()))
}

fn interval(variable: Option<String>) -> Result<Option<Duration>, Failure> {
    let seconds = match variable.filter(|text| !text.is_empty()) {
        None => Ok(SECONDS),
        Some(text) => text.trim().parse().map_err(|_| {
            let allowed = "a whole number of seconds between lines of progress, 0 for no lines";
            Failure::usage(format!("{VARIABLE} is `{text}`; allowed: {allowed}"))
        }),
    };
    Ok(Some(Duration::from_secs(seconds?)).filter(|interval| !interval.is_zero()))
}

fn line(what: &str, done: u64, total: u64, elapsed: Duration, estimate: Option<f64>) -> String {
    if done >= total {
        return format!("simulated {what}; comparing with float64");
    }
    let blocks = format!("{} of {} blocks", style::whole(done), style::whole(total));
    match (done, estimate) {
        (0, None) => format!("simulating {what}: {blocks}"),
        (0, Some(seconds)) => format!("simulating {what}: {blocks}, very roughly {} in all", span(seconds)),
        _ => format!("simulating {what}: {blocks}, {}", left(done, total, elapsed)),
    }
}

/// How long the rest of `total` will take.
pub(crate) fn left(done: u64, total: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64() / done as f64 * (total - done) as f64;
    format!("about {} left", span(seconds))
}

pub(crate) fn span(seconds: f64) -> String {
    match seconds.round() as u64 {
        s if s < 100 => format!("{s} s"),
        s if s < 6000 => format!("{} min", s.div_ceil(60)),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_blocks_and_an_estimate() {
        let line = |done, seconds| line("mma/x", done, 4096, Duration::from_secs(seconds), Some(600.0));
        assert_eq!(
            line(0, 5),
            "simulating mma/x: 0 of 4,096 blocks, very roughly 10 min in all"
        );
        assert_eq!(
            super::line("k", 0, 9, Duration::from_secs(5), None),
            "simulating k: 0 of 9 blocks"
        );
        assert_eq!(
            line(1024, 30),
            "simulating mma/x: 1,024 of 4,096 blocks, about 90 s left"
        );
        assert_eq!(line(1, 1), "simulating mma/x: 1 of 4,096 blocks, about 69 min left");
        assert_eq!(
            line(1, 10),
            "simulating mma/x: 1 of 4,096 blocks, about 11 h 22 min left"
        );
        assert_eq!(line(4096, 40), "simulated mma/x; comparing with float64");
    }

    #[test]
    fn the_environment_sets_the_interval() {
        let interval = |text: &str| interval(Some(text.to_string()));
        let usual = Some(Duration::from_secs(SECONDS));
        assert_eq!((super::interval(None).unwrap(), interval("").unwrap()), (usual, usual));
        assert_eq!(interval("5").unwrap(), Some(Duration::from_secs(5)));
        assert_eq!(interval("0").unwrap(), None);
        for wrong in ["often", "-1", "1.5", "99999999999999999999"] {
            let why = interval(wrong).unwrap_err().message;
            assert!(
                why.starts_with(&format!("FLASHCORE_PROGRESS is `{wrong}`; allowed: ")),
                "{why}"
            );
        }
    }
}
