//! What the scalar kernels share: how operands are read.

use flashcore_ir::{Cache, GlobalPtr, SharedPtr, Val, Widen};

use crate::attention::params::Shape;

#[track_caller]
pub(crate) fn load_row<'k, E: Widen>(at: GlobalPtr<'k, E>, count: u32, shape: &Shape) -> Vec<Val<'k, f32>> {
    at.load_f32s(count, shape.vector_bytes, Cache::ReadOnly)
}

/// The same of a key's row: zeros where it is on no page.
#[track_caller]
pub(crate) fn load_key<'k, E: Widen>(
    at: GlobalPtr<'k, E>,
    on_page: Option<Val<'k, bool>>,
    count: u32,
    shape: &Shape,
) -> Vec<Val<'k, f32>> {
    let values = load_row(at, count, shape).into_iter();
    values
        .map(|value| on_page.map_or(value, |on_page| on_page.select(value, 0.0)))
        .collect()
}

#[track_caller]
pub(crate) fn load4<'k>(at: SharedPtr<'k, f32>) -> [Val<'k, f32>; 4] {
    let values = at.load_words(4, Cache::Default);
    [values[0], values[1], values[2], values[3]]
}
