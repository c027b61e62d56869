//! A worker's devices. Each opens kernels on a [`Workbench`], or as times that were measured once.

use flashcore::KernelId;
use flashcore_bench::cpu::{CpuBed, CpuStopwatch, CpuSubject};
use flashcore_bench::planted::{Conduct, InFinals, Planted};
use flashcore_bench::{BenchError, DeviceIdentity, Measurement, Mode, Options, Subject, Trouble, Workbench};
use flashcore_problem::Problem;

use super::protocol::{Failed, Opened};
use super::replayed::{self, Replayed};
use crate::trial::Verdict;

pub(super) trait Device {
    fn identity(&self) -> DeviceIdentity;

    fn computes(&self) -> bool {
        true
    }

    fn compile(&self, _problem: &Problem, _kernels: &[String]) {}

    fn rates(&self) -> Result<(), String> {
        Err("only GPUs are measured".to_string())
    }

    /// Opens kernels and passes them to `work`. They are closed when it returns.
    fn open(&self, problem: &Problem, kernels: &[String], work: &mut dyn FnMut(Open<'_>)) -> Result<(), Failed>;
}

pub(super) enum Open<'a> {
    /// The flag is set when the kernels are timed as finalists, for planted candidates.
    Bench(Workbench<'a>, InFinals),
    Replayed(Replayed),
}

impl<'a> Open<'a> {
    pub(super) fn bind(
        mut bench: Workbench<'a>,
        kernels: usize,
        in_finals: InFinals,
        bind: impl Fn(usize, usize) -> Result<Box<dyn Subject + 'a>, Failed>,
    ) -> Result<Open<'a>, Failed> {
        for kernel in 0..kernels {
            bench.add(bind(kernel, 0)?, Some(bind(kernel, 1)?));
        }
        Ok(Open::Bench(bench, in_finals))
    }

    pub(super) fn opened(&self) -> Vec<Opened> {
        let opened = |subject: &dyn Subject| {
            let info = subject.info();
            Opened::new(&info.label, info.module.clone(), info.attributes)
        };
        match self {
            Open::Bench(bench, _) => bench.subjects.iter().map(|subject| opened(&**subject)).collect(),
            Open::Replayed(rows) => rows.iter().map(|(id, _)| Opened::new(id, None, None)).collect(),
        }
    }

    pub(super) fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, BenchError> {
        match self {
            Open::Bench(bench, in_finals) => {
                // Candidates are screened; finalists are timed in other modes.
                in_finals.set(in_finals.get() || mode != Mode::Screen);
                bench.time(options, mode, baseline, None, &mut ())
            }
            Open::Replayed(rows) => replayed::time(rows, baseline, mode, options),
        }
    }

    pub(super) fn bench(&mut self) -> Result<&mut Workbench<'a>, Trouble> {
        match self {
            Open::Bench(bench, _) => Ok(bench),
            Open::Replayed(_) => Err(Trouble::new("a replay has times and no outputs")),
        }
    }
}

pub(super) struct Cpu;

impl Device for Cpu {
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity::cpu()
    }

    fn open(&self, problem: &Problem, kernels: &[String], work: &mut dyn FnMut(Open<'_>)) -> Result<(), Failed> {
        let in_finals = InFinals::default();
        let bed = CpuBed::new(problem);
        let bind = |kernel: usize, place: usize| -> Result<Box<dyn Subject + '_>, Failed> {
            let id = kernels[kernel].as_str();
            let refused = |reason: String| Failed::new(Verdict::Refused, Some(id), reason);
            if let Some(conduct) = Conduct::of_id(id) {
                buildable(conduct, id)?;
                let config = flashcore_cpu::default_config(problem, rayon::current_num_threads());
                let honest = CpuSubject::new(&bed, config, place);
                return Ok(Box::new(Planted::new(conduct, honest, &bed, place, in_finals.clone())));
            }
            match id.parse() {
                Ok(KernelId::Cpu(config)) => Ok(Box::new(CpuSubject::new(&bed, config, place))),
                Ok(_) => Err(refused("it runs on a GPU".to_string())),
                Err(error) => Err(refused(flashcore::Error::to_string(&error))),
            }
        };
        let bench = Workbench::new(&bed, CpuStopwatch::default());
        work(Open::bind(bench, kernels.len(), in_finals.clone(), bind)?);
        Ok(())
    }
}

pub(super) fn buildable(conduct: Conduct, id: &str) -> Result<(), Failed> {
    conduct
        .build()
        .map_err(|reason| Failed::new(Verdict::BuildFailed, Some(id), reason))
}
