//! The loop of a search. Trials are numbered when they are proposed and judged in that order,
//! whichever worker finishes first. So proposals depend on results alone, and a resumed run
//! proposes the same candidates again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flashcore_bench::own::is_own;

use crate::counting::Counting;
use crate::device_lock::Waits;
use crate::error::TuneError;
use crate::examine::{Examiner, Found};
use crate::interrupt::Interrupt;
use crate::journal::{Header, Journal};
use crate::own::OwnKernels;
use crate::run::Watcher;
use crate::space::{Fingerprint, Space};
use crate::strategy::{Proposal, Strategy};
use crate::trial::{History, Trial, Verdict};
use crate::worker::Compilers;

/// Interval at which a search that waits for its workers checks for an interrupt.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Trials in a row that the environment fails for, after which a search ends: the next ones would fail, too.
const IN_A_ROW: usize = 3;

struct Job {
    number: usize,
    id: String,
    best: Option<Trial>,
}

enum News {
    Done(Job, Found, f64),
    /// The worker of this number has ended, and the candidate has no result.
    Ended(usize, Job, TuneError),
    Waits(String, Waits),
    /// Why there are no counters.
    Uncounted(String),
}

struct Pending {
    proposal: Proposal,
    fingerprint: Option<Fingerprint>,
    known: Option<Known>,
}

enum Known {
    Found(Box<Found>, f64),
    Before(Box<Trial>),
    /// That of this earlier candidate with the same machine program, which is judged before.
    Twin(String),
}

pub(crate) type Look<'s> = dyn Fn(&str) -> Result<Option<Fingerprint>, String> + 's;

pub(crate) struct Search<'s> {
    space: &'s Space,
    gate: Option<&'s Look<'s>>,
    header: &'s Header,
    pub(crate) journal: Journal,
    /// Trials of a resumed run that are not judged again yet.
    before: VecDeque<Trial>,
    spent: Duration,
    pub(crate) trials: usize,
    pub(crate) time: Duration,
    pub(crate) compilers: Option<&'s Compilers>,
    pub(crate) counting: Option<&'s Counting>,
    pub(crate) interrupt: Interrupt,
    pub(crate) own: OwnKernels,
    pub(crate) history: History,
    /// In order; the first one's number is that of the next trial.
    pending: VecDeque<Pending>,
    exhausted: bool,
    /// Trials in a row that the environment failed for.
    undecided: usize,
    /// Configs whose last trial in earlier parts of the run the environment failed for: each is tried once more.
    again: VecDeque<String>,
    /// Numbers of earlier trials that were made so.
    repeats: BTreeSet<usize>,
    /// Why an outside proposer is gone, if that ended the search.
    pub(crate) proposer_gone: Option<String>,
}

impl<'s> Search<'s> {
    pub(crate) fn new(
        space: &'s Space,
        gate: Option<&'s Look<'s>>,
        header: &'s Header,
        journal: Journal,
        before: Vec<Trial>,
    ) -> Search<'s> {
        let (mut again, mut repeats) = (VecDeque::<String>::new(), BTreeSet::new());
        for trial in &before {
            if let Some(at) = again.iter().position(|id| *id == trial.id) {
                again.remove(at);
                repeats.insert(trial.number);
            }
            again.extend(trial.is_undecided().then(|| trial.id.clone()));
        }
        Search {
            space,
            gate,
            header,
            journal,
            spent: time_of(&before, header.devices.len()),
            again,
            repeats,
            before: before.into(),
            trials: usize::MAX,
            time: Duration::MAX,
            compilers: None,
            counting: None,
            interrupt: Interrupt::default(),
            own: OwnKernels::default(),
            history: History::default(),
            pending: VecDeque::new(),
            exhausted: false,
            undecided: 0,
            proposer_gone: None,
        }
    }

    /// Searches until a limit or the end of the space. A worker that is lost is removed.
    pub(crate) fn go(
        &mut self,
        strategy: &mut dyn Strategy,
        examiners: &mut Vec<Examiner<'_>>,
        watcher: &mut dyn Watcher,
    ) -> Result<(), TuneError> {
        let device = |examiner: &Examiner<'_>| Some(examiner.worker.device.clone());
        let mut workers: Vec<Option<String>> = examiners.iter().map(device).collect();
        let (queue, jobs) = channel();
        let (sender, news) = channel();
        let (jobs, halt) = (Mutex::new(jobs), Interrupt::default());
        let (compilers, counting) = (self.compilers, self.counting);
        let mut outcome = thread::scope(|scope| {
            for (by, examiner) in examiners.iter_mut().enumerate() {
                let (sender, jobs, halt) = (sender.clone(), &jobs, &halt);
                scope.spawn(move || work(examiner, by, jobs, (compilers, counting), &sender, halt));
            }
            let outcome = self.drive(strategy, &queue, &news, &mut workers, watcher);
            // Threads end when the queue is closed. After an error they skip the rest.
            if outcome.is_err() {
                halt.ask();
            }
            drop(queue);
            outcome
        });
        // Results that are next are kept; the other candidates are proposed again.
        for one in news.try_iter() {
            match one {
                News::Done(job, found, seconds) => self.know(&job, found, seconds),
                News::Ended(.., error) => outcome = outcome.and(Err(error)),
                News::Waits(..) | News::Uncounted(_) => {}
            }
        }
        while self.knows_next() {
            outcome = outcome.and(self.commit(watcher));
        }
        let mut left = workers.iter();
        examiners.retain(|_| left.next().is_some_and(Option::is_some));
        outcome
    }

    /// `workers` are the devices of those that are left.
    fn drive(
        &mut self,
        strategy: &mut dyn Strategy,
        queue: &Sender<Job>,
        news: &Receiver<News>,
        workers: &mut [Option<String>],
        watcher: &mut dyn Watcher,
    ) -> Result<(), TuneError> {
        let began = Instant::now();
        loop {
            match self.fill(strategy, queue, began) {
                Err(TuneError::Proposer(_)) if self.is_interrupted_too() => return Ok(()),
                // The candidates so far still get their finals.
                Err(error @ TuneError::Proposer(_)) => {
                    self.exhausted = true;
                    self.proposer_gone = Some(error.to_string());
                }
                filled => filled?,
            }
            if self.interrupt.is_asked() || self.pending.is_empty() {
                return Ok(());
            }
            // One at a time, so that each proposal has seen exactly the trials before it.
            if self.knows_next() {
                self.commit(watcher)?;
                continue;
            }
            match news.recv_timeout(LOOK_UP) {
                Ok(News::Done(job, found, seconds)) => self.know(&job, found, seconds),
                Ok(News::Ended(by, job, error)) => {
                    let device = workers[by].take();
                    if !matches!(error, TuneError::Worker(_)) || workers.iter().flatten().count() == 0 {
                        return Err(error);
                    }
                    watcher.lost(&device.unwrap_or_default(), &error.to_string());
                    self.give(queue, job);
                }
                Ok(News::Waits(device, waits)) => watcher.waits(&device, waits),
                Ok(News::Uncounted(why)) => watcher.uncounted(&why),
                Err(_) => {}
            }
        }
    }

    fn give(&self, queue: &Sender<Job>, job: Job) {
        if let Some(compilers) = self.compilers.filter(|_| !self.pending.is_empty() && !is_own(&job.id)) {
            compilers.begin(&self.header.problem, [job.id.clone()]);
        }
        // It is closed only if no worker is left, which ends the search.
        let _ = queue.send(job);
    }

    fn know(&mut self, job: &Job, found: Found, seconds: f64) {
        let place = job.number - self.history.trials().len();
        self.pending[place].known = Some(Known::Found(Box::new(found), seconds));
    }

    fn knows_next(&self) -> bool {
        self.pending.front().is_some_and(|next| next.known.is_some())
    }

    /// The interrupt that ended an outside proposer may arrive here a moment later.
    fn is_interrupted_too(&self) -> bool {
        thread::sleep(LOOK_UP);
        self.interrupt.is_asked()
    }

    fn fill(&mut self, strategy: &mut dyn Strategy, queue: &Sender<Job>, began: Instant) -> Result<(), TuneError> {
        loop {
            let number = self.history.trials().len() + self.pending.len();
            // Others are compared with the first, so it is tried alone.
            let best = self.history.best().cloned();
            let window = if best.is_some() { self.header.window } else { 1 };
            let spent = self.spent.saturating_add(began.elapsed());
            // Trials that say nothing are made again whatever the budget in trials.
            let is_last = number >= self.trials && self.again.is_empty();
            let over = is_last || (self.before.is_empty() && spent >= self.time);
            if self.pending.len() >= window || self.exhausted || (over && number > 0) {
                return Ok(());
            }
            let before = self.before.pop_front();
            strategy.hurry(self.time.saturating_sub(spent));
            let Some(proposal) = self.propose(strategy, number, before.as_ref())? else {
                self.exhausted = true;
                return Ok(());
            };
            self.history.begin(&proposal.id);
            let id = proposal.id.clone();
            let (fingerprint, known) = match before {
                Some(trial) => (trial.fingerprint.clone(), Some(Known::Before(Box::new(trial)))),
                None => {
                    self.own.keep(&id, &self.journal.folder)?;
                    self.look(&id)
                }
            };
            if known.is_none() {
                self.give(queue, Job { number, id, best });
            }
            self.pending.push_back(Pending {
                proposal,
                fingerprint,
                known,
            });
        }
    }

    /// The next proposal. In a resumed run it must be the one that was made then.
    fn propose(
        &mut self,
        strategy: &mut dyn Strategy,
        number: usize,
        before: Option<&Trial>,
    ) -> Result<Option<Proposal>, TuneError> {
        // No strategy proposes what is tried again.
        let is_again = |trial: &Trial| self.repeats.contains(&trial.number);
        if let Some(trial) = before.filter(|trial| !strategy.is_replayable() || is_again(trial)) {
            return Ok(Some(Proposal::new(&trial.id, &trial.origin)));
        }
        if before.is_none()
            && let Some(id) = self.again.pop_front()
        {
            return Ok(Some(Proposal::new(id, "again: the environment failed")));
        }
        // If the default is a row, it may be older than the heuristics.
        let heuristics = self.header.begins_at_default().map(|default| &default.heuristics);
        let heuristics = heuristics.filter(|id| !self.history.is_seen(id) && self.space.admits(id).is_ok());
        // Each kernel of the user is tried once, however many others there are.
        let yours = self.space.yours().iter().find(|id| !self.history.is_seen(id));
        let proposal = match (number, heuristics) {
            (0, _) => Some(Proposal::new(&self.header.start, "the first")),
            (1, Some(id)) => Some(Proposal::new(id, "chosen by heuristics")),
            _ => match yours {
                Some(id) => Some(Proposal::new(id, "yours")),
                None => strategy.propose(&self.history, self.space)?,
            },
        };
        let now = proposal.as_ref().map(|now| &now.id);
        match before {
            Some(then) if now != Some(&then.id) => {
                let now = now.map_or("none", |now| now);
                Err(TuneError::resume(
                    &self.journal.folder,
                    "a proposal",
                    [&then.id, now],
                    "",
                ))
            }
            _ => Ok(proposal),
        }
    }

    /// The machine program of a proposal, and its result if it needs no worker.
    fn look(&self, id: &str) -> (Option<Fingerprint>, Option<Known>) {
        let refused = |reason: String| {
            (
                None,
                Some(Known::Found(Box::new(Found::failed(Verdict::Refused, reason)), 0.0)),
            )
        };
        // The first is compared with, whatever families are searched.
        if !self.history.trials().is_empty()
            && let Err(reason) = self.space.admits(id)
        {
            return refused(reason);
        }
        let fingerprint = match self.gate.map_or(Ok(None), |gate| gate(id)) {
            Err(reason) => return refused(reason),
            Ok(None) => return (None, None),
            Ok(fingerprint) => fingerprint,
        };
        // The first candidate with the same program, tried or pending.
        let (tried, pending) = (self.history.trials().iter(), self.pending.iter());
        let tried = tried.filter(|trial| !trial.is_undecided());
        let tried = tried.map(|trial| (&trial.id, &trial.fingerprint));
        let pending = pending.map(|other| (&other.proposal.id, &other.fingerprint));
        let first = tried.chain(pending).find(|(_, other)| **other == fingerprint);
        let twin = first.map(|(first, _)| Known::Twin(first.clone()));
        (fingerprint, twin)
    }

    fn commit(&mut self, watcher: &mut dyn Watcher) -> Result<(), TuneError> {
        let Some(pending) = self.pending.pop_front() else {
            return Ok(());
        };
        let (found, same_as, seconds) = match pending.known {
            None => return Ok(()),
            Some(Known::Before(trial)) => {
                self.add(*trial, watcher);
                return Ok(());
            }
            Some(Known::Found(found, seconds)) => {
                let is_undecided = found.verdict == Verdict::EnvironmentFailed;
                self.undecided = if is_undecided { self.undecided + 1 } else { 0 };
                (*found, None, seconds)
            }
            Some(Known::Twin(first)) => {
                let same = self.history.trial(&first);
                let same = same.ok_or_else(|| TuneError::nothing(format!("{first} has no result")))?;
                let found = Found {
                    verdict: same.verdict,
                    reason: format!("the same machine program as {first}"),
                    timed: same.timed.clone(),
                    unjudged: same.unjudged.clone(),
                    counters: None,
                };
                (found, Some(first), 0.0)
            }
        };
        let trial = Trial {
            number: self.history.trials().len(),
            id: pending.proposal.id,
            origin: pending.proposal.origin,
            verdict: found.verdict,
            reason: found.reason,
            timed: found.timed,
            unjudged: found.unjudged,
            fingerprint: pending.fingerprint,
            same_as,
            seconds,
            counters: found.counters,
        };
        self.journal.add(&trial)?;
        let reason = trial.reason.clone();
        self.add(trial, watcher);
        match self.undecided {
            IN_A_ROW.. => Err(TuneError::Environment(format!("{IN_A_ROW} times in a row: {reason}"))),
            _ => Ok(()),
        }
    }

    fn add(&mut self, trial: Trial, watcher: &mut dyn Watcher) {
        self.history.add(trial.clone());
        watcher.trial(&trial, &self.history);
    }
}

/// The time that trials took on several workers, or the maximum if it is too long to represent.
fn time_of(trials: &[Trial], workers: usize) -> Duration {
    let seconds = trials.iter().map(|trial| trial.seconds).sum::<f64>();
    Duration::try_from_secs_f64(seconds / workers.max(1) as f64).unwrap_or(Duration::MAX)
}

/// A worker's thread: examines candidates until the queue is closed, or the worker is lost.
fn work(
    examiner: &mut Examiner<'_>,
    by: usize,
    jobs: &Mutex<Receiver<Job>>,
    (compilers, counting): (Option<&Compilers>, Option<&Counting>),
    news: &Sender<News>,
    halt: &Interrupt,
) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        if examiner.interrupt.is_asked() || halt.is_asked() {
            return;
        }
        let began = Instant::now();
        if let Some(compilers) = compilers {
            compilers.wait_for(&job.id);
        }
        let told = &mut |device: &str, waits| drop(news.send(News::Waits(device.to_string(), waits)));
        let Some(held) = examiner.hold(told) else { return };
        let mut found = examiner.examine(job.number, &job.id, job.best.as_ref());
        if let (Some(counting), Ok(found)) = (counting, &mut found)
            && (found.verdict == Verdict::Faster || (found.timed.is_some() && job.best.is_none()))
        {
            // The device is held, so nothing is timed meanwhile.
            match counting.read(&job.id, &examiner.worker.device) {
                Some(Ok(counters)) => found.counters = Some(Box::new(counters)),
                Some(Err(why)) => drop(news.send(News::Uncounted(why.to_string()))),
                None => {}
            }
        }
        drop(held);
        let is_lost = found.is_err();
        let sent = news.send(match found {
            Ok(found) => News::Done(job, found, began.elapsed().as_secs_f64()),
            Err(error) => News::Ended(by, job, error),
        });
        if is_lost || sent.is_err() {
            return;
        }
    }
}

#[cfg(all(test, unix))]
mod tests;
