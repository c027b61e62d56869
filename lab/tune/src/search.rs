//! The loop of a search. Trials are numbered as they are proposed and looked at in that order, whichever worker is done
//! first: what is proposed next depends on results alone and never on which came sooner, so that a run that was cut off
//! proposes the same again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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

/// How often a search that waits for its workers sees whether it is to end.
const LOOK_UP: Duration = Duration::from_millis(100);

/// A candidate on its way to a worker.
#[derive(Clone)]
struct Job {
    number: usize,
    id: String,
    best: Option<Best>,
}

/// What a worker's thread tells.
enum News {
    /// A candidate's result.
    Done {
        /// Which worker.
        by: usize,
        number: usize,
        found: Result<Found, TuneError>,
        seconds: f64,
    },
    /// It waits for this device.
    Waits(String, Waits),
}

/// Where candidates are examined.
struct Crew {
    /// A queue a worker; `None` of one that is lost.
    queues: Vec<Option<Sender<Job>>>,
    /// What is with which worker, by number.
    given: BTreeMap<usize, (usize, Job)>,
}

impl Crew {
    /// Gives a candidate to the one of those who are left that has the fewest.
    fn give(&mut self, job: Job) {
        let left = (0..self.queues.len()).filter(|&at| self.queues[at].is_some());
        let has = |worker: &usize| self.given.values().filter(|(by, _)| by == worker).count();
        let Some(to) = left.min_by_key(has) else {
            return;
        };
        if let Some(queue) = &self.queues[to] {
            // A worker that is gone has said why, and then this one is given to another.
            let _ = queue.send(job.clone());
        }
        self.given.insert(job.number, (to, job));
    }

    /// Gives what a lost worker had to the others. Whether there are any.
    fn lose(&mut self, lost: usize) -> bool {
        self.queues[lost] = None;
        let of_it = self.given.values().filter(|(by, _)| *by == lost);
        let again: Vec<Job> = of_it.map(|(_, job)| job.clone()).collect();
        again.into_iter().for_each(|job| self.give(job));
        self.queues.iter().any(Option::is_some)
    }
}

/// A proposal whose result was not looked at yet.
struct Pending {
    proposal: Proposal,
    fingerprint: Option<Fingerprint>,
    same_as: Option<String>,
}

/// What is known of a pending proposal.
enum Known {
    Found(Found, f64),
    /// From the journal.
    Before(Box<Trial>),
    /// That of an earlier candidate with the same machine program, which has one by the time this one is looked at.
    Twin,
}

/// What the first gate says of a config: why not, or what its machine program is.
pub(crate) type Look<'s> = dyn Fn(&str) -> Result<Option<Fingerprint>, String> + 's;

/// A search on its way.
pub(crate) struct Search<'s> {
    space: &'s Space,
    gate: Option<&'s Look<'s>>,
    header: &'s Header,
    journal: Journal,
    /// Trials of the run that is taken up again, not looked at yet.
    before: VecDeque<Trial>,
    /// What they took.
    spent: Duration,
    trials: usize,
    time: Duration,
    history: History,
    pending: BTreeMap<usize, Pending>,
    results: BTreeMap<usize, Known>,
    exhausted: bool,
    /// Why what proposes is gone, if it is.
    gone: Option<String>,
    interrupt: Interrupt,
}

impl<'s> Search<'s> {
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
            history: History::default(),
            pending: BTreeMap::new(),
            results: BTreeMap::new(),
            exhausted: false,
            gone: None,
            interrupt: Interrupt::default(),
        }
    }

    /// Ends it after so many trials, or so much time.
    pub(crate) fn limit(&mut self, trials: usize, time: Duration) {
        (self.trials, self.time) = (trials, time);
    }

    /// Ends it when that is asked.
    pub(crate) fn ends_by(&mut self, interrupt: Interrupt) {
        self.interrupt = interrupt;
    }

    /// What was found, the journal, and why nothing proposes any more where that ended it.
    pub(crate) fn end(self) -> (History, Journal, Option<String>) {
        (self.history, self.journal, self.gone)
    }

    /// Searches with these workers until a limit or the end of the space; returns those that are left. One that is lost for good
    /// costs its part of the speed where there are others.
    ///
    /// # Errors
    /// What ends the search; what was found before is kept.
    pub(crate) fn go<'e>(
        &mut self,
        strategy: &mut dyn Strategy,
        examiners: Vec<Examiner<'e>>,
        watcher: &mut dyn Watcher,
    ) -> Result<Vec<Examiner<'e>>, TuneError> {
        let began = Instant::now();
        let halt = Interrupt::default();
        let names: Vec<String> = examiners.iter().map(|one| one.worker.device().to_string()).collect();
        thread::scope(|scope| {
            let (sender, news) = channel();
            let mut crew = Crew {
                queues: Vec::new(),
                given: BTreeMap::new(),
            };
            let mut threads = Vec::new();
            for (by, examiner) in examiners.into_iter().enumerate() {
                let (queue, jobs) = channel();
                crew.queues.push(Some(queue));
                let (sender, halt) = (sender.clone(), halt.clone());
                threads.push(scope.spawn(move || work(examiner, by, &jobs, &sender, &halt)));
            }
            let outcome = loop {
                match self.fill(strategy, &mut crew, began) {
                    Ok(()) => {}
                    Err(TuneError::Proposer { .. }) if self.is_interrupted_too() => break Ok(()),
                    // What was tried is worth its finals.
                    Err(error @ TuneError::Proposer { .. }) => {
                        self.exhausted = true;
                        self.gone = Some(error.to_string());
                    }
                    Err(error) => break Err(error),
                }
                if self.interrupt.is_asked() {
                    break Ok(());
                }
                if self.pending.is_empty() {
                    break Ok(());
                }
                // One at a time: then what is proposed next has seen exactly the trials before it.
                if let Some(result) = self.results.remove(&self.history.trials().len()) {
                    if let Err(error) = self.commit(result, watcher) {
                        break Err(error);
                    }
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
                            break Err(error);
                        }
                        watcher.lost(&names[by], &error.to_string());
                    }
                    Ok(News::Done { found: Err(error), .. }) => break Err(error),
                    Ok(News::Waits(device, waits)) => watcher.waits(&device, waits),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        break Err(TuneError::Nothing {
                            what: "every worker is gone".to_string(),
                        });
                    }
                }
            };
            // Workers end when their queues do; what is left in them is of no interest where there was an error.
            if outcome.is_err() {
                halt.ask();
            }
            let lost: Vec<bool> = crew.queues.iter().map(Option::is_none).collect();
            drop(crew);
            let mut left = Vec::new();
            for (thread, is_lost) in threads.into_iter().zip(lost) {
                match thread.join() {
                    Ok(examiner) if !is_lost => left.push(examiner),
                    Ok(_) => {}
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            // What was at hand is kept as far as it is next; the rest is proposed again.
            let mut outcome = outcome;
            for one in news.try_iter() {
                match one {
                    News::Done {
                        number,
                        found: Ok(found),
                        seconds,
                        ..
                    } => {
                        self.results.insert(number, Known::Found(found, seconds));
                    }
                    News::Done { found: Err(error), .. } => outcome = outcome.and(Err(error)),
                    News::Waits(..) => {}
                }
            }
            while let Some(result) = self.results.remove(&self.history.trials().len()) {
                outcome = outcome.and(self.commit(result, watcher));
            }
            outcome.map(|()| left)
        })
    }

    /// Whether the interrupt that ended a program which proposes is one for this search too. It may come a moment later.
    fn is_interrupted_too(&self) -> bool {
        thread::sleep(LOOK_UP);
        self.interrupt.is_asked()
    }

    /// Proposes as many candidates as may be on their way.
    fn fill(&mut self, strategy: &mut dyn Strategy, crew: &mut Crew, began: Instant) -> Result<(), TuneError> {
        loop {
            let number = self.history.trials().len() + self.pending.len();
            // Until one was timed there is nothing to compare others with.
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
            match before {
                Some(trial) => {
                    (pending.fingerprint, pending.same_as) = (trial.fingerprint.clone(), trial.same_as.clone());
                    self.results.insert(number, Known::Before(Box::new(trial)));
                }
                None => match self.look(&mut pending) {
                    Some(known) => {
                        self.results.insert(number, known);
                    }
                    None => crew.give(Job {
                        number,
                        id: pending.proposal.id.clone(),
                        best,
                    }),
                },
            }
            self.pending.insert(number, pending);
        }
    }

    /// The next proposal; of a run that is taken up again it must be the one that was made then.
    fn propose(
        &self,
        strategy: &mut dyn Strategy,
        number: usize,
        before: Option<&Trial>,
    ) -> Result<Option<Proposal>, TuneError> {
        let of_before = |trial: &Trial| Proposal {
            id: trial.id.clone(),
            origin: trial.origin.clone(),
        };
        if let Some(trial) = before.filter(|_| !strategy.is_replayable()) {
            return Ok(Some(of_before(trial)));
        }
        // A row may be older than the heuristics beside it.
        let heuristics = self.header.begins_at_default().map(|default| &default.heuristics);
        let heuristics = heuristics.filter(|id| !self.history.is_seen(id) && self.space.admits(id).is_ok());
        let proposal = match (number, heuristics) {
            (0, _) => Some(Proposal::new(self.header.start.clone(), "the first")),
            (1, Some(id)) => Some(Proposal::new(id.clone(), "what heuristics choose")),
            _ => strategy.propose(&self.history, self.space)?,
        };
        match (before, &proposal) {
            (Some(then), now) if now.as_ref().map(|now| &now.id) != Some(&then.id) => Err(TuneError::Resume {
                path: self.journal.folder().display().to_string(),
                what: "a proposal",
                then: then.id.clone(),
                now: now.as_ref().map_or("none".to_string(), |now| now.id.clone()),
            }),
            _ => Ok(proposal),
        }
    }

    /// What can be said of a proposal without a worker.
    fn look(&self, pending: &mut Pending) -> Option<Known> {
        let id = &pending.proposal.id;
        let refused = |reason: String| Known::Found(Found::failed(Verdict::Refused, reason), 0.0);
        // The first is there to be compared with, whatever families are searched.
        if !self.history.trials().is_empty()
            && let Err(reason) = self.space.admits(id)
        {
            return Some(refused(reason));
        }
        match self.gate?(id) {
            Err(reason) => return Some(refused(reason)),
            Ok(fingerprint) => pending.fingerprint = fingerprint,
        }
        let fingerprint = pending.fingerprint.as_ref()?;
        // The first of them, among those that were tried and those on their way.
        let mut tried = self.history.trials().iter();
        let tried = tried.find(|trial| trial.same_as.is_none() && trial.fingerprint.as_ref() == Some(fingerprint));
        let first = tried.map(|trial| trial.id.clone()).or_else(|| {
            let mut on_the_way = self.pending.values();
            let twin =
                on_the_way.find(|other| other.same_as.is_none() && other.fingerprint.as_ref() == Some(fingerprint));
            twin.map(|other| other.proposal.id.clone())
        });
        pending.same_as = Some(first?);
        Some(Known::Twin)
    }

    /// The result of a candidate whose machine program is that of an earlier one.
    fn of_twin(&self, id: &str) -> Option<Found> {
        let same = self.history.trial(id)?;
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
        let Some(Pending {
            proposal,
            fingerprint,
            same_as,
        }) = self.pending.remove(&number)
        else {
            return Ok(());
        };
        let result = match (result, &same_as) {
            (Known::Twin, Some(first)) => match self.of_twin(first) {
                Some(found) => Known::Found(found, 0.0),
                None => Known::Twin,
            },
            (result, _) => result,
        };
        let trial = match result {
            // It was begun before this one, and trials are looked at in that order.
            Known::Twin => {
                return Err(TuneError::Nothing {
                    what: format!("{} is the same as a candidate that has no result", proposal.id),
                });
            }
            Known::Before(trial) => *trial,
            Known::Found(found, seconds) => {
                let trial = Trial {
                    number,
                    id: proposal.id,
                    origin: proposal.origin,
                    verdict: found.verdict,
                    reason: found.reason,
                    timed: found.timed,
                    unjudged: found.unjudged,
                    fingerprint,
                    same_as,
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

    /// What candidates are timed against.
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

/// What trials took by so many workers at once; as long as can be said where that is too long to say.
fn time_of(trials: &[Trial], workers: usize) -> Duration {
    let seconds = trials.iter().map(|trial| trial.seconds).sum::<f64>();
    Duration::try_from_secs_f64(seconds / workers.max(1) as f64).unwrap_or(Duration::MAX)
}

/// A worker's thread: examines what is in its queue, and has the rest compiled meanwhile. One that is lost is lost for good.
fn work<'e>(
    mut examiner: Examiner<'e>,
    by: usize,
    jobs: &Receiver<Job>,
    news: &Sender<News>,
    halt: &Interrupt,
) -> Examiner<'e> {
    let mut queue: VecDeque<Job> = VecDeque::new();
    loop {
        let mut new = Vec::new();
        while let Ok(job) = jobs.try_recv() {
            new.push(job.id.clone());
            queue.push_back(job);
        }
        if examiner.interrupt.is_asked() || halt.is_asked() {
            return examiner;
        }
        let Some(job) = queue.pop_front() else {
            match jobs.recv() {
                Ok(job) => {
                    queue.push_back(job);
                    continue;
                }
                Err(_) => return examiner,
            }
        };
        let began = Instant::now();
        examiner.ahead(new);
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
