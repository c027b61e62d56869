//! Ragged tensor maps: boxes of one sequence of a packed tensor, through one tensor map for all sequences.
//!
//! Packed sequences follow each other without a gap. A copy of whole boxes must end with its sequence nevertheless:
//! rows past the end are those of the next sequence, or bytes that were never written. A tensor map zero-fills, and
//! does not write, what is past the end of a *dimension*, but the end of a sequence is known on the device only.
//!
//! A ragged map has two dimensions more, whose strides cancel each other. Let `s` be the byte stride of the rows and `B
//! = 2^30`. The dimensions (rows, ends, wraps) have the byte strides `(s, s, 2^34 - s)`, and the rows have `B`
//! elements. Row `row` of the sequence whose `len` rows begin at row `first` has the coordinates `(B - len + row, first
//! + len, B)`:
//!
//! - its first coordinate is below `B`, inside the tensor, exactly if `row < len`;
//! - its offset is `s * (B - len + row) + s * (first + len) + (2^34 - s) * B = s * (first + row) + 2^64` bytes, and
//!   addresses
//!   are modulo 2^64.
//!
//! The descriptors of Triton (`triton/tools/ragged_tma.py`) and of quack's ragged tensors are such maps.

use crate::builder::KernelBuilder;
use crate::launch::{TensorBox, TensorMapProblem, TensorMapRecipe};
use crate::tensor_copy::{BoxAt, TensorMap};
use crate::value::Val;

/// Rows that a sequence, and all sequences of a tensor, may have.
pub const MOST_ROWS: u64 = 1 << 30;

/// The stride of the last dimension, less that of the rows: [`MOST_ROWS`] times it is 2^64.
const WRAP_STRIDE: u64 = 1 << 34;

/// Elements of the last two dimensions: above every coordinate, and a multiple of a large power of two (as Triton has
/// them).
const UNBOUNDED: u64 = 0x7fff_0000;

impl TensorBox {
    /// Makes the map ragged: dimension `dim` of the tensor holds the rows of many sequences, and [`TensorMap::rows`]
    /// names the sequence of a copy. The hardware's map has two dimensions more, so at most 3 are possible.
    pub fn ragged(self, dim: u32) -> TensorBox {
        TensorBox {
            ragged: Some(dim),
            ..self
        }
    }

    /// Coordinates of a copy.
    pub fn coordinates(&self) -> u32 {
        self.rank + if self.ragged.is_some() { 2 } else { 0 }
    }
}

impl TensorMapRecipe {
    /// The map that the hardware reads, as `cuTensorMapEncodeTiled` takes it: with all dimensions of a ragged one.
    pub fn encoded(&self) -> TensorMapRecipe {
        let mut encoded = self.clone();
        if let Some(dim) = encoded.ragged.take() {
            let row_stride = self.byte_strides[dim as usize - 1];
            encoded.dims[dim as usize] = MOST_ROWS;
            encoded.dims.extend([UNBOUNDED; 2]);
            encoded.byte_strides.extend([row_stride, WRAP_STRIDE - row_stride]);
            encoded.box_dims.extend([1; 2]);
        }
        encoded
    }

    /// What a ragged map needs in addition to the rules of every map.
    pub(crate) fn check_ragged(&self) -> Result<(), TensorMapProblem> {
        let Some(dim) = self.ragged else {
            return Ok(());
        };
        let (index, rank) = (dim as usize, self.dims.len());
        if !(1..rank).contains(&index) || rank > 3 {
            return Err(TensorMapProblem::RaggedRank { dim, rank });
        }
        let (rows, stride) = (self.dims[index], self.byte_strides[index - 1]);
        if rows > MOST_ROWS || stride == 0 || stride >= WRAP_STRIDE {
            return Err(TensorMapProblem::RaggedRows { rows, stride });
        }
        Ok(())
    }
}

/// The rows of one sequence in a ragged tensor map. Made by [`TensorMap::rows`].
#[derive(Clone, Copy, Debug)]
pub struct RaggedRows<'k> {
    map: TensorMap<'k>,
    /// The coordinate of the sequence's first row, and that of its end.
    start: Val<'k, u32>,
    end: Val<'k, u32>,
}

impl<'k> TensorMap<'k> {
    /// The `len` rows from row `first` of the tensor on: copies from [`RaggedRows::at`] read zeros in place of rows
    /// past them, and do not write there. `len` is at most [`MOST_ROWS`].
    ///
    /// ```
    /// use flashcore_ir::{Kernel, TileShape};
    /// let kernel = Kernel::build("gather", 32, |k| {
    ///     let tile = k.shared_tile::<f32>("tile", TileShape::new(16, 32));
    ///     // Packed rows of several heads: (head_dim, total, heads).
    ///     let map = k.param_tensor_map("packed", tile.tensor_box(&[16, 1]).ragged(1));
    ///     let (first, len, head) = (k.param("first"), k.param("len"), k.constant(0));
    ///     let full = k.mbarriers("full", 1).at(0);
    ///     k.if_(k.elect().divergent(), || {
    ///         full.init(1);
    ///         k.fence_mbarrier_init();
    ///         full.arrive_expecting(tile.stage_bytes());
    ///         tile.load_tma(0, map.rows(first, len).at(&[k.constant(32), head]), full);
    ///         full.wait(0);
    ///     });
    /// })?;
    /// assert!(kernel.to_ptx().contains("cp.async.bulk.tensor.5d"));
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    #[track_caller]
    pub fn rows(&self, first: Val<'k, u32>, len: Val<'k, u32>) -> RaggedRows<'k> {
        let k = first.builder();
        if self.boxes.ragged.is_none() {
            k.invalid(
                "rows of a sequence in a tensor map that is not ragged; declare it with `TensorBox::ragged`"
                    .to_string(),
            );
        }
        RaggedRows {
            map: *self,
            start: k.constant(MOST_ROWS as u32) - len,
            end: first + len,
        }
    }
}

impl<'k> RaggedRows<'k> {
    /// The box whose first row is at these coordinates: those of [`TensorMap::at`], with a row of the sequence, from 0
    /// on, along the ragged dimension.
    #[track_caller]
    pub fn at(&self, rows: &[Val<'k, u32>]) -> BoxAt<'k> {
        let mut at = rows.to_vec();
        let ragged = self.map.boxes.ragged.map(|dim| dim as usize);
        if let Some(row) = ragged.and_then(|dim| at.get_mut(dim.wrapping_sub(1))) {
            *row = self.start + *row;
        }
        let past = [self.end, self.end.builder().constant(MOST_ROWS as u32)];
        self.map.box_at(at, &past)
    }
}

impl KernelBuilder {
    /// Reports boxes that no ragged map can have.
    #[track_caller]
    pub(crate) fn check_ragged_boxes(&self, boxes: TensorBox) {
        if let Some(dim) = boxes.ragged
            && (!(1..boxes.rank).contains(&dim) || boxes.rank > 3)
        {
            let rank = boxes.rank;
            self.invalid(format!(
                "{}",
                TensorMapProblem::RaggedRank {
                    dim,
                    rank: rank as usize
                }
            ));
        }
    }
}
