//! Kernels of other compilers: the resources of a `.ptx` or `.cubin` file, and whether a card can
//! launch it.
//!
//! [`read`] finds the kernels of a file, [`assemble`] gets the registers of PTX from an offline
//! ptxas, [`run`] simulates PTX kernels, and [`judge`] lists the
//! [`Problem`]s of a launch on a card.

mod compile;
mod cubin;
mod fatbin;
mod judge;
mod kind;
mod launch_file;
mod names;
mod outputs;
mod run;
#[cfg(test)]
mod tests;
mod time;
pub mod triton;
mod words;

use flashcore_ir::Target;
use flashcore_ir::inst::{Address, Cache, Inst, Object, Operand};
pub use flashcore_ir::proof::CodeForm;
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ptx::{Function, Module, Understood};
use flashcore_ptx::{PtxEntry, PtxError};
use flashcore_sim::executes;
use serde::Serialize;
use thiserror::Error;

pub use compile::{CompileError, Compiled, PACKAGES, Source, compile, most_registers, named, names_arch};
pub use fatbin::{Embedded, embedded};
pub use judge::{Asked, Problem, ProblemKind, Verdict, judge, threads_of, verdict};
pub use kind::binary_kind;
pub use launch_file::{LaunchFile, LaunchFileError};
pub(crate) use names::is_called;
pub use names::readable;
pub use run::{
    Fill, ForeignLaunch, Given, MAX_BUFFER_BYTES, NoArgument, Prepared, Ran, RunError, prepare, run, threads_in,
};
pub use time::{Spending, Spent, Time, time};

use crate::registers::{self, Assembler, Unknown};

/// Why the kernels of a file cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignError {
    /// A text that is not PTX.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// A binary that is not a cubin.
    #[error(
        "{0}; a cubin (nvcc -cubin, ptxas -o) or PTX (nvcc -ptx) is needed; `cuobjdump -xelf all` extracts cubins from \
         programs and fat binaries"
    )]
    NoCubin(String),
    /// An incomplete or inconsistent cubin.
    #[error("this cubin cannot be read: {0}")]
    Broken(String),
    /// A file without kernels.
    #[error("this file has no kernels")]
    NoKernels,
    /// A kernel that does not exist.
    #[error("no kernel is named `{0}`; there are {1}")]
    NoSuchKernel(String, String),
}

/// A symbol in a kernel's shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shared {
    /// Its name.
    pub name: String,
    /// Type and dimensions, if known.
    pub declared: Option<String>,
    /// Bytes; 0 if the launch sets the size.
    pub bytes: u64,
    /// Whether the launch sets its size.
    pub is_dynamic: bool,
    /// Line of its declaration, if known.
    pub line: Option<u32>,
}

/// A kernel of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ForeignKernel {
    /// Its name in the linker.
    pub name: String,
    /// Its form.
    pub form: CodeForm,
    /// Its architecture, such as `sm_80`.
    pub made_for: String,
    /// Its PTX version.
    pub ptx_version: Option<(u32, u32)>,
    /// Bytes of each parameter.
    pub parameter_bytes: Vec<u64>,
    /// Registers per thread, if known.
    pub registers: Option<u32>,
    /// Spilled bytes per thread, if ptxas reports them.
    pub spilled_bytes: Option<u32>,
    /// Bytes of stack per thread in local memory (spills and arrays), for cubins.
    pub stack_bytes: Option<u32>,
    /// Source of these numbers.
    pub compiler: Option<String>,
    /// Bytes of static shared memory per block.
    pub static_shared: u64,
    /// The known symbols in shared memory.
    pub shared: Vec<Shared>,
    /// Declared maximum of threads per block.
    pub max_threads: Option<u32>,
    /// Required threads per block.
    pub required_threads: Option<u32>,
    /// Required cluster.
    pub required_cluster: Option<[u32; 3]>,
    /// Declared minimum of blocks per SM.
    pub min_blocks_per_sm: Option<u32>,
    /// The device functions that it calls.
    pub calls: Vec<String>,
    /// Instructions that do not exist: line and reason.
    pub impossible: Vec<(u32, String)>,
    /// Line of its declaration.
    pub line: Option<u32>,
    /// How much of PTX the simulator executes, and the forms that it does not.
    #[serde(skip)]
    pub understood: Option<Understood>,
}

/// The kernels of a file. The registers of PTX kernels come from [`assemble`].
///
/// ```
/// use flashcore_check::foreign::read;
/// let text = ".version 7.0 .target sm_80 .entry k() { .shared .f32 partials[2][2][16][64]; ret; }";
/// let kernels = read(text.as_bytes())?;
/// assert_eq!((kernels[0].name.as_str(), kernels[0].static_shared), ("k", 16_384));
/// # Ok::<(), flashcore_check::foreign::ForeignError>(())
/// ```
///
/// # Errors
/// The file is neither PTX nor a cubin, or has no kernels.
pub fn read(bytes: &[u8]) -> Result<Vec<ForeignKernel>, ForeignError> {
    let kernels = match std::str::from_utf8(bytes) {
        Ok(text) if binary_kind(bytes).is_none() => {
            let module = Module::read(text.trim_end_matches('\0'))?;
            let of_entry = |(entry, body)| of_ptx(&module, entry, body);
            module.entries().map(of_entry).collect::<Result<_, _>>()?
        }
        _ => cubin::read(bytes)?,
    };
    if kernels.is_empty() {
        return Err(ForeignError::NoKernels);
    }
    Ok(kernels)
}

/// The kernels with a name, or all if there is no name. A name of C++ may be as the linker has it, as C++ does, or
/// without its arguments.
pub fn pick<'a>(kernels: &'a [ForeignKernel], name: Option<&str>) -> Result<Vec<&'a ForeignKernel>, ForeignError> {
    let is_named = |kernel: &&ForeignKernel| name.is_none_or(|name| names::is_called(&kernel.name, name));
    let found: Vec<&ForeignKernel> = kernels.iter().filter(is_named).collect();
    if let Some(given) = name.filter(|_| found.is_empty()) {
        let known: Vec<String> = kernels.iter().map(|kernel| readable(&kernel.name)).collect();
        return Err(ForeignError::NoSuchKernel(
            given.to_string(),
            crate::render::few(&known),
        ));
    }
    Ok(found)
}

fn of_ptx(module: &Module, entry: &PtxEntry, body: &Function) -> Result<ForeignKernel, PtxError> {
    let symbols = module.shared_of(body)?;
    let shared = symbols.iter().map(|symbol| Shared {
        name: symbol.name.clone(),
        declared: Some(symbol.declared.clone()),
        bytes: symbol.bytes,
        is_dynamic: symbol.is_dynamic,
        line: Some(symbol.line),
    });
    let static_shared = symbols.iter().fold(0u64, |end, symbol| {
        let align = u64::from(symbol.align.max(1));
        let begin = end.checked_next_multiple_of(align).unwrap_or(u64::MAX);
        begin.saturating_add(symbol.bytes)
    });
    let declared = &module.declared;
    let mut calls: Vec<String> = module.calls(body).map(|(name, _)| name.to_string()).collect();
    calls.sort_unstable();
    calls.dedup();
    let refuses = |form: &str| (!executes(form)).then(|| "the simulator does not execute it yet".to_string());
    let facts = entry.facts();
    Ok(ForeignKernel {
        name: entry.name.clone(),
        form: CodeForm::Ptx,
        made_for: declared.target.clone(),
        ptx_version: Some(declared.version),
        parameter_bytes: entry.params.iter().map(|param| param.bytes).collect(),
        static_shared,
        shared: shared.collect(),
        max_threads: facts.max_threads,
        required_threads: entry.required_threads.and_then(|_| entry.threads_allowed()),
        required_cluster: facts.required_cluster,
        min_blocks_per_sm: entry.min_blocks_per_sm,
        calls,
        impossible: impossible(module, body),
        line: Some(entry.line),
        understood: Some(module.understood(body, refuses)?),
        ..ForeignKernel::default()
    })
}

/// Copies and barriers that no architecture has, by line, whatever else the kernel uses: `cp.async.cg` copies 16
/// bytes, `cp.async.ca` 4, 8 or 16; whole warps come to a barrier (PTX ISA, `cp.async`, `bar`).
fn impossible(module: &Module, body: &Function) -> Vec<(u32, String)> {
    let base = Operand::Imm(0);
    let (dst, offset) = (
        Address {
            base,
            offset: 0,
            object: Object::Param(0),
        },
        Operand::Reg(Reg {
            class: RegClass::B32,
            index: 0,
        }),
    );
    let found = body.instructions.iter().filter_map(|inst| {
        let form = module.forms()[inst.form as usize].as_ref().ok()?;
        let given = |at: usize| match inst.operands.get(at) {
            Some(flashcore_ptx::Operand::Integer(number)) => Some(*number),
            _ => None,
        };
        let small = |number| u32::try_from(number).unwrap_or(u32::MAX);
        let id = given(0).map_or(offset, Operand::Imm);
        let built = match (form.name(), flashcore_ptx::print(form).as_str()) {
            ("cp", text) if text.starts_with("cp.async.ca.") || text.starts_with("cp.async.cg.") => Inst::CpAsync {
                dst,
                src: dst,
                bytes: small(given(2)?),
                src_bytes: None,
                cache: if form.has("cg") { Cache::L2 } else { Cache::Default },
            },
            ("bar" | "barrier", _) if form.has("warp") || form.has("cluster") || form.has("red") => return None,
            ("bar" | "barrier", _) if form.has("arrive") => Inst::BarArrive {
                id,
                threads: small(given(1)?),
            },
            ("bar" | "barrier", _) => Inst::BarSync {
                id,
                threads: given(1).map(small),
            },
            _ => return None,
        };
        built.impossible().map(|why| (inst.line, why))
    });
    found.collect()
}

/// Sets the registers, spills and static shared memory of a PTX kernel as an offline ptxas reports
/// them.
///
/// # Errors
/// There is no ptxas, or it refuses the text. The kernel is unchanged.
pub fn assemble(kernel: &mut ForeignKernel, ptx: &str, target: Target, with: &Assembler) -> Result<(), Unknown> {
    let (registers, static_shared) = registers::assemble(ptx, &kernel.name, target, with)?;
    kernel.registers = Some(registers.per_thread);
    kernel.spilled_bytes = Some(registers.spilled_bytes);
    kernel.compiler = Some(registers.compiler);
    kernel.static_shared = u64::from(static_shared);
    Ok(())
}
