//! The result on its way out: normalised, rounded, laid into shared memory, and copied from there.

use flashcore_ir::Cache;
use flashcore_ir::fragment::MmaElement;
use flashcore_ir::wgmma::WgmmaElement;

use super::math::Warpgroup;
use super::schedule::Work;
use crate::lanes::{ACC_COLS, QUAD};
use crate::softmax::normaliser;
use crate::tiles::padded;

/// Number of the barrier of the first warpgroup, after those of [`super::turns`].
const FIRST_BARRIER: u32 = 5;

impl<'k, E: MmaElement + WgmmaElement> Warpgroup<'k, '_, E> {
    /// Stores the warpgroup's rows. The copy runs on; the next tile waits for it before it writes where it reads.
    #[track_caller]
    pub(super) fn store(&self, work: &Work<'k>) {
        let (k, shared) = (self.k, self.shared);
        let reuses_q = shared.levers.out_reuses_q(shared.shape);
        if !reuses_q {
            self.q.release();
            self.q.advance();
            self.one_thread(|| k.bulk_wait_read(0));
        }
        // Where rows of Q are overwritten: every warp's products have read them.
        self.meet();
        self.write_rows(work);
        k.fence_proxy_async();
        self.meet();
        self.one_thread(|| {
            let to = shared.out_map.at(&[work.first_row + self.index * 64, work.head, work.batch]);
            shared.out_tile.store_tma_part(0, self.index, to);
            k.bulk_commit();
            if reuses_q {
                k.bulk_wait_read(0);
            }
        });
        if reuses_q {
            self.meet();
            self.q.release();
            self.q.advance();
        }
    }

    /// After the last tile of rows: shared memory must outlive the copies that read it.
    #[track_caller]
    pub(super) fn end(&self) {
        self.one_thread(|| self.k.bulk_wait_read(0));
    }

    #[track_caller]
    fn write_rows(&self, work: &Work<'k>) {
        let (k, shared) = (self.k, self.shared);
        let tile = shared.out_tile;
        let place = tile.at(self.lane_row, k.lane() % QUAD * 2u32);
        for (half, row) in self.rows.iter().enumerate() {
            let sum = row.sum.get().reduce_sum(QUAD);
            let norm = normaliser(sum);
            for column in 0..padded(shared.shape.head_dim_v) / ACC_COLS {
                let pair = [0, 1].map(|e| self.out.var(4 * column + 2 * half as u32 + e) * norm);
                let (slab, within) = (
                    column * ACC_COLS / tile.slab_cols(),
                    column * ACC_COLS % tile.slab_cols(),
                );
                let at = if within == 0 { place } else { tile.across(place, within) };
                let at = tile
                    .down(at, 8 * half as u32)
                    .plus((slab * tile.slab_bytes() / E::BYTES) as i32);
                at.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
            }
            if shared.shape.lse {
                let query = work.first_row + self.lane_row + 8 * half as u32;
                let mine = (k.lane() % QUAD).eq(0) & query.lt(shared.params.seq_len_q);
                k.if_(mine.divergent(), || {
                    let batch_head = work.batch.fma(shared.params.num_heads, work.head);
                    shared
                        .params
                        .store_lse(batch_head, query, row.reference.offset.get(), sum);
                });
            }
        }
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
