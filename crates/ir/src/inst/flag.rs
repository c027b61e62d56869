//! Accesses to a word of global memory by which blocks tell each other that data is ready (PTX ISA,
//! "Memory Consistency Model"; `ld.acquire`, `st.release`, `red`), all at gpu scope.

use super::rules::Rules;
use super::{Address, Operand};
use crate::target::Requirement;
use crate::types::{Reg, ScalarType};

/// An access at gpu scope to a 32-bit word of global memory.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // field names are the operands' names; the variants say what they do
pub enum FlagInst {
    /// Load the word. If it has the value of a release, what that thread did before the release is
    /// ordered before what this thread does next.
    LoadAcquire { dst: Reg, addr: Address },
    /// Store the word, after everything that this thread did before.
    StoreRelease {
        ty: ScalarType,
        addr: Address,
        value: Operand,
    },
    /// Add to the word atomically, with `release` after everything that this thread did before.
    Add {
        release: bool,
        ty: ScalarType,
        addr: Address,
        value: Operand,
    },
}

impl FlagInst {
    pub(super) fn rules(&self) -> Rules {
        let (requires, ty) = match self {
            FlagInst::LoadAcquire { dst, .. } => (Requirement::BASE, dst.class.scalar()),
            FlagInst::StoreRelease { ty, .. } | FlagInst::Add { ty, .. } => (Requirement::BASE, *ty),
        };
        let why = || format!("a flag of type {}; 4 bytes are possible", ty.ptx());
        (requires, (ty.bytes() != 4).then(why))
    }
}
