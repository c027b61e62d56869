//! A whole bench: problems, kernels and peers on a device, inspected, measured, stored.

use flashcore::{Attention, Device, PlanDevice, PlanTarget, Plans};
use flashcore_cuda::{DeviceSlice, Stream};

use flashcore_kernels::KernelCache;
use serde::{Deserialize, Serialize};

use crate::candidates::{compiled, cpu_configs, peer_tensors, plans};
use crate::case::{Contender, Gear};
use crate::cpu::{CpuBed, CpuRig, CpuStopwatch, CpuSubject};
use crate::error::BenchError;
use crate::gpu::{self, GpuBed, GpuRig, GpuStopwatch, GpuTools, KernelSubject, Launching};
use crate::identity::{DeviceIdentity, RunIdentity};
use crate::measure::{Measured, Sample};
use crate::options::{Mode, Options};
use crate::peers::{Absent, PeerPlace, PeerSource};
use crate::problems::Case;
use crate::report::{CaseResult, Report};
use crate::store::{RunWriter, Store};
use crate::subject::Subject;
use crate::sweep::Sweep;
use crate::telemetry::{NvmlTelemetry, Telemetry};

/// What to bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The problems.
    pub cases: Vec<Case>,
    /// Kernels by id, or [words](crate::KERNEL_WORDS) for them; where there are none, the one that the library would
    /// choose, and on the host its neighbours too.
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
    /// Inspect subjects before and after timing. Off only where the caller has judged the output, or times what is
    /// known to be wrong.
    pub inspect: bool,
    /// Rank many kernels: screen them all, then measure the best in the modes asked for.
    pub sweep: Option<Sweep>,
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
            sweep: None,
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
    if let Some(sweep) = &request.sweep {
        sweep.check(&request.modes)?;
    }
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
pub(crate) struct Session<'s> {
    pub(crate) request: &'s Request,
    /// The run in the evidence store, if evidence is kept.
    pub(crate) kept: Option<RunWriter>,
    pub(crate) report: Report,
}

impl<'s> Session<'s> {
    fn begin(
        request: &'s Request,
        device: DeviceIdentity,
        floor: Option<Measured>,
        store: Option<&Store>,
        peers: &dyn PeerSource,
        watcher: &mut dyn Watcher,
    ) -> Result<Session<'s>, BenchError> {
        let identity = RunIdentity::now(device);
        let floor_us = floor.and_then(|floor| floor.summary).map(|summary| summary.p50);
        let kept = store
            .map(|store| store.begin_run(&identity, &request.options, floor_us))
            .transpose()?;
        let mut report = Report::new(identity, request.options.clone(), floor_us);
        report.notes.extend(peers.absences());
        for note in &report.notes {
            watcher.note(note);
        }
        Ok(Session { request, kept, report })
    }

    /// Closes the run in the store. One that ends by an error stays without its closing line.
    fn finish(self) -> Result<Report, BenchError> {
        if let Some(run) = self.kept {
            run.finish()?;
        }
        Ok(self.report)
    }

    pub(crate) fn note(&mut self, note: String, watcher: &mut dyn Watcher) {
        if !self.report.notes.contains(&note) {
            watcher.note(&note);
            self.report.notes.push(note);
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
    let chip = info.chip();
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
    let tables = Plans::load(&PlanTarget::Device(PlanDevice::cuda(&info))).map_err(flashcore::Error::from)?;
    for note in tables.notes() {
        session.note(note.to_string(), watcher);
    }
    let kernels = KernelCache::default();
    for (index, case) in request.cases.iter().enumerate() {
        watcher.case(case, index, request.cases.len());
        let (plans, mut absent) = plans(request, &case.problem, chip, &tables, &kernels);
        let (plans, not_compiled) = compiled(stream.context(), plans);
        absent.extend(not_compiled);
        let workspace = plans
            .iter()
            .map(flashcore_kernels::Plan::workspace_bytes)
            .max()
            .unwrap_or(0);
        let bed = match request.inspect {
            true => GpuBed::new(stream, &case.problem, workspace),
            false => GpuBed::blind(stream, &case.problem, workspace),
        };
        let bed = match bed {
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
                }),
                Err(error) => absent.push(Absent {
                    label: plan.config.to_string(),
                    reason: error.to_string(),
                }),
            }
        }
        let tensors = bed.tensors(0);
        let raw = |slice: DeviceSlice<'_>| (slice.address(), slice.len());
        let place = PeerPlace::Cuda {
            ordinal: info.ordinal,
            stream: stream.as_raw(),
        };
        let addresses = [raw(tensors.q), raw(tensors.k), raw(tensors.v), raw(tensors.out)];
        let scales = tensors
            .scales
            .map(|scales| [scales.q, scales.k, scales.v].map(DeviceSlice::address));
        let tensors = peer_tensors(place, &case.problem, addresses, scales);
        add_peers(peers.peers(case, &tensors), &mut contenders, &mut absent);
        let mut stopwatch = GpuStopwatch::new(&tools, stream);
        let mut gear = Gear {
            inspect: &|moment, subject, elsewhere| {
                moment.inspect(&mut GpuRig {
                    bed: &bed,
                    stream,
                    tools: &tools,
                    subject,
                    elsewhere,
                })
            },
            stopwatch: &mut stopwatch,
            telemetry: &mut *telemetry,
            watcher: &mut *watcher,
        };
        session.case(case, contenders, absent, &mut gear)?;
    }
    session.finish()
}

fn run_cpu(
    request: &Request,
    peers: &mut dyn PeerSource,
    store: Option<&Store>,
    watcher: &mut dyn Watcher,
) -> Result<Report, BenchError> {
    let mut session = Session::begin(request, DeviceIdentity::cpu(), None, store, peers, watcher)?;
    let attention = Attention::new(Device::Cpu);
    for note in attention.plans()?.notes() {
        session.note(note.to_string(), watcher);
    }
    for (index, case) in request.cases.iter().enumerate() {
        watcher.case(case, index, request.cases.len());
        let bed = match request.inspect {
            true => CpuBed::new(&case.problem)?,
            false => CpuBed::blind(&case.problem),
        };
        let (configs, mut absent) = cpu_configs(request, &case.problem, &attention);
        let mut contenders: Vec<Contender<'_>> = configs
            .into_iter()
            .map(|config| Contender {
                subject: Box::new(CpuSubject::new(&bed, config, 0)),
                elsewhere: Some(Box::new(CpuSubject::new(&bed, config, 1))),
            })
            .collect();
        let tensors = peer_tensors(PeerPlace::Cpu, &case.problem, bed.addresses(), bed.scales());
        add_peers(peers.peers(case, &tensors), &mut contenders, &mut absent);
        let mut gear = Gear {
            inspect: &|moment, subject, elsewhere| {
                moment.inspect(&mut CpuRig {
                    bed: &bed,
                    subject,
                    elsewhere,
                })
            },
            stopwatch: &mut CpuStopwatch::default(),
            telemetry: &mut (),
            watcher: &mut *watcher,
        };
        session.case(case, contenders, absent, &mut gear)?;
    }
    session.finish()
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
            }),
            Err(missing) => absent.push(missing),
        }
    }
}
