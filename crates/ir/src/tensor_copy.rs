//! Tensor copies: boxes of a tensor in global memory that come to a tile in shared memory, or go
//! from it, without passing through threads (the Tensor Memory Accelerator).
//!
//! The tile says how its boxes look ([`SharedTile::tensor_box`]), the kernel's parameter carries
//! that, and the launch makes the tensor map from it: host and device cannot disagree. Elements of
//! a box that lie outside the tensor are read as zero and never written, whatever its strides.
//!
//! Also bulk copies of contiguous bytes, without a tensor map (`cp.async.bulk`), between global and
//! shared memory and from one block of a cluster to another; and sums into global memory
//! (`cp.reduce.async.bulk`). Their addresses and numbers of bytes are multiples of 16. Stores and sums
//! belong to the thread's bulk group, as tensor stores do: [`KernelBuilder::bulk_commit`] closes it,
//! and [`KernelBuilder::bulk_wait`] waits for it. One thread starts them.

use crate::builder::{KernelBuilder, instructions, invalid_if};
use crate::inst::{Address, BulkInst, Inst, L2Hint, Object, Operand};
use crate::kernel::{Kernel, ParamKind};
use crate::launch::TensorBox;
use crate::mbarrier::{MBarrier, RemoteMBarrier};
use crate::pointer::{ClusterPtr, GlobalPtr, SharedPtr};
use crate::tile::SharedTile;
use crate::types::{Element, RegClass};
use crate::value::{Source, Val};

/// A kernel's tensor-map parameter.
#[derive(Clone, Copy, Debug)]
pub struct TensorMap<'k> {
    k: &'k KernelBuilder,
    addr: Val<'k, u64>,
    param: u32,
    pub(crate) boxes: TensorBox,
    /// Rows of a tile from one box to the next.
    part_rows: u32,
}

/// A place in a tensor, and how to copy from there. Made by [`TensorMap::at`] and
/// [`RaggedRows::at`](crate::ragged::RaggedRows::at).
#[derive(Clone, Debug)]
pub struct BoxAt<'k> {
    map: TensorMap<'k>,
    column: Operand,
    /// Columns from one slab to the next, if not those of a slab.
    apart: Option<u32>,
    outer: Vec<Operand>,
    multicast: Option<Operand>,
    hint: L2Hint,
}

impl KernelBuilder {
    /// Declares a tensor-map parameter for reading; `boxes` is a tile's
    /// [`tensor_box`](SharedTile::tensor_box).
    #[track_caller]
    pub fn param_tensor_map(&self, name: &str, boxes: TensorBox) -> TensorMap<'_> {
        self.param_map(name, boxes, false)
    }

    /// Declares a tensor-map parameter that the kernel may write through.
    #[track_caller]
    pub fn param_tensor_map_mut(&self, name: &str, boxes: TensorBox) -> TensorMap<'_> {
        self.param_map(name, boxes, true)
    }

    /// Declares a tensor-map parameter, and says whether the kernel may write through it.
    #[track_caller]
    pub fn param_map(&self, name: &str, boxes: TensorBox, writable: bool) -> TensorMap<'_> {
        self.check_ragged_boxes(boxes);
        let (dst, param) = self.declare_param(name, ParamKind::TensorMap { boxes, writable }, RegClass::B64);
        TensorMap {
            k: self,
            addr: Val::from_reg(self, dst),
            param,
            boxes,
            part_rows: boxes.rows(),
        }
    }
}

impl KernelBuilder {
    /// Starts copying `bytes` from global to shared memory; they complete at `bar`, which must
    /// expect them ([`MBarrier::arrive_expecting`]).
    ///
    /// ```
    /// use flashcore_ir::{Kernel, TileShape};
    /// let kernel = Kernel::build("row", 32, |k| {
    ///     let row = k.shared_tile::<f32>("row", TileShape::new(1, 64));
    ///     let (from, full) = (k.param_ptr::<f32>("from"), k.mbarriers("full", 1).at(0));
    ///     let to = k.param_ptr_mut::<f32>("to");
    ///     k.if_(k.elect().divergent(), || {
    ///         full.init(1);
    ///         k.fence_mbarrier_init();
    ///         full.arrive_expecting(256);
    ///         k.bulk_load(row.at(0, 0), from, 256, full);
    ///         full.wait(0);
    ///         k.bulk_add(to, row.at(0, 0), 256); // to[i] += row[i]
    ///         k.bulk_commit();
    ///         k.bulk_wait(0);
    ///     });
    /// })?;
    /// assert!(kernel.to_ptx().contains("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"));
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    #[track_caller]
    pub fn bulk_load<'k, E: Element>(
        &'k self,
        dst: SharedPtr<'k, E>,
        src: GlobalPtr<'k, E>,
        bytes: impl Source<'k, u32>,
        bar: MBarrier<'k>,
    ) {
        self.emit(Inst::Bulk(BulkInst::LoadBytes {
            dst: dst.address(),
            src: src.address(),
            bytes: bytes.operand(),
            bar: bar.address(),
        }));
    }

    /// Starts copying `bytes` from shared to global memory. What threads wrote there needs
    /// [`KernelBuilder::fence_proxy_async`] and a barrier before.
    #[track_caller]
    pub fn bulk_store<'k, E: Element>(
        &'k self,
        dst: GlobalPtr<'k, E>,
        src: SharedPtr<'k, E>,
        bytes: impl Source<'k, u32>,
    ) {
        let (dst, src, bytes) = (dst.address(), src.address(), bytes.operand());
        self.emit(Inst::Bulk(BulkInst::StoreBytes { dst, src, bytes }));
    }

    /// Starts adding `bytes` of f32 in shared memory to those in global memory, each atomically.
    /// The order of sums is not defined, so results differ between runs.
    #[track_caller]
    pub fn bulk_add<'k>(&'k self, dst: GlobalPtr<'k, f32>, src: SharedPtr<'k, f32>, bytes: impl Source<'k, u32>) {
        let (dst, src, bytes) = (dst.address(), src.address(), bytes.operand());
        self.emit(Inst::Bulk(BulkInst::Reduce { dst, src, bytes }));
    }

    /// Starts copying `bytes` from shared memory to that of a block of the cluster; they complete at `bar`
    /// of the same block, which must expect them. What threads wrote there needs
    /// [`KernelBuilder::fence_proxy_async`] and a barrier before. The copy is in no bulk group: that it
    /// has read its source, a thread learns only from those that waited for `bar`.
    ///
    /// ```
    /// use flashcore_ir::{Kernel, TileShape};
    /// let kernel = Kernel::build("send", 32, |k| {
    ///     k.in_clusters_of(2);
    ///     let (row, theirs) = (TileShape::new(1, 32), k.cluster_rank() ^ 1);
    ///     let (from, to) = (k.shared_tile::<u32>("from", row), k.shared_tile::<u32>("to", row));
    ///     let (full, out) = (k.mbarriers("full", 1).at(0), k.param_ptr_mut::<u32>("out"));
    ///     k.if_(k.lane().eq(0).divergent(), || {
    ///         full.init(1);
    ///         k.fence_mbarrier_init();
    ///         full.arrive_expecting(128);
    ///     });
    ///     from.at(0, k.lane()).store(k.thread_idx());
    ///     k.fence_proxy_async();
    ///     k.cluster_barrier();
    ///     k.if_(k.elect().divergent(), || {
    ///         k.bulk_send(to.at(0, 0).in_block(theirs), from.at(0, 0), 128, full.in_block(theirs));
    ///     });
    ///     full.wait(0);
    ///     out.offset(k.block_idx(0) * 32 + k.lane()).store(to.at(0, k.lane()).load());
    ///     k.cluster_barrier(); // no block exits while the other still writes to it
    /// })?;
    /// assert!(kernel.to_ptx().contains("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"));
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    #[track_caller]
    pub fn bulk_send<'k, E: Element>(
        &'k self,
        dst: ClusterPtr<'k, E>,
        src: SharedPtr<'k, E>,
        bytes: impl Source<'k, u32>,
        bar: RemoteMBarrier<'k>,
    ) {
        self.emit(Inst::Bulk(BulkInst::Send {
            dst: dst.address(),
            src: src.address(),
            bytes: bytes.operand(),
            bar: bar.address(),
        }));
    }
}

instructions! {
    /// Closes the group of tensor stores that this thread has started since the last commit.
    bulk_commit() = Inst::Bulk(BulkInst::Commit);
    /// Waits until at most `pending` of this thread's newest groups of stores are unfinished.
    bulk_wait(pending: u32) = Inst::Bulk(BulkInst::Wait { pending, read: false });
    /// Waits until at most `pending` of this thread's newest groups of tensor stores have yet to
    /// read their tiles: the tiles may then be written again, though not all is stored.
    bulk_wait_read(pending: u32) = Inst::Bulk(BulkInst::Wait { pending, read: true });
}

impl Kernel {
    /// The boxes of a tensor-map parameter, by name: what the launch makes its argument from.
    pub fn tensor_box(&self, name: &str) -> Option<TensorBox> {
        self.params().iter().find_map(|param| match param.kind {
            ParamKind::TensorMap { boxes, .. } if param.name == name => Some(boxes),
            _ => None,
        })
    }
}

impl<'k> TensorMap<'k> {
    fn address(&self) -> Address {
        Address {
            base: self.addr.operand(),
            offset: 0,
            object: Object::Param(self.param),
        }
    }

    /// The box whose first row is at these coordinates, innermost of them first: all dimensions but
    /// that of the columns, which the tile's slabs fill from 0 on, or from [`BoxAt::column`].
    /// Coordinates outside the tensor (negative ones too, as two's complement) are allowed.
    #[track_caller]
    pub fn at(&self, rows: &[Val<'k, u32>]) -> BoxAt<'k> {
        invalid_if!(self.k, self.boxes.ragged.is_some() =>
            "a box of a ragged tensor map; say of which sequence, with `rows(first, len)`");
        self.box_at(rows.to_vec(), &[])
    }

    /// The box at the coordinates of its rows, then those of the extra dimensions of a ragged map.
    #[track_caller]
    pub(crate) fn box_at(&self, rows: Vec<Val<'k, u32>>, extra: &[Val<'k, u32>]) -> BoxAt<'k> {
        let outer = self.boxes.rank as usize - 1;
        invalid_if!(self.k, rows.len() != outer =>
            "a box at {} coordinates; its tensor map has {outer} without the columns", rows.len());
        BoxAt {
            map: *self,
            column: Operand::Imm(0),
            apart: None,
            outer: rows.iter().chain(extra).map(|row| row.operand()).collect(),
            multicast: None,
            hint: L2Hint::None,
        }
    }

    /// Rows of a box.
    pub fn box_rows(&self) -> u32 {
        self.boxes.rows()
    }

    /// Bytes of the boxes that fill a tile, one for each slab. Rows of the tile past the box do not count.
    pub fn bytes_of<E: Element>(&self, tile: &SharedTile<'k, E>) -> u32 {
        self.boxes.bytes() * tile.slabs()
    }

    /// For boxes that fill only the first rows of each part of a tile, such as boxes of 60 rows for
    /// parts of 64. A tile has one part or more, of `rows` rows each.
    #[track_caller]
    pub fn in_parts_of(self, rows: u32) -> Self {
        invalid_if!(self.k, rows < self.box_rows() =>
            "parts of {rows} rows of a tile for boxes of {}; they must have room for a box", self.box_rows());
        TensorMap {
            part_rows: rows,
            ..self
        }
    }

    /// Brings the map into the cache of the unit that copies, before the first copy.
    #[track_caller]
    pub fn prefetch(&self) {
        let map = self.address();
        self.k.emit(Inst::Bulk(BulkInst::Prefetch { map }));
    }
}

impl<'k> BoxAt<'k> {
    /// The box, or the first of the tile's slabs, begins at this column instead of 0.
    pub fn column(mut self, first: impl Source<'k, u32>) -> Self {
        self.column = first.operand();
        self
    }

    /// The tile's slabs begin so many columns apart, fewer than they have: each then repeats the first columns of the
    /// next one, so that products find columns that are no slab's first ones at the start of one.
    pub fn slabs_apart(mut self, columns: u32) -> Self {
        self.apart = Some(columns);
        self
    }

    /// Brings the box to the same place in each block of the cluster whose rank is a set bit of
    /// `blocks`, and completes its bytes at the same mbarrier of each.
    pub fn multicast(mut self, blocks: Val<'k, u16>) -> Self {
        self.multicast = Some(blocks.operand());
        self
    }

    /// Tells the L2 cache what to expect of the tensor.
    pub fn hint(mut self, hint: L2Hint) -> Self {
        self.hint = hint;
        self
    }
}

impl<'k, E: Element> SharedTile<'k, E> {
    /// The boxes that fill this tile: a slab of columns by `outer` elements along the dimensions of the rows, innermost
    /// first. Their product is the tile's rows, or a part of them for tiles that several copies fill, or that are not
    /// filled whole ([`TensorMap::in_parts_of`]). Attention tensors have the dimensions (head_dim, seq, heads, batch),
    /// so `&[rows, 1, 1]`.
    #[track_caller]
    pub fn tensor_box(&self, outer: &[u32]) -> TensorBox {
        let rows = outer.iter().fold(1u32, |product, &n| product.saturating_mul(n));
        let row_bytes = self.slab_cols() * E::BYTES;
        let span = self.swizzle().span();
        let problem = if outer.len() > 4 {
            Some(format!("boxes of {} dimensions; 1 to 5 are possible", outer.len() + 1))
        } else if rows == 0 || rows > self.rows() {
            Some(format!("boxes of {outer:?} rows; it has {}", self.rows()))
        } else if outer.iter().any(|&n| n > 256) {
            Some(format!(
                "boxes of {outer:?} rows; at most 256 along a dimension are possible"
            ))
        } else if self.row_stride() != self.slab_cols() {
            Some("rows are padded, which boxes are not".to_string())
        } else if span.is_some_and(|span| row_bytes != span) {
            Some(format!(
                "rows of {row_bytes} bytes; boxes of this swizzle have {span:?}: use `in_slabs`"
            ))
        } else if !row_bytes.is_multiple_of(16) || self.slab_cols() > 256 {
            Some(format!(
                "rows of {} elements, {row_bytes} bytes; boxes have a multiple of 16 bytes and at most 256 elements",
                self.slab_cols()
            ))
        } else {
            None
        };
        let name = self.name();
        let tell = |problem| {
            self.k
                .invalid(format!("tile `{name}` cannot be copied in boxes: {problem}"))
        };
        problem.map(tell);
        let mut dims = [1; 5];
        dims[0] = self.slab_cols();
        for (dim, &n) in dims[1..].iter_mut().zip(outer) {
            *dim = n;
        }
        TensorBox {
            element: E::TYPE,
            rank: outer.len().min(4) as u32 + 1,
            dims,
            swizzle: self.swizzle(),
            ragged: None,
        }
    }

    /// Starts copying boxes from a tensor into a stage, a copy for each slab; their bytes (a
    /// stage's) complete at `bar`. One thread does this.
    #[track_caller]
    pub fn load_tma(&self, stage: impl Source<'k, u32>, from: BoxAt<'k>, bar: MBarrier<'k>) {
        self.copy_boxes(stage.operand(), None, &from, Some(bar));
    }

    /// Starts copying boxes that are a part of the rows: part `part`, of as many rows as a box has.
    /// Each block of a cluster brings its part of a tile to all of them so.
    #[track_caller]
    pub fn load_tma_part(
        &self,
        stage: impl Source<'k, u32>,
        part: impl Source<'k, u32>,
        from: BoxAt<'k>,
        bar: MBarrier<'k>,
    ) {
        self.copy_boxes(stage.operand(), Some(part.operand()), &from, Some(bar));
    }

    /// Starts copying a stage to a tensor, a copy for each slab, as part of this thread's group
    /// (see [`KernelBuilder::bulk_commit`]). One thread does this, after the others have written
    /// the tile, executed [`KernelBuilder::fence_proxy_async`] and met it at a barrier.
    #[track_caller]
    pub fn store_tma(&self, stage: impl Source<'k, u32>, to: BoxAt<'k>) {
        self.copy_boxes(stage.operand(), None, &to, None);
    }

    /// Starts copying a part of the rows to a tensor: part `part`, of as many rows as a box has.
    #[track_caller]
    pub fn store_tma_part(&self, stage: impl Source<'k, u32>, part: impl Source<'k, u32>, to: BoxAt<'k>) {
        self.copy_boxes(stage.operand(), Some(part.operand()), &to, None);
    }

    /// Starts a copy for each slab, of all rows or a part of them: with an mbarrier from the tensor, without one to it.
    #[track_caller]
    fn copy_boxes(&self, stage: Operand, part: Option<Operand>, there: &BoxAt<'k>, bar: Option<MBarrier<'k>>) {
        self.check_boxes(there, part.is_none());
        let part = part.unwrap_or(Operand::Imm(0));
        let verb = if bar.is_some() { "load_tma" } else { "store_tma" };
        self.k.verb(verb, || {
            let rows = there.map.part_rows;
            for slab in 0..self.slabs() {
                let here = self.box_address(stage, part, rows, slab);
                let (map, at) = (there.map.address(), self.coordinates(slab, there));
                self.k.emit(Inst::Bulk(match bar {
                    Some(bar) => BulkInst::Load {
                        dst: here,
                        map,
                        at,
                        bar: bar.address(),
                        multicast: there.multicast,
                        hint: there.hint,
                    },
                    None => BulkInst::Store { map, at, src: here },
                }));
            }
        });
    }

    #[track_caller]
    fn check_boxes(&self, at: &BoxAt<'k>, whole: bool) {
        let boxes = at.map.boxes;
        let rows = at.map.part_rows;
        let same = boxes.element == E::TYPE && boxes.dims[0] == self.slab_cols() && boxes.swizzle == self.swizzle();
        let fits = rows == self.rows() || !whole && self.rows().is_multiple_of(rows.max(1));
        invalid_if!(self.k, !same || !fits =>
            "tile `{}` ({} rows, slabs of {} {}, {:?}) does not match the tensor map's boxes of {:?} {} ({:?}) in parts \
             of {rows} rows; declare the parameter with the tile's `tensor_box`",
            self.name(), self.rows(), self.slab_cols(), E::NAME, self.swizzle(), boxes.dims(), boxes.element.ptx(),
            boxes.swizzle);
    }

    #[track_caller]
    fn box_address(&self, stage: Operand, part: Operand, rows: u32, slab: u32) -> Address {
        let base = Operand::Reg(self.k.shared_base());
        let start = self.mad(stage, self.stage_bytes(), base);
        let start = self.mad(part, rows * self.row_stride() * E::BYTES, start);
        Address {
            base: start,
            offset: (self.offset + slab * self.slab_bytes()) as i32,
            object: Object::Shared(self.id),
        }
    }

    #[track_caller]
    fn coordinates(&self, slab: u32, at: &BoxAt<'k>) -> Vec<Operand> {
        let further = slab * at.apart.unwrap_or(self.slab_cols());
        let column = match at.column {
            Operand::Imm(first) => Operand::Imm(first + u64::from(further)),
            first => (Val::<u32>::from_operand(self.k, first) + further).operand(),
        };
        std::iter::once(column).chain(at.outer.iter().copied()).collect()
    }

    fn name(&self) -> String {
        self.k.state.borrow().kernel.ledger.get(self.id).name.clone()
    }
}
