//! What a worker works on: the host, a GPU, or a replay of what was measured once. Each opens kernels as a
//! [`Workbench`], or something that answers for one.

use std::cell::RefCell;

use flashcore::KernelId;
use flashcore_bench::cpu::{CpuBed, CpuStopwatch, CpuSubject};
use flashcore_bench::planted::{Conduct, CpuPlanted, InFinals};
use flashcore_bench::{
    BenchError, DeviceIdentity, HostInputs, Measured as MeasuredSubject, Measurement, Mode, Options, Ratio, Stop,
    Stopwatch, Subject, SubjectInfo, Summary, Trouble, measure,
};
use flashcore_problem::{Problem, Tensor};

use super::protocol::{Failed, Opened};
use crate::replay::{Known, Table};
use crate::trial::Verdict;

/// A device that a worker has taken.
pub(super) trait Device {
    /// Who it is.
    fn identity(&self) -> DeviceIdentity;

    /// Whether it computes answers.
    fn computes(&self) -> bool {
        true
    }

    /// Compiles kernels into the driver's cache.
    fn compile(&self, problem: &Problem, kernels: &[String]) {
        let _ = (problem, kernels);
    }

    /// Measures what the device gives, and keeps that for it.
    ///
    /// # Errors
    /// Why it cannot.
    fn rates(&self) -> Result<(), String> {
        Err("only GPUs are measured".to_string())
    }

    /// Opens kernels, and gives them to `work` until it returns.
    fn open(&self, problem: &Problem, kernels: &[String], work: &mut dyn FnMut(Result<&mut dyn Bench, Failed>));
}

/// Kernels that are open.
pub(super) trait Bench {
    fn opened(&self) -> Vec<Opened>;
    fn load(&mut self, place: usize, inputs: &HostInputs) -> Result<(), Trouble>;
    fn poison(&mut self, place: usize) -> Result<(), Trouble>;
    fn pause(&mut self) -> Result<(), Trouble>;
    fn run(&mut self, kernel: usize, place: usize) -> Result<(), Trouble>;
    fn snapshot(&mut self, place: usize) -> Result<(), Trouble>;
    fn finish(&mut self) -> Result<(), Trouble>;
    /// Shows an output, which need not be copied for that.
    fn see(&mut self, place: usize, snapshot: bool, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble>;
    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble>;
    fn outside(&mut self) -> Result<Option<String>, Trouble>;
    fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, BenchError>;
}

/// Tensors at both places, and the queue that work on them goes into.
pub(super) trait Bed {
    fn load(&self, place: usize, inputs: &HostInputs) -> Result<(), Trouble>;
    fn poison(&self, place: usize) -> Result<(), Trouble>;
    fn pause(&self) -> Result<(), Trouble>;
    fn snapshot(&self, place: usize) -> Result<(), Trouble>;
    fn finish(&self) -> Result<(), Trouble>;
    /// Shows an output, which need not be copied for that.
    fn see(&self, place: usize, snapshot: bool, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble>;
    /// The log-sum-exp, where the problem asks for it.
    fn read_lse(&self, place: usize) -> Result<Option<Vec<f32>>, Trouble>;
    /// What was written beside the tensors. The host's kernels cannot: a write outside ends the process.
    fn outside(&self) -> Result<Option<String>, Trouble> {
        Ok(None)
    }
}

/// Subjects on a bed.
pub(super) struct Workbench<'a> {
    pub(super) bed: &'a dyn Bed,
    /// By place, then by kernel.
    pub(super) subjects: [Vec<Box<dyn Subject + 'a>>; 2],
    pub(super) stopwatch: Box<dyn Stopwatch + 'a>,
    /// Set once these are timed as finalists are.
    pub(super) in_finals: InFinals,
}

impl Workbench<'_> {
    fn subject(&mut self, kernel: usize, place: usize) -> Result<&mut dyn Subject, Trouble> {
        let subjects = &mut self.subjects[place % 2];
        let count = subjects.len();
        match subjects.get_mut(kernel) {
            Some(subject) => Ok(&mut **subject),
            None => Err(Trouble::new(format!("kernel {kernel} of {count} that are open"))),
        }
    }
}

impl Bench for Workbench<'_> {
    fn opened(&self) -> Vec<Opened> {
        let infos = self.subjects[0].iter().map(|subject| subject.info());
        infos
            .map(|info| Opened {
                id: info.label.clone(),
                module: info.module.clone(),
                attributes: info.attributes,
            })
            .collect()
    }

    fn load(&mut self, place: usize, inputs: &HostInputs) -> Result<(), Trouble> {
        self.bed.load(place, inputs)
    }

    fn poison(&mut self, place: usize) -> Result<(), Trouble> {
        self.bed.poison(place)
    }

    fn pause(&mut self) -> Result<(), Trouble> {
        self.bed.pause()
    }

    fn run(&mut self, kernel: usize, place: usize) -> Result<(), Trouble> {
        self.subject(kernel, place)?.call()
    }

    fn snapshot(&mut self, place: usize) -> Result<(), Trouble> {
        self.bed.snapshot(place)
    }

    fn finish(&mut self) -> Result<(), Trouble> {
        self.bed.finish()
    }

    fn see(&mut self, place: usize, snapshot: bool, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble> {
        self.bed.see(place, snapshot, look)
    }

    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        self.bed.read_lse(place)
    }

    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        self.bed.outside()
    }

    fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, BenchError> {
        // Candidates are screened, and finalists are not.
        self.in_finals.set(self.in_finals.get() || mode != Mode::Screen);
        let subjects = &mut self.subjects[0];
        measure(
            options,
            mode,
            subjects,
            baseline,
            &mut *self.stopwatch,
            &mut (),
            &mut (),
        )
    }
}

/// The host.
pub(super) struct Cpu;

struct CpuPlaces {
    bed: CpuBed,
    kept: RefCell<Option<Tensor>>,
}

impl Bed for CpuPlaces {
    fn load(&self, place: usize, inputs: &HostInputs) -> Result<(), Trouble> {
        self.bed.load(place, inputs);
        Ok(())
    }

    fn poison(&self, place: usize) -> Result<(), Trouble> {
        self.bed.poison(place);
        Ok(())
    }

    fn pause(&self) -> Result<(), Trouble> {
        Ok(())
    }

    fn snapshot(&self, place: usize) -> Result<(), Trouble> {
        let copy = self.bed.with_place(place, |_, out| out.clone());
        self.kept.replace(Some(copy));
        Ok(())
    }

    fn finish(&self) -> Result<(), Trouble> {
        Ok(())
    }

    fn see(&self, place: usize, snapshot: bool, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble> {
        if !snapshot {
            self.bed.with_place(place, |_, out| look(out));
            return Ok(());
        }
        match &*self.kept.borrow() {
            Some(kept) => look(kept),
            None => return Err(Trouble::new("there is no snapshot")),
        }
        Ok(())
    }

    fn read_lse(&self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        let lse = self.bed.with_lse(place, |lse| lse.to_vec());
        Ok(Some(lse).filter(|lse| !lse.is_empty()))
    }
}

impl Device for Cpu {
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity::cpu()
    }

    fn open(&self, problem: &Problem, kernels: &[String], work: &mut dyn FnMut(Result<&mut dyn Bench, Failed>)) {
        let in_finals = InFinals::default();
        let places = CpuPlaces {
            bed: CpuBed::blind(problem),
            kept: RefCell::new(None),
        };
        let subject = |id: &String, place: usize| -> Result<Box<dyn Subject + '_>, Failed> {
            if let Some(conduct) = Conduct::of_id(id) {
                conduct
                    .build()
                    .map_err(|reason| failed(Verdict::BuildFailed, Some(id), reason))?;
                let planted = CpuPlanted::new(&places.bed, conduct, problem, place, in_finals.clone());
                return Ok(Box::new(planted));
            }
            match id.parse() {
                Ok(KernelId::Cpu(config)) => Ok(Box::new(CpuSubject::new(&places.bed, config, place))),
                Ok(KernelId::Gpu(_)) => Err(failed(Verdict::Refused, Some(id), "it runs on a GPU")),
                Err(error) => Err(failed(Verdict::Refused, Some(id), error)),
            }
        };
        let at = |place: usize| {
            kernels
                .iter()
                .map(|id| subject(id, place))
                .collect::<Result<Vec<_>, _>>()
        };
        match at(0).and_then(|first| Ok([first, at(1)?])) {
            Ok(subjects) => work(Ok(&mut Workbench {
                bed: &places,
                subjects,
                stopwatch: Box::new(CpuStopwatch::default()),
                in_finals: in_finals.clone(),
            })),
            Err(failed) => work(Err(failed)),
        }
    }
}

/// Why a command about a kernel cannot be done.
pub(super) fn failed(verdict: Verdict, kernel: Option<&str>, reason: impl ToString) -> Failed {
    Failed {
        verdict,
        kernel: kernel.map(str::to_string),
        reason: reason.to_string(),
        fatal: false,
    }
}

/// What was measured once, in place of a device. Deterministic, so that whole runs can be compared.
pub(super) struct Replay {
    pub(super) identity: DeviceIdentity,
    pub(super) tables: Vec<Table>,
}

/// Candidates of a table.
struct Replayed {
    rows: Vec<(String, Summary)>,
}

impl Device for Replay {
    fn identity(&self) -> DeviceIdentity {
        self.identity.clone()
    }

    fn computes(&self) -> bool {
        false
    }

    fn open(&self, problem: &Problem, kernels: &[String], work: &mut dyn FnMut(Result<&mut dyn Bench, Failed>)) {
        let Some(table) = self.tables.iter().find(|table| table.case.problem == *problem) else {
            return work(Err(failed(Verdict::Refused, None, "this problem was not measured")));
        };
        let known = table.by_id();
        let row = |id: &String| match known.get(id) {
            None => Err(failed(Verdict::Refused, Some(id), "it was not measured")),
            Some(Known::Failed(verdict, reason)) => Err(failed(*verdict, Some(id), reason)),
            Some(Known::Timed(us, interval)) => {
                let summary = Summary {
                    count: 1,
                    min: interval.lo,
                    p10: interval.lo,
                    p50: *us,
                    p90: interval.hi,
                    max: interval.hi,
                    mad: (interval.hi - interval.lo) / 2.0,
                    interval: *interval,
                };
                Ok((id.clone(), summary))
            }
        };
        match kernels.iter().map(row).collect::<Result<Vec<_>, _>>() {
            Ok(rows) => work(Ok(&mut Replayed { rows })),
            Err(failed) => work(Err(failed)),
        }
    }
}

impl Bench for Replayed {
    fn opened(&self) -> Vec<Opened> {
        let opened = |(id, _): &(String, Summary)| Opened {
            id: id.clone(),
            module: None,
            attributes: None,
        };
        self.rows.iter().map(opened).collect()
    }

    fn load(&mut self, _place: usize, _inputs: &HostInputs) -> Result<(), Trouble> {
        Err(no_answers())
    }

    fn poison(&mut self, _place: usize) -> Result<(), Trouble> {
        Err(no_answers())
    }

    fn pause(&mut self) -> Result<(), Trouble> {
        Err(no_answers())
    }

    fn run(&mut self, _kernel: usize, _place: usize) -> Result<(), Trouble> {
        Err(no_answers())
    }

    fn snapshot(&mut self, _place: usize) -> Result<(), Trouble> {
        Err(no_answers())
    }

    fn finish(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn see(&mut self, _place: usize, _snapshot: bool, _look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble> {
        Err(no_answers())
    }

    fn read_lse(&mut self, _place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        Err(no_answers())
    }

    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        Err(no_answers())
    }

    fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, BenchError> {
        let Some((_, base)) = self.rows.get(baseline) else {
            return Err(BenchError::Nothing {
                what: format!("kernel {baseline} is not open"),
            });
        };
        let subject = |(index, (id, summary)): (usize, &(String, Summary))| {
            let value = summary.p50 / base.p50;
            let ratio = (index != baseline).then(|| Ratio {
                value,
                // Not from the same rounds: either side's interval counts.
                interval: flashcore_bench::Interval {
                    lo: summary.interval.lo / base.interval.hi,
                    hi: summary.interval.hi / base.interval.lo,
                },
                of_medians: value,
                rounds: summary.count,
            });
            MeasuredSubject {
                info: SubjectInfo {
                    kernel: Some(id.clone()),
                    ..SubjectInfo::new(id.clone(), flashcore_bench::LaunchMode::Host)
                },
                summary: Some(*summary),
                ratio,
                verdict: ratio.map(|ratio| flashcore_bench::Verdict::of(&ratio, options.threshold)),
                settled: true,
                trouble: None,
            }
        };
        Ok(Measurement {
            mode,
            turns: None,
            baseline,
            subjects: self.rows.iter().enumerate().map(subject).collect(),
            stop: Stop::Rounds,
            rounds: 1,
            readings: Vec::new(),
        })
    }
}

fn no_answers() -> Trouble {
    Trouble::new("a replay has times and no answers")
}
