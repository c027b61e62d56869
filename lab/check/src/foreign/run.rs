//! Simulates a kernel of a PTX text.

use std::collections::{HashMap, HashSet};

use flashcore_ir::TensorMapRecipe;
use flashcore_problem::rng::Rng;
use flashcore_ptx::{Function, Module, Operand, Register};
use flashcore_ptx::{PtxEntry, PtxError, PtxParam};
use flashcore_sim::{FindingKind, PtxArg, PtxBuffer, PtxKernel, PtxLaunch, SimError, SimOptions};
use half::f16;
use thiserror::Error;

use super::outputs::{Open, differ};
use super::words;
use crate::Found;

/// Maximum total size of the buffers of a launch; the simulator keeps them twice.
pub const MAX_BUFFER_BYTES: u64 = 1 << 30;

/// The initial contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Random f32 between -1 and 1.
    F32,
    /// Random fp16 between -1 and 1.
    F16,
    /// Zeros.
    Zero,
    /// Uninitialised: reading it is a finding.
    Unwritten,
}

/// An argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// A buffer.
    Buffer {
        /// Its size.
        bytes: u64,
        /// Its initial contents.
        fill: Fill,
    },
    /// A buffer with these bytes.
    Contents {
        /// Its name in findings; that of the parameter if it is empty.
        name: String,
        /// Bytes of an element.
        element: u32,
        /// Whether reading it is a finding.
        is_unwritten: bool,
        /// What it holds.
        contents: Vec<u8>,
    },
    /// A pointer into the buffer of another argument.
    Into {
        /// Its place, from 0.
        argument: usize,
        /// Bytes from its begin.
        offset: u64,
    },
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// A tensor map of a buffer, which is the first of its recipe's launch.
    Map {
        /// The buffer.
        buffer: Box<Given>,
        /// The tensor in it, and its boxes.
        recipe: TensorMapRecipe,
    },
    /// A struct by value: bytes of each field, to which it is aligned, and the field.
    Struct(Vec<(usize, Given)>),
}

/// An invalid argument text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoArgument {
    /// It has none of the forms of an argument.
    #[error(
        "`{0}` is not an argument; write buf:BYTES (buf:8k), buf:BYTES:f16, :zero or :unwritten for a pointer, and 7, -3 or 0.5 for \
         a number"
    )]
    Form(String),
    /// A buffer that is too large.
    #[error("a buffer of {0} B; at most {MAX_BUFFER_BYTES} B are simulated; give the size that this grid accesses")]
    Bytes(u64),
}

impl std::str::FromStr for Given {
    type Err = NoArgument;

    fn from_str(text: &str) -> Result<Given, NoArgument> {
        let wrong = || NoArgument::Form(text.to_string());
        let Some(buffer) = text.strip_prefix("buf:") else {
            let integer = text.parse().map(Given::Integer);
            return integer.or_else(|_| text.parse().map(Given::Float).map_err(|_| wrong()));
        };
        let (bytes, fill) = buffer.split_once(':').unwrap_or((buffer, "f32"));
        let fill = match fill {
            "f32" => Fill::F32,
            "f16" => Fill::F16,
            "zero" => Fill::Zero,
            "unwritten" => Fill::Unwritten,
            _ => return Err(wrong()),
        };
        let (number, unit) = match bytes.strip_suffix(['k', 'K']) {
            Some(number) => (number, 1024),
            None => (bytes, 1),
        };
        let bytes: Option<u64> = number.parse().ok();
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(unit)).ok_or_else(wrong)?;
        if bytes > MAX_BUFFER_BYTES {
            return Err(NoArgument::Bytes(bytes));
        }
        Ok(Given::Buffer { bytes, fill })
    }
}

/// A launch of a PTX kernel.
#[derive(Clone, Debug, Default)]
pub struct ForeignLaunch {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads per block; by default those that the kernel declares.
    pub threads: Option<u32>,
    /// The same along x, y, z.
    pub block: Option<[u32; 3]>,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The arguments in order.
    pub args: Vec<Given>,
    /// Variables of the module that the host has set: names and bytes.
    pub variables: Vec<(String, Vec<u8>)>,
    /// Number of schedules.
    pub schedules: u32,
    /// Options of each simulation; the seed is that of the first schedule and of the buffers'
    /// contents.
    pub sim: SimOptions,
}

/// Why a PTX kernel cannot be simulated.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// It uses features that the kernel language does not have.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// Wrong number of arguments.
    #[error("{0} arguments; the kernel's parameters are {1}; give one for each, in order")]
    Arguments(usize, String),
    /// An argument (counted from 1) that does not fit the type of its parameter.
    #[error("argument {0} does not fit `{1}`, which is {2}")]
    Kind(usize, String, &'static str),
    /// An integer (counted from 1) that does not fit its parameter of so many bits.
    #[error("argument {0} is {2}; `{1}` has {3} bits, for {min} to {max}", min = -1i64 << (.3 - 1), max = (1i64 << .3) - 1)]
    Range(usize, String, i64, u32),
    /// An argument (counted from 1) into the buffer of one that has none.
    #[error("argument {0} points into the buffer of argument {1}, which has none")]
    Into(usize, usize),
    /// Buffers whose total size is too large.
    #[error("the buffers have {given} B in total; at most {MAX_BUFFER_BYTES} B are simulated; make them smaller")]
    Buffers {
        /// Bytes of all buffers.
        given: u64,
    },
    /// The simulator cannot run the launch.
    #[error(transparent)]
    Simulator(#[from] SimError),
}

/// Threads of a block; the most that there is a number for if there are more.
pub fn threads_in(block: [u32; 3]) -> u32 {
    block.iter().fold(1, |all: u32, &n| all.saturating_mul(n))
}

/// A launch with its buffers, for the simulator or a device.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The launch.
    pub launch: PtxLaunch,
    /// What its buffers contain before it.
    pub contents: Vec<Vec<u8>>,
    /// Those of them that hold nothing, by their places.
    pub unwritten: Vec<usize>,
}

fn named<'a>(module: &'a Module, kernel: &str) -> Result<(&'a PtxEntry, &'a Function), PtxError> {
    let missing = || PtxError::not_understood(format!("`{kernel}`"), "the text has no such kernel", 1);
    let mut entries = module.entries();
    entries.find(|(entry, _)| entry.name == kernel).ok_or_else(missing)
}

/// The launch of a kernel as the simulator takes it: arguments as bytes, and the buffers that they point to.
pub fn prepare(module: &Module, kernel: &str, file: &str, asked: &ForeignLaunch) -> Result<Prepared, RunError> {
    let (entry, function) = named(module, kernel)?;
    let declared = entry.required_threads.or(entry.max_threads);
    let is_same = |block: &[u32; 3]| asked.threads.is_none_or(|threads| threads_in(*block) == threads);
    let block = asked
        .block
        .or(declared.filter(is_same))
        .or(asked.threads.map(|threads| [threads, 1, 1]));
    let undeclared = "it does not declare its number of threads; give one";
    let block = block.ok_or_else(|| PtxError::not_understood(format!("`{kernel}`"), undeclared, entry.line))?;
    let bound = bind(entry, &pointers(module, function), asked)?;
    Ok(Prepared {
        launch: PtxLaunch {
            file: file.to_string(),
            grid: asked.grid,
            block,
            dynamic_shared: asked.dynamic_shared,
            buffers: bound.buffers,
            args: bound.args,
            variables: asked.variables.clone(),
        },
        contents: bound.contents,
        unwritten: bound.unwritten,
    })
}

/// What came of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// The findings, with the lines of `.loc` if there are any.
    pub found: Vec<Found>,
    /// What the buffers contain after the first schedule, in the order of the arguments.
    pub outputs: Vec<Vec<u8>>,
}

/// Simulates a kernel of a PTX text under several schedules. The output is not judged, but must be the same under
/// each, and with each layout of `wmma` fragments, unless the kernel has atomic operations.
pub fn run(text: &str, kernel: &str, file: &str, asked: &ForeignLaunch) -> Result<Ran, RunError> {
    let module = Module::read(text)?;
    let prepared = prepare(&module, kernel, file, asked)?;
    let text_error = |error| match error {
        SimError::Text(error) => RunError::Ptx(error),
        error => RunError::Simulator(error),
    };
    let read = PtxKernel::read(&module, kernel, &prepared.launch).map_err(text_error)?;
    let mut options = asked.sim.clone();
    options.uninitialized = prepared.unwritten;
    let open = Open::of(&module, named(&module, kernel)?.1)?;
    let simulate = |options: &SimOptions| {
        let mut contents = prepared.contents.clone();
        let report = read.simulate(&mut contents, options).map_err(text_error)?;
        Ok::<_, RunError>((report.findings, contents))
    };
    let (mut found, mut outputs) = (Vec::new(), None);
    for schedule in (0..asked.schedules.max(1)).map(|n| asked.sim.seed.wrapping_add(u64::from(n))) {
        options.seed = schedule;
        let (mut findings, contents) = simulate(&options)?;
        let first = outputs.get_or_insert_with(|| contents.clone());
        if found.is_empty() && findings.is_empty() && !open.atomics {
            let than = format!(
                "than under schedule {}; nothing orders the threads as it relies on",
                asked.sim.seed
            );
            findings.extend(differ(&read, FindingKind::Nondeterministic, &than, [first, &contents]));
        }
        Found::add(&mut found, findings.into_iter().map(words::of_cuda).collect(), schedule);
    }
    let outputs = outputs.unwrap_or_default();
    if open.fragments && !open.atomics && found.is_empty() {
        (options.seed, options.permuted_fragments) = (asked.sim.seed, true);
        let (_, contents) = simulate(&options)?;
        let than = "if the elements of `wmma` fragments are in other lanes and registers, which PTX leaves open";
        let layout = differ(&read, FindingKind::OpaqueLayout, than, [&outputs, &contents]);
        Found::add(
            &mut found,
            layout.into_iter().map(words::of_cuda).collect(),
            options.seed,
        );
    }
    Ok(Ran { found, outputs })
}

/// The parameters that are used as addresses as they are.
fn pointers<'a>(module: &'a Module, function: &'a Function) -> HashSet<&'a str> {
    let mut loaded: HashMap<Register, &str> = HashMap::new();
    let mut found = HashSet::new();
    for inst in &function.instructions {
        let Ok(form) = &module.forms()[inst.form as usize] else {
            continue;
        };
        match (form.name(), &inst.operands[..]) {
            ("ld", [Operand::Register(to), Operand::Memory(base, 0)]) if form.has("param") => {
                if let Operand::Symbol(name, _) = &**base {
                    loaded.insert(*to, name);
                }
            }
            ("cvta", [_, Operand::Register(from)]) => found.extend(loaded.get(from)),
            (_, operands) => {
                for operand in operands {
                    if let Operand::Memory(base, _) = operand
                        && let Operand::Register(from) = &**base
                    {
                        found.extend(loaded.get(from));
                    }
                }
            }
        }
    }
    found
}

/// Arguments, the buffers that they point to, and what these contain.
#[derive(Default)]
struct Bound {
    args: Vec<PtxArg>,
    buffers: Vec<PtxBuffer>,
    contents: Vec<Vec<u8>>,
    /// Buffers that hold nothing, by their places.
    unwritten: Vec<usize>,
}

impl Bound {
    /// Adds a buffer, and its address to an argument.
    fn point(&mut self, arg: &mut PtxArg, offset: usize, (name, element): (String, u32), contents: Vec<u8>) {
        arg.pointers.push((offset, self.buffers.len()));
        self.buffers.push(PtxBuffer {
            name,
            bytes: contents.len() as u64,
            element,
            written: true,
        });
        self.contents.push(contents);
    }

    /// Writes a value into an argument; whether it is one of so many bytes.
    fn put(
        &mut self,
        arg: &mut PtxArg,
        (offset, bytes): (usize, usize),
        given: &Given,
        name: String,
        seed: u64,
    ) -> bool {
        let is_pointer = bytes == 8;
        match given {
            Given::Buffer { bytes, fill } if is_pointer => {
                if *fill == Fill::Unwritten {
                    self.unwritten.push(self.buffers.len());
                }
                self.point(arg, offset, (name, 4), filled(*bytes, *fill, seed));
            }
            Given::Contents {
                name: given,
                element,
                is_unwritten,
                contents,
            } if is_pointer => {
                let name = if given.is_empty() { name } else { given.clone() };
                if *is_unwritten {
                    self.unwritten.push(self.buffers.len());
                }
                self.point(arg, offset, (name, *element), contents.clone());
            }
            Given::Integer(x) if [1, 2, 4, 8].contains(&bytes) => {
                arg.bytes[offset..offset + bytes].copy_from_slice(&x.to_le_bytes()[..bytes]);
            }
            Given::Float(x) if bytes == 4 => arg.bytes[offset..offset + 4].copy_from_slice(&(*x as f32).to_le_bytes()),
            Given::Float(x) if bytes == 8 => arg.bytes[offset..offset + 8].copy_from_slice(&x.to_le_bytes()),
            _ => return false,
        }
        true
    }
}

fn bind(entry: &PtxEntry, pointers: &HashSet<&str>, asked: &ForeignLaunch) -> Result<Bound, RunError> {
    let kind = |param: &PtxParam| match param.ty.as_str() {
        _ if pointers.contains(param.name.as_str()) => "a pointer",
        "f32" | "f64" => "a float",
        _ if ![1, 2, 4, 8].contains(&param.bytes) => "a struct",
        _ => "an integer",
    };
    // Compilers number the parameters of a kernel.
    let of_compiler = format!("{}_param_", entry.name);
    let name = |param: &PtxParam| match param.name.strip_prefix(&of_compiler).map(str::parse::<u32>) {
        Some(Ok(number)) => format!("argument {}", number + 1),
        _ => param.name.strip_prefix("param_").unwrap_or(&param.name).to_string(),
    };
    if entry.params.len() != asked.args.len() {
        let needed = entry.params.iter();
        let needed: Vec<String> = needed
            .map(|param| format!("`{}` ({})", name(param), kind(param)))
            .collect();
        return Err(RunError::Arguments(asked.args.len(), needed.join(", ")));
    }
    let given = asked.args.iter().map(bytes_of).fold(0, u64::saturating_add);
    if given > MAX_BUFFER_BYTES {
        return Err(RunError::Buffers { given });
    }
    let (mut bound, mut slots) = (Bound::default(), Vec::new());
    for (number, (param, given)) in (1..).zip(entry.params.iter().zip(&asked.args)) {
        let size = param.bytes as usize;
        let mut arg = PtxArg {
            bytes: vec![0; size],
            ..PtxArg::default()
        };
        let seed = asked.sim.seed + number as u64;
        let is_pointer = pointers.contains(param.name.as_str());
        let fits = match (given, param.ty.as_str()) {
            (Given::Map { buffer, recipe }, _) => {
                let slot = bound.buffers.len();
                arg.map = Some(TensorMapRecipe { slot, ..recipe.clone() });
                // The map has the address, not the parameter.
                let mut pointer = PtxArg {
                    bytes: vec![0; 8],
                    ..PtxArg::default()
                };
                size == 128 && bound.put(&mut pointer, (0, 8), buffer, name(param), seed)
            }
            (Given::Struct(fields), _) => {
                let mut offset = 0usize;
                fields.iter().all(|(bytes, field)| {
                    let at = offset.next_multiple_of(*bytes);
                    offset = at + bytes;
                    offset <= size && bound.put(&mut arg, (at, *bytes), field, name(param), seed)
                })
            }
            (Given::Buffer { .. } | Given::Contents { .. }, "f64") => false,
            (Given::Into { .. }, ty) => size == 8 && ty != "f64",
            // The null pointer is one.
            (Given::Integer(_) | Given::Float(_), _) if is_pointer && *given != Given::Integer(0) => false,
            (Given::Integer(x), "f32" | "f64") => {
                bound.put(&mut arg, (0, size), &Given::Float(*x as f64), name(param), seed)
            }
            (Given::Float(_), ty) if !ty.starts_with('f') => false,
            // The ranges of both signed and unsigned numbers.
            (Given::Integer(x), _) if size < 8 && !(-1i64 << (8 * size - 1)..1i64 << (8 * size)).contains(x) => {
                return Err(RunError::Range(number, name(param), *x, 8 * size as u32));
            }
            _ => bound.put(&mut arg, (0, size), given, name(param), seed),
        };
        if !fits {
            return Err(RunError::Kind(number, name(param), kind(param)));
        }
        slots.push(arg.pointers.first().map(|(_, slot)| *slot));
        bound.args.push(arg);
    }
    for (number, (arg, given)) in (1..).zip(bound.args.iter_mut().zip(&asked.args)) {
        if let Given::Into { argument, offset } = given {
            let slot = slots.get(*argument).copied().flatten();
            arg.pointers
                .push((0, slot.ok_or(RunError::Into(number, argument + 1))?));
            arg.bytes.copy_from_slice(&offset.to_le_bytes());
        }
    }
    Ok(bound)
}

fn bytes_of(given: &Given) -> u64 {
    match given {
        Given::Buffer { bytes, .. } => *bytes,
        Given::Contents { contents, .. } => contents.len() as u64,
        Given::Map { buffer, .. } => bytes_of(buffer),
        Given::Struct(fields) => fields.iter().map(|(_, field)| bytes_of(field)).sum(),
        Given::Integer(_) | Given::Float(_) | Given::Into { .. } => 0,
    }
}

fn filled(bytes: u64, fill: Fill, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    // 2,001 numbers from -1 to 1.
    let mut number = || rng.below(2001) as f32 / 1000.0 - 1.0;
    let size = bytes as usize;
    let mut data: Vec<u8> = match fill {
        Fill::F32 => (0..size.div_ceil(4)).flat_map(|_| number().to_le_bytes()).collect(),
        Fill::F16 => {
            let mut number = || f16::from_f32(number()).to_le_bytes();
            (0..size.div_ceil(2)).flat_map(|_| number()).collect()
        }
        Fill::Zero => vec![0; size],
        Fill::Unwritten => vec![flashcore_problem::POISON; size],
    };
    data.truncate(size);
    data
}

#[cfg(test)]
mod tests;
