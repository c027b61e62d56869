//! What `flashcore tune` shows while it searches: a line of progress on a terminal, nothing elsewhere. What it found is
//! printed when it is over, the result first.

use std::fmt::Write;
use std::time::{Duration, Instant};

use flashcore_tune::journal::Header;
use flashcore_tune::{History, Trial, Verdict, Waits, Watcher, times_as_long};
use indicatif::{ProgressBar, ProgressStyle};

use crate::style::{self, BAD, DIM, GOOD};

/// The view.
pub(crate) struct Live {
    shown: bool,
    bar: ProgressBar,
    trials: Option<usize>,
    time: Duration,
    began: Instant,
    /// Trials of a run that was taken up again.
    before: usize,
    /// What the first candidate is called in a line.
    first: &'static str,
    /// Whether it was said that times swing.
    said_noise: bool,
    /// What was said last of waiting for another search.
    said_waits: Option<Waits>,
}

/// Trials that are looked at for noise: the last that were timed beside another.
const NOISE_TRIALS: usize = 10;
/// Width of a ratio's interval, relative, from which on it says little.
const NOISE_WIDTH: f64 = 0.2;
/// How the lines of trials are read.
pub(crate) const LIST: &str =
    "× 1.071 [1.050, 1.093] is 1.071 times as long as the config beside it, and the interval of that";
/// What is said of that, once.
const NOISE: &str = "note: times swing here: of most of the last 10 candidates the interval is wider than 20 %. \
Other programs use this machine, or its clock changes. Only gains larger than that can be told from noise; the rest is \
AMBIGUOUS. Stop what else runs, then tune again.";

impl Live {
    /// `shown` is false where no progress is to be shown; a search ends after so many trials or so much time.
    pub(crate) fn new(shown: bool, trials: Option<usize>, time: Duration) -> Live {
        // On standard error, and only where that is a terminal.
        let bar = if shown {
            ProgressBar::no_length()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        if shown {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Live {
            shown,
            bar,
            trials,
            time,
            began: Instant::now(),
            before: 0,
            first: "the first's",
            said_noise: false,
            said_waits: None,
        }
    }

    /// Trials that had been made before, of a run that was taken up again.
    pub(crate) fn resumed(&self) -> usize {
        self.before
    }

    /// Takes the moving line away.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
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
        message(&progress, history, self.first, style::width().saturating_sub(3))
    }
}

/// How far a search is, the best beside the first, failures by kind, and who the best is: last, since it is what can be left
/// out of a narrow line.
fn message(progress: &str, history: &History, first: &str, width: usize) -> String {
    let mut text = progress.to_string();
    let mut whose = String::new();
    if let Some(best) = history.ranked().first() {
        let is_first = best
            .timed
            .as_ref()
            .is_some_and(|timed| timed.against.is_none() && timed.score == 1.0);
        match history.relative_to_first(best) {
            _ if is_first => text.push_str(" · nothing faster yet"),
            Some((value, interval)) => {
                let _ = write!(text, " · best {} {first}", times_as_long(value, interval));
            }
            None => {}
        }
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

/// Whether most of the last trials have intervals so wide that they say little.
fn is_noisy(trials: &[Trial]) -> bool {
    let timed = trials.iter().rev().filter_map(|trial| trial.timed.as_ref()?.ratio);
    let widths = timed.map(|ratio| (ratio.interval.hi - ratio.interval.lo) / ratio.value);
    let last: Vec<f64> = widths.take(NOISE_TRIALS).collect();
    let wide = last.iter().filter(|&&width| width > NOISE_WIDTH).count();
    last.len() == NOISE_TRIALS && 2 * wide > NOISE_TRIALS
}

/// Says that another search has a device.
pub(crate) fn say_waits(device: &str, waits: Waits) {
    let note = match waits {
        Waits::Begun => format!(
            "note: another `flashcore tune` is searching on {device}: the two take it in turns, candidate by candidate, \
             and each tries fewer in its time"
        ),
        Waits::Long => format!(
            "note: another `flashcore tune` has had {device} for a while; if that one is stopped or hangs, end it"
        ),
    };
    style::eprint(&style::wrap(&note, 2));
}

/// A line of a list: number, verdict, how long beside the best so far, who it is, and beside whom or why not. The time
/// itself stands where there is nothing beside it, and at what is faster: those of different moments do not compare.
/// One line a trial, however long: what reads it may be a program.
pub(crate) fn line(trial: &Trial) -> String {
    let colour = match trial.verdict {
        Verdict::Faster => GOOD,
        verdict if verdict.is_timed() => DIM,
        _ => BAD,
    };
    let mut reason = trial.reason.replace('\n', " ");
    let timed = trial.timed.as_ref();
    let time = match timed {
        Some(timed) => match (&timed.ratio, &timed.against) {
            (Some(ratio), Some(against)) => {
                if trial.same_as.is_none() {
                    reason = format!("beside {against}");
                }
                times_as_long(ratio.value, ratio.interval)
            }
            _ => style::micros(timed.us),
        },
        None => String::new(),
    };
    if let Some(timed) = timed.filter(|_| trial.verdict == Verdict::Faster) {
        reason = format!("{}, {reason}", style::micros(timed.us));
    }
    if reason.chars().count() > 160 {
        reason = reason.chars().take(159).chain(['…']).collect();
    }
    format!(
        "{:>5}  {colour}{:<13}{colour:#}  {time:<22}  {}  {DIM}{reason}{DIM:#}\n",
        trial.number, trial.verdict, trial.id
    )
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

/// Revision and driver, so that output which somebody keeps says what it is evidence of.
fn identity(header: &Header) -> String {
    // All devices of a run have one driver; a host has none.
    let driver = header.devices.first().map_or("", |device| device.driver.as_str());
    match (driver, header.computes) {
        ("", _) => header.revision.clone(),
        (driver, true) => format!("{}, driver {driver}", header.revision),
        (driver, false) => format!("{}; driver of the times {driver}", header.revision),
    }
}

/// How a search was made: revision, strategy, seed, first candidate.
pub(crate) fn about(header: &Header, resumed: usize) -> String {
    let mut text = style::field("revision", &identity(header));
    let begins = match resumed {
        0 => format!("by {}, seed {}, from {}", header.strategy, header.seed, begins(header)),
        resumed => format!(
            "by {}, seed {}, taken up after {}",
            header.strategy,
            header.seed,
            style::count(resumed as u64, "trial")
        ),
    };
    text.push_str(&style::field("search", &begins));
    if let Some(default) = &header.default {
        text.push_str(&style::field("default", &default.to_string()));
    }
    text
}

impl Watcher for Live {
    fn begins(&mut self, header: &Header, resumed: usize) {
        self.before = resumed;
        if header.begins_at_default().is_some() {
            self.first = "the default's";
        }
        self.bar.set_message("computing the reference");
    }

    fn trial(&mut self, trial: &Trial, history: &History) {
        self.bar.set_message(self.message(history));
        // Trials of before are not told of: what was noisy then may be quiet now.
        if self.shown && trial.number >= self.before && !self.said_noise && is_noisy(&history.trials()[self.before..]) {
            self.said_noise = true;
            self.bar.suspend(|| style::eprint(&style::wrap(NOISE, 2)));
        }
    }

    fn lost(&mut self, device: &str, why: &str) {
        let note = format!("note: {why}; {device} is given up, and the other devices go on");
        self.bar.suspend(|| style::eprint(&style::wrap(&note, 2)));
    }

    fn waits(&mut self, device: &str, waits: Waits) {
        // Two searches wait for each other all the time: that is said once.
        if self.said_waits != Some(waits) {
            self.said_waits = Some(waits);
            self.bar.suspend(|| say_waits(device, waits));
        }
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
    use flashcore_bench::{Interval, Ratio};
    use flashcore_tune::Timed;

    use super::*;

    fn id(number: usize) -> String {
        format!("wgmma/m192n128-s{number}-turns-lazy-cluster2-persistent")
    }

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
            id: id(number),
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

    /// A trial that was timed beside another.
    fn beside(number: usize, verdict: Verdict, against: usize, [lo, hi]: [f64; 2], score: f64) -> Trial {
        let mut trial = trial(number, verdict, score * 100.0);
        if let Some(timed) = &mut trial.timed {
            timed.against = Some(id(against));
            timed.ratio = Some(Ratio {
                value: (lo + hi) / 2.0,
                interval: Interval { lo, hi },
                of_medians: 1.0,
                rounds: 9,
            });
        }
        trial
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn times_of_different_moments_stand_beside_nothing() {
        let slower = plain(&line(&beside(1, Verdict::Slower, 0, [1.05, 1.092], 1.071)));
        assert!(
            slower.starts_with("    1  SLOWER         × 1.071 [1.050, 1.092]  "),
            "{slower}"
        );
        assert!(slower.ends_with(&format!("{}  beside {}\n", id(1), id(0))), "{slower}");
        assert!(!slower.contains("µs") && !slower.contains('%'), "{slower}");
        let far = plain(&line(&beside(1, Verdict::Slower, 0, [60.0, 68.08], 64.04)));
        assert!(far.contains("× 64.0 [60.0, 68.1]"), "{far}");
        // What is faster has its time, after the ratio, and so has what nothing stands beside.
        let faster = plain(&line(&beside(2, Verdict::Faster, 0, [0.9, 0.92], 0.91)));
        let (ratio, time) = (faster.find("× 0.910").unwrap(), faster.find("91.0 µs").unwrap());
        assert!(ratio < time, "{faster}");
        assert!(line(&trial(0, Verdict::Ambiguous, 100.0)).contains("100 µs"));
    }

    #[test]
    fn noise_is_seen_where_most_intervals_are_wide() {
        let run = |wide: usize| -> Vec<Trial> {
            let interval = |number| if number <= wide { [0.5, 1.3] } else { [0.99, 1.01] };
            let timed = (1..=NOISE_TRIALS).map(|number| beside(number, Verdict::Ambiguous, 0, interval(number), 1.0));
            [trial(0, Verdict::Ambiguous, 100.0)].into_iter().chain(timed).collect()
        };
        assert!(is_noisy(&run(6)));
        assert!(!is_noisy(&run(5)) && !is_noisy(&run(6)[1..10]));
    }

    #[test]
    fn a_narrow_line_has_the_interval_and_every_failure() {
        let first = "the default's";
        let mut history = History::default();
        history.add(trial(0, Verdict::Ambiguous, 100.0));
        assert!(message("1 of 60 trials", &history, first, 77).contains(" · nothing faster yet"));
        history.add(trial(1, Verdict::Wrong, 0.0));
        history.add(beside(2, Verdict::Faster, 0, [0.9, 0.92], 0.91));
        history.add(trial(3, Verdict::Hung, 0.0));
        history.add(trial(4, Verdict::Wrong, 0.0));
        let line = message("5 of 60 trials", &history, first, 77);
        assert!(line.chars().count() <= 77);
        for part in [
            "5 of 60 trials",
            "best × 0.910 [0.900, 0.920] the default's",
            "1 HUNG",
            "2 WRONG",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        // Two moments' times are not beside each other.
        assert!(!line.contains("µs"), "{line}");
        assert!(message("5 of 60 trials", &history, first, 200).ends_with(&history.trials()[2].id));
        // Before anything has passed there are failures, too.
        let mut failed = History::default();
        failed.add(trial(0, Verdict::Wrong, 0.0));
        assert!(message("1 of 60 trials", &failed, first, 77).contains("1 WRONG"));
    }
}
