//! The loop of a search. Trials are numbered when they are proposed and judged in that order,
//! whichever worker finishes first. So proposals depend on results alone, and a resumed run
//! proposes the same candidates again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::device_lock::Waits;
use crate::error::TuneError;
use crate::examine::{Best, Examiner, Found};
use crate::interrupt::Interrupt;
use crate::journal::{Header, Journal};
use crate::run::Watcher;
use crate::space::{Fingerprint, Space};
use crate::strategy::{Proposal, Strategy};
use crate::trial::{History, Trial, Verdict};

/// Interval at which a search that waits for its workers checks for an interrupt.
const LOOK_UP: Duration = Duration::from_millis(100);

/// A candidate for a worker.
#[derive(Clone)]
struct Job {
    number: usize,
    id: String,
    best: Option<Best>,
}

/// A message from a worker's thread.
enum News {
    /// A candidate's result.
    Done {
        /// The worker.
        by: usize,
        number: usize,
        found: Result<Found, TuneError>,
        seconds: f64,
    },
    /// It waits for this device.
    Waits(String, Waits),
}

/// The workers' queues.
#[derive(Default)]
struct Crew {
    /// By worker; `None` for one that is lost.
    queues: Vec<Option<Sender<Job>>>,
    /// The worker of each candidate, by number.
    given: BTreeMap<usize, (usize, Job)>,
}

impl Crew {
    /// Gives a candidate to the remaining worker with the fewest candidates.
    fn give(&mut self, job: Job) {
        let left = (0..self.queues.len()).filter(|&at| self.queues[at].is_some());
        let has = |worker: &usize| self.given.values().filter(|(by, _)| by == worker).count();
        let Some(to) = left.min_by_key(has) else {
            return;
        };
        if let Some(queue) = &self.queues[to] {
            // A worker that is gone has reported why; then `lose` gives the candidate to another
            // one.
            let _ = queue.send(job.clone());
        }
        self.given.insert(job.number, (to, job));
    }

    /// Gives the candidates of a lost worker to the others. Returns whether there are any.
    fn lose(&mut self, lost: usize) -> bool {
        self.queues[lost] = None;
        let of_it = self.given.values().filter(|(by, _)| *by == lost);
        let again: Vec<Job> = of_it.map(|(_, job)| job.clone()).collect();
        again.into_iter().for_each(|job| self.give(job));
        self.queues.iter().any(Option::is_some)
    }
}

/// A proposal that is not judged yet.
struct Pending {
    proposal: Proposal,
    fingerprint: Option<Fingerprint>,
    same_as: Option<String>,
}

/// The result of a pending proposal.
enum Known {
    Found(Found, f64),
    /// From the journal.
    Before(Box<Trial>),
    /// That of an earlier candidate with the same machine program, which is judged before this one.
    Twin,
}

/// The first gate: a config's machine program, or why it is refused.
pub(crate) type Look<'s> = dyn Fn(&str) -> Result<Option<Fingerprint>, String> + 's;

/// A search.
pub(crate) struct Search<'s> {
    space: &'s Space,
    gate: Option<&'s Look<'s>>,
    header: &'s Header,
    pub(crate) journal: Journal,
    /// Trials of a resumed run that are not judged again yet.
    before: VecDeque<Trial>,
    /// Time that they took.
    spent: Duration,
    /// Most trials.
    pub(crate) trials: usize,
    /// Most time.
    pub(crate) time: Duration,
    /// Ends the search before its limits.
    pub(crate) interrupt: Interrupt,
    pub(crate) history: History,
    pending: BTreeMap<usize, Pending>,
    results: BTreeMap<usize, Known>,
    exhausted: bool,
    /// Why an outside proposer is gone, if that ended the search.
    pub(crate) proposer_gone: Option<String>,
}

impl<'s> Search<'s> {
    /// A search without limits.
    pub(crate) fn new(
        space: &'s Space,
        gate: Option<&'s Look<'s>>,
        header: &'s Header,
        journal: Journal,
        before: Vec<Trial>,
    ) -> Search<'s> {
        Search {
            space,
            gate,
            header,
            journal,
            spent: time_of(&before, header.devices.len()),
            before: before.into(),
            trials: usize::MAX,
            time: Duration::MAX,
            interrupt: Interrupt::default(),
            history: History::default(),
            pending: BTreeMap::new(),
            results: BTreeMap::new(),
            exhausted: false,
            proposer_gone: None,
        }
    }

    /// Searches with these workers until a limit or the end of the space, and returns the workers
    /// that are left. If one is lost, the others continue.
    ///
    /// # Errors
    /// The error that ends the search. Earlier results are kept.
    pub(crate) fn go<'e>(
        &mut self,
        strategy: &mut dyn Strategy,
        examiners: Vec<Examiner<'e>>,
        watcher: &mut dyn Watcher,
    ) -> Result<Vec<Examiner<'e>>, TuneError> {
        let halt = Interrupt::default();
        let device = |examiner: &Examiner<'_>| examiner.remote.worker.device().to_string();
        let names: Vec<String> = examiners.iter().map(device).collect();
        thread::scope(|scope| {
            let (sender, news) = channel();
            let mut crew = Crew::default();
            let mut threads = Vec::new();
            for (by, examiner) in examiners.into_iter().enumerate() {
                let (queue, jobs) = channel();
                crew.queues.push(Some(queue));
                let (sender, halt) = (sender.clone(), halt.clone());
                threads.push(scope.spawn(move || work(examiner, by, &jobs, &sender, &halt)));
            }
            let mut outcome = self.drive(strategy, &mut crew, &news, &names, watcher);
            // Threads end when their queues are closed. After an error they skip the rest.
            if outcome.is_err() {
                halt.ask();
            }
            let is_left: Vec<bool> = crew.queues.iter().map(Option::is_some).collect();
            drop(crew);
            let join = |thread: thread::ScopedJoinHandle<'_, Examiner<'e>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let joined: Vec<Examiner<'e>> = threads.into_iter().map(join).collect();
            let left = joined.into_iter().zip(is_left).filter(|(_, is_left)| *is_left);
            let left = left.map(|(examiner, _)| examiner).collect();
            // Results that are next are kept; the other candidates are proposed again.
            for one in news.try_iter() {
                let News::Done {
                    number, found, seconds, ..
                } = one
                else {
                    continue;
                };
                match found {
                    Ok(found) => drop(self.results.insert(number, Known::Found(found, seconds))),
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
            while let Some(result) = self.next_result() {
                outcome = outcome.and(self.commit(result, watcher));
            }
            outcome.map(|()| left)
        })
    }

    fn drive(
        &mut self,
        strategy: &mut dyn Strategy,
        crew: &mut Crew,
        news: &Receiver<News>,
        names: &[String],
        watcher: &mut dyn Watcher,
    ) -> Result<(), TuneError> {
        let began = Instant::now();
        loop {
            match self.fill(strategy, crew, began) {
                Err(TuneError::Proposer { .. }) if self.is_interrupted_too() => return Ok(()),
                // The candidates so far still get their finals.
                Err(error @ TuneError::Proposer { .. }) => {
                    self.exhausted = true;
                    self.proposer_gone = Some(error.to_string());
                }
                filled => filled?,
            }
            if self.interrupt.is_asked() || self.pending.is_empty() {
                return Ok(());
            }
            // One at a time, so that each proposal has seen exactly the trials before it.
            if let Some(result) = self.next_result() {
                self.commit(result, watcher)?;
                continue;
            }
            match news.recv_timeout(LOOK_UP) {
                Ok(News::Done {
                    number,
                    found: Ok(found),
                    seconds,
                    ..
                }) => {
                    crew.given.remove(&number);
                    self.results.insert(number, Known::Found(found, seconds));
                }
                Ok(News::Done {
                    by,
                    found: Err(error @ TuneError::Worker { .. }),
                    ..
                }) => {
                    if !crew.lose(by) {
                        return Err(error);
                    }
                    watcher.lost(&names[by], &error.to_string());
                }
                Ok(News::Done { found: Err(error), .. }) => return Err(error),
                Ok(News::Waits(device, waits)) => watcher.waits(&device, waits),
                Err(_) => {}
            }
        }
    }

    fn next_result(&mut self) -> Option<Known> {
        self.results.remove(&self.history.trials().len())
    }

    /// Whether the interrupt that ended an outside proposer is also for this search. It may arrive
    /// a moment later.
    fn is_interrupted_too(&self) -> bool {
        thread::sleep(LOOK_UP);
        self.interrupt.is_asked()
    }

    /// Proposes as many candidates as the window allows.
    fn fill(&mut self, strategy: &mut dyn Strategy, crew: &mut Crew, began: Instant) -> Result<(), TuneError> {
        loop {
            let number = self.history.trials().len() + self.pending.len();
            // Others are compared with the first, so it is tried alone.
            let best = self.best();
            let window = if best.is_some() { self.header.window } else { 1 };
            let spent = self.spent.saturating_add(began.elapsed());
            let over = number >= self.trials || (self.before.is_empty() && spent >= self.time);
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
            let mut pending = Pending {
                proposal,
                fingerprint: None,
                same_as: None,
            };
            let known = match before {
                Some(trial) => {
                    (pending.fingerprint, pending.same_as) = (trial.fingerprint.clone(), trial.same_as.clone());
                    Some(Known::Before(Box::new(trial)))
                }
                None => self.look(&mut pending),
            };
            match known {
                Some(known) => drop(self.results.insert(number, known)),
                None => crew.give(Job {
                    number,
                    id: pending.proposal.id.clone(),
                    best,
                }),
            }
            self.pending.insert(number, pending);
        }
    }

    /// The next proposal. In a resumed run it must be the one that was made then.
    fn propose(
        &self,
        strategy: &mut dyn Strategy,
        number: usize,
        before: Option<&Trial>,
    ) -> Result<Option<Proposal>, TuneError> {
        if let Some(trial) = before.filter(|_| !strategy.is_replayable()) {
            return Ok(Some(Proposal::new(&trial.id, &trial.origin)));
        }
        // If the default is a row, it may be older than the heuristics.
        let heuristics = self.header.begins_at_default().map(|default| &default.heuristics);
        let heuristics = heuristics.filter(|id| !self.history.is_seen(id) && self.space.admits(id).is_ok());
        let proposal = match (number, heuristics) {
            (0, _) => Some(Proposal::new(&self.header.start, "the first")),
            (1, Some(id)) => Some(Proposal::new(id, "chosen by heuristics")),
            _ => strategy.propose(&self.history, self.space)?,
        };
        let now = proposal.as_ref().map(|now| &now.id);
        match before {
            Some(then) if now != Some(&then.id) => Err(TuneError::Resume {
                path: self.journal.folder().display().to_string(),
                what: "a proposal",
                then: then.id.clone(),
                now: now.map_or("none".to_string(), String::clone),
            }),
            _ => Ok(proposal),
        }
    }

    /// The result of a proposal that needs no worker.
    fn look(&self, pending: &mut Pending) -> Option<Known> {
        let id = &pending.proposal.id;
        let refused = |reason: String| Some(Known::Found(Found::failed(Verdict::Refused, reason), 0.0));
        // The first is compared with, whatever families are searched.
        if !self.history.trials().is_empty()
            && let Err(reason) = self.space.admits(id)
        {
            return refused(reason);
        }
        match self.gate?(id) {
            Err(reason) => return refused(reason),
            Ok(fingerprint) => pending.fingerprint = fingerprint,
        }
        let fingerprint = Some(pending.fingerprint.as_ref()?);
        // The first candidate with the same program, tried or pending.
        let mut tried = self.history.trials().iter();
        let tried = tried.find(|trial| trial.same_as.is_none() && trial.fingerprint.as_ref() == fingerprint);
        let mut others = self.pending.values();
        let other = others.find(|other| other.same_as.is_none() && other.fingerprint.as_ref() == fingerprint);
        let first = tried.map(|trial| &trial.id).or(other.map(|other| &other.proposal.id));
        pending.same_as = Some(first?.clone());
        Some(Known::Twin)
    }

    /// The result of an earlier candidate with the same machine program.
    fn of_twin(&self, first: Option<&str>) -> Option<Found> {
        let same = self.history.trial(first?)?;
        Some(Found {
            verdict: same.verdict,
            reason: format!("the same machine program as {}", same.id),
            timed: same.timed.clone(),
            unjudged: same.unjudged.clone(),
        })
    }

    /// Adds the next trial to the history.
    fn commit(&mut self, result: Known, watcher: &mut dyn Watcher) -> Result<(), TuneError> {
        let number = self.history.trials().len();
        let Some(pending) = self.pending.remove(&number) else {
            return Ok(());
        };
        let found = match result {
            Known::Before(trial) => Err(*trial),
            Known::Found(found, seconds) => Ok((found, seconds)),
            Known::Twin => {
                let found = self.of_twin(pending.same_as.as_deref());
                let found = found.ok_or_else(|| TuneError::Nothing {
                    what: format!("{} equals a candidate without a result", pending.proposal.id),
                })?;
                Ok((found, 0.0))
            }
        };
        let trial = match found {
            Err(before) => before,
            Ok((found, seconds)) => {
                let trial = Trial {
                    number,
                    id: pending.proposal.id,
                    origin: pending.proposal.origin,
                    verdict: found.verdict,
                    reason: found.reason,
                    timed: found.timed,
                    unjudged: found.unjudged,
                    fingerprint: pending.fingerprint,
                    same_as: pending.same_as,
                    seconds,
                };
                self.journal.add(&trial)?;
                trial
            }
        };
        self.history.add(trial.clone());
        watcher.trial(&trial, &self.history);
        Ok(())
    }

    /// The candidate that others are timed against.
    fn best(&self) -> Option<Best> {
        let trial = self.history.best()?;
        let timed = trial.timed.as_ref()?;
        Some(Best {
            id: trial.id.clone(),
            score: timed.score,
            us: timed.us,
        })
    }
}

/// The time that trials took on several workers, or the maximum if it is too long to represent.
fn time_of(trials: &[Trial], workers: usize) -> Duration {
    let seconds = trials.iter().map(|trial| trial.seconds).sum::<f64>();
    Duration::try_from_secs_f64(seconds / workers.max(1) as f64).unwrap_or(Duration::MAX)
}

/// A worker's thread: examines the candidates in its queue while the next ones are compiled. It
/// ends if the worker is lost.
fn work<'e>(
    mut examiner: Examiner<'e>,
    by: usize,
    jobs: &Receiver<Job>,
    news: &Sender<News>,
    halt: &Interrupt,
) -> Examiner<'e> {
    let mut queue: VecDeque<Job> = VecDeque::new();
    loop {
        if queue.is_empty() {
            queue.extend(jobs.recv().ok());
        }
        queue.extend(jobs.try_iter());
        if examiner.interrupt.is_asked() || halt.is_asked() {
            return examiner;
        }
        let Some(job) = queue.pop_front() else {
            return examiner;
        };
        let began = Instant::now();
        examiner.ahead(queue.iter().map(|job| job.id.clone()).collect());
        let told = &mut |device: &str, waits| drop(news.send(News::Waits(device.to_string(), waits)));
        let Some(held) = examiner.ready(&job.id, told) else {
            return examiner;
        };
        let found = examiner.examine(job.number, &job.id, job.best.as_ref());
        drop(held);
        let is_lost = found.is_err();
        let sent = news.send(News::Done {
            by,
            number: job.number,
            found,
            seconds: began.elapsed().as_secs_f64(),
        });
        if is_lost || sent.is_err() {
            return examiner;
        }
    }
}

#[cfg(all(test, unix))]
mod tests;
