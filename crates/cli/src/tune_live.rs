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
        let progress = match self.trials {
            Some(trials) => format!("{tried} of {trials} trials"),
            None => {
                let left = self.time.saturating_sub(self.began.elapsed());
                format!("{tried} trials, {} s left", left.as_secs())
            }
        };
        message(&progress, history, style::width().saturating_sub(3))
    }
}

/// How far a search is, the best time with its interval, failures by kind, and whose time it is: last, since it is what
/// can be left out of a narrow line.
fn message(progress: &str, history: &History, width: usize) -> String {
    let mut text = progress.to_string();
    let mut whose = String::new();
    let best = history.ranked().first().copied();
    if let Some((best, timed)) = best.and_then(|best| Some((best, best.timed.as_ref()?))) {
        let gain = (1.0 - timed.score) * 100.0;
        let [lo, hi] = [timed.interval.lo, timed.interval.hi].map(style::micros);
        let _ = write!(text, " · best {} [{lo}, {hi}] {gain:+.1} %", style::micros(timed.us));
        whose = format!(" · {}", best.id);
    }
    for (verdict, count) in history.count() {
        if !verdict.is_timed() {
            let _ = write!(text, " · {count} {verdict}");
        }
    }
    text.push_str(&whose);
    text.chars().take(width).collect()
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

#[cfg(test)]
mod tests {
    use flashcore_bench::Interval;
    use flashcore_tune::Timed;

    use super::*;

    fn trial(number: usize, verdict: Verdict, us: f64) -> Trial {
        let timed = verdict.is_timed().then(|| Timed {
            us,
            interval: Interval {
                lo: us - 0.25,
                hi: us + 0.25,
            },
            against: None,
            ratio: None,
            score: us / 100.0,
            registers: None,
            module: None,
        });
        Trial {
            number,
            id: format!("wgmma/m192n128-s{number}-turns-lazy-cluster2-persistent"),
            origin: String::new(),
            verdict,
            reason: String::new(),
            timed,
            unjudged: Vec::new(),
            fingerprint: None,
            same_as: None,
            seconds: 1.0,
        }
    }

    #[test]
    fn a_narrow_line_has_the_interval_and_every_failure() {
        let mut history = History::default();
        let verdicts = [
            Verdict::Ambiguous,
            Verdict::Wrong,
            Verdict::Faster,
            Verdict::Hung,
            Verdict::Wrong,
        ];
        for (number, verdict) in verdicts.into_iter().enumerate() {
            history.add(trial(number, verdict, 100.0 - number as f64));
        }
        let line = message("5 of 60 trials", &history, 77);
        assert!(line.chars().count() <= 77);
        for part in [
            "5 of 60 trials",
            "98.0 µs [97.8 µs, 98.2 µs] +2.0 %",
            "1 HUNG",
            "2 WRONG",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(message("5 of 60 trials", &history, 200).ends_with(&history.trials()[2].id));
        // Before anything has passed there are failures, too.
        let mut failed = History::default();
        failed.add(trial(0, Verdict::Wrong, 0.0));
        assert!(message("1 of 60 trials", &failed, 77).contains("1 WRONG"));
    }
}
