//! The ledger of shared memory: every buffer declared by name, none carved by hand.

use serde::Serialize;

use crate::site::SiteId;
use crate::types::ScalarType;

/// Index of a buffer in its kernel's [`Ledger`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct BufferId(pub u32);

/// How the byte offsets of a tile are permuted so that columns do not fall into one bank.
///
/// The permutation xors address bits that number a row into those that number a 16-byte chunk: what
/// TMA and wgmma call 32-, 64- and 128-byte swizzles (PTX ISA, "Swizzling modes").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum Swizzle {
    /// As declared.
    #[default]
    None,
    /// Bit 4 ^= bit 7.
    B32,
    /// Bits 4–5 ^= bits 7–8.
    B64,
    /// Bits 4–6 ^= bits 7–9.
    B128,
}

impl Swizzle {
    /// The bits of `offset >> 3` that are xored into `offset`.
    pub const fn mask(self) -> u32 {
        match self.span() {
            None => 0,
            // The numbers of a row's 16-byte chunks.
            Some(span) => span - 16,
        }
    }

    /// The permuted byte offset. An involution: applying it twice gives the offset back.
    ///
    /// ```
    /// use flashcore_ir::Swizzle;
    /// assert_eq!(Swizzle::B128.apply(128), 128 + 16);
    /// assert_eq!(Swizzle::B128.apply(Swizzle::B128.apply(4000)), 4000);
    /// ```
    pub const fn apply(self, offset: u32) -> u32 {
        offset ^ ((offset >> 3) & self.mask())
    }

    /// Bytes of a row within which chunks are permuted; `None` where nothing is.
    pub const fn span(self) -> Option<u32> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 => Some(128),
        }
    }

    /// The alignment that makes the permutation a function of offsets in the buffer.
    pub const fn alignment(self) -> u32 {
        match self.span() {
            None => 16,
            Some(span) => 8 * span,
        }
    }
}

/// One named buffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedBuffer {
    /// Name, for messages.
    pub name: String,
    /// Element type.
    #[serde(skip)]
    pub element: ScalarType,
    /// Copies of the tile (pipeline stages).
    pub stages: u32,
    /// Rows of one stage.
    pub rows: u32,
    /// Columns of one stage, in elements.
    pub cols: u32,
    /// Columns of a slab: `cols`, or fewer where the columns lie in several slabs one after the
    /// other, each of all rows.
    pub slab_cols: u32,
    /// Elements from one row to the next within a slab; more than its columns in padded rows.
    pub row_stride: u32,
    /// Permutation of byte offsets within a stage.
    pub swizzle: Swizzle,
    /// Alignment, bytes.
    pub align: u32,
    /// First byte, from the start of the kernel's shared memory.
    pub offset: u32,
    /// Bytes it takes, padding of rows included.
    pub bytes: u32,
    /// Bytes left free before it to reach its alignment.
    pub gap_before: u32,
    /// The buffer whose bytes it takes over, if any.
    pub reuses: Option<BufferId>,
    /// Where it was declared.
    #[serde(skip)]
    pub declared_at: SiteId,
}

impl SharedBuffer {
    /// A buffer of one row.
    pub fn row(name: &str, element: ScalarType, bytes: u32, align: u32, declared_at: SiteId) -> SharedBuffer {
        let cols = (bytes / element.bytes()).max(1);
        SharedBuffer {
            name: name.to_string(),
            element,
            stages: 1,
            rows: 1,
            cols,
            slab_cols: cols,
            row_stride: cols,
            swizzle: Swizzle::None,
            align,
            offset: 0,
            bytes,
            gap_before: 0,
            reuses: None,
            declared_at,
        }
    }

    /// Bytes from one stage to the next.
    pub fn stage_bytes(&self) -> u32 {
        self.bytes / self.stages
    }

    /// Bytes that hold no element: what row padding costs.
    pub fn padding_bytes(&self) -> u32 {
        self.bytes - self.stages * self.rows * self.cols * self.element.bytes()
    }

    /// Byte offset of an element from the buffer's start, swizzle applied.
    pub fn element_offset(&self, stage: u32, row: u32, col: u32) -> u32 {
        let (slab, col) = (col / self.slab_cols, col % self.slab_cols);
        let within = ((slab * self.rows + row) * self.row_stride + col) * self.element.bytes();
        stage * self.stage_bytes() + self.swizzle.apply(within)
    }

    /// The element at a byte offset from the buffer's start, as (stage, row, column): what
    /// [`element_offset`](Self::element_offset) undoes. Padding counts as a column past the last.
    pub fn element_at(&self, offset: u32) -> (u32, u32, u32) {
        let (stage, within) = (offset / self.stage_bytes(), offset % self.stage_bytes());
        let element = self.swizzle.apply(within) / self.element.bytes();
        let (row, col) = (element / self.row_stride, element % self.row_stride);
        (stage, row % self.rows, row / self.rows * self.slab_cols + col)
    }

    /// Bytes from one slab of columns to the next.
    pub fn slab_bytes(&self) -> u32 {
        self.rows * self.row_stride * self.element.bytes()
    }

    /// Whether it holds mbarriers rather than data.
    pub fn holds_barriers(&self) -> bool {
        self.element == ScalarType::B64
    }
}

/// All shared memory of a kernel, in address order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ledger {
    /// The buffers, in declaration order.
    pub buffers: Vec<SharedBuffer>,
    /// Whether the bytes are declared statically (at most 48 KB) rather than asked for at launch.
    pub is_static: bool,
}

impl Ledger {
    /// Bytes from the first buffer's start to the last one's end.
    pub fn total_bytes(&self) -> u32 {
        self.buffers.iter().map(|b| b.offset + b.bytes).max().unwrap_or(0)
    }

    /// The largest alignment any buffer asks for.
    pub fn align(&self) -> u32 {
        self.buffers.iter().map(|b| b.align).max().unwrap_or(16)
    }

    /// The buffer with this id.
    pub fn get(&self, id: BufferId) -> &SharedBuffer {
        &self.buffers[id.0 as usize]
    }

    /// The buffers that hold byte `offset` (more than one where a buffer reuses another).
    pub fn at(&self, offset: u32) -> impl Iterator<Item = &SharedBuffer> {
        self.buffers
            .iter()
            .filter(move |b| (b.offset..b.offset + b.bytes).contains(&offset))
    }

    /// Adds a buffer behind the others, or in the one that it reuses.
    pub fn enter(&mut self, mut buffer: SharedBuffer) -> BufferId {
        match buffer.reuses {
            Some(other) => buffer.offset = self.get(other).offset,
            None => {
                let end = self.total_bytes();
                buffer.offset = end.next_multiple_of(buffer.align);
                buffer.gap_before = buffer.offset - end;
            }
        }
        self.buffers.push(buffer);
        BufferId(self.buffers.len() as u32 - 1)
    }
}
