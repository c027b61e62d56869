//! What a run is asked for and what it gives back.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use flashcore_ir::{Kernel, RegClass, ScalarType, SiteId};
use serde::Serialize;

use crate::finding::{Finding, Line};
use crate::log::Log;
use crate::tensor_sum::TensorSums;
use crate::written::Written;

/// How to run.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Picks the interleaving of warps; the same seed gives the same run.
    pub seed: u64,
    /// Instructions a warp may execute before it counts as caught in a loop.
    pub max_instructions: u64,
    /// Whether traced values are recorded.
    pub trace: bool,
    /// Records those of this block and this warp of it alone.
    pub trace_of: Option<([u32; 3], u32)>,
    /// If there are any, the types of the values traced under each label, and of each label only the first record of
    /// a cluster is kept that has a NaN, or an infinity that no mask makes: of f32 the positive one, of 16-bit floats
    /// either.
    pub nonfinite: Vec<ScalarType>,
    /// Whether shared-memory wavefronts and global sectors are counted (slower).
    pub memory_counts: bool,
    /// How many accesses to shared memory by the first cluster are taken down one by one, with its warps' turns.
    pub log: usize,
    /// Host threads; 0 for one a core. Results do not depend on it.
    pub host_threads: usize,
    /// Buffer slots whose contents count as never written, beside the buffer named `workspace`.
    pub uninitialized: Vec<usize>,
    /// By slot, what an earlier launch has written of them ([`SimReport::written`]).
    pub written: BTreeMap<usize, Written>,
    /// How sums of tensor-core products are computed.
    pub tensor_sums: TensorSums,
    /// Runs this block alone, by its linear index (x fastest), in place of the whole grid: to count what one block
    /// does. A block past the grid's end is none at all.
    pub only_block: Option<u64>,
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
            log: 0,
            host_threads: 0,
            uninitialized: Vec::new(),
            written: BTreeMap::new(),
            tensor_sums: TensorSums::Exact,
            only_block: None,
        }
    }
}

/// What a run showed.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    /// The kernel's name.
    pub kernel: String,
    /// What is wrong: empty for a clean run. Each place is named once, with how often it happened.
    pub findings: Vec<Finding>,
    /// Instructions executed, by class.
    pub counts: Counts,
    /// Traced values, by block, then in the order of execution.
    pub traces: Vec<TraceRecord>,
    /// Memory accesses by line, where they were asked for.
    pub memory: Vec<MemorySite>,
    /// What the first cluster did, where it was asked for.
    #[serde(skip)]
    pub log: Log,
    /// By slot, what the kernel wrote.
    #[serde(skip)]
    pub written: BTreeMap<usize, Written>,
    /// How often each node of the kernel ran: by its position in [`Kernel::body`], a node before its children.
    #[serde(skip)]
    pub nodes: Vec<NodeCount>,
    /// 32-bit registers a lane that the kernel's values need where those whose lifetimes do not meet share one: about
    /// what a compiler needs that keeps the instructions in their order.
    #[serde(skip)]
    pub registers: u32,
}

impl SimReport {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// What kind of machine resource an instruction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// f32 sums, products, fused products.
    Fma,
    /// Integers, logic, comparison, selection, moves.
    Alu,
    /// Packed 16-bit floats.
    Half,
    /// Conversions.
    Convert,
    /// ex2, lg2, rcp.
    Mufu,
    /// Tensor-core products.
    Tensor,
    /// Loads from global memory.
    LoadGlobal,
    /// Stores to global memory.
    StoreGlobal,
    /// Loads from shared memory, `ldmatrix` included.
    LoadShared,
    /// Stores to shared memory.
    StoreShared,
    /// Asynchronous copies.
    CopyAsync,
    /// Read-modify-writes in memory.
    Atomic,
    /// Exchanges between lanes: shfl, vote, redux.
    Exchange,
    /// Barriers, waits, fences.
    Sync,
    /// Branches.
    Control,
    /// Not an instruction: structure, checks, traces. Not counted.
    Structure,
}

impl Class {
    /// Every class of instructions.
    pub const ALL: [Class; 15] = [
        Class::Fma,
        Class::Alu,
        Class::Half,
        Class::Convert,
        Class::Mufu,
        Class::Tensor,
        Class::LoadGlobal,
        Class::StoreGlobal,
        Class::LoadShared,
        Class::StoreShared,
        Class::CopyAsync,
        Class::Atomic,
        Class::Exchange,
        Class::Sync,
        Class::Control,
    ];
}

/// Instructions executed in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// By warps.
    pub warps: u64,
    /// By lanes.
    pub lanes: u64,
}

/// Instructions executed, by class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    by_class: [Count; Class::ALL.len()],
}

impl Counts {
    /// The count of a class.
    pub fn get(&self, class: Class) -> Count {
        self.by_class.get(class as usize).copied().unwrap_or_default()
    }

    /// All classes together.
    pub fn total(&self) -> Count {
        self.by_class.iter().fold(Count::default(), |a, b| Count {
            warps: a.warps + b.warps,
            lanes: a.lanes + b.lanes,
        })
    }

    fn add(&mut self, class: Class, count: Count) {
        if let Some(entry) = self.by_class.get_mut(class as usize) {
            entry.warps += count.warps;
            entry.lanes += count.lanes;
        }
    }
}

/// Counts of launches that run one after another.
impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        for class in Class::ALL {
            self.add(class, other.get(class));
        }
    }
}

/// How often a node of a kernel's tree ran: an instruction, the condition of an `If` or of a `BreakIf`, or the
/// entry into a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCount {
    /// Executions by a warp.
    pub warps: u64,
    /// Executions by a lane.
    pub lanes: u64,
    /// Of an access to memory, where memory is counted: as in [`MemorySite::transactions`].
    pub transactions: u64,
}

/// Values of a warp at a traced place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceRecord {
    /// The label given in the kernel.
    pub label: String,
    /// Its number among the kernel's labels.
    pub index: u32,
    /// Block index.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// Lanes that were there, a bit each.
    pub lanes: u32,
    /// How to read the bits.
    #[serde(skip)]
    pub class: RegClass,
    /// A value for each of the 32 lanes; those of lanes that were not there mean nothing.
    pub bits: Vec<u64>,
}

impl TraceRecord {
    /// The value of a lane as f32; `None` where the lane was not there or the value is no f32.
    pub fn f32(&self, lane: usize) -> Option<f32> {
        let there = lane < 32 && self.lanes >> lane & 1 != 0;
        (there && self.class == RegClass::F32).then(|| f32::from_bits(self.bits[lane] as u32))
    }
}

/// What the accesses of one line cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemorySite {
    /// The line, verbs looked through.
    pub line: Line,
    /// The kind of access.
    pub class: Class,
    /// Executions by a warp.
    pub requests: u64,
    /// Shared memory: passes over the banks. Global memory, and the source of an asynchronous copy: sectors of 32
    /// bytes. Where such a copy lands is an entry of its own, of class [`Class::StoreShared`]. A warpgroup's product:
    /// passes over its operands in shared memory. A bulk copy: the sectors of its box.
    pub transactions: u64,
    /// The least that the same bytes could take.
    pub ideal: u64,
}

/// Sums execution counts of operations by class.
pub(crate) fn count_by_class(classes: &[Class], executed: &[Count]) -> Counts {
    let mut counts = Counts::default();
    for (class, count) in classes.iter().zip(executed) {
        counts.add(*class, *count);
    }
    counts
}

/// The lines of a site, as a finding carries them.
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
