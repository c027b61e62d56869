//! Shared-memory operands of warpgroup products: descriptors, addresses, and reads.

use flashcore_ir::inst::{Descriptor, Major};
use flashcore_ir::{SharedBuffer, Swizzle};

use crate::clock::Epoch;
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::machine::SHARED_BASE;
use crate::program::At;
use crate::record::Details;
use crate::registers::FULL;
use crate::tensor;
use crate::text::numbers::Ty;
use crate::warp::Warp;

/// Operands are read in pieces of this many bytes.
const CHUNK: u32 = 16;

/// A matrix descriptor (PTX ISA, "Matrix Descriptor Format").
struct Layout {
    address: u32,
    leading: u32,
    stride: u32,
    base_offset: u32,
    mode: u32,
}

impl Layout {
    fn of(bits: u64) -> Layout {
        let field = |at: u32| ((bits >> at) as u32 & 0x3fff) << 4;
        Layout {
            address: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: (bits >> 49) as u32 & 7,
            mode: (bits >> 62) as u32,
        }
    }
}

impl Cluster<'_> {
    /// Checks and records a warp's reads of operand chunks.
    pub(crate) fn read_chunks(&mut self, warp: &Warp, pc: u32, operand: &Descriptor, chunks: &[u32], epoch: Epoch) {
        let at = At {
            object: operand.buffer.0 as u16,
            offset: 0,
            remote: false,
        };
        let ranges: Vec<(u32, u32)> = chunks.iter().map(|&chunk| (chunk, CHUNK)).collect();
        self.check_async_read(warp, FULL, pc, at, &ranges);
        let reader = self.machine.product_reader(warp.index / 4);
        for &chunk in chunks {
            let cells = self.copy_cells(chunk, CHUNK);
            self.shadow.note_reads(reader, cells, epoch, 1, pc);
        }
    }

    /// Shared-memory offsets of the chunks for one product of `steps` of k: `count` rows of A or columns of B from
    /// `first`. K-major operands have two chunks per row, MN-major ones one per 8 rows for each k.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn shared_chunks(
        &mut self,
        warp: &Warp,
        pc: u32,
        steps: u32,
        operand: &Descriptor,
        bits: u64,
        first: u32,
        count: u32,
    ) -> Option<Vec<u32>> {
        let buffer = self.machine.kernel.ledger().get(operand.buffer);
        let layout = Layout::of(bits);
        // Only of our kernels the tile is known that it must be of.
        let (span, swizzle) = if self.machine.is_foreign {
            self.own_layout(warp, pc, &layout, operand.major)?
        } else {
            let span = self.check_layout(warp, pc, &layout, buffer, operand.major, first + count)?;
            (span, buffer.swizzle)
        };
        // The hardware's address computation: offsets are added first, then bits are permuted.
        let place = |offset: u32| {
            let address = layout.address.wrapping_add(offset);
            swizzle.apply(address).wrapping_sub(SHARED_BASE)
        };
        // Without a swizzle rows of 8 have the two chunks of each in two matrices.
        let across = if swizzle == Swizzle::None {
            layout.leading
        } else {
            CHUNK
        };
        let mut chunks = Vec::new();
        match operand.major {
            Major::K => {
                for row in first..first + count {
                    let start = row / 8 * layout.stride + row % 8 * span;
                    chunks.extend([place(start), place(start + across)]);
                }
            }
            Major::Mn => {
                for k in 0..steps {
                    for byte in (2 * first..2 * (first + count)).step_by(CHUNK as usize) {
                        let slab = byte / span * layout.leading;
                        chunks.push(place(slab + k / 8 * layout.stride + k % 8 * span + byte % span));
                    }
                }
            }
        }
        let (start, end) = (buffer.offset, buffer.offset + buffer.bytes);
        if let Some(&stray) = chunks.iter().find(|&&chunk| chunk < start || chunk + CHUNK > end) {
            let relative = i64::from(stray as i32) - i64::from(start);
            self.report(FindingKind::OutOfBounds, pc, None, |cluster| {
                let message = format!(
                    "a product reads bytes {relative}..{} of shared buffer `{}`, which has {} bytes",
                    relative + i64::from(CHUNK),
                    buffer.name,
                    buffer.bytes
                );
                Details::new(message, cluster.actor(warp.index, FULL))
                    .object(buffer.name.clone())
                    .bytes((relative, relative + i64::from(CHUNK)))
            });
            return None;
        }
        for chunk in &mut chunks {
            *chunk += warp.shared_first;
        }
        Some(chunks)
    }

    /// The bytes of a row that a descriptor says, and its swizzle.
    fn own_layout(&mut self, warp: &Warp, pc: u32, layout: &Layout, major: Major) -> Option<(u32, Swizzle)> {
        let swizzle = [Swizzle::None, Swizzle::B128, Swizzle::B64, Swizzle::B32][layout.mode as usize];
        let wrong = match swizzle.span() {
            None if major == Major::Mn => "has no swizzle; transposed operands without one are not simulated",
            _ if layout.base_offset != 0 => {
                "has a base offset, which is not simulated; let its tile begin at a multiple of 1024"
            }
            span => return Some((span.unwrap_or(CHUNK), swizzle)),
        };
        self.report(FindingKind::Descriptor, pc, None, |cluster| {
            Details::new(format!("a descriptor {wrong}"), cluster.actor(warp.index, FULL))
        });
        None
    }

    /// Checks a descriptor against its tile. Returns the bytes per row if it matches.
    fn check_layout(
        &mut self,
        warp: &Warp,
        pc: u32,
        layout: &Layout,
        buffer: &SharedBuffer,
        major: Major,
        extent: u32,
    ) -> Option<u32> {
        let span = buffer.row_stride * buffer.element.bytes();
        let mode = match buffer.swizzle {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        let several_slabs = major == Major::Mn && extent * buffer.element.bytes() > span;
        let wrong = if layout.mode != mode || mode == 0 {
            format!("has swizzle mode {}, but the tile has {mode}", layout.mode)
        } else if buffer.swizzle.span() != Some(span) {
            format!("is for a tile whose rows of {span} bytes differ from its swizzle span")
        } else if layout.stride != 8 * span {
            let (has, needs) = (layout.stride, 8 * span);
            format!("has a stride of {has} bytes between groups of 8 rows, but the tile has {needs}")
        } else if several_slabs && layout.leading != buffer.slab_bytes() {
            let (has, needs) = (layout.leading, buffer.slab_bytes());
            format!("has a stride of {has} bytes between column slabs, but the tile has {needs}")
        } else {
            return Some(span);
        };
        self.report(FindingKind::Descriptor, pc, None, |cluster| {
            let message = format!("a descriptor for shared buffer `{}` {wrong}", buffer.name);
            Details::new(message, cluster.actor(warp.index, FULL))
                .object(buffer.name.clone())
                .help("derive it from the tile (`k_major`, `mn_major`)")
        });
        None
    }

    /// An operand as a matrix: A row-major, B with k as the outer dimension.
    pub(crate) fn gather(&self, chunks: &[u32], element: Ty, major: Major, count: u32, is_a: bool) -> Vec<f64> {
        let (per_chunk, count) = ((CHUNK / element.bytes()) as usize, count as usize);
        // A product takes two of a row.
        let k = 2 * per_chunk;
        let mut matrix = vec![0.0; k * count];
        for (i, &chunk) in chunks.iter().enumerate() {
            let word = chunk as usize / 4;
            let mut elements = [0.0; 16];
            tensor::widen_words(&self.words[word..word + 4], element, &mut elements);
            let (mn, step) = match major {
                Major::K => (i / 2, i % 2 * per_chunk),
                Major::Mn => (i % (count / 8) * 8, i / (count / 8)),
            };
            let (of_mn, of_step) = if is_a { (k, 1) } else { (1, count) };
            let next = if major == Major::K { of_step } else { of_mn };
            let places = (mn * of_mn + step * of_step..).step_by(next);
            for (at, &value) in places.zip(&elements[..per_chunk]) {
                matrix[at] = value;
            }
        }
        matrix
    }
}
