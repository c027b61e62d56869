//! What kinds of appends there are: which arrays a kernel reads, and what it rotates.

use flashcore_problem::{Append, AppendPlace, AppendValues};

/// What of an append is baked into the kernel, in addition to its [`Shape`](crate::attention::params::Shape).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kinds {
    /// Which arrays it reads.
    pub(crate) arrays: AppendValues<()>,
    /// Words of a slot; 0 without slots.
    pub(crate) slot_words: u32,
    pub(crate) seqused_k: bool,
    /// Columns that are rotated; 0 for none.
    pub(crate) rotary_dim: u32,
    pub(crate) interleaved: bool,
}

impl Kinds {
    pub(crate) fn of(append: &Append) -> Kinds {
        Kinds {
            arrays: append.entries().map(|_| ()),
            slot_words: match append.place {
                AppendPlace::Slots { wide } => 1 + u32::from(wide),
                AppendPlace::Cache | AppendPlace::Paged { .. } => 0,
            },
            seqused_k: append.seqused_k,
            rotary_dim: append.rotary.map_or(0, |rotary| rotary.dim as u32),
            interleaved: append.rotary.is_some_and(|rotary| rotary.interleaved),
        }
    }

    /// What of it a check reads.
    pub(crate) fn checked(append: &Append) -> Kinds {
        Kinds {
            seqused_k: false,
            rotary_dim: u32::from(append.rotary.is_some()),
            interleaved: false,
            ..Kinds::of(append)
        }
    }

    /// In the kernel's name.
    pub(crate) fn name(&self) -> String {
        let names = AppendValues::<()>::NAMES.into_iter();
        let names = names.filter(|name| self.arrays.named(name).is_some());
        let mut name: String = names.map(|name| format!("_{name}")).collect();
        if self.slot_words > 0 {
            name += &format!("_slots{}", 32 * self.slot_words);
        }
        if self.seqused_k {
            name += "_seqused_k";
        }
        if self.rotary_dim > 0 {
            name += &format!("_rotary{}{}", self.rotary_dim, if self.interleaved { "i" } else { "" });
        }
        name
    }

    /// Pairs of a task that rotates: of e4m3 a word of each table or more.
    pub(crate) fn pairs(&self, vector_bytes: u32, element: u32) -> u32 {
        if self.interleaved {
            (vector_bytes / (2 * element)).max(if element == 1 { 4 } else { 1 })
        } else {
            vector_bytes / element
        }
    }

    /// Tasks of a head of V, and of K or Q, whose first columns are rotated; `element` is in bytes.
    pub(crate) fn tasks(&self, head_dim: u32, rotates: bool, vector_bytes: u32, element: u32) -> u32 {
        let rotated = if rotates { self.rotary_dim } else { 0 };
        let copied = (head_dim - rotated) * element / vector_bytes;
        rotated / 2 / self.pairs(vector_bytes, element) + copied
    }
}
