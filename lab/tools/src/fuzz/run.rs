//! Runs programs by the simulator and on a GPU, and compares.

use std::collections::BTreeMap;

use flashcore_cuda::{Context, CudaError, DeviceBuffer, Function, Module, ModuleOptions, Stream};
use flashcore_ir::{BuildErrors, Kernel, Launch};
use flashcore_sim::{SimError, SimOptions, TensorSums, simulate};
use thiserror::Error;

use crate::fuzz::emit::Emitted;
use crate::fuzz::input::{Buffer, SCRATCH, buffers, launch};
use crate::fuzz::program::Program;
use crate::fuzz::slot::Slot;

/// The contents of a launch's buffers, by slot.
pub type Buffers = Vec<Vec<u8>>;

/// A program that is ready to run.
pub struct Prepared {
    /// The program.
    pub program: Program,
    /// Its kernel and the words that it stores.
    pub emitted: Emitted,
    /// How to launch it.
    pub launch: Launch,
    /// What the buffers hold before.
    pub before: Buffers,
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

impl Prepared {
    /// Writes a program's kernel and its inputs.
    ///
    /// # Errors
    /// [`RunError::Build`].
    pub fn new(program: Program, sums: TensorSums) -> Result<Prepared, RunError> {
        let mut emitted = program.emit()?;
        if sums != TensorSums::Exact {
            emitted.slots = emitted.slots.iter().map(|slot| slot.with_exact_sums()).collect();
        }
        let places = emitted.slots.len().max(1);
        Ok(Prepared {
            launch: launch(&program, &emitted.kernel, places),
            before: buffers(&program, places),
            program,
            emitted,
            sums,
        })
    }

    /// What the simulator computes; `schedule` picks the order in which warps run.
    ///
    /// # Errors
    /// [`RunError::Simulator`], [`RunError::Finding`].
    pub fn simulate(&self, schedule: u64) -> Result<Buffers, RunError> {
        self.simulate_kernel(&self.emitted.kernel, schedule)
    }

    /// What the simulator computes with another kernel in its place.
    ///
    /// # Errors
    /// As [`Prepared::simulate`].
    pub fn simulate_kernel(&self, kernel: &Kernel, schedule: u64) -> Result<Buffers, RunError> {
        let mut after = self.before.clone();
        let options = SimOptions {
            seed: schedule,
            tensor_sums: self.sums,
            ..SimOptions::default()
        };
        let report = simulate(kernel, &self.launch, &mut after, &options)?;
        match report.findings.first() {
            Some(finding) => Err(RunError::Finding(finding.to_string())),
            None => Ok(after),
        }
    }

    /// What a GPU computes, with the kernel from a module that has it.
    ///
    /// # Errors
    /// [`RunError::Gpu`].
    pub fn measure(&self, module: &Module, stream: &Stream) -> Result<Buffers, RunError> {
        let function = module.function(self.emitted.kernel.name())?;
        Ok(launch_on(stream, &function, &self.launch, &self.before)?)
    }

    /// Every word of a result, in the program's order.
    pub fn words(&self, after: &[Vec<u8>]) -> Vec<Word> {
        let threads = (self.program.threads * self.program.blocks) as usize;
        let mut words = Vec::new();
        for (index, value) in to_words(&after[Buffer::Out as usize]).into_iter().enumerate() {
            let (place, thread) = (index / threads, index % threads);
            if let Some(&slot) = self.emitted.slots.get(place) {
                words.push(Word {
                    buffer: Buffer::Out,
                    place,
                    thread,
                    slot,
                    value,
                });
            }
        }
        let others = [
            (Buffer::Scratch, Slot::Bits),
            (Buffer::ScratchF, Slot::F32),
            (Buffer::Sums, Slot::Bits),
            (Buffer::Boxes, Slot::F16x2),
        ];
        for (buffer, slot) in others {
            for (index, value) in to_words(&after[buffer as usize]).into_iter().enumerate() {
                let (thread, place) = (index / SCRATCH as usize, index % SCRATCH as usize);
                words.push(Word {
                    buffer,
                    place,
                    thread,
                    slot,
                    value,
                });
            }
        }
        words
    }

    /// Compares the simulator's result with a GPU's.
    pub fn compare(&self, simulated: &[Vec<u8>], measured: &[Vec<u8>]) -> Comparison {
        let measured = self.words(measured);
        self.compare_words(simulated, measured)
    }

    /// Compares the simulator's result with some words of a GPU's.
    pub fn compare_words(&self, simulated: &[Vec<u8>], measured: impl IntoIterator<Item = Word>) -> Comparison {
        let threads = (self.program.threads * self.program.blocks) as usize;
        let simulated: Vec<Vec<u32>> = simulated.iter().map(|bytes| to_words(bytes)).collect();
        let mut result = Comparison::default();
        for word in measured {
            let row = if word.buffer == Buffer::Out { threads } else { 1 };
            let at = |place: usize| match word.buffer {
                Buffer::Out => simulated[Buffer::Out as usize][place * row + word.thread],
                other => simulated[other as usize][word.thread * SCRATCH as usize + place],
            };
            result.add(word, at);
        }
        result
    }
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

/// The little-endian words of some bytes.
pub fn to_words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

impl Comparison {
    fn add(&mut self, word: Word, at: impl Fn(usize) -> u32) {
        let simulated = at(word.place);
        let difference = word.slot.difference(simulated, word.value, at);
        self.words += 1;
        if let Some(name) = word.slot.bound_name() {
            let worst = self.worst.entry(name).or_default();
            *worst = worst.max(difference);
        }
        if difference > 1.0 && self.mismatch.is_none() {
            self.mismatch = Some(Mismatch { word, simulated });
        }
    }

    /// Adds another comparison.
    pub fn merge(&mut self, other: &Comparison) {
        self.words += other.words;
        for (name, &difference) in &other.worst {
            let worst = self.worst.entry(name).or_default();
            *worst = worst.max(difference);
        }
    }
}

/// Launches a kernel on a GPU with these buffers, and returns what they hold after it.
pub(crate) fn launch_on(
    stream: &Stream,
    function: &Function,
    launch: &Launch,
    before: &[Vec<u8>],
) -> Result<Buffers, CudaError> {
    let upload = |bytes: &Vec<u8>| DeviceBuffer::from_host(stream, bytes);
    let device: Vec<DeviceBuffer> = before.iter().map(upload).collect::<Result<_, _>>()?;
    let slices: Vec<_> = device.iter().map(DeviceBuffer::as_slice).collect();
    function.run(stream, launch, &slices)?;
    device.iter().map(|buffer| buffer.to_vec(stream)).collect()
}

/// How a GPU sums products: Hopper's way is known to the last bit.
pub fn sums_of(context: Option<&Context>) -> TensorSums {
    match context.map(|context| context.info().compute_capability) {
        Some((9, 0)) => TensorSums::Hopper,
        _ => TensorSums::Exact,
    }
}

/// Modules here may spill and be slow, unlike those of the library.
fn module_options() -> ModuleOptions {
    ModuleOptions {
        allow_local_memory: true,
        allow_performance_warnings: true,
        ..ModuleOptions::default()
    }
}

/// Compiles one program's kernel.
///
/// # Errors
/// [`RunError::Gpu`].
pub fn compile_one(context: &Context, program: &Prepared) -> Result<Module, RunError> {
    Ok(Module::load(
        context,
        &joined([&program.emitted.kernel]),
        &module_options(),
    )?)
}

/// Compiles the kernels of some programs, those for one architecture together; gives each its
/// module.
///
/// # Errors
/// [`RunError::Gpu`].
pub fn compile(context: &Context, programs: &[Prepared]) -> Result<Vec<Module>, RunError> {
    let target = |prepared: &Prepared| {
        let required = prepared.emitted.kernel.requires();
        (required.ptx, required.target_name())
    };
    let mut modules = BTreeMap::new();
    let mut of_each = Vec::new();
    for prepared in programs {
        let key = target(prepared);
        let module = match modules.get(&key) {
            Some(module) => Module::clone(module),
            None => {
                let same = programs.iter().filter(|other| target(other) == key);
                let text = joined(same.map(|other| &other.emitted.kernel));
                Module::load(context, &text, &module_options())?
            }
        };
        modules.insert(key, module.clone());
        of_each.push(module);
    }
    Ok(of_each)
}

/// Kernels for one architecture as one text.
///
/// ```
/// use flashcore_tools::fuzz::{Program, run};
/// let kernels = [1, 2].map(|seed| Program::random(seed).emit().unwrap().kernel);
/// let text = run::joined(&kernels);
/// assert_eq!(text.matches(".visible .entry").count(), 2);
/// assert_eq!(text.matches(".version").count(), 1);
/// ```
pub fn joined<'a>(kernels: impl IntoIterator<Item = &'a Kernel>) -> String {
    let mut text = String::new();
    for kernel in kernels {
        let ptx = kernel.to_ptx();
        let Some(entry) = ptx.find(".visible .entry") else {
            continue;
        };
        if text.is_empty() {
            let directives = ptx[..entry].lines().filter(|line| !line.contains(".shared"));
            directives.for_each(|line| text.extend([line, "\n"]));
            // One declaration for all, aligned as the strictest swizzle wants.
            text.push_str(".extern .shared .align 1024 .b8 shared_memory[];\n");
        }
        text.push_str(&ptx[entry..]);
    }
    text
}
