//! A whole bench: problems, kernels and peers on a device, inspected, measured, stored.

use flashcore::{Attention, Device};
use flashcore_kernels::KernelCache;
use serde::{Deserialize, Serialize};

use crate::bed::Drawn;
use crate::child::Doing;
use crate::gpu::{self, Launching};
use crate::own::{Code, is_own};
use crate::planted::InFinals;
use crate::stand::{For, built, left_out};
use crate::store::RunWriter;
use crate::{
    Absent, BenchError, Case, CaseResult, DeviceIdentity, Mode, Options, Own, PeerSource, Report, Result, RunIdentity,
    Sample, Stand, Store, Telemetry, Workbench,
};

/// What to bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)] // what an older program does not know, it must not leave out silently
pub struct Request {
    /// The problems.
    pub cases: Vec<Case>,
    /// Kernels by id, or [words](crate::KERNEL_WORDS) for them; where there are none, the one that the library would
    /// choose, and on the host the heuristics' choice and its neighbours too.
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
    /// `S = Q·Kᵀ` by itself instead of attention: kernels are those of
    /// [`scores`](flashcore_kernels::ladder::scores), and nothing is kept.
    pub scores: bool,
    /// Kernels of the user, which take part in all problems that they serve. Those in Python are made by the
    /// [`PeerSource`].
    pub own: Vec<Own>,
    /// Those of them that hung or crashed before and are left out: label and how.
    pub failed: Vec<Absent>,
    /// The words of the command that asks for it, for the record.
    pub command: Vec<String>,
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
            scores: false,
            own: Vec::new(),
            failed: Vec::new(),
            command: Vec::new(),
        }
    }
}

/// What happens in a bench; in JSON an object with one key, as a child process says it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// Something is missing or odd; said once.
    Note(String),
    /// A kernel of the user begins to do something, from which it may not come back; or `None`: it has come back.
    Running(Option<(String, Doing)>),
    /// A problem begins: its number from 0, of so many.
    Case(Box<(Case, usize, usize)>),
    /// A subject is inspected, or was left out: its label, and what came of it.
    Inspected(String, String),
    /// A sample was taken of the subject with this label.
    Sample(Mode, String, Sample),
    /// A problem is done in one mode.
    Result(Box<CaseResult>),
}

/// Is told how a bench goes along.
pub trait Watcher {
    /// What happens now.
    fn see(&mut self, event: Event);
}

/// Watches nothing.
impl Watcher for () {
    fn see(&mut self, _: Event) {}
}

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
) -> Result<Report> {
    request.options.check()?;
    if request.cases.is_empty() || request.modes.is_empty() {
        return Err(BenchError::Nothing("no problem or no mode was given".to_string()));
    }
    for case in &request.cases {
        case.lengths()?;
    }
    let mut stand = Stand::new(device)?;
    stand.caches = request.options.caches;
    check_caches(request, stand.gpu.is_some())?;
    if request.scores && stand.gpu.is_none() {
        return Err(BenchError::Given(format!(
            "bench scores needs a CUDA device; {device} is none"
        )));
    }
    let store = store.filter(|_| !request.scores);
    let floor = match &stand.gpu {
        Some((stream, tools)) => gpu::floor(tools, stream)?.summary,
        None => None,
    };
    let floor_us = floor.map(|summary| summary.p50);
    let device_identity = stand.identity();
    let uuid = device_identity.uuid.clone();
    let mut session = Session::begin(request, device_identity, floor_us, store, watcher)?;
    for absence in peers.absences() {
        session.note(absence);
    }
    if stand.gpu.is_some() {
        match Telemetry::open(&uuid) {
            Ok(telemetry) => session.telemetry = Some(telemetry),
            Err(absence) => session.note(absence),
        }
    }
    let attention = Attention::new(device.clone())?;
    for note in attention.plans().notes() {
        session.note(note.to_string());
    }
    let launching = if request.plain {
        Launching::Plain
    } else {
        Launching::Graph
    };
    let cache = KernelCache::default();
    for (index, case) in request.cases.iter().enumerate() {
        session.begins(case, index);
        if let (true, Some((stream, tools))) = (request.scores, &stand.gpu) {
            session.scores(case, (stream, tools), peers)?;
            continue;
        }
        let (kernels, mut absent) = built(request, &case.problem, &For::Here(&attention), &cache);
        let in_finals = InFinals::default();
        let opened = stand.open(&case.problem, &kernels, launching, &in_finals, |bench, failed| {
            // Peers live for as long as this closure runs, which is shorter than the tensors.
            let mut bench = bench;
            let failed = failed
                .iter()
                .map(|(kernel, error)| left_out(&kernels[*kernel].id(), error));
            absent.extend(failed);
            let drawn = if request.inspect {
                Drawn::new(case)?
            } else {
                Drawn::uninspected(case)?
            };
            drawn
                .load_into(bench.bed)
                .map_err(|trouble| trouble.of("loading inputs"))?;
            for (index, kernel) in kernels.iter().enumerate() {
                let Some(plan) = kernel.plan() else { continue };
                match bench.bed.kept(index, plan, launching) {
                    Ok(None) => {}
                    Ok(Some([subject, elsewhere])) => bench.add(subject, Some(elsewhere)),
                    Err(error) if error.is_fault() => return Err(error),
                    Err(error) => absent.push(left_out(&format!("{} (schedule kept)", kernel.id()), &error)),
                }
            }
            absent.extend(request.failed.iter().cloned());
            session.open_own(&mut bench, &mut absent, launching)?;
            for peer in peers.peers(case, &bench.bed.peer_tensors()) {
                match peer {
                    Ok(subject) => bench.add(subject, None),
                    Err(missing) => absent.push(missing),
                }
            }
            Ok(session.case(case, bench, absent, &drawn))
        });
        match opened {
            Ok(Ok(measured)) => measured?,
            // A user's kernel may be to blame, which whoever started this process finds out.
            Ok(Err(error)) if error.is_fault() => return Err(error),
            Ok(Err(error)) | Err(error) => session.note(format!("{} was left out: {error}", case.name)),
        }
    }
    session.finish()
}

/// Refuses copies of K and V where no run would take turns with them.
pub(crate) fn check_caches(request: &Request, on_gpu: bool) -> Result<()> {
    let why = match request.options.caches {
        0 | 1 => return Ok(()),
        _ if request.scores => "`bench scores` always reads the same K; leave out --caches",
        _ if !request.own.is_empty() => "your own kernels always read the same K and V; leave out --caches or them",
        _ if request.plain => {
            "only runs of graphs take turns with copies of K and V; leave out --caches or `plain` of --mode"
        }
        _ if !on_gpu => "copies of K and V are for GPUs; leave out --caches, or name a CUDA device",
        _ => return Ok(()),
    };
    Err(BenchError::Given(format!(
        "caches is {}: {why}",
        request.options.caches
    )))
}

/// What all problems of a bench share.
pub(crate) struct Session<'s> {
    pub(crate) request: &'s Request,
    /// The run in the evidence store, if evidence is kept.
    pub(crate) kept: Option<RunWriter>,
    pub(crate) report: Report,
    pub(crate) telemetry: Option<Telemetry>,
    pub(crate) watcher: &'s mut dyn Watcher,
}

impl<'s> Session<'s> {
    /// Begins a run on a device, in the store if there is one.
    pub(crate) fn begin(
        request: &'s Request,
        device: DeviceIdentity,
        floor_us: Option<f64>,
        store: Option<&Store>,
        watcher: &'s mut dyn Watcher,
    ) -> Result<Session<'s>> {
        let identity = RunIdentity {
            command: request.command.clone(),
            ..RunIdentity::now(device)
        };
        let kept = store.map(|store| store.begin_run(&identity, &request.options, floor_us));
        Ok(Session {
            request,
            kept: kept.transpose()?,
            report: Report::new(identity, request.options.clone(), floor_us),
            telemetry: None,
            watcher,
        })
    }

    /// Tells that a problem begins.
    pub(crate) fn begins(&mut self, case: &Case, index: usize) {
        let begins = (case.clone(), index, self.request.cases.len());
        self.watcher.see(Event::Case(Box::new(begins)));
    }

    /// Tells what came of the inspection of a subject, or why it was left out.
    pub(crate) fn inspected(&mut self, label: &str, outcome: &impl ToString) {
        let event = Event::Inspected(label.to_string(), outcome.to_string());
        self.watcher.see(event);
    }

    /// Tells a result, and adds it to the report.
    pub(crate) fn add(&mut self, result: CaseResult) {
        self.watcher.see(Event::Result(Box::new(result.clone())));
        self.report.results.push(result);
    }

    /// Ends the run. One that ends by an error stays without its closing line.
    pub(crate) fn finish(self) -> Result<Report> {
        if let Some(run) = self.kept {
            run.finish_with(&self.report)?;
        }
        Ok(self.report)
    }

    /// Opens the user's PTX kernels on a workbench. Those that cannot be opened are absent.
    fn open_own<'a>(
        &mut self,
        bench: &mut Workbench<'a>,
        absent: &mut Vec<Absent>,
        launching: Launching,
    ) -> Result<()> {
        let bed = bench.bed;
        for own in &self.request.own {
            let Code::Ptx(declared) = &own.code else { continue };
            if self.request.failed.iter().any(|(label, _)| *label == own.label) {
                continue;
            }
            self.running(&own.label, Doing::Calling);
            match bed.declared(declared, launching) {
                Ok([subject, elsewhere]) => bench.add(subject, Some(elsewhere)),
                Err(error) if error.is_fault() => return Err(error),
                Err(error) => absent.push(left_out(&own.label, &error)),
            }
            self.idle(&own.label);
        }
        Ok(())
    }

    /// Tells that a kernel runs, if it is the user's.
    pub(crate) fn running(&mut self, label: &str, doing: Doing) {
        if is_own(label) {
            self.watcher.see(Event::Running(Some((label.to_string(), doing))));
        }
    }

    /// Tells that it has come back.
    pub(crate) fn idle(&mut self, label: &str) {
        if is_own(label) {
            self.watcher.see(Event::Running(None));
        }
    }

    pub(crate) fn note(&mut self, note: String) {
        if !self.report.notes.contains(&note) {
            self.watcher.see(Event::Note(note.clone()));
            self.report.notes.push(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_no_run_would_take_turns_with_are_refused() {
        let asked = |change: fn(&mut Request), on_gpu| {
            let mut request = Request::default();
            request.options.caches = 8;
            change(&mut request);
            check_caches(&request, on_gpu).map_err(|error| error.to_string())
        };
        assert_eq!(asked(|_| (), true), Ok(()));
        assert_eq!(asked(|request| request.options.caches = 1, false), Ok(()));
        let refused = [
            (asked(|request| request.scores = true, true), "bench scores"),
            (asked(|request| request.plain = true, true), "or `plain`"),
            (asked(|_| (), false), "name a CUDA device"),
        ];
        for (answer, says) in refused {
            let error = answer.unwrap_err();
            assert!(
                error.starts_with("caches is 8: ") && error.contains("leave out --caches") && error.contains(says),
                "{error}"
            );
        }
    }
}
