//! [`Finding`]: what is wrong, where, who did it, and to which bytes.

use std::fmt;

use serde::Serialize;

/// What kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// An access outside the object it was meant for.
    OutOfBounds,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// A write through a read-only parameter.
    ReadOnly,
    /// A load through the read-only cache from memory that the kernel writes.
    ReadOnlyCache,
    /// A read of bytes or of a register that nobody has written.
    NeverWritten,
    /// Two accesses to one byte, at least one a write, that nothing orders.
    Race,
    /// An access to the destination of an asynchronous copy that has not been waited for.
    MissingWait,
    /// Threads at a barrier that do not agree on it, or that end while others wait.
    BarrierMismatch,
    /// Warps that wait for each other.
    Deadlock,
    /// A warp that does not come to an end.
    Livelock,
    /// A condition declared uniform whose lanes disagree.
    NotUniform,
    /// An instruction that names lanes which are not there, or an aligned one without all of them.
    MissingLanes,
    /// An integer division by zero.
    DivisionByZero,
    /// Bytes that two blocks write, or one writes and another reads.
    BlockRace,
    /// An mbarrier that was not made, was made twice, or gets too many arrivals.
    Mbarrier,
    /// A wait for a phase that has been waited for before.
    WrongPhase,
    /// Bytes of copies other than those announced at their mbarrier.
    TransactionBytes,
    /// A fence that is missing: for the async proxy, before a product, after an mbarrier is made, for a cluster.
    MissingFence,
    /// Registers touched while a product that uses them is in flight.
    InFlight,
    /// A matrix descriptor that does not describe its tile.
    Descriptor,
    /// Warps of a warpgroup that do not execute the same products.
    Warpgroup,
    /// Registers set to what they cannot be, or not by a whole warpgroup.
    Registers,
    /// An access to a block of the cluster that may not have started or may have ended.
    PeerLifetime,
    /// An access to global memory before the launches that this one depends on are known to have ended.
    BeforeDependency,
    /// A trap.
    Trap,
}

impl FindingKind {
    /// As findings print it.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::OutOfBounds => "out-of-bounds",
            FindingKind::Misaligned => "misaligned",
            FindingKind::ReadOnly => "read-only",
            FindingKind::ReadOnlyCache => "read-only-cache",
            FindingKind::NeverWritten => "never-written",
            FindingKind::Race => "race",
            FindingKind::MissingWait => "missing-wait",
            FindingKind::BarrierMismatch => "barrier-mismatch",
            FindingKind::Deadlock => "deadlock",
            FindingKind::Livelock => "livelock",
            FindingKind::NotUniform => "not-uniform",
            FindingKind::MissingLanes => "missing-lanes",
            FindingKind::DivisionByZero => "division-by-zero",
            FindingKind::BlockRace => "block-race",
            FindingKind::Mbarrier => "mbarrier",
            FindingKind::WrongPhase => "wrong-phase",
            FindingKind::TransactionBytes => "transaction-bytes",
            FindingKind::MissingFence => "missing-fence",
            FindingKind::InFlight => "in-flight",
            FindingKind::Descriptor => "descriptor",
            FindingKind::Warpgroup => "warpgroup",
            FindingKind::Registers => "registers",
            FindingKind::PeerLifetime => "peer-lifetime",
            FindingKind::BeforeDependency => "before-dependency",
            FindingKind::Trap => "trap",
        }
    }
}

/// A line of the kernel's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Line {
    /// Path as the compiler saw it.
    pub file: &'static str,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
    /// The tile verb that the line is in; `None` for the kernel's own line.
    pub verb: Option<&'static str>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)?;
        match self.verb {
            Some(verb) => write!(f, " (in `{verb}`)"),
            None => Ok(()),
        }
    }
}

/// Who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Actor {
    /// Block index.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// Lanes of the warp, a bit each.
    pub lanes: u32,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        write!(f, "block ({x}, {y}, {z}) warp {}", self.warp)?;
        match (self.lanes.count_ones(), self.lanes) {
            (_, u32::MAX) => write!(f, ", all lanes"),
            (0, _) => Ok(()),
            (1, lanes) => write!(f, " lane {}", lanes.trailing_zeros()),
            (_, lanes)
                if (lanes >> lanes.trailing_zeros()).count_zeros()
                    == lanes.leading_zeros() + lanes.trailing_zeros() =>
            {
                write!(f, " lanes {}–{}", lanes.trailing_zeros(), 31 - lanes.leading_zeros())
            }
            (_, lanes) => write!(f, " lanes {lanes:#010x}"),
        }
    }
}

/// The other side of a finding that takes two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Other {
    /// Where, the kernel's own line first, then each verb's.
    pub lines: Vec<Line>,
    /// Who.
    pub actor: Actor,
}

/// Something wrong with a kernel, as a run showed it. Prints like a compiler's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of mistake.
    pub kind: FindingKind,
    /// What happened, in a sentence.
    pub message: String,
    /// Where, the kernel's own line first, then each verb's.
    pub lines: Vec<Line>,
    /// Who did it, the first time.
    pub actor: Actor,
    /// The access it collides with, the other party it waits for.
    pub other: Option<Other>,
    /// The buffer or register.
    pub object: Option<String>,
    /// The bytes of the object, from its start: first, and one past the last.
    pub bytes: Option<(i64, i64)>,
    /// The element of the object that the bytes begin in, as an index or (stage, row, column).
    pub element: Option<Vec<i64>>,
    /// What usually mends it.
    pub help: Option<&'static str>,
    /// How often it happened, over all lanes, warps and blocks.
    pub count: u64,
}

impl Finding {
    /// The kernel's own line.
    pub fn line(&self) -> Option<&Line> {
        self.lines.first()
    }

    /// The kernel's own line of the other side.
    pub fn other_line(&self) -> Option<&Line> {
        self.other.as_ref().and_then(|other| other.lines.first())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.kind.name(), self.message)?;
        for (i, line) in self.lines.iter().enumerate() {
            write!(f, "\n {} {line}", if i == 0 { "-->" } else { "   " })?;
        }
        write!(f, "\n  by {}", self.actor)?;
        if let Some(other) = &self.other {
            for (i, line) in other.lines.iter().enumerate() {
                write!(f, "\n {} {line}", if i == 0 { "and" } else { "   " })?;
            }
            write!(f, "\n  by {}", other.actor)?;
        }
        if self.count > 1 {
            write!(f, "\n  seen {} times", self.count)?;
        }
        if let Some(help) = self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}
