//! Clusters: blocks that run at the same time, share memory and wait for each other.

use crate::builder::{KernelBuilder, instructions, invalid_if};
use crate::inst::{ClusterInst, Inst, Operand, Special};
use crate::pointer::{ClusterPtr, SharedPtr};
use crate::types::Element;
use crate::value::{Source, Val};

impl KernelBuilder {
    /// Makes the kernel for clusters of this many blocks along x.
    ///
    /// ```
    /// use flashcore_ir::{Kernel, TileShape};
    /// let kernel = Kernel::build("exchange", 32, |k| {
    ///     k.in_clusters_of(2);
    ///     let tile = k.shared_tile::<u32>("tile", TileShape::new(1, 32));
    ///     let out = k.param_ptr_mut::<u32>("out");
    ///     tile.at(0, k.lane()).store(k.lane());
    ///     k.cluster_barrier();
    ///     let theirs = tile.at(0, k.lane()).in_block(k.cluster_rank() ^ 1);
    ///     out.offset(k.block_idx(0) * 32 + k.lane()).store(theirs.load());
    ///     k.cluster_barrier(); // no block exits while the other still reads
    /// })?;
    /// assert_eq!(kernel.cluster(), Some(2));
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    #[track_caller]
    pub fn in_clusters_of(&self, blocks: u32) {
        // More than 8 need leave of the driver (`NON_PORTABLE_CLUSTER_SIZE_ALLOWED`).
        invalid_if!(self, !(1..=8).contains(&blocks) => "a cluster of {blocks} blocks; 1 to 8 are possible everywhere");
        self.state.borrow_mut().kernel.cluster = Some(blocks);
    }

    /// Rank of this block in its cluster.
    #[track_caller]
    pub fn cluster_rank(&self) -> Val<'_, u32> {
        self.special(Special::ClusterRank)
    }

    /// Blocks of the cluster.
    #[track_caller]
    pub fn cluster_blocks(&self) -> Val<'_, u32> {
        self.special(Special::ClusterBlocks)
    }

    /// Waits for every thread of the cluster, and orders what each did before with what all do
    /// after. Executed by whole warps; for single lanes there are
    /// [`cluster_arrive`](Self::cluster_arrive) and [`cluster_wait`](Self::cluster_wait).
    #[track_caller]
    pub fn cluster_barrier(&self) {
        self.emit(Inst::Cluster(ClusterInst::Arrive {
            release: true,
            aligned: true,
        }));
        self.emit(Inst::Cluster(ClusterInst::Wait { aligned: true }));
    }

    #[track_caller]
    pub(crate) fn mapa<'k>(&'k self, addr: Val<'k, u32>, rank: Operand) -> Val<'k, u32> {
        let addr = addr.operand();
        self.result(|dst| Inst::Cluster(ClusterInst::Mapa { dst, addr, rank }))
    }
}

instructions! {
    /// Comes to the cluster's barrier without waiting: each thread once, then
    /// [`cluster_wait`](Self::cluster_wait).
    cluster_arrive() = Inst::Cluster(ClusterInst::Arrive { release: true, aligned: false });
    /// Comes to the cluster's barrier without waiting and without ordering memory: enough to know
    /// that the other blocks have started.
    cluster_arrive_relaxed() = Inst::Cluster(ClusterInst::Arrive { release: false, aligned: false });
    /// Waits for every thread of the cluster to have come.
    cluster_wait() = Inst::Cluster(ClusterInst::Wait { aligned: false });
}

impl<'k, E: Element> SharedPtr<'k, E> {
    /// The same place in the shared memory of the cluster's block `rank` (`mapa`). That block must
    /// have started, and must not end before the access is over.
    #[track_caller]
    pub fn in_block(self, rank: impl Source<'k, u32>) -> ClusterPtr<'k, E> {
        let addr = self.addr.builder().mapa(self.addr, rank.operand());
        ClusterPtr::new(addr, self.bytes, self.object)
    }
}
