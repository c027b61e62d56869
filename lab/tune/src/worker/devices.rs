//! What a worker works on: the host, a GPU, or a replay of what was measured once. Each opens kernels as a
//! [`Workbench`], or something that answers for one.

use flashcore::KernelId;
use flashcore_bench::cpu::{CpuBed, CpuStopwatch, CpuSubject};
use flashcore_bench::defences::Output;
use flashcore_bench::planted::{Conduct, CpuPlanted, InFinals};
use flashcore_bench::{
    BenchError, DeviceIdentity, Measured as MeasuredSubject, Measurement, Mode, Options, Ratio, Stop, Subject,
    SubjectInfo, Summary, Trouble, Workbench,
};
use flashcore_problem::{Inputs, Problem, Tensor};

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
    fn load(&mut self, place: usize, inputs: &Inputs) -> Result<(), Trouble>;
    fn poison(&mut self, place: usize) -> Result<(), Trouble>;
    fn pause(&mut self) -> Result<(), Trouble>;
    fn run(&mut self, kernel: usize, place: usize) -> Result<(), Trouble>;
    fn snapshot(&mut self, place: usize) -> Result<(), Trouble>;
    fn finish(&mut self) -> Result<(), Trouble>;
    /// Shows an output, which need not be copied for that.
    fn see(&mut self, place: usize, what: Output, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble>;
    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble>;
    fn outside(&mut self) -> Result<Option<String>, Trouble>;
    fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, BenchError>;
}

/// Kernels on a workbench.
pub(super) struct OnWorkbench<'a> {
    pub(super) bench: Workbench<'a>,
    /// Set once these are timed as finalists are.
    pub(super) in_finals: InFinals,
}

impl<'a> OnWorkbench<'a> {
    fn subject(&mut self, kernel: usize, place: usize) -> Result<&mut Box<dyn Subject + 'a>, Trouble> {
        let count = self.bench.subjects.len();
        let subject = match place {
            0 => self.bench.subjects.get_mut(kernel),
            _ => self.bench.elsewhere.get_mut(kernel).and_then(Option::as_mut),
        };
        subject.ok_or_else(|| Trouble::new(format!("kernel {kernel} of {count} that are open")))
    }
}

impl Bench for OnWorkbench<'_> {
    fn opened(&self) -> Vec<Opened> {
        let infos = self.bench.subjects.iter().map(|subject| subject.info());
        infos
            .map(|info| Opened {
                id: info.label.clone(),
                module: info.module.clone(),
                attributes: info.attributes,
            })
            .collect()
    }

    fn load(&mut self, place: usize, inputs: &Inputs) -> Result<(), Trouble> {
        self.bench.bed.load(place, inputs)
    }

    fn poison(&mut self, place: usize) -> Result<(), Trouble> {
        self.bench.bed.poison(place)
    }

    fn pause(&mut self) -> Result<(), Trouble> {
        self.bench.bed.pause()
    }

    fn run(&mut self, kernel: usize, place: usize) -> Result<(), Trouble> {
        self.subject(kernel, place)?.call()
    }

    fn snapshot(&mut self, place: usize) -> Result<(), Trouble> {
        self.bench.bed.snapshot(place)
    }

    fn finish(&mut self) -> Result<(), Trouble> {
        self.bench.bed.finish()
    }

    fn see(&mut self, place: usize, what: Output, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble> {
        self.bench.bed.see(place, what, look)
    }

    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        self.bench.bed.read_lse(place)
    }

    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        self.bench.bed.outside()
    }

    fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, BenchError> {
        // Candidates are screened, and finalists are not.
        self.in_finals.set(self.in_finals.get() || mode != Mode::Screen);
        self.bench.time(options, mode, baseline, &mut (), &mut ())
    }
}

/// The host.
pub(super) struct Cpu;

impl Device for Cpu {
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity::cpu()
    }

    fn open(&self, problem: &Problem, kernels: &[String], work: &mut dyn FnMut(Result<&mut dyn Bench, Failed>)) {
        let in_finals = InFinals::default();
        let bed = CpuBed::new(problem);
        let subject = |id: &String, place: usize| -> Result<Box<dyn Subject + '_>, Failed> {
            if let Some(conduct) = Conduct::of_id(id) {
                conduct
                    .build()
                    .map_err(|reason| failed(Verdict::BuildFailed, Some(id), reason))?;
                let planted = CpuPlanted::new(&bed, conduct, problem, place, in_finals.clone());
                return Ok(Box::new(planted));
            }
            match id.parse() {
                Ok(KernelId::Cpu(config)) => Ok(Box::new(CpuSubject::new(&bed, config, place))),
                Ok(KernelId::Gpu(_)) => Err(failed(Verdict::Refused, Some(id), "it runs on a GPU")),
                Err(error) => Err(failed(Verdict::Refused, Some(id), error)),
            }
        };
        let mut bench = Workbench::new(&bed, CpuStopwatch::default());
        for id in kernels {
            match subject(id, 0).and_then(|first| Ok((first, subject(id, 1)?))) {
                Ok((first, second)) => bench.add(first, Some(second)),
                Err(failed) => return work(Err(failed)),
            }
        }
        work(Ok(&mut OnWorkbench {
            bench,
            in_finals: in_finals.clone(),
        }));
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

    fn load(&mut self, _place: usize, _inputs: &Inputs) -> Result<(), Trouble> {
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

    fn see(&mut self, _place: usize, _what: Output, _look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble> {
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
