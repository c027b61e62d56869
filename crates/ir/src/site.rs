//! Where in the Rust source an instruction was written.

use std::panic::Location;

/// A line of Rust source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceLine {
    /// Path as the compiler saw it: relative to the workspace for code built in one.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl SourceLine {
    /// The caller's line.
    #[track_caller]
    pub fn caller() -> SourceLine {
        let location = Location::caller();
        SourceLine {
            file: location.file(),
            line: location.line(),
            column: location.column(),
        }
    }
}

impl std::fmt::Display for SourceLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One step of how an instruction came to be: a tile verb and the line that called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The verb's name.
    pub verb: &'static str,
    /// Where it was called.
    pub called_at: SourceLine,
    /// The verb it was called from, if any.
    pub parent: Option<FrameId>,
}

/// Index of a [`Frame`] in its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(pub u32);

/// Where an instruction was written: its own line, and the verbs around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The line that built the instruction.
    pub line: SourceLine,
    /// The innermost verb around it, if it was built by one.
    pub frame: Option<FrameId>,
}

/// Index of a [`Site`] in its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);
