//! Asynchronous products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix
//! Instructions").

use super::Operand;
use super::rules::{HOPPER_ALONE, Rules};
use crate::named::named;
use crate::shared::BufferId;
use crate::types::Reg;

named! {
    /// Input type of a warpgroup's product.
    WgmmaInput {
        /// fp16, 16 of k.
        F16 = "f16",
        /// bf16, 16 of k.
        BF16 = "bf16",
        /// fp8 with 4 bits of exponent and 3 of mantissa, 32 of k.
        E4M3 = "e4m3",
    }
}

impl WgmmaInput {
    /// Steps of k that one instruction takes: 32 bytes of a row.
    pub const fn k(self) -> u32 {
        match self {
            WgmmaInput::F16 | WgmmaInput::BF16 => 16,
            WgmmaInput::E4M3 => 32,
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        32 / self.k()
    }
}

/// Along which dimension of an operand its elements are adjacent in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    /// k: rows of the tile are rows of A or columns of B, as Q and K lie.
    K,
    /// m or n: rows of the tile are steps of k, as V lies. 16-bit elements only.
    Mn,
}

/// An operand in shared memory: a 64-bit matrix descriptor, and the buffer that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The descriptor's bits.
    pub bits: Operand,
    /// The buffer.
    pub buffer: BufferId,
    /// How it lies there.
    pub major: Major,
}

/// Where operand A is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WgmmaA {
    /// In shared memory, 64 rows.
    Shared(Descriptor),
    /// In four registers a lane from this one on.
    Regs(Reg),
}

/// A warpgroup's product or what belongs to one.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // field names are the operands' names; the variants say what they do
pub enum WgmmaInst {
    /// Start `d = a·b (+ d where accumulate holds)`, 64 × `n`, f32 accumulators in `n / 2`
    /// registers a lane.
    Mma {
        input: WgmmaInput,
        n: u32,
        d: Reg,
        a: WgmmaA,
        b: Descriptor,
        accumulate: Operand,
    },
    /// Order what was written to registers before with the products that follow.
    Fence,
    /// Close the group of products started since the last commit.
    Commit,
    /// Wait until at most `pending` of the newest groups are unfinished.
    Wait { pending: u32 },
}

impl WgmmaInst {
    pub(super) fn rules(&self) -> Rules {
        match self {
            WgmmaInst::Mma { input, n, a, b, .. } => (HOPPER_ALONE, impossible_product(*input, *n, a, b)),
            WgmmaInst::Fence | WgmmaInst::Commit | WgmmaInst::Wait { .. } => (HOPPER_ALONE, None),
        }
    }
}

fn impossible_product(input: WgmmaInput, n: u32, a: &WgmmaA, b: &Descriptor) -> Option<String> {
    if !n.is_multiple_of(8) || !(8..=256).contains(&n) {
        return Some(format!(
            "a product of {n} columns; multiples of 8 up to 256 are possible"
        ));
    }
    let a_major = match a {
        WgmmaA::Shared(descriptor) => descriptor.major,
        WgmmaA::Regs(_) => Major::K,
    };
    (input == WgmmaInput::E4M3 && (a_major == Major::Mn || b.major == Major::Mn))
        .then(|| "8-bit operands must lie with k along their rows; only 16-bit ones can be transposed".to_string())
}
