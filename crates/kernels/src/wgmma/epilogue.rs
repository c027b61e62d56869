//! The result on its way out: normalised, rounded, laid into shared memory, and copied from there.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{Cache, SharedTile, TensorMap, Val};

use super::kernel::Output;
use super::math::Warpgroup;
use super::schedule::Work;
use crate::lanes::{ACC_COLS, QUAD};
use crate::params::TensorParam;
use crate::softmax::normaliser;
use crate::tiles::padded;

/// Number of the barrier of the first warpgroup, after those of [`super::turns`].
const FIRST_BARRIER: u32 = 5;

impl<'k, E: MmaElement + WgmmaElement> Warpgroup<'k, '_, E> {
    /// Stores the warpgroup's rows. A copy runs on; the next tile waits for it before it writes where it reads.
    #[track_caller]
    pub(super) fn store(&self, work: &Work<'k>) {
        let norms = [0, 1].map(|half| {
            let sum = self.rows[half].sum.get().reduce_sum(QUAD);
            self.store_lse(work, half, sum);
            normaliser(sum)
        });
        match &self.shared.out {
            Output::Staged(tile, map) => self.store_staged(work, norms, *tile, *map),
            Output::Direct(out) => self.store_direct(work, norms, out),
        }
    }

    /// After the last tile of rows: shared memory must outlive the copies that read it.
    #[track_caller]
    pub(super) fn end(&self) {
        if let Output::Staged(..) = self.shared.out {
            self.one_thread(|| self.k.bulk_wait_read(0));
        }
    }

    #[track_caller]
    fn store_staged(&self, work: &Work<'k>, norms: [Val<'k, f32>; 2], tile: SharedTile<'k, E>, map: TensorMap<'k>) {
        let k = self.k;
        self.one_thread(|| k.bulk_wait_read(0));
        self.meet();
        let place = tile.at(self.lane_row, k.lane() % QUAD * 2u32);
        for column in 0..padded(self.shared.shape.head_dim_v) / ACC_COLS {
            let (slab, within) = (
                column * ACC_COLS / tile.slab_cols(),
                column * ACC_COLS % tile.slab_cols(),
            );
            let at = if within == 0 { place } else { tile.across(place, within) };
            let at = at.plus((slab * tile.slab_bytes() / E::BYTES) as i32);
            for (half, norm) in norms.into_iter().enumerate() {
                let word = self.output_word(column, half, norm);
                tile.down(at, 8 * half as u32).store_words(&[word], Cache::Default);
            }
        }
        k.fence_proxy_async();
        self.meet();
        self.one_thread(|| {
            let to = map.at(&[work.first_row + self.index * 64, work.head, work.batch]);
            tile.store_tma_part(0, self.index, to);
            k.bulk_commit();
        });
    }

    #[track_caller]
    fn store_direct(&self, work: &Work<'k>, norms: [Val<'k, f32>; 2], out: &TensorParam<'k, E>) {
        let (k, head_dim_v) = (self.k, self.shared.shape.head_dim_v);
        let head = out.head(work.batch, work.head);
        for (half, norm) in norms.into_iter().enumerate() {
            let query = work.first_row + self.lane_row + 8 * half as u32;
            let exists = query.lt(self.shared.params.seq_len_q);
            k.if_(exists.divergent(), || {
                let place = out.row(head, query).offset(k.lane() % QUAD * 2u32);
                for column in 0..head_dim_v / ACC_COLS {
                    let word = self.output_word(column, half, norm);
                    place
                        .plus((column * ACC_COLS) as i32)
                        .store_words(&[word], Cache::Default);
                }
            });
        }
    }

    /// A lane's two values of 8 columns in one of its rows, normalised and rounded.
    #[track_caller]
    fn output_word(&self, column: u32, half: usize, norm: Val<'k, f32>) -> Val<'k, E::Word> {
        let pair = [0, 1].map(|e| self.out.var(4 * column + 2 * half as u32 + e) * norm);
        E::pack(pair[0], pair[1])
    }

    /// Stores the log-sum-exp of a row, if it is asked for and this is the one lane of four to do it.
    #[track_caller]
    fn store_lse(&self, work: &Work<'k>, half: usize, sum: Val<'k, f32>) {
        if !self.shared.shape.lse {
            return;
        }
        let (k, params) = (self.k, self.shared.params);
        let query = work.first_row + self.lane_row + 8 * half as u32;
        let mine = (k.lane() % QUAD).eq(0) & query.lt(params.seq_len_q);
        k.if_(mine.divergent(), || {
            let batch_head = work.batch.fma(params.num_heads, work.head);
            params.store_lse(batch_head, query, self.rows[half].reference.offset.get(), sum);
        });
    }

    /// Waits for the warpgroup's four warps.
    #[track_caller]
    fn meet(&self) {
        self.k.barrier_among(self.index + FIRST_BARRIER, 128);
    }

    /// One thread of the warpgroup, always the same.
    #[track_caller]
    fn one_thread(&self, body: impl FnOnce()) {
        let k = self.k;
        k.if_((k.thread_idx() % 128).eq(0).divergent(), body);
    }
}
