//! A tile that is copied asynchronously and read before the wait.

use flashcore_ir::{BuildErrors, Kernel, TileShape};
use flashcore_sim::Case;

const THREADS: u32 = 64;

/// Each thread starts a copy of 16 bytes and reads data of another thread's copy.
pub(crate) fn case(mended: bool) -> Result<Case, BuildErrors> {
    let kernel = Kernel::build("missing_wait", THREADS, |k| {
        let keys = k.param_ptr::<f32>("k");
        let out = k.param_ptr_mut::<f32>("out");
        let tile = k.shared_tile::<f32>("k_tile", TileShape::new(1, THREADS * 4));
        let t = k.thread_idx();
        k.cp_async(tile.at(0, t * 4), keys.offset(t * 4), None); // AND
        k.cp_async_commit();
        if mended {
            k.cp_async_wait(0);
        }
        // A barrier orders the accesses of threads, not copies in flight.
        k.barrier();
        let value = tile.at(0, t).load(); // MISTAKE
        out.offset(t).store(value);
    })?;
    let values = (0..THREADS * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
    Ok(Case::new(kernel)
        .input("k", values)
        .output("out", (THREADS * 4) as usize))
}
