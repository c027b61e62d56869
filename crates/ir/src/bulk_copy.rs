//! Bulk copies of contiguous bytes, without a tensor map (`cp.async.bulk`), and sums into global
//! memory (`cp.reduce.async.bulk`). One thread starts them.
//!
//! Addresses and numbers of bytes are multiples of 16. Stores and sums belong to the thread's bulk
//! group, as tensor stores do: [`KernelBuilder::bulk_commit`] closes it, and
//! [`KernelBuilder::bulk_wait`] waits for it.

use crate::builder::KernelBuilder;
use crate::inst::{BulkInst, Inst};
use crate::mbarrier::MBarrier;
use crate::pointer::{GlobalPtr, SharedPtr};
use crate::types::Element;
use crate::value::Source;

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
}
