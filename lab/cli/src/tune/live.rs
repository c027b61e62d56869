//! The progress of a search: one line, kept up to date, on a terminal; plain lines from time to time elsewhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flashcore_bench::table::clip_to;
use flashcore_tune::journal::Header;
use flashcore_tune::{History, Timed, Trial, Verdict, Waits, Watcher, times_as_long};
use indicatif::ProgressBar;

use crate::progress::{self, Shown};
use crate::{BAD, DIM, GOOD, Page, style};

pub(crate) struct Live {
    shown: bool,
    pub(super) bar: ProgressBar,
    /// The bar's message, for lines where it is not drawn.
    message: Arc<Mutex<String>>,
    _lines: Option<Shown>,
    /// The most trials; `usize::MAX` if the search has a limit of time.
    trials: usize,
    time: Duration,
    began: Instant,
    /// Trials of a continued run that were made before.
    before: usize,
    /// The first candidate's name in a line.
    first: &'static str,
    noted_noise: bool,
    noted_wait: Option<Waits>,
}

const NOISE_TRIALS: usize = 10;
const NOISE_WIDTH: f64 = 0.2;
/// How to read the lines of trials.
pub(crate) const LIST: &str =
    "× 1.071 [1.050, 1.093]: 1.071 times as long as the config it was timed against, with the interval";
const NOISE: &str = "times vary: most of the last 10 candidates have an interval wider than 20 %. Other programs use this \
machine, or its clock changes. Smaller gains cannot be told from noise and are AMBIGUOUS. Stop other programs, then tune \
again.";

impl Live {
    /// `shown` is false if no progress is wanted; the search has a limit of trials or of time.
    pub(crate) fn new(shown: bool, trials: usize, time: Duration) -> Live {
        // A progress bar is drawn only if standard error is a terminal.
        let bar = if shown {
            style::bar("{spinner} {msg}")
        } else {
            ProgressBar::hidden()
        };
        let message = Arc::new(Mutex::new("starting".to_string()));
        let lines = shown.then(|| {
            let message = message.clone();
            progress::lines(move |_| message.lock().unwrap_or_else(PoisonError::into_inner).clone())
        });
        Live {
            shown,
            bar,
            message,
            _lines: lines,
            trials,
            time,
            began: Instant::now(),
            before: 0,
            first: "the first's",
            noted_noise: false,
            noted_wait: None,
        }
    }

    fn say(&self, message: String) {
        message.clone_into(&mut self.message.lock().unwrap_or_else(PoisonError::into_inner));
        self.bar.set_message(style::escaped(&message).into_owned());
    }

    fn message(&self, history: &History) -> String {
        let tried = history.trials().len();
        let left = self.time.saturating_sub(self.began.elapsed()).as_secs();
        let progress = match self.trials {
            usize::MAX => format!("{tried} trials, {left} s left"),
            trials => format!("{tried} of {trials} trials"),
        };
        message(&progress, history, self.first, style::width().saturating_sub(3))
    }
}

/// The best's id is last: a narrow line leaves it out.
fn message(progress: &str, history: &History, first: &str, width: usize) -> String {
    let mut text = progress.to_string();
    let ranked = history.ranked();
    let best = ranked.first();
    let is_first = |timed: &Timed| timed.against.is_none() && timed.score == 1.0;
    match best.and_then(|best| history.relative_to_first(best)) {
        _ if best.is_some_and(|best| best.timed.as_ref().is_some_and(is_first)) => {
            text.push_str(" · nothing faster yet");
        }
        Some((value, interval)) => text.push_str(&format!(" · best {} {first}", times_as_long(value, interval))),
        None => {}
    }
    for (verdict, count) in history.count().iter().filter(|(verdict, _)| !verdict.is_timed()) {
        text.push_str(&format!(" · {count} {verdict}"));
    }
    text.extend(best.map(|best| format!(" · {}", best.id)));
    text.chars().take(width).collect()
}

fn is_noisy(trials: &[Trial]) -> bool {
    let timed = trials.iter().rev().filter_map(|trial| trial.timed.as_ref()?.ratio);
    let widths = timed.map(|ratio| (ratio.interval.hi - ratio.interval.lo) / ratio.value);
    let last: Vec<f64> = widths.take(NOISE_TRIALS).collect();
    let wide = last.iter().filter(|&&width| width > NOISE_WIDTH).count();
    last.len() == NOISE_TRIALS && 2 * wide > NOISE_TRIALS
}

pub(crate) fn note_wait(device: &str, waits: Waits) {
    match waits {
        Waits::Begun => style::note(format_args!(
            "another `flashcore tune` is searching on {device}: the two take turns, candidate by candidate, and each \
             tries fewer in its time"
        )),
        Waits::Long => style::note(format_args!(
            "another `flashcore tune` has used {device} for a while; if it is stopped or hangs, end it"
        )),
    }
}

/// A line of a list: number, verdict, time relative to the best so far, id, and the config it was timed
/// against or the reason. Only a faster candidate, or one that was timed alone, has its time: times of
/// different moments do not compare. A trial is one line, however long, for programs that read it.
pub(crate) fn line(trial: &Trial) -> String {
    let colour = match trial.verdict {
        Verdict::Faster => GOOD,
        verdict if verdict.is_timed() => DIM,
        _ => BAD,
    };
    let mut reason = trial.reason.clone();
    let mut time = String::new();
    if let Some(timed) = &trial.timed {
        time = style::micros(timed.us);
        let is_faster = trial.verdict == Verdict::Faster;
        let alone = if is_faster { format!("{time}, ") } else { String::new() };
        if let (Some(ratio), Some(against)) = (&timed.ratio, &timed.against) {
            time = times_as_long(ratio.value, ratio.interval);
            if trial.same_as.is_none() {
                reason = format!("against {against}");
            }
        }
        reason = alone + &reason;
        if let Some(error) = timed.error {
            let of_file = timed
                .tolerance
                .map_or(String::new(), |factor| format!(" of {factor} × the tolerance"));
            reason += &format!(", error {error:.1e}{of_file}");
        }
    }
    let (number, verdict, id, reason) = (trial.number, trial.verdict, &trial.id, clip_to(&reason, 160));
    format!("{number:>5}  {colour}{verdict:<13}{colour:#}  {time:<22}  {id}  {DIM}{reason}{DIM:#}")
}

pub(crate) fn add_about(page: &mut Page, header: &Header, resumed: usize) {
    // All devices of a run have one driver; the CPU has none.
    let driver = header.devices.first().map_or("", |device| device.driver.as_str());
    let revision = &header.revision;
    match (driver, header.computes) {
        ("", _) => page.field("revision", revision),
        (driver, true) => page.field("revision", format_args!("{revision}, driver {driver}")),
        (driver, false) => page.field("revision", format_args!("{revision}; driver of the times {driver}")),
    }
    let begins = match (resumed, header.begins_at_default(), &header.default) {
        (0, Some(_), _) => "from the default".to_string(),
        (0, None, Some(_)) => format!("from {}, which was given", header.start),
        // A replay has no default.
        (0, None, None) => format!("from {}", header.start),
        (resumed, ..) => format!("continued after {}", style::count(resumed, "trial")),
    };
    let text = format!("by {}, seed {}, {begins}", header.strategy, header.seed);
    page.field("search", text);
    page.fields("default", &header.default);
}

impl Watcher for Live {
    fn begins(&mut self, header: &Header, resumed: usize) {
        self.before = resumed;
        if header.begins_at_default().is_some() {
            self.first = "the default's";
        }
        self.say("computing the reference".to_string());
    }

    fn trial(&mut self, trial: &Trial, history: &History) {
        self.say(self.message(history));
        // Only new trials show the noise of now.
        let is_new = self.shown && trial.number >= self.before;
        if is_new && !self.noted_noise && is_noisy(&history.trials()[self.before..]) {
            self.noted_noise = true;
            self.bar.suspend(|| style::note(NOISE));
        }
    }

    fn lost(&mut self, device: &str, why: &str) {
        let note = || style::note(format_args!("{why}; {device} is given up, and the other devices go on"));
        self.bar.suspend(note);
    }

    fn waits(&mut self, device: &str, waits: Waits) {
        // Two searches wait for each other all the time: one note is enough.
        if self.noted_wait != Some(waits) {
            self.noted_wait = Some(waits);
            self.bar.suspend(|| note_wait(device, waits));
        }
    }

    fn uncounted(&mut self, why: &str) {
        self.bar
            .suspend(|| style::note(format_args!("no more counters: {why}")));
    }

    fn finals(&mut self, finalists: &[String]) {
        self.say(format!("{} head to head", style::count(finalists.len(), "finalist")));
    }
}

#[cfg(test)]
mod tests {
    use flashcore_bench::{Interval, Ratio};

    use super::*;

    fn id(number: usize) -> String {
        format!("wgmma/m192n128-s{number}-pingpong-cond-cluster2-persistent")
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
            error: None,
            tolerance: None,
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
            counters: None,
        }
    }

    /// A trial that was timed in the same rounds as another.
    fn compared(number: usize, verdict: Verdict, against: usize, [lo, hi]: [f64; 2], score: f64) -> Trial {
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
    fn times_of_different_moments_are_not_compared() {
        let slower = plain(&line(&compared(1, Verdict::Slower, 0, [1.05, 1.092], 1.071)));
        assert!(
            slower.starts_with("    1  SLOWER         × 1.071 [1.050, 1.092]  "),
            "{slower}"
        );
        assert!(slower.ends_with(&format!("{}  against {}", id(1), id(0))), "{slower}");
        assert!(!slower.contains("µs") && !slower.contains('%'), "{slower}");
        let far = plain(&line(&compared(1, Verdict::Slower, 0, [60.0, 68.08], 64.04)));
        assert!(far.contains("× 64.0 [60.0, 68.1]"), "{far}");
        // What is faster has its time, after the ratio, and so has what was timed alone.
        let faster = plain(&line(&compared(2, Verdict::Faster, 0, [0.9, 0.92], 0.91)));
        let (ratio, time) = (faster.find("× 0.910").unwrap(), faster.find("91.0 µs").unwrap());
        assert!(ratio < time, "{faster}");
        assert!(line(&trial(0, Verdict::Ambiguous, 100.0)).contains("100 µs"));
    }

    #[test]
    fn noise_is_seen_where_most_intervals_are_wide() {
        let run = |wide: usize| -> Vec<Trial> {
            let interval = |number| if number <= wide { [0.5, 1.3] } else { [0.99, 1.01] };
            let timed = (1..=NOISE_TRIALS).map(|number| compared(number, Verdict::Ambiguous, 0, interval(number), 1.0));
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
        history.add(compared(2, Verdict::Faster, 0, [0.9, 0.92], 0.91));
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
        // Times of two moments are not compared.
        assert!(!line.contains("µs"), "{line}");
        assert!(message("5 of 60 trials", &history, first, 200).ends_with(&history.trials()[2].id));
        // Before anything has passed there are failures, too.
        let mut failed = History::default();
        failed.add(trial(0, Verdict::Wrong, 0.0));
        assert!(message("1 of 60 trials", &failed, first, 77).contains("1 WRONG"));
    }
}
