//! One problem of a bench: subjects are inspected, measured in every mode, inspected again; in a sweep they are
//! screened first, and the best go on.

use crate::defences::{Inspection, Rig, inspect, inspect_again, look_once};
use crate::error::BenchError;
use crate::identity::SubjectInfo;
use crate::measure::{Measured, Measurement, Observer, Sample, measure};
use crate::options::{Mode, Options};
use crate::peers::Absent;
use crate::problems::Case;
use crate::protocol::Stop;
use crate::report::CaseResult;
use crate::session::{Session, Watcher};
use crate::store::RunWriter;
use crate::subject::{Stopwatch, Subject, Trouble};
use crate::sweep::Sweep;
use crate::telemetry::{Reading, Telemetry};

/// A subject that would be timed.
pub(crate) struct Contender<'a> {
    /// Bound to place 0, where it is timed.
    pub(crate) subject: Box<dyn Subject + 'a>,
    /// Bound to place 1, if it can be.
    pub(crate) elsewhere: Option<Box<dyn Subject + 'a>>,
}

/// What a device brings to measure one problem.
pub(crate) struct Gear<'g> {
    pub(crate) inspect: &'g Inspect<'g>,
    pub(crate) stopwatch: &'g mut dyn Stopwatch,
    pub(crate) telemetry: &'g mut dyn Telemetry,
    pub(crate) watcher: &'g mut dyn Watcher,
}

/// Inspects a subject, bound to place 0 and perhaps to place 1, on the rig of its device.
pub(crate) type Inspect<'m> =
    dyn Fn(Moment, &mut (dyn Subject + '_), Option<&mut (dyn Subject + '_)>) -> Result<Inspection, Trouble> + 'm;

/// When a subject is inspected, and so how closely.
#[derive(Clone, Copy)]
pub(crate) enum Moment {
    /// Before it is screened in a sweep: one look at its answer.
    Screening,
    /// Before it is measured.
    Before,
    /// After it was measured.
    Afterwards,
}

impl Moment {
    pub(crate) fn inspect(self, rig: &mut dyn Rig) -> Result<Inspection, Trouble> {
        match self {
            Moment::Screening => look_once(rig),
            Moment::Before => inspect(rig),
            Moment::Afterwards => inspect_again(rig),
        }
    }
}

/// The subjects of a problem: those that take part, place by place, and those that do not.
#[derive(Default)]
struct Field<'a> {
    subjects: Vec<Box<dyn Subject + 'a>>,
    elsewhere: Vec<Option<Box<dyn Subject + 'a>>>,
    inspections: Vec<Option<Inspection>>,
    rejected: Vec<(SubjectInfo, Inspection)>,
    absent: Vec<Absent>,
}

/// A result, and where it lies in the store.
type Kept = (Option<usize>, CaseResult);

impl Session<'_> {
    /// Inspects, measures in every mode, inspects again.
    ///
    /// # Errors
    /// A lost device, or a store that cannot be written.
    pub(crate) fn case(
        &mut self,
        case: &Case,
        contenders: Vec<Contender<'_>>,
        absent: Vec<Absent>,
        gear: &mut Gear<'_>,
    ) -> Result<(), BenchError> {
        let mut field = Field {
            absent,
            ..Field::default()
        };
        for contender in contenders {
            let screened = self.request.sweep.is_some() && contender.subject.info().is_ours();
            let moment = if screened { Moment::Screening } else { Moment::Before };
            self.admit(contender, moment, &mut field, gear)?;
        }
        for missing in &field.absent {
            gear.watcher.inspected(&missing.label, &missing.reason);
        }
        if field.subjects.is_empty() {
            self.note(format!("{}: nothing is left to time", case.name), gear.watcher);
        }
        let mut results = Vec::new();
        let mut options = self.request.options.clone();
        if let Some(sweep) = &self.request.sweep {
            let screening = sweep.screening(&options, field.subjects.len());
            results.push(self.measure(case, Mode::Screen, &screening, &mut field, gear)?);
            field = self.keep(sweep, field, &mut results, gear)?;
            options = sweep.final_round(&options, field.subjects.len());
        }
        // Where screening leaves nothing, its result has said all there is.
        if self.request.sweep.is_none() || !field.subjects.is_empty() {
            for &mode in &self.request.modes {
                results.push(self.measure(case, mode, &options, &mut field, gear)?);
            }
        }
        self.inspect_afterwards(&mut field, &mut results, gear)?;
        for (_, result) in results {
            gear.watcher.result(&result);
            self.report.results.push(result);
        }
        Ok(())
    }

    /// Inspects a subject and finds its place in the field.
    fn admit<'a>(
        &self,
        mut contender: Contender<'a>,
        moment: Moment,
        field: &mut Field<'a>,
        gear: &mut Gear<'_>,
    ) -> Result<(), BenchError> {
        let info = contender.subject.info().clone();
        let mut inspection = None;
        if self.request.inspect {
            let elsewhere = contender
                .elsewhere
                .as_deref_mut()
                .map(|subject| subject as &mut dyn Subject);
            match (gear.inspect)(moment, &mut *contender.subject, elsewhere) {
                Ok(found) => {
                    gear.watcher.inspected(&info.label, &found.to_string());
                    if !found.passed() {
                        field.rejected.push((info, found));
                        return Ok(());
                    }
                    inspection = Some(found);
                }
                Err(trouble) => {
                    lost(&info.label, &trouble)?;
                    field.absent.push(Absent {
                        label: info.label,
                        reason: trouble.message,
                    });
                    return Ok(());
                }
            }
        }
        field.subjects.push(contender.subject);
        field.elsewhere.push(contender.elsewhere);
        field.inspections.push(inspection);
        Ok(())
    }

    /// Measures the field in one mode.
    fn measure(
        &self,
        case: &Case,
        mode: Mode,
        options: &Options,
        field: &mut Field<'_>,
        gear: &mut Gear<'_>,
    ) -> Result<Kept, BenchError> {
        let infos: Vec<SubjectInfo> = field.subjects.iter().map(|subject| subject.info().clone()).collect();
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
        let mut measurement = if field.subjects.is_empty() {
            Measurement {
                mode,
                turns: None,
                baseline,
                subjects: Vec::new(),
                stop: Stop::Failed,
                rounds: 0,
                readings: Vec::new(),
            }
        } else {
            let mut recorder = Recorder {
                kept,
                watcher: gear.watcher,
                mode,
                infos: &infos,
            };
            measure(
                options,
                mode,
                &mut field.subjects,
                baseline,
                gear.stopwatch,
                gear.telemetry,
                &mut recorder,
            )?
        };
        let never_timed = field.rejected.iter().map(|(info, found)| Measured {
            info: info.clone(),
            summary: None,
            ratio: None,
            verdict: None,
            settled: false,
            trouble: Some(found.to_string()),
        });
        measurement.subjects.extend(never_timed);
        if let Some(run) = kept {
            run.end_measurement(&measurement)?;
        }
        let inspections = rows.into_iter().map(|(_, found)| found).collect();
        let absent = field.absent.clone();
        let result = CaseResult::new(case.clone(), measurement, inspections, absent, self.report.floor_us);
        Ok((place, result))
    }

    /// After screening: the subjects that are kept, ours now inspected as closely as any that is measured.
    fn keep<'a>(
        &self,
        sweep: &Sweep,
        field: Field<'a>,
        results: &mut [Kept],
        gear: &mut Gear<'_>,
    ) -> Result<Field<'a>, BenchError> {
        let kept = results
            .last()
            .map(|(_, screened)| sweep.kept(&screened.measurement))
            .unwrap_or_default();
        // Whoever was rejected or absent stands in the result of the screening.
        let mut finalists = Field::default();
        let places = field.subjects.into_iter().zip(field.elsewhere).zip(field.inspections);
        for (index, ((subject, elsewhere), inspection)) in places.enumerate() {
            if !kept.contains(&index) {
                continue;
            }
            if subject.info().is_ours() {
                self.admit(Contender { subject, elsewhere }, Moment::Before, &mut finalists, gear)?;
            } else {
                finalists.subjects.push(subject);
                finalists.elsewhere.push(elsewhere);
                finalists.inspections.push(inspection);
            }
        }
        for (info, found) in &finalists.rejected {
            self.reject(&info.label, found, results)?;
        }
        Ok(finalists)
    }

    fn inspect_afterwards(
        &self,
        field: &mut Field<'_>,
        results: &mut [Kept],
        gear: &mut Gear<'_>,
    ) -> Result<(), BenchError> {
        if !self.request.inspect {
            return Ok(());
        }
        for subject in &mut field.subjects {
            let label = subject.info().label.clone();
            match (gear.inspect)(Moment::Afterwards, &mut **subject, None) {
                Ok(found) if found.passed() => {}
                Ok(found) => {
                    gear.watcher.inspected(&label, &found.to_string());
                    self.reject(&label, &found, results)?;
                }
                Err(trouble) => lost(&label, &trouble)?,
            }
        }
        Ok(())
    }

    /// Takes the numbers away from a subject that turned out to be wrong, wherever it has any.
    fn reject(&self, label: &str, found: &Inspection, results: &mut [Kept]) -> Result<(), BenchError> {
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

    fn baseline(&self, infos: &[SubjectInfo]) -> usize {
        let place = |wanted: &dyn Fn(&SubjectInfo) -> bool| infos.iter().position(wanted);
        let named = self.request.baseline.as_ref().and_then(|name| {
            place(&|info| info.label == *name).or_else(|| place(&|info| info.label.starts_with(name.as_str())))
        });
        named.or_else(|| place(&|info| !info.is_ours())).unwrap_or(0)
    }
}

/// A lost device ends the bench; other trouble costs one subject.
fn lost(label: &str, trouble: &Trouble) -> Result<(), BenchError> {
    if !trouble.fatal {
        return Ok(());
    }
    Err(BenchError::Device {
        reason: format!("while {label} was inspected: {trouble}"),
    })
}

/// Stores samples as they come, and passes them on.
struct Recorder<'a> {
    kept: Option<&'a RunWriter>,
    watcher: &'a mut dyn Watcher,
    mode: Mode,
    infos: &'a [SubjectInfo],
}

impl Observer for Recorder<'_> {
    fn sample(&mut self, sample: &Sample) -> Result<(), BenchError> {
        if let Some(run) = self.kept {
            run.add_sample(sample)?;
        }
        if let Some(info) = self.infos.get(sample.subject) {
            self.watcher.sample(self.mode, &info.label, sample);
        }
        Ok(())
    }

    fn round(&mut self, round: u32, reading: Option<&Reading>) -> Result<(), BenchError> {
        match (self.kept, reading) {
            (Some(run), Some(reading)) => run.add_reading(round, reading),
            _ => Ok(()),
        }
    }
}
