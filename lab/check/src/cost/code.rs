//! [`Code`]: the instructions of a kernel's text, as the model reads them.

use flashcore_ir::{Kernel, SiteId, SourceLine};
use flashcore_ptx::{Function, Instruction, Module, Spelled};
use flashcore_sim::PtxKernel;

use super::observe::{Runs, Sample};
use super::rates::Latencies;
use super::work::{Memory, Timing, Work, price};
use crate::check::CheckError;

/// The instructions of a kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    steps: Vec<Step>,
    /// Its registers.
    pub(crate) registers: usize,
    /// Whether warps set their numbers of registers.
    pub(crate) sets_registers: bool,
}

#[derive(Clone, Debug)]
struct Step {
    inst: Instruction,
    form: Spelled,
    /// The kernel's own line, not that of a verb.
    line: SourceLine,
    reads: Vec<u32>,
    writes: Vec<u32>,
}

impl Code {
    /// That of an own kernel.
    pub(crate) fn of(kernel: &Kernel) -> Result<Code, CheckError> {
        let module = Module::read(&kernel.to_ptx()).map_err(flashcore_sim::SimError::from)?;
        let sites = kernel.notes().sites;
        let function = module.kernels.first().cloned().unwrap_or_default();
        Code::new(&module, &function, |at| kernel.kernel_line(sites[at]))
    }

    /// That of a kernel of another compiler.
    pub(crate) fn of_text(module: &Module, read: &PtxKernel) -> Result<Code, CheckError> {
        let line = |at| read.kernel().kernel_line(read.site(at).unwrap_or(SiteId(0)));
        Code::new(module, read.function(), line)
    }

    fn new(module: &Module, function: &Function, line: impl Fn(usize) -> SourceLine) -> Result<Code, CheckError> {
        let mut steps = Vec::with_capacity(function.instructions.len());
        for (at, inst) in function.instructions.iter().enumerate() {
            let form = match &module.forms()[inst.form as usize] {
                Ok(form) if is_known(form) => form.clone(),
                Ok(form) => return Err(CheckError::Unknown(flashcore_ptx::print(form))),
                Err(missing) => return Err(CheckError::Unknown(missing.form.clone())),
            };
            let [reads, writes] = inst.registers(&form);
            let numbers = |all: Vec<flashcore_ptx::Register>| all.into_iter().map(|register| register.0).collect();
            steps.push(Step {
                reads: numbers(reads),
                writes: numbers(writes),
                line: line(at),
                inst: inst.clone(),
                form,
            });
        }
        let last = function.registers.last();
        Ok(Code {
            sets_registers: steps.iter().any(|step| step.form.name() == "setmaxnreg"),
            steps,
            registers: last.map_or(0, |it| it.first.0 + it.count.unwrap_or(1)) as usize,
        })
    }

    pub(crate) fn line(&self, at: usize) -> SourceLine {
        self.steps[at].line
    }

    pub(crate) fn form(&self, at: usize) -> &Spelled {
        &self.steps[at].form
    }

    /// The registers that an instruction reads, and those that it writes.
    pub(crate) fn registers_of(&self, at: usize) -> [&[u32]; 2] {
        [&self.steps[at].reads, &self.steps[at].writes]
    }

    /// The work of one execution of an instruction by a warp, and what it waits for.
    pub(crate) fn price(&self, at: usize, runs: &Runs, misses: f64, latency: &Latencies) -> (Work, Timing) {
        let memory = Memory {
            transactions: runs.transactions / runs.runs.max(1.0),
            shared: runs.shared / runs.runs.max(1.0),
            misses,
        };
        price(&self.steps[at].inst, &self.steps[at].form, memory, latency)
    }

    /// The work of one execution of an instruction, of those that were counted.
    pub(crate) fn work_once(&self, at: usize, runs: &Runs, misses: f64) -> Work {
        self.price(at, runs, misses, &Latencies::default()).0
    }

    /// The work of a block.
    pub(crate) fn work(&self, sample: &Sample) -> Work {
        let mut work = Work::default();
        for (at, runs) in sample.runs.iter().enumerate().filter(|(_, runs)| runs.runs > 0.0) {
            work.add(&self.work_once(at, runs, sample.misses), runs.runs);
        }
        work
    }
}

/// Whether the model covers a form. Loads, stores and sums in another block's shared memory are not modelled.
fn is_known(form: &Spelled) -> bool {
    !(matches!(form.name(), "ld" | "st" | "atom" | "red") && form.has("shared::cluster"))
}
