//! K transposed into shared memory with rows one element too long.

use flashcore_ir::{BuildErrors, Kernel, TileShape};
use flashcore_sim::Case;

const KEYS: u32 = 32;
const HEAD_DIM: u32 = 16;

/// Each thread loads one key and stores it as a column.
pub(crate) fn case(mended: bool) -> Result<Case, BuildErrors> {
    let kernel = Kernel::build("transposed_keys", KEYS, |k| {
        let keys = k.param_ptr::<f32>("k");
        let out = k.param_ptr_mut::<f32>("out");
        let transposed = k.shared_tile::<f32>("k_transposed", TileShape::new(HEAD_DIM, KEYS));
        let key = k.thread_idx();
        let stride = if mended { KEYS } else { KEYS + 1 };
        let first = transposed.at(0, 0);
        for d in 0..HEAD_DIM {
            let value = keys.offset(key * HEAD_DIM + d).load();
            first.offset(key + d * stride).store(value); // MISTAKE
        }
        k.barrier();
        for d in 0..HEAD_DIM {
            out.offset(key * HEAD_DIM + d).store(transposed.at(d, key).load());
        }
    })?;
    let values = (0..KEYS * HEAD_DIM).flat_map(|i| (i as f32).to_le_bytes()).collect();
    Ok(Case::new(kernel)
        .input("k", values)
        .output("out", (KEYS * HEAD_DIM * 4) as usize))
}
