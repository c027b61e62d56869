//! A shuffle used as if it ordered memory.

use flashcore_ir::{BuildErrors, Kernel, TileShape};
use flashcore_sim::Case;

/// Lanes store a value in shared memory, shuffle, and read their neighbour's value.
pub(crate) fn case(mended: bool) -> Result<Case, BuildErrors> {
    let kernel = Kernel::build("shuffle_as_fence", 32, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let row = k.shared_tile::<f32>("row_max", TileShape::new(1, 32));
        let lane = k.lane();
        let value = lane.to_f32();
        row.at(0, lane).store(value); // AND
        let largest = value.max(value.shfl_bfly(1));
        if mended {
            k.sync_warp();
        }
        let neighbour = row.at(0, lane ^ 1u32).load(); // MISTAKE
        out.offset(lane).store(largest + neighbour);
    })?;
    Ok(Case::new(kernel).output("out", (32 * 4) as usize))
}
