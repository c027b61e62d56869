//! The sums of dK and dV in the workspace, where several blocks of a main kernel share a tile of keys.

use flashcore_ir::{Cache, GlobalPtr, Val};
use flashcore_problem::{KvLengths, Problem};

use super::{Backward, Workspace, declare_array, padded_rows};
use crate::args::{Args, Of};
use crate::{Refusal, refuse};

/// Elements that a thread of `preprocess` zeroes at a time.
const ZEROED: usize = 4;

impl Workspace {
    /// With sums of dK and dV, of so many columns.
    ///
    /// # Errors
    /// More elements than `preprocess` counts, in 31 bits.
    pub(crate) fn sums_of_keys(
        self,
        family: &'static str,
        problem: &Problem,
        columns: u32,
    ) -> Result<Workspace, Refusal> {
        let total = match problem.kv_lengths() {
            KvLengths::Packed { total, .. } => Some(total),
            _ => None,
        };
        let (kv_stride, kv_rows) = padded_rows(problem, total, problem.seq_len_kv(), problem.num_kv_heads());
        let summed = Workspace {
            kv_stride,
            kv_rows,
            kv_columns: columns,
            ..self
        };
        let zeroed = (summed.sums_of_keys_bytes() / 4 / ZEROED) as u64;
        refuse!(zeroed > i32::MAX as u64 =>
            family, "leave out the splits", "sums of dK and dV of {kv_rows} keys of all heads");
        Ok(summed)
    }

    /// Whether there are sums of dK and dV.
    pub(crate) fn has_sums_of_keys(&self) -> bool {
        self.kv_rows > 0
    }

    pub(super) fn sums_of_keys_bytes(&self) -> usize {
        2 * 4 * self.kv_rows * self.kv_columns as usize
    }
}

/// The sums of dK and dV.
#[derive(Clone, Copy)]
pub(crate) struct KeySums<'k> {
    pub dk: GlobalPtr<'k, f32>,
    pub dv: GlobalPtr<'k, f32>,
    /// Rows from one head to the next.
    pub stride: Val<'k, u32>,
}

impl<'k> KeySums<'k> {
    pub(crate) fn declare(k: &'k Args<'k, Backward>, written: bool) -> Self {
        KeySums {
            dk: declare_array(k, "dk_sums", written, |at| at.dk_sums),
            dv: declare_array(k, "dv_sums", written, |at| at.dv_sums),
            stride: k.number("kv_sums_stride", |request| request.workspace.kv_stride as u32),
        }
    }
}

/// Sums of dK and dV that are zeroed.
pub(crate) struct ZeroedSums<'k> {
    first: GlobalPtr<'k, f32>,
    /// Groups of [`ZEROED`] elements, of all and of a block.
    count: Val<'k, u32>,
    of_block: Val<'k, u32>,
}

impl<'k> ZeroedSums<'k> {
    /// `blocks` share the work.
    pub(crate) fn declare(k: &'k Args<'k, Backward>, blocks: impl Of<Backward, usize>) -> Self {
        let groups = |request: &Backward| request.workspace.sums_of_keys_bytes() / 4 / ZEROED;
        ZeroedSums {
            first: declare_array(k, "kv_sums", true, |at| at.dk_sums),
            count: k.number("kv_sums_count", move |request| groups(request) as u32),
            of_block: k.number("kv_sums_of_block", move |request| {
                groups(request).div_ceil(blocks(request)) as u32
            }),
        }
    }

    /// Zeroes this block's part; the block has `threads` threads.
    #[track_caller]
    pub(crate) fn zero(&self, threads: u32) {
        let k = self.count.builder();
        let zeros = [0; ZEROED].map(|_| k.constant(0f32));
        let first = k.block_idx(0) * self.of_block;
        let end = (first + self.of_block).min(self.count);
        k.for_divergent(first + k.thread_idx(), end, threads, |i| {
            let place = self.first.offset_strided(i, ZEROED as u32);
            place.store_words(&zeros, Cache::Default);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::PADDING;
    use super::*;

    /// Padded rows, counted by heads, and by packed rows.
    #[test]
    fn sums_have_their_bytes() {
        let bytes = |problem: flashcore_problem::ProblemBuilder| {
            let problem = problem.head_dim(64).build().unwrap();
            let workspace = Workspace::new("wgmma", &problem, 64).unwrap();
            let summed = workspace.sums_of_keys("wgmma", &problem, 64).unwrap();
            assert!(!workspace.has_sums_of_keys() && summed.has_sums_of_keys());
            summed.sums_of_keys_bytes()
        };
        let problem = Problem::builder().batch(2).heads(6, 3).seq_len(200);
        assert_eq!(bytes(problem.clone()), 2 * 4 * 64 * (2 * 3 * 256));
        let total = KvLengths::Packed {
            total: 300,
            used: false,
        };
        assert_eq!(bytes(problem.kv_lengths(total)), 2 * 4 * 64 * 3 * (384 + 2 * 128));
    }

    /// Few keys are padded to many.
    #[test]
    fn more_than_are_counted_are_refused() {
        let refusal = |batch| {
            let problem = Problem::builder().batch(batch).heads(512, 512).seq_len(1).head_dim(16);
            let problem = problem.build().unwrap();
            let workspace = Workspace::new("wgmma", &problem, 64).unwrap();
            workspace
                .sums_of_keys("wgmma", &problem, 64)
                .err()
                .map(|refusal| refusal.to_string())
        };
        let most = (1 << 31) / (512 * PADDING as usize * 64 / 2);
        assert_eq!(refusal(most - 1), None);
        let text = refusal(most).unwrap();
        assert!(
            text.contains("67108864 keys") && text.contains("leave out the splits"),
            "{text}"
        );
    }
}
