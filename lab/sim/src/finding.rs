//! [`Finding`]: an error in a kernel, with place, actor and bytes.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// Declares [`FindingKind`] and the names of its variants from one table.
macro_rules! kinds {
    ($($kind:ident = $name:literal: $what:literal,)*) => {
        /// The kind of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum FindingKind {
            $(#[doc = $what] $kind,)*
        }

        impl FindingKind {
            /// The name as printed in findings.
            pub fn name(self) -> &'static str {
                match self {
                    $(FindingKind::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    OutOfBounds = "out-of-bounds": "An access outside its object.",
    Misaligned = "misaligned": "An address that is not a multiple of the access size.",
    ReadOnly = "read-only": "A write through a read-only parameter.",
    ReadOnlyCache = "read-only-cache": "A load through the read-only cache from memory that the kernel writes.",
    NeverWritten = "never-written": "A read of memory or of a register that was never written.",
    Race = "race": "Two unordered accesses to one byte, at least one of them a write.",
    MissingWait = "missing-wait": "An access to the destination of an asynchronous copy before waiting for it.",
    BarrierMismatch = "barrier-mismatch": "Inconsistent use of a barrier, or a thread that exits while others wait at it.",
    Deadlock = "deadlock": "Warps that wait for each other.",
    Livelock = "livelock": "A warp that does not terminate.",
    NotUniform = "not-uniform": "A condition declared uniform that differs between lanes.",
    MissingLanes = "missing-lanes": "A member mask that differs from the active lanes, or a divergent `.aligned` instruction.",
    DivisionByZero = "division-by-zero": "An integer division by zero.",
    BlockRace = "block-race": "Bytes that one block writes and another block reads or writes.",
    Mbarrier = "mbarrier": "An mbarrier that is uninitialised, initialised twice, or has too many arrivals.",
    WrongPhase = "wrong-phase": "A wait for a phase that the warp has already waited for.",
    TransactionBytes = "transaction-bytes": "The bytes of copies differ from those announced at their mbarrier.",
    MissingFence = "missing-fence": "A missing fence: proxy fence, `wgmma.fence`, mbarrier-init fence, or release at cluster scope.",
    InFlight = "in-flight": "Registers accessed while a product uses them.",
    Descriptor = "descriptor": "A matrix descriptor that does not match its tile.",
    Warpgroup = "warpgroup": "Warps of a warpgroup that execute different products.",
    Registers = "registers": "An invalid register count, or one not set by the whole warpgroup.",
    PeerLifetime = "peer-lifetime": "An access to a block of the cluster that may not have started or may have exited.",
    BeforeDependency = "before-dependency": "An access to global memory before `griddepcontrol.wait`.",
    Trap = "trap": "A trap.",
    Nondeterministic = "nondeterministic": "Outputs that differ between schedules, though nothing is atomic.",
    OpaqueLayout = "opaque-layout": "Outputs that differ with the layout of `wmma` fragments, which PTX leaves open.",
}

/// A source line of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Line {
    /// The path as the compiler saw it.
    pub file: &'static str,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
    /// The tile verb that contains the line; `None` for the kernel's own line.
    pub verb: Option<&'static str>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)?;
        self.verb.map_or(Ok(()), |verb| write!(f, " (in `{verb}`)"))
    }
}

/// The lanes that made an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Actor {
    /// Block index.
    pub block: [u32; 3],
    /// Warp index in the block.
    pub warp: u32,
    /// Bit mask of lanes.
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

/// The second access of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Other {
    /// Source lines: the kernel's own line, then those of the tile verbs.
    pub lines: Vec<Line>,
    /// The lanes that made it.
    pub actor: Actor,
}

/// An error that a run revealed. Prints like a compiler message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The kind of error.
    pub kind: FindingKind,
    /// What happened, in one sentence.
    pub message: String,
    /// Source lines: the kernel's own line, then those of the tile verbs.
    pub lines: Vec<Line>,
    /// The lanes of the first occurrence.
    pub actor: Actor,
    /// The conflicting access, or the party it waits for.
    pub other: Option<Other>,
    /// The buffer or register.
    pub object: Option<String>,
    /// Byte range in the object: first, and one past the last.
    pub bytes: Option<(i64, i64)>,
    /// The element of the first byte: an index, or (stage, row, column).
    pub element: Option<Vec<i64>>,
    /// The usual fix.
    pub help: Option<Cow<'static, str>>,
    /// Number of occurrences over all lanes, warps and blocks.
    pub count: u64,
}

impl Finding {
    /// The kernel's own line.
    pub fn line(&self) -> Option<&Line> {
        self.lines.first()
    }

    /// The kernel's own line of the second access.
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
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}
