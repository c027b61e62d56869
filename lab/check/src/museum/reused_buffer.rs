//! Probabilities stored over the scores while other warps still read the scores.

use flashcore_ir::{BuildErrors, Kernel, TileShape};
use flashcore_sim::Case;

const ROWS: u32 = 64;

/// Each thread sums a column of the scores and then overwrites scores with its probabilities.
pub(crate) fn case(mended: bool) -> Result<Case, BuildErrors> {
    let kernel = Kernel::build("reused_scores", ROWS, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let scores = k.shared_tile::<f32>("scores", TileShape::new(ROWS, ROWS));
        let probs = k.shared_tile_reusing::<f32, f32>("probs", TileShape::new(ROWS, ROWS), scores);
        let t = k.thread_idx();
        for col in 0..ROWS {
            scores.at(t, col).store((t * ROWS + col).to_f32());
        }
        k.barrier();
        let sum = k.var(0.0f32);
        for row in 0..ROWS {
            sum.add_assign(scores.at(row, t).load()); // AND
        }
        if mended {
            k.barrier();
        }
        for col in 0..ROWS {
            probs.at(t, col).store(sum.get()); // MISTAKE
        }
        k.barrier();
        out.offset(t).store(probs.at(t, 0).load());
    })?;
    Ok(Case::new(kernel).output("out", (ROWS * 4) as usize))
}
