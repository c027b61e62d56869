//! Tiles in shared memory: declared by name and shape, addressed by row and column.

use std::marker::PhantomData;

use crate::builder::{KernelBuilder, invalid_if};
use crate::inst::{BinOp, Object, Operand};
use crate::pointer::SharedPtr;
use crate::shared::{BufferId, SharedBuffer, Swizzle};
use crate::types::{Element, RegClass, ScalarType};
use crate::value::{Source, Val};

/// Shape and layout of a tile to be declared.
///
/// ```
/// use flashcore_ir::{Swizzle, TileShape};
/// let staged = TileShape::new(64, 64).swizzled(Swizzle::B128).stages(2);
/// let padded = TileShape::new(32, 64).padded(4);
/// # let _ = (staged, padded);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileShape {
    rows: u32,
    cols: u32,
    pad: u32,
    swizzle: Swizzle,
    stages: u32,
    slabs: bool,
}

impl TileShape {
    /// `rows × cols` elements, row-major, one stage, neither padded nor swizzled.
    pub const fn new(rows: u32, cols: u32) -> TileShape {
        TileShape {
            rows,
            cols,
            pad: 0,
            swizzle: Swizzle::None,
            stages: 1,
            slabs: false,
        }
    }
    /// Adds `elements` unused elements to each row, so that a column falls into different banks.
    pub const fn padded(mut self, elements: u32) -> TileShape {
        self.pad = elements;
        self
    }
    /// Permutes byte offsets.
    pub const fn swizzled(mut self, swizzle: Swizzle) -> TileShape {
        self.swizzle = swizzle;
        self
    }
    /// Cuts the columns into slabs as wide as the swizzle (64 16-bit elements for 128 bytes), one
    /// after the other, each of all rows: how tensor copies and warpgroup products want tiles of
    /// wider rows.
    ///
    /// ```
    /// use flashcore_ir::{Kernel, Swizzle, TileShape};
    /// use half::f16;
    /// let kernel = Kernel::build("slabs", 128, |k| {
    ///     k.shared_tile::<f16>("q", TileShape::new(64, 128).swizzled(Swizzle::B128).in_slabs());
    /// })?;
    /// let q = &kernel.ledger().buffers[0];
    /// assert_eq!((q.slab_cols, q.slab_bytes()), (64, 8192));
    /// assert_eq!(q.element_offset(0, 0, 64), 8192);
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    pub const fn in_slabs(mut self) -> TileShape {
        self.slabs = true;
        self
    }
    /// Copies of the tile, for a pipeline.
    pub const fn stages(mut self, stages: u32) -> TileShape {
        self.stages = stages;
        self
    }
}

/// More than any block may use; what a card allows is judged when a launch is planned for it.
const MOST_BYTES: u128 = 1 << 24;

/// A tile in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedTile<'k, E> {
    pub(crate) k: &'k KernelBuilder,
    pub(crate) id: BufferId,
    shape: TileShape,
    pub(crate) offset: u32,
    stage_bytes: u32,
    slab_cols: u32,
    of: PhantomData<E>,
}

impl KernelBuilder {
    /// Declares a tile in shared memory and enters it into the ledger.
    #[track_caller]
    pub fn shared_tile<E: Element>(&self, name: &str, shape: TileShape) -> SharedTile<'_, E> {
        self.declare_tile(name, shape, None)
    }

    /// Declares a tile that takes over the bytes of another, whose contents must no longer be
    /// needed.
    #[track_caller]
    pub fn shared_tile_reusing<E: Element, F: Element>(
        &self,
        name: &str,
        shape: TileShape,
        other: SharedTile<'_, F>,
    ) -> SharedTile<'_, E> {
        self.declare_tile(name, shape, Some(other.id))
    }

    /// Declares shared memory statically instead of asking for it at launch (at most 48 KB).
    pub fn static_shared_memory(&self) {
        self.state.borrow_mut().kernel.ledger.is_static = true;
    }

    /// The shape, if it has elements and not more than any GPU might hold: others break the sums to
    /// come.
    #[track_caller]
    fn check_size<E: Element>(&self, name: &str, shape: TileShape) -> TileShape {
        let elements = (u128::from(shape.cols) + u128::from(shape.pad)) * u128::from(shape.rows);
        let bytes = elements * u128::from(shape.stages) * u128::from(E::BYTES);
        let problem = if shape.rows == 0 || shape.cols == 0 || shape.stages == 0 {
            format!("tile `{name}` has no elements: {shape:?}")
        } else if bytes > MOST_BYTES {
            format!("tile `{name}` takes {bytes} bytes; no GPU has more than a few hundred thousand a block")
        } else {
            return shape;
        };
        self.invalid(problem);
        TileShape::new(1, 4)
    }

    #[track_caller]
    fn declare_tile<E: Element>(&self, name: &str, shape: TileShape, reuses: Option<BufferId>) -> SharedTile<'_, E> {
        let shape = self.check_size::<E>(name, shape);
        let slab_cols = self.slab_cols::<E>(name, shape);
        let row_stride = slab_cols + shape.pad;
        let row_bytes = row_stride * E::BYTES;
        invalid_if!(self, !row_bytes.is_multiple_of(4) =>
            "a row of tile `{name}` takes {row_bytes} bytes; rows must be a multiple of 4 bytes");
        let is_odd = row_bytes < 128 && 128 % row_bytes != 0 || row_bytes > 128 && !row_bytes.is_multiple_of(128);
        invalid_if!(self, shape.swizzle != Swizzle::None && is_odd =>
            "a row of swizzled tile `{name}` takes {row_bytes} bytes; it must divide or be a multiple of 128");
        let align = shape.swizzle.alignment();
        let stage_bytes = (shape.rows * row_bytes * (shape.cols / slab_cols)).next_multiple_of(align);
        let bytes = stage_bytes * shape.stages;
        let declared_at = self.site();
        let mut state = self.state.borrow_mut();
        if let Some(other) = reuses {
            let taken = state.kernel.ledger.get(other);
            if taken.bytes < bytes || !taken.offset.is_multiple_of(align) {
                let message = format!(
                    "tile `{name}` needs {bytes} bytes aligned to {align}; `{}`, which it reuses, has {} bytes at offset {}",
                    taken.name, taken.bytes, taken.offset
                );
                drop(state);
                self.invalid(message);
                state = self.state.borrow_mut();
            }
        }
        let id = state.kernel.ledger.enter(SharedBuffer {
            stages: shape.stages,
            rows: shape.rows,
            cols: shape.cols,
            slab_cols,
            row_stride,
            swizzle: shape.swizzle,
            reuses,
            ..SharedBuffer::row(name, E::TYPE, bytes, align, declared_at)
        });
        let offset = state.kernel.ledger.get(id).offset;
        SharedTile {
            k: self,
            id,
            shape,
            offset,
            stage_bytes,
            slab_cols,
            of: PhantomData,
        }
    }

    #[track_caller]
    fn slab_cols<E: Element>(&self, name: &str, shape: TileShape) -> u32 {
        let span = shape.swizzle.span().map_or(0, |bytes| bytes / E::BYTES);
        if !shape.slabs || shape.cols == span {
            return shape.cols;
        }
        if span == 0 || shape.pad != 0 || !shape.cols.is_multiple_of(span) || !shape.rows.is_multiple_of(8) {
            self.invalid(format!(
                "tile `{name}` of {} × {} {} cannot lie in slabs: they need a swizzle, whole slabs of its width \
                 ({span} columns), a multiple of 8 rows, and no padding",
                shape.rows,
                shape.cols,
                E::NAME
            ));
            return shape.cols;
        }
        span
    }
}

impl<'k, E: Element> SharedTile<'k, E> {
    /// Rows of a stage.
    pub fn rows(&self) -> u32 {
        self.shape.rows
    }
    /// Columns of a stage, in elements.
    pub fn cols(&self) -> u32 {
        self.shape.cols
    }
    /// Elements from one row to the next within a slab, padding included.
    pub fn row_stride(&self) -> u32 {
        self.slab_cols + self.shape.pad
    }
    /// Columns of a slab: all of them where the tile is not cut into slabs.
    pub fn slab_cols(&self) -> u32 {
        self.slab_cols
    }
    /// Slabs of columns.
    pub fn slabs(&self) -> u32 {
        self.shape.cols / self.slab_cols
    }
    /// Bytes of a slab, which is those from one slab to the next.
    pub fn slab_bytes(&self) -> u32 {
        self.shape.rows * self.row_stride() * E::BYTES
    }
    /// How byte offsets are permuted.
    pub fn swizzle(&self) -> Swizzle {
        self.shape.swizzle
    }
    /// Stages.
    pub fn stages(&self) -> u32 {
        self.shape.stages
    }
    /// Bytes of a stage.
    pub fn stage_bytes(&self) -> u32 {
        self.stage_bytes
    }

    /// The same column `rows` rows further down: an immediate of the access, no instruction. Rows
    /// of a swizzled tile are permuted alike only every few of them, so there `rows` must span
    /// whole periods of the permutation ([`Swizzle::alignment`] bytes; eight rows where a row fills
    /// it).
    #[track_caller]
    pub fn down(&self, at: SharedPtr<'k, E>, rows: u32) -> SharedPtr<'k, E> {
        let bytes = rows * self.row_stride() * E::BYTES;
        let period = self.shape.swizzle.alignment();
        invalid_if!(self.k, self.shape.swizzle != Swizzle::None && !bytes.is_multiple_of(period) =>
            "{rows} rows down a swizzled tile are {bytes} bytes; its permutation repeats every {period}");
        at.plus((rows * self.row_stride()) as i32)
    }

    /// The same row `cols` columns further on, where `at` is in the first `cols` of `2·cols`
    /// columns that begin at a multiple of `2·cols`, for a power of two, or a sum of such: an
    /// immediate of the access, or one instruction where the tile is swizzled.
    ///
    /// A swizzle xors the number of a 16-byte chunk, so that such a step is an xor as well,
    /// whatever the row; rows are a power of two of at most 128 bytes there.
    #[track_caller]
    pub fn across(&self, at: SharedPtr<'k, E>, cols: u32) -> SharedPtr<'k, E> {
        if self.shape.swizzle == Swizzle::None || cols == 0 {
            return at.plus(cols as i32);
        }
        let (bytes, row_bytes) = (cols * E::BYTES, self.row_stride() * E::BYTES);
        invalid_if!(self.k, !bytes.is_multiple_of(16) || bytes >= row_bytes || row_bytes > 128 =>
            "{cols} columns across are {bytes} bytes of a swizzled row of {row_bytes}; allowed are whole chunks of 16 \
             bytes within a row of at most 128");
        SharedPtr {
            addr: at.addr ^ bytes,
            ..at
        }
    }

    /// The same place `stages` stages further on: an immediate of the access, no instruction.
    pub fn ahead(&self, at: SharedPtr<'k, E>, stages: u32) -> SharedPtr<'k, E> {
        at.plus((stages * self.stage_bytes / E::BYTES) as i32)
    }

    /// The address of element (`row`, `col`) of the first stage.
    #[track_caller]
    pub fn at(&self, row: impl Source<'k, u32>, col: impl Source<'k, u32>) -> SharedPtr<'k, E> {
        let base = Operand::Reg(self.k.shared_base());
        self.element(base, row, col)
    }

    /// The address of element (`row`, `col`) of stage `stage`.
    #[track_caller]
    pub fn at_stage(
        &self,
        stage: impl Source<'k, u32>,
        row: impl Source<'k, u32>,
        col: impl Source<'k, u32>,
    ) -> SharedPtr<'k, E> {
        let base = Operand::Reg(self.k.shared_base());
        let start = self.mad(stage.operand(), self.stage_bytes, base);
        self.element(start, row, col)
    }

    #[track_caller]
    fn element(&self, base: Operand, row: impl Source<'k, u32>, col: impl Source<'k, u32>) -> SharedPtr<'k, E> {
        let row_bytes = self.row_stride() * E::BYTES;
        let (row, col) = (row.operand(), col.operand());
        let (base, col) = self.slab(base, col);
        let addr = if self.shape.swizzle == Swizzle::None {
            let start = self.mad(row, row_bytes, base);
            self.mad(col, E::BYTES, start)
        } else {
            let start = self.mad(row, row_bytes, Operand::Imm(0));
            let plain = self.mad(col, E::BYTES, start);
            let shifted = self.binary(BinOp::Shr, plain, Operand::Imm(3));
            let bits = self.binary(BinOp::And, shifted, Operand::Imm(u64::from(self.shape.swizzle.mask())));
            let swizzled = self.binary(BinOp::Xor, plain, bits);
            self.binary(BinOp::Add, swizzled, base)
        };
        let addr = match addr {
            Operand::Reg(reg) => Val::from_reg(self.k, reg),
            Operand::Imm(_) => Val::from_reg(self.k, self.k.in_register(RegClass::B32, addr)),
        };
        SharedPtr::new(addr, self.offset as i32, Object::Shared(self.id))
    }

    /// The start of the slab that a column is in, from `base` on, and its column there.
    #[track_caller]
    fn slab(&self, base: Operand, col: Operand) -> (Operand, Operand) {
        if self.slabs() == 1 {
            return (base, col);
        }
        // Slabs are as wide as a swizzle, which is a power of two.
        let (slab, within) = match col {
            Operand::Imm(col) => {
                let width = u64::from(self.slab_cols);
                (Operand::Imm(col / width), Operand::Imm(col % width))
            }
            col => {
                let (shift, mask) = (self.slab_cols.trailing_zeros(), self.slab_cols - 1);
                (
                    self.binary(BinOp::Shr, col, Operand::Imm(u64::from(shift))),
                    self.binary(BinOp::And, col, Operand::Imm(u64::from(mask))),
                )
            }
        };
        (self.mad(slab, self.slab_bytes(), base), within)
    }

    /// `a · factor + c`, folded where it is constant.
    #[track_caller]
    pub(crate) fn mad(&self, a: Operand, factor: u32, c: Operand) -> Operand {
        match (a, c) {
            (Operand::Imm(0), c) => return c,
            (Operand::Imm(a), Operand::Imm(c)) => return Operand::Imm(a * u64::from(factor) + c),
            (Operand::Imm(a), c) => return self.binary(BinOp::Add, c, Operand::Imm(a * u64::from(factor))),
            (a, Operand::Imm(0)) => return self.binary(BinOp::Mul, a, Operand::Imm(u64::from(factor))),
            _ => {}
        }
        self.k.mad::<u32>(a, Operand::Imm(u64::from(factor)), c).operand()
    }

    #[track_caller]
    fn binary(&self, op: BinOp, a: Operand, b: Operand) -> Operand {
        self.k.bin::<u32>(op, ScalarType::U32, a, b).operand()
    }
}
