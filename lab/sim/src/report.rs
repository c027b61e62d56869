//! Options and results of a simulation.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;

use flashcore_ir::{Chip, Kernel, RegClass, ScalarType, SiteId, Target};
use serde::Serialize;

use crate::finding::{Finding, Line};
use crate::log::Log;
use crate::progress::Progress;
use crate::tensor_sum::TensorSums;
use crate::written::Written;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Selects the interleaving of warps. The same seed gives the same run.
    pub seed: u64,
    /// Instruction budget per warp; exceeding it is a livelock.
    pub max_instructions: u64,
    /// Whether to record traced values.
    pub trace: bool,
    /// Records only this block and this warp of it.
    pub trace_of: Option<([u32; 3], u32)>,
    /// If not empty: the types of traced values by label. Of each label only the first record per
    /// cluster is kept that contains a NaN or an infinity not made by masking: for f32 the positive
    /// one, for 16-bit floats either.
    pub nonfinite: Vec<ScalarType>,
    /// Whether to count shared-memory wavefronts and global sectors (slower).
    pub memory_counts: bool,
    /// How many instructions of each warp to record, for the path of one ([`SimReport::path`]).
    pub path: usize,
    /// How many shared-memory accesses of the first cluster to log, with the time slices of its
    /// warps.
    pub log: usize,
    /// Host threads; 0 for one per core. Does not affect results.
    pub host_threads: usize,
    /// Buffer slots that start uninitialised, in addition to the buffer named `workspace`.
    pub uninitialized: Vec<usize>,
    /// By slot: bytes written by an earlier launch ([`SimReport::written`]).
    pub written: BTreeMap<usize, Written>,
    /// The chip, whose number of SMs and limits decide how many blocks that communicate run at once.
    pub chip: Chip,
    /// Whether blocks that communicate start in a random order. Otherwise they start in that of their numbers, as GPUs
    /// do, though CUDA does not promise it.
    pub shuffle_blocks: bool,
    /// Whether fragments of `wmma` in PTX of other compilers have another layout than they usually do.
    pub permuted_fragments: bool,
    /// How tensor-core sums are computed.
    pub tensor_sums: TensorSums,
    /// Runs only the block with this linear index (x fastest), for example to count its work. An
    /// index outside the grid runs nothing.
    pub only_block: Option<u64>,
    /// Simulates only this many blocks from the first, in whole clusters. The buffers then hold
    /// partial results.
    pub first_blocks: Option<u64>,
    /// Counts finished blocks during the run.
    pub progress: Option<Arc<Progress>>,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            seed: 0,
            max_instructions: 100_000_000,
            trace: false,
            trace_of: None,
            nonfinite: Vec::new(),
            memory_counts: false,
            path: 0,
            log: 0,
            host_threads: 0,
            uninitialized: Vec::new(),
            written: BTreeMap::new(),
            chip: Chip::from(Target::Sm90a),
            shuffle_blocks: false,
            permuted_fragments: false,
            tensor_sums: TensorSums::Exact,
            only_block: None,
            first_blocks: None,
            progress: None,
        }
    }
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    /// The kernel's name.
    pub kernel: String,
    /// The errors found, one per place; empty for a clean run.
    pub findings: Vec<Finding>,
    /// Executed instructions by class.
    pub counts: Counts,
    /// Traced values by block, in order of execution.
    pub traces: Vec<TraceRecord>,
    /// What the kernel prints, in order of execution.
    pub printed: Vec<Printed>,
    /// Memory accesses by line, if requested.
    pub memory: Vec<MemorySite>,
    /// Record of the first cluster, if requested.
    #[serde(skip)]
    pub log: Log,
    /// By slot: bytes that the kernel wrote.
    #[serde(skip)]
    pub written: BTreeMap<usize, Written>,
    /// Executions of each instruction of the text, in its order.
    #[serde(skip)]
    pub instructions: Vec<InstructionCount>,
    /// What its loads take from global memory, if memory accesses are counted.
    #[serde(skip)]
    pub loads: Loads,
    /// The instructions that a warp executed, one after another, if requested: of all warps that with the most.
    #[serde(skip)]
    pub path: Vec<u32>,
    /// How many instructions that warp executed after [`Self::path`], which is as long as was requested.
    #[serde(skip)]
    pub unrecorded: u64,
    /// 32-bit registers per lane with lifetimes as in the program order: an estimate of a
    /// compiler's result without reordering.
    #[serde(skip)]
    pub registers: u32,
}

impl SimReport {
    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Declares [`Class`] and the list of its instruction classes from one table.
macro_rules! classes {
    ($($class:ident: $what:literal,)*) => {
        /// The machine resource of an instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Class {
            $(#[doc = $what] $class,)*
            /// Not an instruction: structure, checks, traces. Not counted.
            Structure,
        }

        impl Class {
            /// All instruction classes.
            pub const ALL: [Class; Class::Structure as usize] = [$(Class::$class,)*];
        }
    };
}

classes! {
    Fma: "f32 add, multiply, fused multiply-add.",
    Alu: "Integer, logic, compare, select, move.",
    Half: "Packed 16-bit floats.",
    Convert: "Conversions.",
    Mufu: "ex2, lg2, rcp.",
    Tensor: "Tensor-core products.",
    LoadGlobal: "Loads from global memory.",
    StoreGlobal: "Stores to global memory.",
    LoadShared: "Loads from shared memory, `ldmatrix` included.",
    StoreShared: "Stores to shared memory.",
    CopyAsync: "Asynchronous copies.",
    Atomic: "Read-modify-write operations.",
    Exchange: "Exchanges between lanes: shfl, vote, redux.",
    Sync: "Barriers, waits, fences.",
    Control: "Branches.",
}

/// A text that a thread prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Printed {
    /// The grid index of its block.
    pub block: [u32; 3],
    /// Its number in the block.
    pub thread: u32,
    /// The text.
    pub text: String,
}

/// Executed instructions of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Executions by warps.
    pub warps: u64,
    /// Executions by lanes.
    pub lanes: u64,
}

/// Executed instructions by class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    by_class: [Count; Class::ALL.len()],
}

impl Counts {
    /// The count of a class.
    pub fn get(&self, class: Class) -> Count {
        self.by_class.get(class as usize).copied().unwrap_or_default()
    }

    /// The sum over all classes.
    pub fn total(&self) -> Count {
        self.by_class.iter().fold(Count::default(), |a, b| Count {
            warps: a.warps + b.warps,
            lanes: a.lanes + b.lanes,
        })
    }

    pub(crate) fn add(&mut self, class: Class, count: Count) {
        if let Some(entry) = self.by_class.get_mut(class as usize) {
            entry.warps += count.warps;
            entry.lanes += count.lanes;
        }
    }
}

/// Adds the counts of consecutive launches.
impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        for class in Class::ALL {
            self.add(class, other.get(class));
        }
    }
}

/// Sectors of 32 bytes that loads of global memory ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// Of all loads by a warp.
    pub sectors: u64,
    /// Those that are different in a block, summed over blocks: what reaches its L1 if nothing is evicted.
    pub different: u64,
}

/// Executions of an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionCount {
    /// Executions by a warp.
    pub warps: u64,
    /// Executions by a lane.
    pub lanes: u64,
    /// As [`MemorySite::transactions`], for memory accesses if they are counted.
    pub transactions: u64,
    /// Those of them that threads' loads, stores and atomic operations make in shared memory.
    pub shared: u64,
}

/// Values of a warp at a traced place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceRecord {
    /// The label given in the kernel.
    pub label: String,
    /// Index of the label in the kernel.
    pub index: u32,
    /// Block index.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// Bit mask of the active lanes.
    pub lanes: u32,
    /// How to interpret the bits.
    #[serde(skip)]
    pub class: RegClass,
    /// One value per lane; undefined for inactive lanes.
    pub bits: Vec<u64>,
}

impl TraceRecord {
    /// The value of a lane as f32; `None` for inactive lanes and other types.
    pub fn f32(&self, lane: usize) -> Option<f32> {
        let there = lane < 32 && self.lanes >> lane & 1 != 0;
        (there && self.class == RegClass::F32).then(|| f32::from_bits(self.bits[lane] as u32))
    }
}

/// Cost of the memory accesses of one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemorySite {
    /// The kernel's own line.
    pub line: Line,
    /// The kind of access.
    pub class: Class,
    /// Executions by a warp.
    pub requests: u64,
    /// Shared memory: bank passes. Global memory, and the source of an asynchronous copy: 32-byte
    /// sectors. The destination of such a copy is a separate entry of class [`Class::StoreShared`].
    /// Warpgroup product: passes over its shared-memory operands. Bulk copy: sectors of its box.
    pub transactions: u64,
    /// The minimum for the same bytes.
    pub ideal: u64,
}

pub(crate) fn lines(kernel: &Kernel, site: SiteId) -> Vec<Line> {
    kernel
        .backtrace(site)
        .into_iter()
        .map(|(line, verb)| Line {
            file: line.file,
            line: line.line,
            column: line.column,
            verb,
        })
        .collect()
}
