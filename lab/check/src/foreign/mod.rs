//! Kernels that something else made: what a `.ptx` or `.cubin` file takes, and whether a card can launch it.
//!
//! [`read`] finds the kernels of a file, [`assemble`] asks an offline ptxas for the registers of PTX, and
//! [`run`] simulates kernels of PTX that use only instructions that we know;
//! [`judge`] holds a kernel against a card: each [`Problem`] says what is wrong, what CUDA says about it, and what to do.

mod cubin;
mod judge;
mod kind;
mod run;
#[cfg(test)]
mod tests;

use flashcore_ir::Target;
use flashcore_ir::ptx::read::{PtxEntry, PtxError, PtxModule};
use serde::Serialize;
use thiserror::Error;

pub use judge::{Asked, Problem, ProblemKind, Verdict, judge, threads_of, verdict};
pub use kind::binary_kind;

pub use run::{Fill, ForeignLaunch, Given, MAX_BUFFER_BYTES, NoArgument, RunError, run};

use crate::registers::{self, Unknown};

/// Why a file's kernels cannot be explained.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignError {
    /// Text that is no PTX.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// A binary that is no cubin.
    #[error(
        "{0}; a cubin (nvcc -cubin, ptxas -o) or PTX (nvcc -ptx) is understood, and `cuobjdump -xelf all` takes cubins out of programs and fat binaries"
    )]
    NoCubin(String),
    /// A cubin that breaks off or contradicts itself.
    #[error("this cubin cannot be read: {0}")]
    Broken(String),
    /// A file without kernels.
    #[error("this file has no kernels")]
    NoKernels,
    /// A kernel that is not there.
    #[error("no kernel is named `{given}`; there are {known}")]
    NoSuchKernel {
        /// The name asked for.
        given: String,
        /// Those there are.
        known: String,
    },
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// PTX, which the driver compiles for the card.
    Ptx,
    /// Machine code of one architecture.
    Cubin,
}

/// Shared memory of a kernel by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shared {
    /// The symbol.
    pub name: String,
    /// Type and dimensions, where they are known.
    pub declared: Option<String>,
    /// Bytes; 0 where the launch decides.
    pub bytes: u64,
    /// Whether the launch decides its size.
    pub is_dynamic: bool,
    /// Line of its declaration, where there is one.
    pub line: Option<u32>,
}

/// A kernel of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForeignKernel {
    /// Its name, as the linker has it.
    pub name: String,
    /// What it was read from.
    pub form: Form,
    /// The architecture it was made for: `sm_80`.
    pub made_for: String,
    /// Version of the PTX it is written in.
    pub ptx_version: Option<(u32, u32)>,
    /// Bytes of each parameter.
    pub parameter_bytes: Vec<u64>,
    /// Registers a thread, where they are known.
    pub registers: Option<u32>,
    /// Bytes a thread spills, where ptxas says so.
    pub spilled_bytes: Option<u32>,
    /// Bytes of local memory a thread has on its stack: spills and arrays together. Of cubins only.
    pub stack_bytes: Option<u32>,
    /// Who says so.
    pub compiler: Option<String>,
    /// Bytes of static shared memory a block.
    pub static_shared: u64,
    /// Shared memory by symbol, as far as symbols are known.
    pub shared: Vec<Shared>,
    /// Most threads a block by its own declaration.
    pub max_threads: Option<u32>,
    /// Threads that it must be launched with.
    pub required_threads: Option<u32>,
    /// The cluster that it must be launched in, where one is declared.
    pub required_cluster: Option<[u32; 3]>,
    /// Blocks an SM that registers were left for.
    pub min_blocks_per_sm: Option<u32>,
    /// Device functions that it calls.
    pub calls: Vec<String>,
    /// Instructions that no architecture has, by line, and why.
    pub impossible: Vec<(u32, String)>,
    /// Line of its declaration.
    pub line: Option<u32>,
}

/// The kernels of a file. Of PTX the registers are not known yet ([`assemble`]).
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
/// Files that are neither, or have no kernels.
pub fn read(bytes: &[u8]) -> Result<Vec<ForeignKernel>, ForeignError> {
    let kernels = match std::str::from_utf8(bytes) {
        Ok(text) if binary_kind(bytes).is_none() => {
            let module = PtxModule::read(text.trim_end_matches('\0'))?;
            module.entries.iter().map(|entry| of_ptx(&module, entry)).collect()
        }
        _ => cubin::read(bytes)?,
    };
    match kernels.is_empty() {
        true => Err(ForeignError::NoKernels),
        false => Ok(kernels),
    }
}

/// The kernel of a name among those of a file, or the only one.
///
/// # Errors
/// A name that none has.
///
/// ```
/// use flashcore_check::foreign::{pick, read};
/// let kernels = read(b".version 7.0 .target sm_80 .entry a() { ret; } .entry b() { ret; }")?;
/// assert_eq!(pick(&kernels, Some("b"))?.len(), 1);
/// assert_eq!(pick(&kernels, None)?.len(), 2);
/// assert!(pick(&kernels, Some("c")).unwrap_err().to_string().contains("there are a, b"));
/// # Ok::<(), flashcore_check::foreign::ForeignError>(())
/// ```
pub fn pick<'a>(kernels: &'a [ForeignKernel], name: Option<&str>) -> Result<Vec<&'a ForeignKernel>, ForeignError> {
    let Some(given) = name else {
        return Ok(kernels.iter().collect());
    };
    let found: Vec<&ForeignKernel> = kernels.iter().filter(|kernel| kernel.name == given).collect();
    if found.is_empty() {
        let known: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        return Err(ForeignError::NoSuchKernel {
            given: given.to_string(),
            known: known.join(", "),
        });
    }
    Ok(found)
}

fn of_ptx(module: &PtxModule, entry: &PtxEntry) -> ForeignKernel {
    let shared: Vec<Shared> = module
        .shared_of(entry)
        .map(|symbol| Shared {
            name: symbol.name.clone(),
            declared: Some(symbol.declared.clone()),
            bytes: symbol.bytes,
            is_dynamic: symbol.is_dynamic,
            line: Some(symbol.line),
        })
        .collect();
    let facts = module.facts_of(entry);
    ForeignKernel {
        name: entry.name.clone(),
        form: Form::Ptx,
        made_for: module.target.clone(),
        ptx_version: Some(module.version),
        parameter_bytes: entry.params.iter().map(|param| param.bytes).collect(),
        registers: None,
        spilled_bytes: None,
        stack_bytes: None,
        compiler: None,
        static_shared: facts.static_shared_bytes,
        shared,
        max_threads: facts.max_threads,
        required_threads: entry.required_threads.and_then(|_| entry.threads_allowed()),
        required_cluster: facts.required_cluster,
        min_blocks_per_sm: entry.min_blocks_per_sm,
        calls: entry
            .calls
            .iter()
            .filter(|name| module.functions.contains(name))
            .cloned()
            .collect(),
        impossible: entry.impossible(),
        line: Some(entry.line),
    }
}

/// Fills in what an offline ptxas makes of a kernel of a PTX text for an architecture. The bytes of shared memory
/// that ptxas counts take the place of our own sum.
///
/// # Errors
/// Where there is no ptxas, or it refuses the text: the kernel stays as it is.
pub fn assemble(kernel: &mut ForeignKernel, ptx: &str, target: Target) -> Result<(), Unknown> {
    let assembled = registers::assemble(ptx, &kernel.name, target)?;
    kernel.registers = Some(assembled.registers.per_thread);
    kernel.spilled_bytes = Some(assembled.registers.spilled_bytes);
    kernel.compiler = Some(assembled.registers.compiler);
    kernel.static_shared = u64::from(assembled.static_shared);
    Ok(())
}
