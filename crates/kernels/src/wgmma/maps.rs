//! Tensors `[batch, seq, heads, head_dim]` as tensor maps: dimensions are (head_dim, seq, heads, batch), or (head_dim,
//! rows, heads) of a ragged one; with packed heads, heads come before rows.

use flashcore_ir::pipeline::Pipeline;
use flashcore_ir::{Element, SharedTile};
use flashcore_problem::{DType, Layout, Name, Problem};

use super::{ALIGNMENT, NAME};
use crate::args::{Args, Part, Request, layout_of, push_buffer};
use crate::attention::lengths::row_strides;
use crate::attention::tensor_rows::{Flat, RowsOf, TensorRows};
use crate::{Refusal, refuse};

/// A tensor whose rows are copied to shared memory, and the pipeline of its stages there.
#[derive(Clone, Copy)]
pub(super) struct Operand<'k, E> {
    pub(super) tile: SharedTile<'k, E>,
    pub(super) rows: TensorRows<'k>,
    pub(super) pipeline: Pipeline<'k>,
}

impl<'k, E> Operand<'k, E> {
    pub(super) fn new(tile: SharedTile<'k, E>, rows: TensorRows<'k>, pipeline: Pipeline<'k>) -> Self {
        Operand { tile, rows, pipeline }
    }
}

/// Declares the map of a tensor, which is in its own buffer or at a `place` of the workspace. Boxes have `rows` rows of
/// a tile.
#[track_caller]
pub(super) fn declare<'k, E: Element, R: Request>(
    k: &'k Args<'k, R>,
    tensor: Name,
    tile: SharedTile<'_, E>,
    rows: u32,
    of: RowsOf,
    place: fn(&R) -> Option<Part>,
) -> TensorRows<'k> {
    let written = matches!(tensor, Name::Out | Name::Dk | Name::Dv);
    let name = tensor.as_str();
    let boxes = of.boxes(tile, rows);
    let map = k.tensor_map(name, written, boxes, move |launch, request| {
        let problem = request.problem();
        let layout = layout_of(problem, tensor)?;
        let (slot, byte_offset) = match place(request) {
            Some(part) => (part.push(launch, written), part.offset),
            None => {
                let bytes = layout.span() * E::BYTES as usize;
                (push_buffer(launch, name, bytes, ALIGNMENT, written), 0)
            }
        };
        check_repeated(name, layout, remedy(problem))?;
        let [sizes, byte_strides] = sizes_and_strides(tensor, problem, of, E::BYTES.into())?;
        Ok(boxes.recipe(slot, byte_offset, sizes, byte_strides))
    });
    let batch_rows = matches!(of, RowsOf::Cache | RowsOf::Pages(_)).then(|| {
        k.try_number(&format!("{name}_batch_rows"), move |request| {
            Ok(flat(tensor, request.problem())?.batch_rows)
        })
    });
    TensorRows::new(map, rows, of, batch_rows)
}

/// The sizes of a tensor's dimensions, and their strides in bytes. An element has `bytes` bytes.
fn sizes_and_strides(tensor: Name, problem: &Problem, of: RowsOf, bytes: u64) -> Result<[Vec<u64>; 2], Refusal> {
    let layout = layout_of(problem, tensor)?;
    let [batch, seq, head] = row_strides(layout);
    let [batches, rows, heads, columns] = layout.shape.map(|n| n as u64);
    // A stride that is never taken must be one that could be.
    let stride = |stride: u32| match stride {
        0 => (columns * bytes).next_multiple_of(16),
        stride => u64::from(stride) * bytes,
    };
    let mut sizes = vec![columns, rows, heads, batches];
    let mut strides = vec![stride(seq), stride(head), stride(batch)];
    // Of V transposed, `transpose` says them.
    if !matches!(of, RowsOf::Batch(_)) {
        let flat = flat(tensor, problem)?;
        sizes = vec![columns, flat.count, heads];
        strides = vec![stride(flat.stride), stride(head)];
    }
    if of.heads_first() {
        sizes.swap(1, 2);
        strides.swap(0, 1);
    }
    Ok([sizes, strides])
}

fn flat(tensor: Name, problem: &Problem) -> Result<Flat, Refusal> {
    Flat::new(NAME, tensor.as_str(), layout_of(problem, tensor)?, remedy(problem))
}

fn remedy(problem: &Problem) -> &'static str {
    match problem.dtype() {
        DType::E4M3 => "no other family serves e4m3: copy them, or use the CPU",
        _ => "family mma does",
    }
}

/// Refuses strides of 0, which tensor maps do not have.
pub(super) fn check_repeated(name: &str, layout: &Layout, remedy: &'static str) -> Result<(), Refusal> {
    let counts = layout.shape.into_iter().take(3);
    let mut of_rows = counts.zip(row_strides(layout));
    refuse!(of_rows.any(|(count, stride)| count > 1 && stride == 0) =>
        NAME, remedy, "rows of `{name}` that repeat (a stride of 0)");
    Ok(())
}
