//! Where the rows of a sequence begin, and how many there are.

use flashcore_ir::{Element, GlobalPtr, KernelBuilder, Source, Val};
use flashcore_problem::Layout;

/// Strides of batch, sequence and heads in elements; 0 where a dimension has one index and its stride is never used.
pub(crate) fn row_strides(layout: &Layout) -> [u32; 3] {
    [0, 1, 2].map(|dim| match layout.shape[dim] {
        0 | 1 => 0,
        _ => layout.strides[dim] as u32,
    })
}

/// A tensor parameter: a pointer and its three outer strides in elements.
#[derive(Clone, Copy)]
pub(crate) struct TensorParam<'k, E> {
    base: GlobalPtr<'k, E>,
    batch_stride: Val<'k, u32>,
    pub seq_stride: Val<'k, u32>,
    head_stride: Val<'k, u32>,
}

impl<'k, E: Element> TensorParam<'k, E> {
    pub(crate) fn declare(k: &'k KernelBuilder, name: &str, base: GlobalPtr<'k, E>) -> Self {
        TensorParam {
            base,
            batch_stride: k.param(&format!("{name}_batch_stride")),
            seq_stride: k.param(&format!("{name}_seq_stride")),
            head_stride: k.param(&format!("{name}_head_stride")),
        }
    }

    #[track_caller]
    pub(crate) fn head(&self, batch: Val<'k, u32>, head: Val<'k, u32>) -> GlobalPtr<'k, E> {
        self.base
            .offset_strided(batch, self.batch_stride)
            .offset_strided(head, self.head_stride)
    }

    #[track_caller]
    pub(crate) fn row(&self, head: GlobalPtr<'k, E>, row: impl Source<'k, u32>) -> GlobalPtr<'k, E> {
        head.offset_strided(row, self.seq_stride)
    }
}

/// The query rows that share a K/V head in one tile.
///
/// Packed, the rows of a tile are those of all heads that share K and V: row `i` is query `i / group_size` of
/// head `i % group_size` of the group.
#[derive(Clone, Copy)]
pub(crate) struct QueryRows<'k> {
    pub batch: Val<'k, u32>,
    /// First of the heads whose rows these are.
    pub head: Val<'k, u32>,
    /// Number of rows, of all tiles.
    pub count: Val<'k, u32>,
    /// Query heads per K/V head, if packed.
    pub packed: Option<Val<'k, u32>>,
}

impl<'k> QueryRows<'k> {
    #[track_caller]
    pub(crate) fn head_and_query(&self, row: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        match self.packed {
            Some(group) => (self.head + row % group, row / group),
            None => (self.head, row),
        }
    }

    /// Number of the head among those of all batches, and query of a row.
    #[track_caller]
    pub(crate) fn batch_head_and_query(
        &self,
        num_heads: Val<'k, u32>,
        row: Val<'k, u32>,
    ) -> (Val<'k, u32>, Val<'k, u32>) {
        let (head, query) = self.head_and_query(row);
        (self.batch.fma(num_heads, head), query)
    }

    #[track_caller]
    pub(crate) fn query(&self, row: Val<'k, u32>) -> Val<'k, u32> {
        match self.packed {
            Some(group) => row / group,
            None => row,
        }
    }

    #[track_caller]
    pub(crate) fn of<E: Element>(&self, tensor: &TensorParam<'k, E>, row: Val<'k, u32>) -> GlobalPtr<'k, E> {
        let (head, query) = self.head_and_query(row);
        tensor.row(tensor.head(self.batch, head), query)
    }
}
