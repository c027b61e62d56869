//! Runs programs by the simulator and on a GPU, and compares.

use std::collections::BTreeMap;

use flashcore_bench::gpu::launch;
use flashcore_cuda::{Context, CudaError, DeviceBuffer, Function, ModuleOptions, Stream};
use flashcore_ir::BuildErrors;
use flashcore_sim::{Case, SimError, SimOptions, TensorSums};
use thiserror::Error;

use crate::fuzz::emit::Emitted;
use crate::fuzz::input::{Buffer, SCRATCH, case};
use crate::fuzz::program::Program;
use crate::fuzz::slot::Slot;

/// A program that is ready to run.
#[derive(Clone)]
pub struct Prepared {
    /// The program.
    pub program: Program,
    /// How the words are compared that its kernel stores.
    pub slots: Vec<Slot>,
    /// Its kernel, launch and buffers.
    pub case: Case,
    /// How the simulator computes sums of products: where it is as the GPU does, they are compared
    /// bit by bit.
    pub sums: TensorSums,
}

/// Why a program could not be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The kernel language refuses it: a mistake of the generator.
    #[error("the program does not build: {0}")]
    Build(#[from] BuildErrors),
    /// The simulator refuses the launch: the same.
    #[error("the simulator does not take it: {0}")]
    Simulator(#[from] SimError),
    /// The simulator finds something in a program that has no mistake: a false alarm, or a mistake
    /// of the generator.
    #[error("the simulator finds: {0}")]
    Finding(String),
    /// The driver refuses it, or the launch fails.
    #[error("the GPU does not run it: {0}")]
    Gpu(#[from] CudaError),
}

/// Where two results differ by more than is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error(
    "{:?} word {} of thread {} ({:?}): simulator {simulated:#010x}, GPU {:#010x}",
    word.buffer, word.place, word.thread, word.slot, word.value
)]
pub struct Mismatch {
    /// The GPU's word.
    pub word: Word,
    /// The simulator's.
    pub simulated: u32,
}

/// The outcome of a comparison of two results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The first mismatch.
    pub mismatch: Option<Mismatch>,
    /// Words compared.
    pub words: u64,
    /// For each bound, the largest difference as a share of it.
    pub worst: BTreeMap<&'static str, f64>,
}

/// One word of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Word {
    /// The buffer it is in.
    pub buffer: Buffer,
    /// Which of the thread's words there.
    pub place: usize,
    /// The thread, counted through all blocks; of common counters, groups of [`SCRATCH`].
    pub thread: usize,
    /// How it is compared.
    pub slot: Slot,
    /// The word.
    pub value: u32,
}

impl Prepared {
    /// Writes a program's kernel and its inputs.
    pub fn new(program: Program, sums: TensorSums) -> Result<Prepared, RunError> {
        let Emitted { kernel, mut slots } = program.emit()?;
        if sums != TensorSums::Exact {
            slots = slots.iter().map(|slot| slot.with_exact_sums()).collect();
        }
        Ok(Prepared {
            case: case(&program, kernel, slots.len().max(1)),
            program,
            slots,
            sums,
        })
    }

    /// What the simulator computes; `schedule` picks the order in which warps run.
    pub fn simulate(&self, schedule: u64) -> Result<Vec<Word>, RunError> {
        let options = SimOptions {
            seed: schedule,
            tensor_sums: self.sums,
            ..SimOptions::default()
        };
        let mut case = self.case.clone();
        match case.simulate(&options)?.findings.first() {
            Some(finding) => Err(RunError::Finding(finding.to_string())),
            None => Ok(self.words(&case.buffers)),
        }
    }

    /// What a GPU computes.
    pub fn measure(&self, context: &Context) -> Result<Vec<Word>, RunError> {
        // Modules here may spill and be slow, unlike those of the library.
        let options = ModuleOptions {
            allow_local_memory: true,
            allow_performance_warnings: true,
            ..ModuleOptions::default()
        };
        Ok(self.words(&launch(context, &self.case, &options)?))
    }

    /// Every word of a result: first [`Buffer::Out`] place by place, then the other buffers.
    fn words(&self, after: &[Vec<u8>]) -> Vec<Word> {
        let threads = self.program.all_threads() as usize;
        let mut words = Vec::new();
        for (buffer, slot) in [
            (Buffer::Out, None),
            (Buffer::Scratch, Some(Slot::Bits)),
            (Buffer::ScratchF, Some(Slot::F32)),
            (Buffer::Sums, Some(Slot::Bits)),
            (Buffer::Boxes, Some(Slot::F16x2)),
        ] {
            for (index, bytes) in after[buffer as usize].as_chunks().0.iter().enumerate() {
                let value = u32::from_le_bytes(*bytes);
                let (place, thread) = match slot {
                    None => (index / threads, index % threads),
                    Some(_) => (index % SCRATCH as usize, index / SCRATCH as usize),
                };
                // A program that stores nothing has a place without a slot.
                words.extend(slot.or(self.slots.get(place).copied()).map(|slot| Word {
                    buffer,
                    place,
                    thread,
                    slot,
                    value,
                }));
            }
        }
        words
    }

    /// Compares the simulator's result with a GPU's, as the slots of the first say.
    pub fn compare(&self, simulated: &[Word], measured: &[Word]) -> Comparison {
        let threads = self.program.all_threads() as usize;
        let mut result = Comparison::default();
        for (ours, &word) in simulated.iter().zip(measured) {
            let at = |place: usize| simulated[place * threads + word.thread].value;
            let difference = ours.slot.difference(ours.value, word.value, at);
            result.words += 1;
            if let Some(name) = ours.slot.bound_name() {
                result.note(name, difference);
            }
            if difference > 1.0 && result.mismatch.is_none() {
                let simulated = ours.value;
                result.mismatch = Some(Mismatch { word, simulated });
            }
        }
        result
    }
}

impl Comparison {
    fn note(&mut self, bound: &'static str, difference: f64) {
        let worst = self.worst.entry(bound).or_default();
        *worst = worst.max(difference);
    }

    /// Adds another comparison.
    pub fn merge(&mut self, other: &Comparison) {
        self.words += other.words;
        other
            .worst
            .iter()
            .for_each(|(bound, &difference)| self.note(bound, difference));
    }
}

/// Launches a kernel on a GPU, and returns what its buffers hold after it.
pub fn launch(context: &Context, case: &Case, options: &ModuleOptions) -> Result<Vec<Vec<u8>>, CudaError> {
    let (function, stream) = (Function::load(context, &case.kernel, options)?, Stream::new(context)?);
    let upload = |bytes: &Vec<u8>| DeviceBuffer::from_host(&stream, bytes);
    let device: Vec<DeviceBuffer> = case.buffers.iter().map(upload).collect::<Result<_, _>>()?;
    let slices: Vec<_> = device.iter().map(DeviceBuffer::as_slice).collect();
    launch::run(&function, &stream, &case.launch, &slices)?;
    device.iter().map(|buffer| buffer.to_vec(&stream)).collect()
}

/// How a GPU sums products: Hopper's way is known to the last bit.
pub fn sums_of(context: Option<&Context>) -> TensorSums {
    match context.map(|context| context.info().compute_capability) {
        Some((9, 0)) => TensorSums::Hopper,
        _ => TensorSums::Exact,
    }
}
