//! Tiles of 16-bit rows in shared memory, laid out as tensor cores want them.

use flashcore_ir::fragment::{AOperand, BOperand, MmaElement};
use flashcore_ir::{GlobalPtr, KernelBuilder, SharedPtr, SharedTile, Swizzle, TileShape, Val};

use crate::attention::lengths::TensorParam;

/// Elements that one asynchronous copy of 16 bytes moves.
pub(crate) const CHUNK: u32 = 8;

/// Elements that one tensor-core step consumes; heads are padded with zeros to a multiple.
pub(crate) const STEP: u32 = 16;

pub(crate) const fn padded(head_dim: u32) -> u32 {
    head_dim.next_multiple_of(STEP)
}

/// `rows` rows of a head in shared memory, in one or more stages.
///
/// Rows are cut into slabs of at most 128 bytes, each stored by itself, so that the swizzles of the PTX ISA
/// apply: with one, the eight rows that an `ldmatrix` reads at once, and the chunks that a warp copies at once, lie in
/// different banks.
#[derive(Clone, Copy)]
pub(crate) struct HeadTile<'k, E> {
    /// The tile as the ledger knows it.
    pub tile: SharedTile<'k, E>,
    /// Columns that exist; the padding of the last step has none.
    pub head_dim: u32,
    slabs: u32,
}

/// Elements of a row in one slab.
pub(crate) const fn slab_cols(head_dim: u32) -> u32 {
    match padded(head_dim) {
        d if d.is_multiple_of(64) => 64,
        d if d.is_multiple_of(32) => 32,
        _ => 16,
    }
}

/// Bytes of shared memory that a tile takes, alignment aside.
pub(crate) const fn tile_bytes(rows: u32, head_dim: u32, stages: u32) -> u32 {
    2 * rows * padded(head_dim) * stages
}

fn tile_shape(rows: u32, head_dim: u32, stages: u32, swizzled: bool) -> TileShape {
    let cols = slab_cols(head_dim);
    let swizzle = match cols {
        _ if !swizzled => Swizzle::None,
        64 => Swizzle::B128,
        32 => Swizzle::B64,
        _ => Swizzle::B32,
    };
    TileShape::new(rows, cols)
        .swizzled(swizzle)
        .stages(stages * (padded(head_dim) / cols))
}

impl<'k, E: MmaElement> HeadTile<'k, E> {
    #[track_caller]
    pub(crate) fn declare(
        k: &'k KernelBuilder,
        name: &str,
        rows: u32,
        head_dim: u32,
        stages: u32,
        swizzled: bool,
    ) -> Self {
        HeadTile::widened(k, name, rows, [head_dim, padded(head_dim)], stages, swizzled)
    }

    /// A tile whose rows are padded with zeros to `columns`, a multiple of [`STEP`], so that warps share them evenly.
    #[track_caller]
    pub(crate) fn widened(
        k: &'k KernelBuilder,
        name: &str,
        rows: u32,
        [head_dim, columns]: [u32; 2],
        stages: u32,
        swizzled: bool,
    ) -> Self {
        let tile = k.shared_tile(name, tile_shape(rows, columns, stages, swizzled));
        HeadTile::of(tile, [head_dim, columns])
    }

    /// A tile in the bytes of another one, whose contents must no longer be needed.
    #[track_caller]
    pub(crate) fn reusing(
        k: &'k KernelBuilder,
        name: &str,
        rows: u32,
        head_dim: u32,
        swizzled: bool,
        other: HeadTile<'k, E>,
    ) -> Self {
        let shape = tile_shape(rows, head_dim, 1, swizzled);
        let tile = k.shared_tile_reusing(name, shape, other.tile);
        HeadTile::of(tile, [head_dim, padded(head_dim)])
    }

    fn of(tile: SharedTile<'k, E>, [head_dim, columns]: [u32; 2]) -> Self {
        let slabs = columns / slab_cols(columns);
        HeadTile { tile, head_dim, slabs }
    }

    /// The place of column `col + within` of a row in the first stage; `within` does not leave the slab of `col`.
    #[track_caller]
    pub(crate) fn at_column(&self, row: Val<'k, u32>, col: u32, within: Val<'k, u32>) -> SharedPtr<'k, E> {
        let place = self.tile.at(row, within + col % self.tile.cols());
        self.tile.ahead(place, col / self.tile.cols())
    }

    /// The place of (`row`, `col`) in the first stage, where the column may be in any slab.
    #[track_caller]
    pub(crate) fn place(&self, row: Val<'k, u32>, col: Val<'k, u32>) -> SharedPtr<'k, E> {
        match (self.slabs, self.tile.cols()) {
            (1, _) => self.tile.at(row, col),
            (_, width) => self.tile.at_stage(col / width, row, col % width),
        }
    }

    /// The same row `cols` columns further on, where `cols` has no bit that the column of the place has.
    #[track_caller]
    pub(crate) fn across(&self, place: SharedPtr<'k, E>, cols: u32) -> SharedPtr<'k, E> {
        let (slab, within) = (cols / self.tile.cols(), cols % self.tile.cols());
        self.tile.ahead(self.tile.across(place, within), slab)
    }

    #[track_caller]
    pub(crate) fn chunks(&self, k: &'k KernelBuilder) -> Chunks<'k, E> {
        let per_row = self.tile.cols() / CHUNK;
        let (row, col) = (k.thread_idx() / per_row, k.thread_idx() % per_row * CHUNK);
        Chunks {
            k,
            tile: *self,
            row,
            col,
            place: self.tile.at(row, col),
            row_step: k.threads() / per_row,
        }
    }

    /// The addresses that this lane, at `row` and `col` of 16×16 elements, brings to `ldmatrix`.
    #[track_caller]
    pub(crate) fn fragments(&self, row: Val<'k, u32>, col: Val<'k, u32>) -> Fragments<'k, E> {
        Fragments::new(*self, self.tile.at(row, col))
    }

    #[track_caller]
    pub(crate) fn staged_fragments(&self, row: Val<'k, u32>, col: Val<'k, u32>) -> StagedFragments<'k, E> {
        StagedFragments {
            tile: *self,
            first: self.tile.at(row, col),
        }
    }

    /// [`Self::staged_fragments`] of a warp that has every `of`-th step of columns, from step `warp` on. Columns are
    /// then counted from that step, and are multiples of `of · STEP`.
    #[track_caller]
    pub(crate) fn shared_columns(
        &self,
        (row, col): (Val<'k, u32>, Val<'k, u32>),
        (warp, of): (Val<'k, u32>, u32),
    ) -> StagedFragments<'k, E> {
        let first = match of {
            1 => self.place(row, col),
            _ => self.place(row, warp.fma(STEP, col)),
        };
        StagedFragments { tile: *self, first }
    }
}

/// A thread's share of a tile: one chunk of 16 bytes in every `row_step`-th row, in every slab.
#[derive(Clone, Copy)]
pub(crate) struct Chunks<'k, E> {
    k: &'k KernelBuilder,
    tile: HeadTile<'k, E>,
    row: Val<'k, u32>,
    col: Val<'k, u32>,
    place: SharedPtr<'k, E>,
    row_step: u32,
}

impl<'k, E: MmaElement> Chunks<'k, E> {
    /// Calls `body` for each of this thread's rows: with the row, and how many it is past the thread's first.
    #[track_caller]
    fn for_rows(&self, body: impl Fn(Val<'k, u32>, u32)) {
        for past in (0..self.tile.tile.rows()).step_by(self.row_step as usize) {
            let row = self.row + past;
            if past + self.row_step <= self.tile.tile.rows() {
                body(row, past);
            } else {
                self.k
                    .if_(row.lt(self.tile.tile.rows()).divergent(), || body(row, past));
            }
        }
    }

    /// Whether every thread has as many chunks.
    pub(crate) fn are_whole(&self) -> bool {
        self.tile.tile.rows().is_multiple_of(self.row_step)
    }

    /// Calls `body` for each of this thread's chunks: with its row, its column in the head, and its place in the first
    /// stage.
    #[track_caller]
    pub(crate) fn for_each(&self, body: impl Fn(Val<'k, u32>, Val<'k, u32>, SharedPtr<'k, E>)) {
        self.for_rows(|row, past| {
            for slab in 0..self.tile.slabs {
                let place = self.tile.tile.ahead(self.tile.tile.down(self.place, past), slab);
                body(row, self.col + slab * self.tile.tile.cols(), place);
            }
        });
    }

    /// Bytes that exist of a chunk in a slab, if that may not be all of them.
    #[track_caller]
    fn bytes(&self, slab: u32) -> Option<Val<'k, u32>> {
        let end = (slab + 1) * self.tile.tile.cols();
        (end > self.tile.head_dim).then(|| {
            let exists = (self.col + slab * self.tile.tile.cols()).lt(self.tile.head_dim);
            exists.select(16u32, 0u32)
        })
    }

    /// Starts copying rows into the tile, `stage` elements past its start. `source` gives where a row
    /// begins and whether it exists (`None`: it does); the others become zero.
    #[track_caller]
    pub(crate) fn copy_rows(
        &self,
        stage: Val<'k, u32>,
        source: impl Fn(Val<'k, u32>) -> (GlobalPtr<'k, E>, Option<Val<'k, bool>>),
    ) {
        let place = self.place.offset(stage);
        self.for_rows(|row, past| {
            let (src, exists) = source(row);
            self.copy_row(self.tile.tile.down(place, past), src.offset(self.col), exists);
        });
    }

    /// Copies of a tensor's head into the tile.
    #[track_caller]
    pub(crate) fn of_head(self, tensor: TensorParam<'k, E>, head: GlobalPtr<'k, E>) -> HeadCopies<'k, E> {
        let source = if tensor.is_paged() {
            head
        } else {
            tensor.row(head, self.row).offset(self.col)
        };
        HeadCopies {
            chunks: self,
            tensor,
            source,
        }
    }

    #[track_caller]
    fn copy_row(&self, dst: SharedPtr<'k, E>, src: GlobalPtr<'k, E>, exists: Option<Val<'k, bool>>) {
        for slab in 0..self.tile.slabs {
            let bytes = match (self.bytes(slab), exists) {
                (Some(bytes), Some(exists)) => Some(exists.select(bytes, 0u32)),
                (None, Some(exists)) => Some(exists.select(16u32, 0u32)),
                (bytes, None) => bytes,
            };
            let from = src.plus((slab * self.tile.tile.cols()) as i32);
            self.k.cp_async(self.tile.tile.ahead(dst, slab), from, bytes);
        }
    }
}

/// The rows of a head on their way into the stages of a tile.
#[derive(Clone, Copy)]
pub(crate) struct HeadCopies<'k, E> {
    chunks: Chunks<'k, E>,
    tensor: TensorParam<'k, E>,
    /// Where the thread's first chunk of the head's first rows is; of pages where the head is.
    source: GlobalPtr<'k, E>,
}

impl<'k, E: MmaElement> HeadCopies<'k, E> {
    /// Elements before the stage that an iteration has.
    #[track_caller]
    pub(crate) fn stage(&self, iteration: Val<'k, i32>) -> Val<'k, u32> {
        let HeadTile { tile, slabs, .. } = self.chunks.tile;
        iteration.reinterpret::<u32>() % (tile.stages() / slabs) * (slabs * tile.stage_bytes() / E::BYTES)
    }

    /// Starts copying the rows from `first` on into the stage that begins `stage` elements past the tile's start. Rows
    /// from `end` on, and those on no page, become zero. Without an `end`, all exist.
    #[track_caller]
    pub(crate) fn start(&self, stage: Val<'k, u32>, first: Val<'k, u32>, end: Option<Val<'k, u32>>) {
        let HeadCopies { chunks, tensor, source } = self;
        if tensor.is_paged() {
            return chunks.copy_rows(stage, |row| {
                let (at, on_page) = tensor.key_row(*source, first + row);
                let in_sequence = end.map(|end| (first + row).lt(end));
                (at, in_sequence.into_iter().chain(on_page).reduce(|a, b| a & b))
            });
        }
        let (place, tile, row_step) = (chunks.place.offset(stage), chunks.tile.tile, chunks.row_step);
        let step = tensor.seq_stride.mul_wide(row_step * E::BYTES);
        let mut src = source.offset_strided(first, tensor.seq_stride);
        for past in (0..tile.rows()).step_by(row_step as usize) {
            if past > 0 {
                src = src.advance(step);
            }
            let exists = end.map(|end| (first + chunks.row + past).lt(end));
            let dst = tile.down(place, past);
            if past + row_step <= tile.rows() {
                chunks.copy_row(dst, src, exists);
            } else {
                let mine = (chunks.row + past).lt(tile.rows());
                chunks.k.if_(mine.divergent(), || chunks.copy_row(dst, src, exists));
            }
        }
    }
}

/// The places of a tile that a lane brings to `ldmatrix`, to load operands of products.
#[derive(Clone)]
pub(crate) struct Fragments<'k, E> {
    tile: HeadTile<'k, E>,
    /// One for each 16 columns of a slab: the swizzle makes them differ in more than a constant.
    places: Vec<SharedPtr<'k, E>>,
}

/// [`Fragments`] in a stage that is picked later.
#[derive(Clone, Copy)]
pub(crate) struct StagedFragments<'k, E> {
    tile: HeadTile<'k, E>,
    first: SharedPtr<'k, E>,
}

impl<'k, E: MmaElement> StagedFragments<'k, E> {
    /// The fragments in the stage that begins `elements` past the first one.
    #[track_caller]
    pub(crate) fn at(&self, elements: Val<'k, u32>) -> Fragments<'k, E> {
        Fragments::new(self.tile, self.first.offset(elements))
    }
}

impl<'k, E: MmaElement> Fragments<'k, E> {
    #[track_caller]
    fn new(tile: HeadTile<'k, E>, first: SharedPtr<'k, E>) -> Self {
        let mut places = Vec::new();
        for step in 0..tile.tile.cols() / STEP {
            places.push(tile.tile.across(first, step * STEP));
        }
        Fragments { tile, places }
    }

    fn place(&self, row: u32, col: u32) -> SharedPtr<'k, E> {
        let tile = self.tile.tile;
        let within = self.places[(col % tile.cols() / STEP) as usize];
        tile.ahead(tile.down(within, row), col / tile.cols())
    }

    /// The 16×16 elements at (`row`, `col`) as an operand A: lanes bring [`a_lane`].
    #[track_caller]
    pub(crate) fn a(&self, k: &'k KernelBuilder, row: u32, col: u32) -> AOperand<E> {
        let words = k.ldmatrix(self.place(row, col), 4, false);
        k.a_operand(&[words[0], words[1], words[2], words[3]])
    }

    /// The transpose of the 16×16 elements at (`row`, `col`) as an operand A: lanes bring [`b_lane`].
    #[track_caller]
    pub(crate) fn a_transposed(&self, k: &'k KernelBuilder, row: u32, col: u32) -> AOperand<E> {
        let words = k.ldmatrix(self.place(row, col), 4, true);
        k.a_operand(&[words[0], words[1], words[2], words[3]])
    }

    /// Rows `row..row + 16` as two operands B, k running along the tile's columns from `col`: lanes bring [`b_lane`].
    #[track_caller]
    pub(crate) fn b_rows(&self, k: &'k KernelBuilder, row: u32, col: u32) -> [BOperand<E>; 2] {
        let words = k.ldmatrix(self.place(row, col), 4, false);
        [k.b_operand(&[words[0], words[1]]), k.b_operand(&[words[2], words[3]])]
    }

    /// Columns `col..col + 16` as two operands B, k running along the tile's rows from `row`: lanes bring [`a_lane`].
    #[track_caller]
    pub(crate) fn b_cols(&self, k: &'k KernelBuilder, row: u32, col: u32) -> [BOperand<E>; 2] {
        let words = k.ldmatrix(self.place(row, col), 4, true);
        [k.b_operand(&[words[0], words[1]]), k.b_operand(&[words[2], words[3]])]
    }
}

/// Row and column of a 16×16 matrix that a lane addresses so that the four 8×8 matrices arrive as rows 0–7, rows 8–15,
/// then the same of the right half: the order of operand A.
#[track_caller]
pub(crate) fn a_lane<'k>(lane: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
    (lane % 16, lane / 16 * 8u32)
}

/// Row and column that a lane addresses so that the four 8×8 matrices arrive as left and right half of rows 0–7, then
/// of rows 8–15: two operands B, one below the other.
#[track_caller]
pub(crate) fn b_lane<'k>(lane: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
    (lane % 8 + lane / 16 * 8u32, lane / 8 % 2 * 8u32)
}
