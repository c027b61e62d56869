//! What `flashcore tune` shows while it searches: a line that moves on a terminal, plain lines elsewhere.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use flashcore_tune::journal::Header;
use flashcore_tune::{History, Trial, Verdict, Watcher};
use indicatif::{ProgressBar, ProgressStyle};

use crate::style::{self, BAD, DIM, GOOD};
use crate::tune::heading;

/// The view.
pub(crate) struct Live {
    shown: bool,
    bar: ProgressBar,
    trials: Option<usize>,
    time: Duration,
    began: Instant,
    /// Trials of a run that was taken up again, which nobody needs to see once more.
    before: usize,
}

impl Live {
    /// `shown` is false where nothing is to be printed; a search ends after so many trials or so much time.
    pub(crate) fn new(shown: bool, trials: Option<usize>, time: Duration) -> Live {
        let moves = shown && std::io::stdout().is_terminal();
        let bar = if moves {
            ProgressBar::no_length()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        if moves {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Live {
            shown,
            bar,
            trials,
            time,
            began: Instant::now(),
            before: 0,
        }
    }

    /// Takes the moving line away.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn print(&self, text: &str) {
        if self.shown {
            self.bar.suspend(|| style::print(text));
        }
    }

    fn message(&self, history: &History) -> String {
        let tried = history.trials().len();
        let mut text = match self.trials {
            Some(trials) => format!("{tried} of {trials} trials"),
            None => {
                let left = self.time.saturating_sub(self.began.elapsed());
                format!("{tried} trials, {} s left", left.as_secs())
            }
        };
        if let Some(best) = history.ranked().first() {
            let us = best.timed.as_ref().map_or(f64::NAN, |timed| timed.us);
            let gain = best.score().map_or(0.0, |score| (1.0 - score) * 100.0);
            let _ = write!(text, " · best {} {} ({gain:+.1} %)", best.id, style::micros(us));
        }
        for (verdict, count) in history.count() {
            if !verdict.is_timed() {
                let _ = write!(text, " · {count} {verdict}");
            }
        }
        text.chars().take(style::width().saturating_sub(3)).collect()
    }
}

/// The first candidate, and what it is.
fn begins(header: &Header) -> String {
    match (header.begins_at_default(), &header.default) {
        (Some(_), _) => "the default".to_string(),
        (None, Some(_)) => format!("{}, which was asked for", header.start),
        // Of a replay.
        (None, None) => header.start.clone(),
    }
}

impl Watcher for Live {
    fn begins(&mut self, header: &Header, resumed: usize) {
        self.before = resumed;
        let devices: Vec<String> = header
            .devices
            .iter()
            .map(|device| format!("{} ({})", device.device, device.name))
            .collect();
        let does = if header.computes {
            "Tuning"
        } else {
            "Replaying a search"
        };
        self.print(&heading(
            &format!("{does} on {}", devices.join(" and ")),
            &header.problem.to_string(),
        ));
        let begins = match resumed {
            0 => format!("by {}, seed {}, from {}", header.strategy, header.seed, begins(header)),
            resumed => format!(
                "by {}, seed {}, taken up after {resumed} trials",
                header.strategy, header.seed
            ),
        };
        self.print(&style::field("search", &begins));
        if let Some(default) = &header.default {
            self.print(&style::field("default", &default.to_string()));
        }
        self.bar.set_message("computing what is right");
    }

    fn trial(&mut self, trial: &Trial, history: &History) {
        self.bar.set_message(self.message(history));
        if trial.number < self.before {
            return;
        }
        let moves = !self.bar.is_hidden();
        // On a terminal the counts are in the moving line.
        if moves && trial.verdict != Verdict::Faster && trial.number > 0 {
            return;
        }
        let colour = match trial.verdict {
            Verdict::Faster => GOOD,
            verdict if verdict.is_timed() => DIM,
            _ => BAD,
        };
        let us = trial
            .timed
            .as_ref()
            .map_or(String::new(), |timed| style::micros(timed.us));
        let mut reason = trial.reason.replace('\n', " ");
        if reason.chars().count() > 160 {
            reason = reason.chars().take(159).chain(['…']).collect();
        }
        // One line a trial, however long: what reads it may be a program.
        self.print(&format!(
            "{:>5}  {colour}{:<13}{colour:#}  {us:>9}  {}  {DIM}{reason}{DIM:#}\n",
            trial.number, trial.verdict, trial.id
        ));
    }

    fn finals(&mut self, finalists: &[String]) {
        self.bar.set_message(format!(
            "{} head to head",
            style::count(finalists.len() as u64, "finalist")
        ));
    }
}
