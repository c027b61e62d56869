//! What the rungs share: how operands are read.

use flashcore_ir::{Cache, GlobalPtr, SharedPtr, Val, Widen};

use crate::attention::params::Shape;

/// Loads the elements of a row from global memory as f32.
#[track_caller]
pub(crate) fn load_row<'k, E: Widen>(at: GlobalPtr<'k, E>, count: u32, shape: &Shape) -> Vec<Val<'k, f32>> {
    at.load_f32s(count, shape.vector_bytes, Cache::ReadOnly)
}

/// Loads four neighbouring f32 from shared memory.
#[track_caller]
pub(crate) fn load4<'k>(at: SharedPtr<'k, f32>) -> [Val<'k, f32>; 4] {
    let values = at.load_words(4, Cache::Default);
    [values[0], values[1], values[2], values[3]]
}
