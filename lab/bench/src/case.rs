//! One problem of a bench: candidates are inspected, measured in every mode, and inspected again.

use crate::bed::Drawn;
use crate::child::Doing;
use crate::defences::{Inspection, inspect, inspect_again};
use crate::own::is_own;
use crate::session::{Event, Session};
use crate::stand::left_out;
use crate::store::RunWriter;
use crate::{
    Absent, BenchError, Case, CaseResult, Measured, Measurement, Mode, Observer, Options, Reading, Result, Sample,
    Stop, SubjectInfo, Trouble, Watcher, Workbench,
};

/// The candidates of a problem: those that take part, and those that do not.
struct Field<'a> {
    bench: Workbench<'a>,
    /// Of those on the workbench.
    inspections: Vec<Option<Inspection>>,
    rejected: Vec<(SubjectInfo, Inspection)>,
    absent: Vec<Absent>,
}

/// A result, and its place in the store.
type Kept = (Option<usize>, CaseResult);

impl Session<'_> {
    /// Inspects, measures in every mode, inspects again.
    pub(crate) fn case(&mut self, case: &Case, bench: Workbench<'_>, absent: Vec<Absent>, drawn: &Drawn) -> Result<()> {
        let mut field = Field {
            inspections: vec![None; bench.subjects.len()],
            bench,
            rejected: Vec::new(),
            absent,
        };
        let request = self.request;
        if request.inspect {
            self.inspect(&mut field, drawn)?;
        }
        for (label, reason) in &field.absent {
            self.inspected(label, reason);
        }
        if field.bench.subjects.is_empty() {
            self.note(format!("{}: nothing is left to time", case.name));
        }
        let mut results = Vec::new();
        for &mode in &request.modes {
            results.push(self.measure(case, mode, &request.options, &mut field)?);
        }
        if request.inspect {
            self.inspect_afterwards(&mut field, drawn, &mut results)?;
        }
        results.into_iter().for_each(|(_, result)| self.add(result));
        Ok(())
    }

    fn inspect(&mut self, field: &mut Field<'_>, drawn: &Drawn) -> Result<()> {
        let mut keeps = vec![true; field.bench.subjects.len()];
        for (index, keep) in keeps.iter_mut().enumerate() {
            let info = field.bench.subjects[index].info().clone();
            self.running(&info.label, Doing::Inspecting);
            let inspected = field.bench.inspect(index, drawn, inspect);
            if !is_fatal(&inspected) {
                self.idle(&info.label);
            }
            match inspected {
                Ok(found) => {
                    self.inspected(&info.label, &found);
                    *keep = found.passed();
                    field.inspections[index] = Some(found.clone());
                    if !found.passed() {
                        field.rejected.push((info, found));
                    }
                }
                Err(trouble) => {
                    lost(&info.label, &trouble)?;
                    field.absent.push(left_out(&info.label, &trouble));
                    *keep = false;
                }
            }
        }
        field.retain(|index| keeps[index]);
        Ok(())
    }

    fn measure(&mut self, case: &Case, mode: Mode, options: &Options, field: &mut Field<'_>) -> Result<Kept> {
        let subjects = field.bench.subjects.iter();
        let infos: Vec<SubjectInfo> = subjects.map(|subject| subject.info().clone()).collect();
        let baseline = self.baseline(&infos);
        let timed = infos.iter().cloned().zip(field.inspections.iter().cloned());
        let rejected = field
            .rejected
            .iter()
            .map(|(info, found)| (info.clone(), Some(found.clone())));
        let rows: Vec<(SubjectInfo, Option<Inspection>)> = timed.chain(rejected).collect();
        let kept = self.kept.as_ref();
        let place = kept
            .map(|run| run.begin_measurement(case, mode, baseline, &rows))
            .transpose()?;
        let mut measurement = if infos.is_empty() {
            Measurement::without_rounds(mode, baseline, Vec::new(), Stop::Failed)
        } else {
            let mut recorder = Recorder {
                kept,
                watcher: &mut *self.watcher,
                mode,
                infos: &infos,
                running: None,
            };
            let telemetry = self.telemetry.as_ref();
            let measured = field.bench.time(options, mode, baseline, telemetry, &mut recorder)?;
            recorder.turn_of(None);
            measured
        };
        let rejected = field.rejected.iter();
        let untimed = rejected.map(|(info, found)| Measured::untimed(info.clone(), Some(found.to_string())));
        measurement.subjects.extend(untimed);
        if let Some(run) = kept {
            run.end_measurement(&measurement)?;
        }
        let inspections = rows.into_iter().map(|(_, found)| found).collect();
        let absent = field.absent.clone();
        let result = CaseResult::new(case.clone(), measurement, inspections, absent, self.report.floor_us);
        Ok((place, result))
    }

    fn inspect_afterwards(&mut self, field: &mut Field<'_>, drawn: &Drawn, results: &mut [Kept]) -> Result<()> {
        for index in 0..field.bench.subjects.len() {
            let label = field.bench.subjects[index].info().label.clone();
            self.running(&label, Doing::Inspecting);
            let inspected = field.bench.inspect(index, drawn, inspect_again);
            if !is_fatal(&inspected) {
                self.idle(&label);
            }
            match inspected {
                Ok(found) if found.passed() => {}
                Ok(found) => {
                    self.inspected(&label, &found);
                    self.reject(&label, &found, results)?;
                }
                Err(trouble) => lost(&label, &trouble)?,
            }
        }
        Ok(())
    }

    /// Removes the numbers of a candidate that turned out to be wrong from all results.
    fn reject(&self, label: &str, found: &Inspection, results: &mut [Kept]) -> Result<()> {
        for (place, result) in results {
            let mut subjects = result.measurement.subjects.iter();
            let Some(index) = subjects.position(|subject| subject.info.label == label) else {
                continue;
            };
            result.reject(index, found);
            if let (Some(run), Some(place)) = (&self.kept, *place) {
                run.set_inspection(place, index, found)?;
            }
        }
        Ok(())
    }

    pub(crate) fn baseline(&self, infos: &[SubjectInfo]) -> usize {
        let place = |wanted: &dyn Fn(&SubjectInfo) -> bool| infos.iter().position(wanted);
        let named = self.request.baseline.as_ref().and_then(|name| {
            place(&|info| info.label == *name).or_else(|| place(&|info| info.label.starts_with(name.as_str())))
        });
        let peer = || place(&|info| info.is_peer());
        // A kernel of the user is compared with, not the other way round.
        named
            .or_else(peer)
            .or_else(|| place(&|info| info.is_ours()))
            .unwrap_or(0)
    }
}

impl Field<'_> {
    fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        self.bench.retain(&keep);
        let mut index = 0..;
        self.inspections.retain(|_| index.next().is_some_and(&keep));
    }
}

fn is_fatal<T>(result: &Result<T, Trouble>) -> bool {
    result.as_ref().is_err_and(|trouble| trouble.fatal)
}

/// A lost device ends the bench; other trouble costs one candidate.
fn lost(label: &str, trouble: &Trouble) -> Result<()> {
    if !trouble.fatal {
        return Ok(());
    }
    Err(BenchError::Device(format!("while {label} was inspected: {trouble}")))
}

/// Stores samples as they come, and passes them on.
struct Recorder<'a> {
    kept: Option<&'a RunWriter>,
    watcher: &'a mut dyn Watcher,
    mode: Mode,
    infos: &'a [SubjectInfo],
    /// The kernel of the user whose turn it is.
    running: Option<usize>,
}

impl Recorder<'_> {
    /// Tells whose turn it is, if it or the one before is a kernel of the user.
    fn turn_of(&mut self, subject: Option<usize>) {
        let own = subject.filter(|subject| self.infos.get(*subject).is_some_and(|info| is_own(&info.label)));
        if own != self.running {
            self.running = own;
            let info = own.and_then(|subject| self.infos.get(subject));
            let running = info.map(|info| (info.label.clone(), Doing::Timing));
            self.watcher.see(Event::Running(running));
        }
    }
}

impl Observer for Recorder<'_> {
    fn turn(&mut self, subject: usize) {
        self.turn_of(Some(subject));
    }

    fn sample(&mut self, sample: &Sample) -> Result<()> {
        if let Some(run) = self.kept {
            run.add_sample(sample)?;
        }
        if let Some(info) = self.infos.get(sample.subject) {
            let event = Event::Sample(self.mode, info.label.clone(), *sample);
            self.watcher.see(event);
        }
        Ok(())
    }

    fn round(&mut self, round: u32, reading: Option<&Reading>) -> Result<()> {
        match (self.kept, reading) {
            (Some(run), Some(reading)) => run.add_reading(round, reading),
            _ => Ok(()),
        }
    }
}
