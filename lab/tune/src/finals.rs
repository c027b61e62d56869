//! The finals: the first candidate and the best others are timed against each other, which decides
//! the winner. So they are checked most here: that each is the module that was examined, by
//! inspections before and after timing, and every row against another kernel's output. A finalist
//! that fails is struck and the others are timed again, since its presence spoils their times.

use flashcore_bench::defences::{inspect, inspect_again};
use flashcore_bench::{Measurement, Mode};
use flashcore_problem::InputKind;

use crate::board::{Board, Struck};
use crate::device_lock::Held;
use crate::error::TuneError;
use crate::examine::Examiner;
use crate::gate::Gatekeeper;
use crate::remote::Written;
use crate::rows;
use crate::run::Watcher;
use crate::trial::{History, Trial, Verdict};
use crate::witness::{family, may_witness, output_of_host, witnesses};
use crate::worker::{Stop, Worker};

/// A kernel's whole output, which the finalists' outputs are compared with.
pub(crate) struct Witness {
    id: String,
    seed: u64,
    output: Written,
}

enum Met {
    Timed(Measurement),
    Struck(Struck),
    /// Something failed while all were timed, and none of them fails without the others.
    Lost(Verdict, String),
}

/// Holds the finals. The finalists run under the simulator, and the winner is timed against the
/// first candidate once more, alone. `board` has no rows yet. `None` if nothing was timed in the
/// search, or if it was interrupted before it had the device.
pub(crate) fn hold(
    history: &History,
    examiner: &mut Examiner<'_>,
    mut board: Board,
    keep: usize,
    gate: &Gatekeeper,
    simulated: &dyn Fn(Board, &mut Worker) -> Board,
    watcher: &mut dyn Watcher,
) -> Result<Option<Board>, TuneError> {
    if history.ranked().is_empty() {
        return Ok(None);
    }
    let mut witness: Option<Option<Witness>> = None;
    'finals: loop {
        let finalists = finalists(history, &board, keep);
        if finalists.is_empty() {
            return Ok(Some(board.of_history(history, "no finalist is left".to_string(), keep)));
        }
        let ids = ids_of(&finalists);
        let Some(held) = device(examiner, watcher) else {
            return Ok(None);
        };
        // After a strike the witness itself may be a finalist.
        let witness = match witness.take() {
            Some(found) if found.as_ref().is_none_or(|found| may_witness(&found.id, &ids)) => witness.insert(found),
            _ => witness.insert(examiner.witness(gate, &ids)?),
        };
        watcher.finals(&ids);
        let measurement = match examiner.meet(&finalists, witness.as_ref())? {
            Met::Timed(measurement) => measurement,
            Met::Struck(struck) => {
                board.strike(struck);
                continue;
            }
            Met::Lost(verdict, why) => {
                let why = format!("{verdict}: {why}; which finalist caused it is not known");
                return Ok(Some(board.of_history(history, why, keep)));
            }
        };
        drop(held);
        let mut met = board.clone();
        met.witness = witness.as_ref().map(|witness| witness.id.clone());
        let mut met = simulated(met.of_finals(&measurement).with_errors(history), &mut examiner.worker);
        // A gain is valid only for a candidate that was chosen before the measurement. If the
        // winner has none, the next one is the winner.
        while let Some(winner) = met.unconfirmed().map(str::to_string) {
            let pair = [met.against.as_str(), &winner].map(|id| history.trial(id));
            let [Some(against), Some(trial)] = pair else {
                met.confirm(&winner, None);
                continue;
            };
            let pair = [against, trial];
            watcher.finals(&ids_of(&pair));
            let Some(_held) = device(examiner, watcher) else {
                return Ok(None);
            };
            let struck = match examiner.meet(&pair, None)? {
                Met::Timed(measurement) => {
                    met.confirm(&winner, Some(&measurement));
                    continue;
                }
                Met::Struck(struck) => struck,
                Met::Lost(verdict, reason) => Struck {
                    id: winner,
                    verdict,
                    reason,
                },
            };
            if struck.id == met.against {
                // All ratios were relative to it.
                board.struck = met.struck;
                board.strike(struck);
                continue 'finals;
            }
            met.strike(struck);
        }
        return Ok(Some(met));
    }
}

/// The first candidate unless it failed, and the best others: also the last that was accepted,
/// since it was faster twice, and others may be ahead of it by a single time.
fn finalists<'h>(history: &'h History, board: &Board, keep: usize) -> Vec<&'h Trial> {
    let may_meet = |trial: &&Trial| trial.same_as.is_none() && trial.id != board.start && !board.is_struck(&trial.id);
    let mut finalists: Vec<&Trial> = history.ranked().into_iter().filter(may_meet).take(keep).collect();
    let accepted = history.best().filter(may_meet);
    if let Some(accepted) = accepted.filter(|best| keep > 0 && !finalists.iter().any(|one| one.id == best.id)) {
        finalists.truncate(keep - 1);
        finalists.push(accepted);
    }
    if board.start_failed.is_none() {
        finalists.extend(history.trial(&board.start));
        finalists.rotate_right(1);
    }
    finalists
}

fn ids_of(finalists: &[&Trial]) -> Vec<String> {
    finalists.iter().map(|trial| trial.id.clone()).collect()
}

fn device(examiner: &Examiner<'_>, watcher: &mut dyn Watcher) -> Option<Held> {
    examiner.hold(&mut |device, waits| watcher.waits(device, waits))
}

impl Examiner<'_> {
    /// The first witness that passes inspection; `None` for devices that compute nothing.
    fn witness(&mut self, gate: &Gatekeeper, finalists: &[String]) -> Result<Option<Witness>, TuneError> {
        if !self.computes()? {
            return Ok(None);
        }
        let seed = self.judge.of_finals;
        for id in witnesses(gate, finalists) {
            let output = match family(&id) {
                "cpu" => Ok(output_of_host(&self.judge.problem, seed)?),
                _ => self.output_of(&id, seed),
            };
            match output.map_err(Stop::blamed) {
                Ok(output) => return Ok(Some(Witness { id, seed, output })),
                Err(Ok(_)) => {}
                Err(Err(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    fn output_of(&mut self, id: &str, seed: u64) -> Result<Written, Stop> {
        self.open(&[id.to_string()])?;
        self.inspected(0, 0, inspect)?;
        self.output(0, InputKind::Normal, seed)
    }

    /// Times finalists against the first of them, and checks each before and after. One bad
    /// finalist is struck and does not spoil the finals.
    fn meet(&mut self, finalists: &[&Trial], witness: Option<&Witness>) -> Result<Met, TuneError> {
        // The finalist that is being checked; `None` while all are timed.
        let mut at = None;
        let met = self.attempt(|this| this.meet_once(finalists, witness, &mut at))?;
        let struck = |index: usize, verdict, reason| {
            Ok(Met::Struck(Struck {
                id: finalists[index].id.clone(),
                verdict,
                reason,
            }))
        };
        let (verdict, reason) = match (met, at) {
            (Ok(measurement), _) => return Ok(Met::Timed(measurement)),
            (Err((verdict, reason)), Some(at)) => return struck(at, verdict, reason),
            (Err(lost), None) => lost,
        };
        // The first finalist that fails alone, or with the first one.
        let ids = ids_of(finalists);
        for index in 0..ids.len() {
            let mut kernels = vec![ids[0].clone(), ids[index].clone()];
            kernels.dedup();
            if let Err(stop) = self.times_well(&kernels) {
                let (verdict, reason) = stop.blamed()?;
                return struck(index, verdict, reason);
            }
        }
        Ok(Met::Lost(verdict, reason))
    }

    fn time_finals(&mut self, who: &str) -> Result<Measurement, Stop> {
        let measurement = self.time(0, Mode::Hot, &self.timing.finals)?;
        if self.computes()? {
            self.nothing_outside(&format!("while {who} timed, "))?;
        }
        Ok(measurement)
    }

    fn times_well(&mut self, kernels: &[String]) -> Result<(), Stop> {
        self.open(kernels)?;
        let measurement = self.time_finals("it was")?;
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
        witness: Option<&Witness>,
        at: &mut Option<usize>,
    ) -> Result<Measurement, Stop> {
        *at = None;
        let computes = self.computes()?;
        let opened = self.open(&ids_of(finalists))?;
        if computes {
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
        }
        *at = None;
        let measurement = self.time_finals("they were")?;
        if computes {
            for (kernel, trial) in finalists.iter().enumerate() {
                *at = Some(kernel);
                self.inspected(kernel, self.judge.number_of_finals(trial.number), inspect_again)?;
                if let Some(witness) = witness {
                    self.agrees(kernel, witness)?;
                }
            }
        }
        *at = None;
        Ok(measurement)
    }

    /// Every row must agree with the witness's; float64 decides which of two that differ is wrong.
    fn agrees(&mut self, kernel: usize, witness: &Witness) -> Result<(), Stop> {
        let problem = &self.judge.problem;
        let output = self.output(kernel, InputKind::Normal, witness.seed)?;
        let differing = rows::differing(problem, &output, &witness.output);
        if differing.is_empty() {
            return Ok(());
        }
        let factor = self.tolerances.get(kernel).copied().unwrap_or(1.0);
        match rows::arbitrate(problem, witness.seed, &differing, &output, factor)? {
            None => Ok(()),
            Some(((output, [b, h, s]), found)) => {
                let outputs = problem.outputs();
                let of = match outputs.len() {
                    1 => String::new(),
                    _ => format!("{} of ", outputs[output].0),
                };
                let reason = format!(
                    "{of}row {s} of head {h} of sequence {b}, one of {} that differ from those of {}: {found}",
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
