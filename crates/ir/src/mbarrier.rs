//! Mbarriers: counters in shared memory whose phases end when the expected threads have arrived and
//! the announced bytes of asynchronous copies have landed (PTX ISA, "mbarrier").
//!
//! [`Pipeline`](crate::Pipeline) derives counts, phases and addresses of a ring of them.

use crate::builder::{KernelBuilder, invalid_if};
use crate::inst::{Address, Inst, MbarInst, Object, Operand, Scope};
use crate::shared::{BufferId, SharedBuffer};
use crate::types::ScalarType;
use crate::value::{Source, Val};

const BYTES: u32 = 8;

/// An array of mbarriers in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct MBarriers<'k> {
    k: &'k KernelBuilder,
    buffer: BufferId,
    offset: u32,
    count: u32,
}

/// One mbarrier of this block.
#[derive(Clone, Copy, Debug)]
pub struct MBarrier<'k> {
    k: &'k KernelBuilder,
    addr: Val<'k, u32>,
    offset: i32,
    buffer: BufferId,
}

/// One mbarrier of a block of the cluster: others can only arrive at it.
#[derive(Clone, Copy, Debug)]
pub struct RemoteMBarrier<'k>(MBarrier<'k>);

impl KernelBuilder {
    /// Declares `count` mbarriers in shared memory and enters them into the ledger.
    ///
    /// ```
    /// use flashcore_ir::Kernel;
    /// let kernel = Kernel::build("meet", 64, |k| {
    ///     let bar = k.mbarriers("bar", 1).at(0);
    ///     k.if_(k.thread_idx().eq(0).divergent(), || bar.init(64));
    ///     k.barrier();
    ///     bar.arrive();
    ///     bar.wait(0);
    /// })?;
    /// assert!(kernel.to_ptx().contains("mbarrier.try_wait.parity"));
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    #[track_caller]
    pub fn mbarriers(&self, name: &str, count: u32) -> MBarriers<'_> {
        invalid_if!(self, count == 0 || count > 1024 => "{count} mbarriers `{name}`; 1 to 1024 are possible");
        let count = count.clamp(1, 1024);
        let declared_at = self.site();
        let mut state = self.state.borrow_mut();
        let row = SharedBuffer::row(name, ScalarType::B64, count * BYTES, 16, declared_at);
        let buffer = state.kernel.ledger.enter(row);
        let offset = state.kernel.ledger.get(buffer).offset;
        MBarriers {
            k: self,
            buffer,
            offset,
            count,
        }
    }
}

impl<'k> MBarriers<'k> {
    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The mbarrier of an index.
    #[track_caller]
    pub fn at(&self, index: impl Source<'k, u32>) -> MBarrier<'k> {
        let k = self.k;
        let base = Val::<u32>::from_reg(k, k.shared_base());
        let (addr, constant) = match index.operand() {
            Operand::Imm(index) => {
                invalid_if!(k, index >= u64::from(self.count) => "mbarrier {index} of {}", self.count);
                (base, index as u32 * BYTES)
            }
            index => {
                let index = Val::<u32>::from_operand(k, index);
                (index.fma(BYTES, base), 0)
            }
        };
        MBarrier {
            k,
            addr,
            offset: (self.offset + constant) as i32,
            buffer: self.buffer,
        }
    }
}

impl<'k> MBarrier<'k> {
    pub(crate) fn address(&self) -> Address {
        Address {
            base: self.addr.operand(),
            offset: self.offset,
            object: Object::Shared(self.buffer),
        }
    }

    /// Makes the mbarrier: each of its phases takes `arrivals` arrivals. One thread does this,
    /// once, and a barrier follows before others use it; before copies or other blocks do,
    /// [`fence_mbarrier_init`](KernelBuilder::fence_mbarrier_init) too.
    #[track_caller]
    pub fn init(&self, arrivals: u32) {
        let addr = self.address();
        self.k.emit(Inst::Mbar(MbarInst::Init { addr, arrivals }));
    }

    /// Arrives, once for each active lane. Who sees the phase end knows what was done before.
    #[track_caller]
    pub fn arrive(&self) {
        self.arrive_at(false, Scope::Block, None);
    }

    /// Announces `bytes` of copies that will complete here in this phase, and arrives.
    #[track_caller]
    pub fn arrive_expecting(&self, bytes: impl Source<'k, u32>) {
        self.arrive_at(false, Scope::Block, Some(bytes.operand()));
    }

    #[track_caller]
    fn arrive_at(&self, remote: bool, scope: Scope, tx: Option<Operand>) {
        let addr = self.address();
        self.k.emit(Inst::Mbar(MbarInst::Arrive {
            addr,
            remote,
            scope,
            tx,
        }));
    }

    /// Announces `bytes` of copies that will complete here in this phase, without arriving.
    #[track_caller]
    pub fn expect(&self, bytes: impl Source<'k, u32>) {
        let (addr, tx) = (self.address(), bytes.operand());
        self.k.emit(Inst::Mbar(MbarInst::ExpectTx { addr, tx }));
    }

    /// Whether the phase of this parity (that of its number, from 0 on) has ended. Does not wait.
    #[track_caller]
    pub fn test(&self, parity: impl Source<'k, u32>) -> Val<'k, bool> {
        self.phase(parity, false, Scope::Block)
    }

    /// Waits a while for the phase of this parity to end; whether it has.
    #[track_caller]
    pub fn try_wait(&self, parity: impl Source<'k, u32>) -> Val<'k, bool> {
        self.phase(parity, true, Scope::Block)
    }

    /// Waits for the phase of this parity (that of its number, from 0 on) to end. Of a fresh
    /// mbarrier the phase before the first, of parity 1, counts as ended.
    #[track_caller]
    pub fn wait(&self, parity: impl Source<'k, u32>) {
        self.wait_in(parity, Scope::Block);
    }

    /// [`wait`](Self::wait) for arrivals from other blocks of the cluster.
    #[track_caller]
    pub fn wait_cluster(&self, parity: impl Source<'k, u32>) {
        self.wait_in(parity, Scope::Cluster);
    }

    #[track_caller]
    fn wait_in(&self, parity: impl Source<'k, u32>, scope: Scope) {
        let parity = parity.val(self.k);
        self.k.verb("wait", || {
            // Lanes may see the phase end at different times.
            self.k
                .loop_(|l| l.break_if(self.phase(parity, true, scope).divergent()));
        });
    }

    #[track_caller]
    fn phase(&self, parity: impl Source<'k, u32>, blocking: bool, scope: Scope) -> Val<'k, bool> {
        let (addr, parity) = (self.address(), parity.operand());
        self.k.result(|dst| {
            Inst::Mbar(MbarInst::Test {
                dst,
                addr,
                parity,
                blocking,
                scope,
            })
        })
    }

    /// The same mbarrier in the cluster's block `rank`.
    #[track_caller]
    pub fn in_block(&self, rank: impl Source<'k, u32>) -> RemoteMBarrier<'k> {
        RemoteMBarrier(MBarrier {
            addr: self.k.mapa(self.addr, rank.operand()),
            ..*self
        })
    }
}

impl<'k> RemoteMBarrier<'k> {
    pub(crate) fn address(&self) -> Address {
        self.0.address()
    }

    /// Arrives, once for each active lane. Orders earlier *reads* and asynchronous work before what
    /// the observer does next, which is what releasing a buffer needs; what was *written* to the
    /// other block's memory needs [`arrive_cluster`](Self::arrive_cluster).
    #[track_caller]
    pub fn arrive(&self) {
        self.0.arrive_at(true, Scope::Block, None);
    }

    /// Arrives, and orders everything before it for the whole cluster: much dearer than
    /// [`arrive`](Self::arrive).
    #[track_caller]
    pub fn arrive_cluster(&self) {
        self.0.arrive_at(true, Scope::Cluster, None);
    }
}
