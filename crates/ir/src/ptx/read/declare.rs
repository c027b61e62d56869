//! What a PTX text declares: version, target, shared memory, kernels and their limits.

use super::forms::forms;
use super::statement::{Statement, Written};
use crate::inst::Inst;
use crate::proof::KernelFacts;

/// A PTX text.
#[derive(Clone, Debug, PartialEq)]
pub struct PtxModule {
    /// `.version`, major and minor.
    pub version: (u32, u32),
    /// `.target`: `sm_80`, `sm_90a`.
    pub target: String,
    /// Shared memory declared outside kernels, which every kernel has that names it.
    pub shared: Vec<SharedSymbol>,
    /// The kernels.
    pub entries: Vec<PtxEntry>,
    /// Names of device functions, which kernels may call.
    pub functions: Vec<String>,
    /// `.file`: number and path.
    pub files: Vec<(u32, String)>,
}

/// Shared memory by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSymbol {
    /// Its name.
    pub name: String,
    /// Type and dimensions as declared: `f32[64][32]`.
    pub declared: String,
    /// Bytes; 0 where the launch decides (`.extern .shared x[]`).
    pub bytes: u64,
    /// Alignment, bytes.
    pub align: u32,
    /// Whether the launch decides its size.
    pub is_dynamic: bool,
    /// Line of the declaration.
    pub line: u32,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxParam {
    /// Its name.
    pub name: String,
    /// Its type: `u64`, `f32`, `b8` for arrays of bytes.
    pub ty: String,
    /// Bytes.
    pub bytes: u64,
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PtxEntry {
    /// Its name.
    pub name: String,
    /// Parameters, in order.
    pub params: Vec<PtxParam>,
    /// `.maxntid`: no block may have more threads than the product.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: the only block there may be.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`: blocks an SM that the assembler leaves registers for.
    pub min_blocks_per_sm: Option<u32>,
    /// `.maxnreg`: registers a thread that the assembler may use.
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`: the only cluster there may be.
    pub required_cluster: Option<[u32; 3]>,
    /// Shared memory declared in its body.
    pub shared: Vec<SharedSymbol>,
    /// Functions that it calls, which may use more shared memory.
    pub calls: Vec<String>,
    /// Line of its `.entry`.
    pub line: u32,
    pub(crate) body: Vec<Statement>,
    pub(crate) end: u32,
    /// Symbols of the module that the body names.
    pub(crate) named: Vec<String>,
}

impl PtxModule {
    /// The kernel of a name.
    pub fn entry(&self, name: &str) -> Option<&PtxEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The shared memory of a kernel: what it declares, and what it names of the module's. A kernel
    /// that calls functions is assumed to use all of the module's.
    pub fn shared_of<'a>(&'a self, entry: &'a PtxEntry) -> impl Iterator<Item = &'a SharedSymbol> {
        let named = |symbol: &&SharedSymbol| !entry.calls.is_empty() || entry.named.contains(&symbol.name);
        self.shared.iter().filter(named).chain(&entry.shared)
    }

    /// The facts of a kernel for the launch proof: all that the text declares.
    pub fn facts_of(&self, entry: &PtxEntry) -> KernelFacts {
        let static_shared_bytes = self.shared_of(entry).fold(0u64, |end, symbol| {
            let align = u64::from(symbol.align.max(1));
            let begin = end.checked_next_multiple_of(align).unwrap_or(u64::MAX);
            begin.saturating_add(symbol.bytes)
        });
        KernelFacts {
            static_shared_bytes,
            dynamic_shared_bytes: 0,
            registers: None,
            max_threads: entry.max_threads.map(product),
            required_block: entry.required_threads,
            required_cluster: entry.required_cluster,
            parameter_bytes: Some(entry.params.iter().map(|param| param.bytes).collect()),
        }
    }
}

fn product(dims: [u32; 3]) -> u32 {
    dims.iter().fold(1, |product: u32, &n| product.saturating_mul(n))
}

impl PtxEntry {
    /// Most threads a block may have by what the kernel declares.
    pub fn threads_allowed(&self) -> Option<u32> {
        self.required_threads.or(self.max_threads).map(product)
    }

    /// Copies of sizes that no architecture has, by line: `cp.async.cg` copies 16 bytes,
    /// `cp.async.ca` 4, 8 or 16 (PTX ISA, `cp.async`).
    pub fn impossible(&self) -> Vec<(u32, String)> {
        let mut found = Vec::new();
        for statement in &self.body {
            let Statement::Inst(inst) = statement else { continue };
            let Some(mut copy) = forms(&inst.opcode).first().cloned() else {
                continue;
            };
            if let (Inst::CpAsync { bytes, .. }, Some(&Written::Number(given))) = (&mut copy, inst.operands.get(2)) {
                *bytes = u32::try_from(given).unwrap_or(u32::MAX);
                found.extend(copy.impossible().map(|why| (inst.line, why)));
            }
        }
        found
    }
}
