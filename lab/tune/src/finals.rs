//! The end of a search: the first candidate and the best others meet head to head. That decides, so it is where they are
//! looked at most: that they are what was examined, inspected before and after, every row beside another kernel's. Who is
//! found out is struck, and the others meet again, for times beside somebody who cheats are no times.

use flashcore_bench::defences::{inspect, inspect_again};
use flashcore_bench::{Measurement, Mode};
use flashcore_problem::{InputKind, Problem};

use crate::board::{About, Board, Struck};
use crate::error::TuneError;
use crate::examine::{ATTEMPTS, Examiner, Stop};
use crate::remote::Written;
use crate::rows::{self, Wrong};
use crate::run::Watcher;
use crate::trial::{History, Trial, Verdict};
use crate::witness::{Candidate, Witnesses, answer_of_host};
use crate::worker::protocol::{Command, Said};

/// A kernel's whole answer, that every finalist's is held against.
pub(crate) struct Witness {
    id: String,
    seed: u64,
    answer: Written,
}

/// What came of a meeting.
enum Met {
    Timed(Measurement),
    Struck(Struck),
    /// There are no times, and what happened while all were timed.
    Lost(Verdict, String),
}

/// The finals to their end: who came through them is looked at under the simulator, and the winner meets what it won against
/// once more. Where that one is found out then, the others meet again without it. `None` where nothing could be timed, and
/// where the search was interrupted before its turn.
///
/// # Errors
/// As [`Examiner::examine`].
pub(crate) fn decide(
    history: &History,
    examiner: &mut Examiner<'_>,
    mut about: About,
    keep: usize,
    witnesses: &Witnesses<'_>,
    simulated: &dyn Fn(Board) -> Board,
    watcher: &mut dyn Watcher,
) -> Result<Option<Board>, TuneError> {
    loop {
        let held = hold(history, examiner, about.clone(), keep, witnesses, watcher)?;
        let Some(mut board) = held.map(simulated) else {
            return Ok(None);
        };
        match confirm(&mut board, history, examiner, watcher)? {
            Confirmed::Stands => return Ok(Some(board)),
            Confirmed::Interrupted => return Ok(None),
            Confirmed::Against(struck) => {
                if struck.id == about.start {
                    about.start_failed = Some(struck.told());
                }
                about.struck = board.struck;
                about.struck.push(struck);
            }
        }
    }
}

/// Holds the finals; `None` where nothing could be timed, and where the search was interrupted before its turn. Where the
/// first candidate failed, the best others meet without it. `witnesses` says whose whole answers the finalists' may be held
/// against: it is the first of them that is right.
fn hold(
    history: &History,
    examiner: &mut Examiner<'_>,
    mut about: About,
    keep: usize,
    witnesses: &Witnesses<'_>,
    watcher: &mut dyn Watcher,
) -> Result<Option<Board>, TuneError> {
    let timed = history.ranked();
    if timed.is_empty() {
        return Ok(None);
    }
    let mut witness: Option<Witness> = None;
    let mut sought = false;
    loop {
        let is_struck = |id: &str| about.struck.iter().any(|struck| struck.id == id);
        let may_meet = |trial: &&Trial| trial.same_as.is_none() && trial.id != about.start && !is_struck(&trial.id);
        let mut finalists: Vec<&Trial> = timed.iter().copied().filter(may_meet).take(keep).collect();
        // What was accepted was faster twice. Others may be ahead of it by one time, which no interval spoke for.
        let accepted = history.best().filter(may_meet);
        if let Some(accepted) = accepted.filter(|best| keep > 0 && !finalists.iter().any(|one| one.id == best.id)) {
            finalists.truncate(keep - 1);
            finalists.push(accepted);
        }
        if about.start_failed.is_none() {
            finalists.extend(history.trial(&about.start));
            finalists.rotate_right(1);
        }
        if finalists.is_empty() {
            let why = "nobody is left".to_string();
            return Ok(Some(Board::of_history(history, about, why, keep)));
        }
        let ids: Vec<String> = finalists.iter().map(|trial| trial.id.clone()).collect();
        let Some(_held) = examiner.hold(&mut |device, waits| watcher.waits(device, waits)) else {
            return Ok(None);
        };
        // Where somebody was struck, the witness may have come into the finals itself.
        let may = witness.as_ref().is_none_or(|witness| witnesses.may(&witness.id, &ids));
        if !sought || !may {
            witness = examiner.witness(witnesses, &ids)?;
            sought = true;
        }
        watcher.finals(&ids);
        let met = match examiner.meet(&finalists, &ids, witness.as_ref())? {
            // One bad finalist costs itself, and not the finals.
            Met::Lost(verdict, why) => match examiner.blame(&ids)? {
                Some(struck) => Met::Struck(struck),
                None => Met::Lost(verdict, why),
            },
            met => met,
        };
        match met {
            Met::Struck(struck) => {
                if struck.id == about.start {
                    about.start_failed = Some(struck.told());
                }
                about.struck.push(struck);
            }
            Met::Timed(measurement) => {
                // Only now has everybody on the board been held against it.
                about.witness = witness.as_ref().map(|witness| witness.id.clone());
                let board = Board::of_finals(&measurement, about.clone());
                let lost = || Board::of_history(history, about, "nothing was timed".to_string(), keep);
                return Ok(Some(board.unwrap_or_else(lost)));
            }
            Met::Lost(verdict, why) => {
                let why = format!("{verdict}: {why}, by whom is not known");
                return Ok(Some(Board::of_history(history, about, why, keep)));
            }
        }
    }
}

/// What came of the winner's second meeting.
enum Confirmed {
    /// The board stands.
    Stands,
    /// What all were held against was found out: they are to meet again without it.
    Against(Struck),
    /// The search was interrupted before its turn.
    Interrupted,
}

/// Has the winner meet the first candidate once more, by itself: a gain is what was measured of one that was chosen before.
/// Where it was no gain the next one is the winner, until one stands.
fn confirm(
    board: &mut Board,
    history: &History,
    examiner: &mut Examiner<'_>,
    watcher: &mut dyn Watcher,
) -> Result<Confirmed, TuneError> {
    while let Some(winner) = board.unconfirmed().map(str::to_string) {
        let ids = [board.against.clone(), winner];
        let finalists: Vec<&Trial> = ids.iter().filter_map(|id| history.trial(id)).collect();
        let [_, winner] = &ids;
        if finalists.len() < ids.len() {
            board.confirm(winner, None);
            continue;
        }
        watcher.finals(&ids);
        let Some(_held) = examiner.hold(&mut |device, waits| watcher.waits(device, waits)) else {
            return Ok(Confirmed::Interrupted);
        };
        let struck = match examiner.meet(&finalists, &ids, None)? {
            Met::Timed(measurement) => {
                board.confirm(winner, measurement.subjects[1].ratio);
                continue;
            }
            Met::Struck(struck) => struck,
            // Where each is well by itself, it is the gain that has nobody to speak for it.
            Met::Lost(verdict, reason) => examiner.blame(&ids)?.unwrap_or_else(|| Struck {
                id: winner.clone(),
                verdict,
                reason,
            }),
        };
        if struck.id == board.against {
            return Ok(Confirmed::Against(struck));
        }
        board.strike(struck);
    }
    Ok(Confirmed::Stands)
}

impl Examiner<'_> {
    /// The whole answer of the first witness for these finalists that passes inspection; `None` where none does, and of
    /// devices that compute nothing.
    fn witness(&mut self, witnesses: &Witnesses<'_>, finalists: &[String]) -> Result<Option<Witness>, TuneError> {
        if !self.worker.hello()?.computes {
            return Ok(None);
        }
        let seed = self.judge.seed_of_finals();
        for candidate in witnesses.of(finalists) {
            let (id, answer) = match candidate {
                Candidate::Host(id) => (id, Ok(answer_of_host(self.judge.problem(), seed)?)),
                Candidate::Kernel(id) => {
                    let answer = self.testify(&id, seed);
                    (id, answer)
                }
            };
            match answer {
                Ok(answer) => return Ok(Some(Witness { id, seed, answer })),
                Err(Stop::Broken(error)) => return Err(error),
                Err(Stop::Verdict(..) | Stop::Died(_)) => {}
            }
        }
        Ok(None)
    }

    fn testify(&mut self, id: &str, seed: u64) -> Result<Written, Stop> {
        self.open(self.judge.problem(), &[id.to_string()])?;
        self.inspected(0, 0, inspect)?;
        self.answer(0, InputKind::Normal, seed)
    }

    /// Times finalists against the first of them, and looks at each before and after.
    fn meet(&mut self, finalists: &[&Trial], ids: &[String], witness: Option<&Witness>) -> Result<Met, TuneError> {
        // Which of them is looked at: nobody while all are timed.
        let mut at = None;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let struck = |at: Option<usize>, verdict, reason: String| match at {
                Some(at) => Met::Struck(Struck {
                    id: ids[at].clone(),
                    verdict,
                    reason,
                }),
                None => Met::Lost(verdict, reason),
            };
            match self.meet_once(finalists, ids, witness, &mut at) {
                Ok(measurement) => return Ok(Met::Timed(measurement)),
                Err(Stop::Verdict(verdict, reason)) => return Ok(struck(at, verdict, reason)),
                Err(Stop::Broken(error)) => return Err(error),
                Err(Stop::Died(reason)) => last = reason,
            }
        }
        Ok(match at {
            Some(at) => Met::Struck(Struck {
                id: ids[at].clone(),
                verdict: Verdict::LaunchFailed,
                reason: last,
            }),
            None => Met::Lost(Verdict::LaunchFailed, last),
        })
    }

    /// After something happened while all were timed: the first finalist that does it by itself, or beside the first one,
    /// which is tried first.
    fn blame(&mut self, ids: &[String]) -> Result<Option<Struck>, TuneError> {
        for (index, id) in ids.iter().enumerate() {
            let kernels = match index {
                0 => vec![id.clone()],
                _ => vec![ids[0].clone(), id.clone()],
            };
            let struck = |verdict, reason| {
                Ok(Some(Struck {
                    id: id.clone(),
                    verdict,
                    reason,
                }))
            };
            match self.times_well(&kernels) {
                Ok(()) => {}
                Err(Stop::Verdict(verdict, reason)) => return struck(verdict, reason),
                Err(Stop::Died(reason)) => return struck(Verdict::LaunchFailed, reason),
                Err(Stop::Broken(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Times kernels as finalists are; the last of them must have a time.
    fn times_well(&mut self, kernels: &[String]) -> Result<(), Stop> {
        self.open(self.judge.problem(), kernels)?;
        let measurement = self.time(0, Mode::Hot, &self.timing.finals)?;
        if let Said::Outside(Some(outside)) = self.ask(&Command::Outside)? {
            return Err(Stop::Verdict(Verdict::Wrong, format!("while it was timed, {outside}")));
        }
        match measurement.subjects.last() {
            Some(last) if last.summary.is_none() => {
                let trouble = last.trouble.clone().unwrap_or("it was never timed".to_string());
                Err(Stop::Verdict(Verdict::LaunchFailed, trouble))
            }
            _ => Ok(()),
        }
    }

    fn meet_once(
        &mut self,
        finalists: &[&Trial],
        ids: &[String],
        witness: Option<&Witness>,
        at: &mut Option<usize>,
    ) -> Result<Measurement, Stop> {
        *at = None;
        let computes = self.worker.hello()?.computes;
        let opened = self.open(self.judge.problem(), ids)?;
        if !computes {
            return self.time(0, Mode::Hot, &self.timing.finals);
        }
        for (kernel, (trial, opened)) in finalists.iter().zip(&opened).enumerate() {
            *at = Some(kernel);
            let examined = trial.timed.as_ref().and_then(|timed| timed.module.as_ref());
            if opened.module.as_ref() != examined {
                let reason = format!(
                    "it is not what was examined: module {} then, {} now",
                    examined.map_or("none", String::as_str),
                    opened.module.as_deref().unwrap_or("none")
                );
                return Err(Stop::Verdict(Verdict::BuildFailed, reason));
            }
            self.inspected(kernel, self.judge.number_of_finals(trial.number), inspect)?;
        }
        *at = None;
        let measurement = self.time(0, Mode::Hot, &self.timing.finals)?;
        // Who of them it was nobody can tell.
        if let Said::Outside(Some(outside)) = self.ask(&Command::Outside)? {
            return Err(Stop::Verdict(
                Verdict::Wrong,
                format!("while they were timed, {outside}"),
            ));
        }
        for (kernel, trial) in finalists.iter().enumerate() {
            *at = Some(kernel);
            self.inspected(kernel, self.judge.number_of_finals(trial.number), inspect_again)?;
            if let Some(witness) = witness {
                self.agrees(kernel, witness)?;
            }
        }
        *at = None;
        Ok(measurement)
    }

    /// Holds every row of a kernel's answer against the witness's. Rows that differ are computed in float64, which says
    /// who is right.
    fn agrees(&mut self, kernel: usize, witness: &Witness) -> Result<(), Stop> {
        let problem: &Problem = self.judge.problem();
        let answer = self.answer(kernel, InputKind::Normal, witness.seed)?;
        let differing = rows::differing(problem, &answer, &witness.answer);
        if differing.is_empty() {
            return Ok(());
        }
        match rows::arbitrate(problem, witness.seed, &differing, &answer)? {
            None => Ok(()),
            Some(Wrong { row: [b, h, s], found }) => {
                let reason = format!(
                    "row {s} of head {h} of sequence {b}, one of {} that are not as {} has them: {found}",
                    differing.len(),
                    witness.id
                );
                Err(Stop::Verdict(Verdict::Wrong, reason))
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests;
