//! Accumulators of a tensor-core product, stored by a map that ignores the lane.

use flashcore_ir::{BuildErrors, Cache, Kernel};
use half::f16;

use flashcore_sim::Case;

/// `C = A · Bᵀ` of 16 × 16 by 8 × 16 by one warp.
pub(crate) fn case(mended: bool) -> Result<Case, BuildErrors> {
    let kernel = Kernel::build("lane_blind", 32, |k| {
        let (a, b) = (k.param_ptr::<f16>("a"), k.param_ptr::<f16>("b"));
        let c = k.param_ptr_mut::<f32>("c");
        let (row, col) = (k.lane() / 4, k.lane() % 4u32 * 2);
        let word_of_a = |r: u32, at: u32| a.offset((row + r) * 16 + col + at).load_words(1, Cache::Default)[0];
        let word_of_b = |at: u32| b.offset(row * 16 + col + at).load_words(1, Cache::Default)[0];
        let left = k.a_operand::<f16>(&[word_of_a(0, 0), word_of_a(8, 0), word_of_a(0, 8), word_of_a(8, 8)]);
        let right = k.b_operand::<f16>(&[word_of_b(0), word_of_b(8)]);
        let product = k.acc("product", 1);
        k.mma(product, 0, left, right);
        for i in 0..4 {
            let value = product.var(i).get();
            let (down, across) = (i / 2 * 8, i % 2);
            if mended {
                c.offset((row + down) * 8 + col + across).store(value);
            } else {
                // As if one thread held the whole tile.
                c.plus((down * 8 + across) as i32).store(value); // MISTAKE
            }
        }
    })?;
    let halves = |count: u32| -> Vec<u8> {
        let value = |i: u32| f16::from_f32((i % 7) as f32).to_le_bytes();
        (0..count).flat_map(value).collect()
    };
    Ok(Case::new(kernel)
        .input("a", halves(16 * 16))
        .input("b", halves(8 * 16))
        .output("c", (16 * 8 * 4) as usize))
}
