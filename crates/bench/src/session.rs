//! A whole bench: problems, kernels and peers on a device, inspected, measured, stored.

use flashcore::Device;
use flashcore_cuda::Stream;
use flashcore_ir::Target;
use flashcore_kernels::KernelCache;
use serde::{Deserialize, Serialize};

use crate::candidates::{cpu_configs, peer_tensors, plans};
use crate::cpu::{CpuBed, CpuRig, CpuStopwatch, CpuSubject};
use crate::defences::{Inspection, Rig, inspect, inspect_again};
use crate::error::BenchError;
use crate::gpu::{self, GpuBed, GpuRig, GpuStopwatch, GpuTools, KernelSubject, Launching};
use crate::identity::{DeviceIdentity, RunIdentity, SubjectInfo};
use crate::measure::{Measured, Observer, Sample, measure};
use crate::options::{Mode, Options};
use crate::peers::{Absent, PeerPlace, PeerSource};
use crate::problems::Case;
use crate::report::{CaseResult, Report};
use crate::store::{MeasurementId, RunId, Store};
use crate::subject::{Stopwatch, Subject, Trouble};
use crate::telemetry::{NvmlTelemetry, Reading, Telemetry};

/// What to bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The problems.
    pub cases: Vec<Case>,
    /// Kernels by id; where there are none, the one that would be chosen.
    pub kernels: Vec<String>,
    /// In which modes.
    pub modes: Vec<Mode>,
    /// The protocol's settings.
    pub options: Options,
    /// Label of the subject that the others are compared with, or how it begins; where none is given or it is not
    /// there, the first peer, else the first kernel.
    pub baseline: Option<String>,
    /// Launch kernels one by one instead of in graphs.
    pub plain: bool,
    /// Inspect subjects before and after timing. Only ever off to time what is known to be wrong.
    pub inspect: bool,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            cases: Vec::new(),
            kernels: Vec::new(),
            modes: vec![Mode::Hot],
            options: Options::default(),
            baseline: None,
            plain: false,
            inspect: true,
        }
    }
}

/// Is told how a bench goes along.
pub trait Watcher {
    /// Something is missing or odd; said once.
    fn note(&mut self, note: &str) {
        let _ = note;
    }
    /// A problem begins: number `index` of `count`.
    fn case(&mut self, case: &Case, index: usize, count: usize) {
        let _ = (case, index, count);
    }
    /// A subject is inspected, or was left out (`outcome`).
    fn inspected(&mut self, label: &str, outcome: &str) {
        let _ = (label, outcome);
    }
    /// A sample was taken.
    fn sample(&mut self, mode: Mode, label: &str, sample: &Sample) {
        let _ = (mode, label, sample);
    }
    /// A problem is done in one mode.
    fn result(&mut self, result: &CaseResult) {
        let _ = result;
    }
}

/// Watches nothing.
impl Watcher for () {}

/// Benches on a device.
///
/// # Errors
/// Options out of range, nothing to measure, a lost device, a store that cannot be written. A kernel or peer that
/// does not serve a problem is no error: it stands in the report with its reason.
pub fn run(
    device: &Device,
    request: &Request,
    peers: &mut dyn PeerSource,
    store: Option<&Store>,
    watcher: &mut dyn Watcher,
) -> Result<Report, BenchError> {
    request.options.check()?;
    if request.cases.is_empty() || request.modes.is_empty() {
        return Err(BenchError::Nothing {
            what: "no problem or no mode was given".to_string(),
        });
    }
    match device {
        Device::Cpu => run_cpu(request, peers, store, watcher),
        Device::Cuda(context) => run_cuda(&Stream::new(context)?, request, peers, store, watcher),
    }
}

/// What all problems of a bench share.
struct Session<'s> {
    request: &'s Request,
    store: Option<(&'s Store, RunId)>,
    report: Report,
}

impl<'s> Session<'s> {
    fn begin(
        request: &'s Request,
        device: DeviceIdentity,
        floor: Option<Measured>,
        store: Option<&'s Store>,
        peers: &dyn PeerSource,
        watcher: &mut dyn Watcher,
    ) -> Result<Session<'s>, BenchError> {
        let identity = RunIdentity::now(device);
        let floor_us = floor.and_then(|floor| floor.summary).map(|summary| summary.p50);
        let store = store
            .map(|store| Ok::<_, BenchError>((store, store.begin_run(&identity, &request.options, floor_us)?)))
            .transpose()?;
        let mut report = Report::new(identity, request.options.clone(), floor_us);
        report.notes.extend(peers.absences());
        for note in &report.notes {
            watcher.note(note);
        }
        Ok(Session { request, store, report })
    }

    fn note(&mut self, note: String, watcher: &mut dyn Watcher) {
        if !self.report.notes.contains(&note) {
            watcher.note(&note);
            self.report.notes.push(note);
        }
    }
}

/// A subject and what is known of it before timing.
struct Contender<'a> {
    subject: Box<dyn Subject + 'a>,
    elsewhere: Option<Box<dyn Subject + 'a>>,
    inspection: Option<Inspection>,
}

/// Inspects a subject, bound to place 0 and perhaps to place 1, on the rig of its device: before timing or after.
type Inspect<'m> =
    dyn Fn(Moment, &mut (dyn Subject + '_), Option<&mut (dyn Subject + '_)>) -> Result<Inspection, Trouble> + 'm;

/// When a subject is inspected.
#[derive(Clone, Copy)]
enum Moment {
    Before,
    Afterwards,
}

impl Moment {
    fn inspect(self, rig: &mut dyn Rig) -> Result<Inspection, Trouble> {
        match self {
            Moment::Before => inspect(rig),
            Moment::Afterwards => inspect_again(rig),
        }
    }
}

fn run_cuda(
    stream: &Stream,
    request: &Request,
    peers: &mut dyn PeerSource,
    store: Option<&Store>,
    watcher: &mut dyn Watcher,
) -> Result<Report, BenchError> {
    let info = stream.context().info().clone();
    let (major, minor) = info.compute_capability;
    let target = Target::for_capability(major, minor).unwrap_or(Target::Sm80);
    let tools = GpuTools::new(stream)?;
    let floor = gpu::floor(&tools, stream)?;
    let device = DeviceIdentity::cuda(&info);
    let uuid = device.uuid.clone();
    let mut session = Session::begin(request, device, Some(floor), store, peers, watcher)?;
    let mut nvml = NvmlTelemetry::open(&uuid);
    if let Err(absence) = &nvml {
        session.note(absence.clone(), watcher);
    }
    let mut nothing = ();
    let telemetry: &mut dyn Telemetry = match &mut nvml {
        Ok(nvml) => nvml,
        Err(_) => &mut nothing,
    };
    let kernels = KernelCache::default();
    for (index, case) in request.cases.iter().enumerate() {
        watcher.case(case, index, request.cases.len());
        let (plans, mut absent) = plans(request, &case.problem, target, &kernels);
        let workspace = plans
            .iter()
            .map(|plan| plan.launch.workspace_bytes())
            .max()
            .unwrap_or(0);
        let bed = match GpuBed::new(stream, &case.problem, workspace) {
            Ok(bed) => bed,
            Err(error) => {
                session.note(format!("{} was left out: {error}", case.name), watcher);
                continue;
            }
        };
        let launching = if request.plain {
            Launching::Plain
        } else {
            Launching::Graph
        };
        let mut contenders = Vec::new();
        for plan in &plans {
            let bound =
                |place| KernelSubject::new(stream, plan, &[bed.tensors(place), bed.tensors(1 - place)], launching);
            match bound(0).and_then(|subject| Ok((subject, bound(1)?))) {
                Ok((subject, elsewhere)) => contenders.push(Contender {
                    subject: Box::new(subject),
                    elsewhere: Some(Box::new(elsewhere)),
                    inspection: None,
                }),
                Err(error) => absent.push(Absent {
                    label: plan.config.to_string(),
                    reason: error.to_string(),
                }),
            }
        }
        let tensors = bed.tensors(0);
        let raw = |slice: flashcore_cuda::DeviceSlice<'_>| (slice.address(), slice.len());
        let place = PeerPlace::Cuda {
            ordinal: info.ordinal,
            stream: stream.as_raw(),
        };
        let addresses = [raw(tensors.q), raw(tensors.k), raw(tensors.v), raw(tensors.out)];
        let tensors = peer_tensors(place, &case.problem, addresses);
        add_peers(peers.peers(case, &tensors), &mut contenders, &mut absent);
        let mut stopwatch = GpuStopwatch::new(&tools, stream);
        let inspect: &Inspect<'_> = &|moment, subject, elsewhere| {
            moment.inspect(&mut GpuRig {
                bed: &bed,
                stream,
                tools: &tools,
                subject,
                elsewhere,
            })
        };
        session.case(case, contenders, absent, inspect, &mut stopwatch, telemetry, watcher)?;
    }
    Ok(session.report)
}

fn run_cpu(
    request: &Request,
    peers: &mut dyn PeerSource,
    store: Option<&Store>,
    watcher: &mut dyn Watcher,
) -> Result<Report, BenchError> {
    let mut session = Session::begin(request, DeviceIdentity::cpu(), None, store, peers, watcher)?;
    for (index, case) in request.cases.iter().enumerate() {
        watcher.case(case, index, request.cases.len());
        if let Err(error) = flashcore_cpu::check_supported(&case.problem) {
            session.note(format!("{} was left out: {error}", case.name), watcher);
            continue;
        }
        let bed = CpuBed::new(&case.problem)?;
        let (configs, mut absent) = cpu_configs(request, &case.problem);
        let mut contenders: Vec<Contender<'_>> = configs
            .into_iter()
            .map(|config| Contender {
                subject: Box::new(CpuSubject::new(&bed, config, 0)),
                elsewhere: Some(Box::new(CpuSubject::new(&bed, config, 1))),
                inspection: None,
            })
            .collect();
        let tensors = peer_tensors(PeerPlace::Cpu, &case.problem, bed.addresses());
        add_peers(peers.peers(case, &tensors), &mut contenders, &mut absent);
        let inspect: &Inspect<'_> = &|moment, subject, elsewhere| {
            moment.inspect(&mut CpuRig {
                bed: &bed,
                subject,
                elsewhere,
            })
        };
        let mut stopwatch = CpuStopwatch::default();
        session.case(case, contenders, absent, inspect, &mut stopwatch, &mut (), watcher)?;
    }
    Ok(session.report)
}

fn add_peers<'a>(
    peers: Vec<Result<Box<dyn Subject + 'a>, Absent>>,
    contenders: &mut Vec<Contender<'a>>,
    absent: &mut Vec<Absent>,
) {
    for peer in peers {
        match peer {
            Ok(subject) => contenders.push(Contender {
                subject,
                elsewhere: None,
                inspection: None,
            }),
            Err(missing) => absent.push(missing),
        }
    }
}

impl Session<'_> {
    /// Inspects, measures in every mode, inspects again.
    #[allow(clippy::too_many_arguments)] // One problem's worth of everything; both devices call it once.
    fn case(
        &mut self,
        case: &Case,
        contenders: Vec<Contender<'_>>,
        mut absent: Vec<Absent>,
        inspect: &Inspect<'_>,
        stopwatch: &mut dyn Stopwatch,
        telemetry: &mut dyn Telemetry,
        watcher: &mut dyn Watcher,
    ) -> Result<(), BenchError> {
        let mut fit = Vec::new();
        let mut rejected: Vec<(SubjectInfo, Inspection)> = Vec::new();
        for mut contender in contenders {
            let info = contender.subject.info().clone();
            if self.request.inspect {
                let elsewhere = contender
                    .elsewhere
                    .as_deref_mut()
                    .map(|subject| subject as &mut dyn Subject);
                match inspect(Moment::Before, &mut *contender.subject, elsewhere) {
                    Ok(found) if found.passed() => {
                        watcher.inspected(&info.label, &found.to_string());
                        contender.inspection = Some(found);
                    }
                    Ok(found) => {
                        watcher.inspected(&info.label, &found.to_string());
                        rejected.push((info, found));
                        continue;
                    }
                    Err(trouble) => {
                        lost(&info.label, &trouble)?;
                        watcher.inspected(&info.label, &trouble.message);
                        absent.push(Absent {
                            label: info.label,
                            reason: trouble.message,
                        });
                        continue;
                    }
                }
            }
            fit.push(contender);
        }
        for missing in &absent {
            watcher.inspected(&missing.label, &missing.reason);
        }
        if fit.is_empty() {
            self.note(format!("{}: nothing is left to time", case.name), watcher);
        }
        let baseline = self.baseline(&fit);
        let (mut subjects, inspections): (Vec<Box<dyn Subject + '_>>, Vec<Option<Inspection>>) = fit
            .into_iter()
            .map(|contender| (contender.subject, contender.inspection))
            .unzip();
        let mut results = Vec::new();
        for &mode in &self.request.modes {
            let infos: Vec<SubjectInfo> = subjects.iter().map(|subject| subject.info().clone()).collect();
            let rows: Vec<(SubjectInfo, Option<Inspection>)> = infos
                .iter()
                .cloned()
                .zip(inspections.iter().cloned())
                .chain(rejected.iter().map(|(info, found)| (info.clone(), Some(found.clone()))))
                .collect();
            if rows.is_empty() {
                break;
            }
            let id = self
                .store
                .map(|(store, run)| store.begin_measurement(run, case, mode, baseline, &rows))
                .transpose()?;
            let mut observer = Recorder {
                store: self.store.map(|(store, _)| store).zip(id.as_ref()),
                watcher,
                mode,
                infos: &infos,
            };
            if subjects.is_empty() {
                break;
            }
            let mut measurement = measure(
                &self.request.options,
                mode,
                &mut subjects,
                baseline,
                stopwatch,
                telemetry,
                &mut observer,
            )?;
            measurement
                .subjects
                .extend(rejected.iter().map(|(info, found)| Measured {
                    info: info.clone(),
                    summary: None,
                    ratio: None,
                    verdict: None,
                    settled: false,
                    trouble: Some(found.to_string()),
                }));
            let inspections = rows.into_iter().map(|(_, found)| found).collect();
            results.push((
                id,
                CaseResult::new(
                    case.clone(),
                    measurement,
                    inspections,
                    absent.clone(),
                    self.report.floor_us,
                ),
            ));
        }
        if self.request.inspect {
            for (index, subject) in subjects.iter_mut().enumerate() {
                let label = subject.info().label.clone();
                let found = match inspect(Moment::Afterwards, &mut **subject, None) {
                    Ok(found) if found.passed() => continue,
                    Ok(found) => found,
                    Err(trouble) => {
                        lost(&label, &trouble)?;
                        continue;
                    }
                };
                watcher.inspected(&label, &found.to_string());
                for (id, result) in &mut results {
                    result.reject(index, &found);
                    if let (Some((store, _)), Some(id)) = (self.store, &*id) {
                        store.set_inspection(id, index, &found)?;
                    }
                }
            }
        }
        for (id, result) in results {
            if let (Some((store, _)), Some(id)) = (self.store, &id) {
                store.end_measurement(id, &result.measurement)?;
            }
            watcher.result(&result);
            self.report.results.push(result);
        }
        Ok(())
    }

    fn baseline(&self, fit: &[Contender<'_>]) -> usize {
        let place = |wanted: &dyn Fn(&SubjectInfo) -> bool| fit.iter().position(|c| wanted(c.subject.info()));
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
    store: Option<(&'a Store, &'a MeasurementId)>,
    watcher: &'a mut dyn Watcher,
    mode: Mode,
    infos: &'a [SubjectInfo],
}

impl Observer for Recorder<'_> {
    fn sample(&mut self, sample: &Sample) -> Result<(), BenchError> {
        if let Some((store, id)) = self.store {
            store.add_sample(id, sample)?;
        }
        if let Some(info) = self.infos.get(sample.subject) {
            self.watcher.sample(self.mode, &info.label, sample);
        }
        Ok(())
    }

    fn round(&mut self, round: u32, reading: Option<&Reading>) -> Result<(), BenchError> {
        match (self.store, reading) {
            (Some((store, id)), Some(reading)) => store.add_reading(id, round, reading),
            _ => Ok(()),
        }
    }
}
