//! Which appends there can be.

use super::{Append, AppendPlace, Rotary};
use crate::{ProblemError, refuse};

/// Sizes that kernels count with 31 bits.
const MOST: usize = i32::MAX as usize;

impl Append {
    /// Checks shapes, strides and kinds.
    ///
    /// # Errors
    /// The first that is invalid or does not go with the others.
    pub fn check(&self) -> Result<(), ProblemError> {
        let [pages, page_size, heads, head_dim] = self.k_cache.shape;
        let ([first, rows, ..], head_dim_v) = (self.k_new.shape, self.v_cache.shape[3]);
        refuse!(!(1..=MOST).contains(&self.batch) => value("batch", self.batch, "there are 1 to 2^31 - 1 sequences"));
        let of_batch = if self.packed { 1 } else { self.batch };
        ProblemError::check_shape("k_new", &self.k_new.shape, &[of_batch, rows, heads, head_dim])?;
        ProblemError::check_shape("v_new", &self.v_new.shape, &[first, rows, heads, head_dim_v])?;
        ProblemError::check_shape("v_cache", &self.v_cache.shape, &[pages, page_size, heads, head_dim_v])?;
        refuse!(pages.min(page_size).min(heads).min(head_dim).min(head_dim_v) == 0 =>
            value("k_cache", 0, "no dimension of the caches is 0"));
        let capacity = match self.place {
            AppendPlace::Paged { tables, max_pages } => {
                refuse!(tables == 0 || max_pages == 0 || (!self.batch_idx && tables != self.batch) =>
                    value("block_table", tables, "the block table has a row for each sequence (any number with \
                        cache_batch_idx) and an entry or more in each"));
                max_pages.saturating_mul(page_size)
            }
            AppendPlace::Cache => {
                refuse!(!self.batch_idx && pages != self.batch =>
                    value("k_cache", pages, "a contiguous cache has one part for each sequence, or cache_batch_idx"));
                page_size
            }
            AppendPlace::Slots { .. } => {
                refuse!(self.batch_idx || self.seqused_k || self.leftpad =>
                    value("slot_mapping", 1, "slots say where rows go: leave batch_idx, seqused_k and leftpad false"));
                MOST // of positions
            }
        };
        refuse!(!(1..=capacity.min(MOST)).contains(&self.seq_len_kv) =>
            value("seq_len_kv", self.seq_len_kv, "it is 1 or more, and the cache has room for as many keys"));
        refuse!(self.leftpad && !self.seqused_k =>
            value("leftpad_k", 1, "padding changes nothing but seqused_k: ask for that, or leave leftpad false"));
        let table = self.entries().block_table.unwrap_or(0);
        let sizes = [self.new_rows(), self.slots(), heads, head_dim, head_dim_v, table];
        check_sizes("a size of new rows, of the cache or of the block table", &sizes)?;
        for (tensor, layout) in [("k_new", &self.k_new), ("v_new", &self.v_new)] {
            layout.check_wide(tensor)?;
        }
        for (tensor, layout) in [("k_cache", &self.k_cache), ("v_cache", &self.v_cache)] {
            layout.check_wide(tensor)?;
            layout.check_injective(tensor)?;
        }
        match &self.rotary {
            Some(rotary) => self.check_rotary(rotary),
            None => Ok(()),
        }
    }

    fn check_rotary(&self, rotary: &Rotary) -> Result<(), ProblemError> {
        let [first, rows, heads, head_dim] = rotary.q.shape;
        let of_batch = if rotary.packed_q { 1 } else { self.batch };
        ProblemError::check_shape("q", &rotary.q.shape, &[of_batch, rows, heads, self.k_cache.shape[3]])?;
        ProblemError::check_shape("q_out", &rotary.q_out.shape, &[first, rows, heads, head_dim])?;
        refuse!(rotary.dim == 0 || !rotary.dim.is_multiple_of(2) || rotary.dim > head_dim =>
            value("rotary_dim", rotary.dim, "it is even, 2 or more, and at most head_dim"));
        if rotary.positions < self.seq_len_kv {
            let why = format!(
                "has {} positions; keys can have {} of them: give a longer table, or lower seq_len_kv",
                rotary.positions, self.seq_len_kv
            );
            return ProblemError::lengths("rotary_cos", why);
        }
        refuse!(matches!(self.place, AppendPlace::Slots { .. }) && !rotary.seqlens =>
            lengths("seqlens_rotary", "was not given; slots do not say which positions rows have"));
        let sizes = [rotary.positions, first.saturating_mul(rows), heads];
        check_sizes("a size of Q or of the rotary tables", &sizes)?;
        rotary.q.check_wide("q")?;
        rotary.q_out.check_wide("q_out")?;
        rotary.q_out.check_injective("q_out")
    }
}

/// Refuses sizes that kernels cannot count.
fn check_sizes(what: &str, sizes: &[usize]) -> Result<(), ProblemError> {
    let check = |&size: &usize| ProblemError::check_size(what, size as u128, MOST as u128);
    sizes.iter().try_for_each(check)
}
