//! Finds bank conflicts of shared buffers and layouts that avoid them: swizzles, which cost no
//! memory, and padded rows.
//!
//! The logged accesses of the first cluster are moved to other layouts and their passes counted
//! again. The address arithmetic of a layout is not counted.

use flashcore_ir::{Ledger, SharedBuffer, Swizzle};
use flashcore_sim::{Access, Line, Log};
use serde::Serialize;

/// A candidate layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Such as `swizzle b128` or `rows padded by 16 B`.
    pub what: String,
    /// Extra passes of all accesses to the buffer.
    pub beyond: u64,
    /// Additional bytes of shared memory; negative if it saves some.
    pub ledger_bytes: i64,
}

/// A buffer with bank conflicts.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The buffer.
    pub buffer: String,
    /// Passes of its accesses.
    pub passes: u64,
    /// Passes beyond the minimum.
    pub beyond: u64,
    /// The line with most of them.
    pub worst: Line,
    /// The best other layout if one is better: fewest passes, then fewest bytes.
    pub best: Option<Layout>,
}

/// The buffers of a ledger whose logged accesses conflict, the worst first.
pub fn advise(ledger: &Ledger, log: &Log) -> Vec<Advice> {
    let mut advice = Vec::new();
    for (id, buffer) in (0u32..).zip(&ledger.buffers) {
        if !buffer.holds_barriers() {
            let accesses: Vec<_> = log.accesses.iter().filter(|access| access.buffer == id).collect();
            advice.extend(of_buffer(buffer, &accesses));
        }
    }
    advice.sort_by_key(|advice| std::cmp::Reverse(advice.beyond));
    advice
}

fn of_buffer(buffer: &SharedBuffer, accesses: &[&Access]) -> Option<Advice> {
    let (mut passes, mut beyond) = (0, 0);
    let mut by_line: Vec<(Line, u64)> = Vec::new();
    for access in accesses {
        let (took, fewest) = cost(access, &access.offsets, buffer.offset);
        passes += took;
        beyond += took - fewest;
        match by_line.iter_mut().find(|(line, _)| *line == access.line) {
            Some((_, sum)) => *sum += took - fewest,
            None => by_line.push((access.line, took - fewest)),
        }
    }
    let (worst, most) = by_line.into_iter().max_by_key(|(_, beyond)| *beyond)?;
    if most == 0 {
        return None;
    }
    let tried = candidates(buffer).into_iter().filter_map(|(what, other)| {
        Some(Layout {
            what,
            beyond: passes_beyond(buffer, &other, accesses)?,
            ledger_bytes: i64::from(other.bytes) - i64::from(buffer.bytes),
        })
    });
    let best = tried.min_by_key(|layout| (layout.beyond, layout.ledger_bytes));
    Some(Advice {
        buffer: buffer.name.clone(),
        passes,
        beyond,
        worst,
        best: best.filter(|layout| layout.beyond < beyond),
    })
}

fn cost(access: &Access, offsets: &[u32; 32], start: u32) -> (u64, u64) {
    access.passes_at(&offsets.map(|offset| start.wrapping_add(offset)))
}

/// Candidate layouts of a buffer: no padding, each swizzle, and padded rows.
fn candidates(buffer: &SharedBuffer) -> Vec<(String, SharedBuffer)> {
    let element = buffer.element.bytes();
    let dense = SharedBuffer {
        row_stride: buffer.slab_cols,
        swizzle: Swizzle::None,
        ..resized(buffer, buffer.slab_cols)
    };
    let mut all = vec![("neither padding nor swizzle".to_string(), dense.clone())];
    for swizzle in [Swizzle::B32, Swizzle::B64, Swizzle::B128] {
        let row_bytes = dense.row_stride * element;
        if swizzle.span().is_some_and(|span| row_bytes.is_multiple_of(span)) {
            let mut swizzled = dense.clone();
            swizzled.swizzle = swizzle;
            all.push((format!("swizzle {}", format!("{swizzle:?}").to_lowercase()), swizzled));
        }
    }
    for padding in [4u32, 8, 16, 32]
        .into_iter()
        .filter(|bytes| bytes.is_multiple_of(element))
    {
        let padded = resized(&dense, dense.slab_cols + padding / element);
        all.push((format!("rows padded by {padding} B"), padded));
    }
    all
}

/// The buffer with another row stride in elements.
fn resized(buffer: &SharedBuffer, row_stride: u32) -> SharedBuffer {
    let slabs = buffer.cols.div_ceil(buffer.slab_cols.max(1));
    SharedBuffer {
        row_stride,
        bytes: buffer.stages * slabs * buffer.rows * row_stride * buffer.element.bytes(),
        ..buffer.clone()
    }
}

/// Extra passes in another layout; `None` if an access would be misaligned or split, or accesses no
/// element.
fn passes_beyond(buffer: &SharedBuffer, other: &SharedBuffer, accesses: &[&Access]) -> Option<u64> {
    let mut beyond = 0;
    // Aligned to the span of the swizzle.
    let start = buffer.offset.next_multiple_of(other.swizzle.alignment());
    for access in accesses {
        let mut offsets = access.offsets;
        for (lane, offset) in offsets.iter_mut().enumerate() {
            if access.lanes >> lane & 1 == 0 {
                continue;
            }
            let place = |offset: u32| {
                let (stage, row, col) = buffer.element_at(offset);
                let is_element = stage < buffer.stages && row < buffer.rows && col < buffer.cols;
                is_element.then(|| other.element_offset(stage, row, col))
            };
            let last = access.bytes - buffer.element.bytes().min(access.bytes);
            let (first, end) = (place(*offset)?, place(*offset + last)?);
            if !first.is_multiple_of(access.bytes) || end != first + last {
                return None;
            }
            *offset = first;
        }
        let (took, fewest) = cost(access, &offsets, start);
        beyond += took - fewest;
    }
    Some(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, TileShape};
    use flashcore_sim::{SimOptions, simulate};

    /// A warp stores rows of a tile of 32 × 32 f32 and loads columns.
    fn advice(shape: TileShape) -> Vec<Advice> {
        let kernel = Kernel::build("columns", 32, |k| {
            let out = k.param_ptr_mut::<f32>("out");
            let tile = k.shared_tile::<f32>("tile", shape);
            let lane = k.lane();
            for row in 0..32 {
                tile.at(row, lane).store(1.0);
            }
            k.sync_warp();
            for col in 0..32 {
                out.offset(lane * 32 + col).store(tile.at(lane, col).load());
            }
        })
        .unwrap();
        let launch = Launch {
            grid: [1, 1, 1],
            block: [32, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: kernel.ledger().total_bytes(),
            programmatic: false,
            buffers: vec![BufferSpec {
                name: "out",
                bytes: 4096,
                written: true,
                align: 16,
            }],
            args: vec![Arg::Buffer {
                slot: 0,
                byte_offset: 0,
            }],
        };
        let options = SimOptions {
            log: 10_000,
            ..SimOptions::default()
        };
        let report = simulate(&kernel, &launch, &mut [vec![0u8; 4096]], &options).unwrap();
        assert!(report.is_clean() && !report.log.is_cut && report.log.accesses.len() == 64);
        advise(kernel.ledger(), &report.log)
    }

    #[test]
    fn a_column_is_advised_to_be_padded_by_a_word() {
        let advice = advice(TileShape::new(32, 32));
        assert_eq!(advice.len(), 1);
        // Each of the 32 loads takes 32 passes where one would do.
        assert_eq!((advice[0].passes, advice[0].beyond), (32 + 32 * 32, 32 * 31));
        let best = advice[0].best.as_ref().unwrap();
        assert_eq!((best.what.as_str(), best.beyond), ("rows padded by 4 B", 0));
        assert_eq!(best.ledger_bytes, 32 * 4);
    }

    /// What is advised holds when it is done.
    #[test]
    fn a_tile_so_padded_needs_no_advice() {
        assert!(advice(TileShape::new(32, 32).padded(1)).is_empty());
    }
}
