//! Peers: other implementations timed in the same process, on the same tensors, by the same protocol.
//!
//! The bench runs inside the peers' process, not the other way round: a binding (Python's, say) calls
//! [`run`](crate::run) with a [`PeerSource`] that makes subjects of its functions.

use flashcore_problem::{DType, Layout, Problem};

use crate::problems::Case;
use crate::subject::Subject;

/// A tensor that the bench owns, for a peer to wrap without copying. Valid for as long as the peer's subjects
/// live; its values change between inspections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerTensor {
    /// Address of the first element, on the device or the host.
    pub address: u64,
    /// Bytes from there on.
    pub bytes: usize,
    /// Element type.
    pub dtype: DType,
    /// Shape `[batch, seq, heads, head_dim]` and strides in elements.
    pub layout: Layout,
}

/// Where peers are to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPlace {
    /// On the host.
    Cpu,
    /// On a CUDA device, all work in this stream.
    Cuda {
        /// Number of the device in this process.
        ordinal: u32,
        /// The raw `CUstream`, as `torch.cuda.ExternalStream` takes it. It is not a default stream, so it can be
        /// captured.
        stream: usize,
    },
}

/// The tensors of a problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerTensors {
    /// Where.
    pub place: PeerPlace,
    /// Queries.
    pub q: PeerTensor,
    /// Keys.
    pub k: PeerTensor,
    /// Values.
    pub v: PeerTensor,
    /// Of Q, K and V, where the problem has scales.
    pub scales: Option<PeerScales>,
    /// The output that all subjects share: a peer that writes elsewhere gives [`Subject::answer`].
    pub out: PeerTensor,
}

impl PeerTensors {
    /// The tensors of a problem at these addresses (with bytes) of q, k, v and out, and of the scales of q, k and v.
    pub(crate) fn new(
        place: PeerPlace,
        problem: &Problem,
        [q, k, v, out]: [(u64, usize); 4],
        scales: Option<[u64; 3]>,
    ) -> PeerTensors {
        let tensor = |(address, bytes), dtype, layout: &Layout| PeerTensor {
            address,
            bytes,
            dtype,
            layout: *layout,
        };
        PeerTensors {
            place,
            q: tensor(q, problem.dtype(), problem.q_layout()),
            k: tensor(k, problem.dtype(), problem.k_layout()),
            v: tensor(v, problem.dtype(), problem.v_layout()),
            scales: scales.map(|[q, k, v]| PeerScales {
                shape: [problem.batch(), problem.num_kv_heads()],
                q,
                k,
                v,
            }),
            out: tensor(out, problem.out_dtype(), problem.o_layout()),
        }
    }
}

/// Addresses of the scales of e4m3 tensors, each f32 `[batch, num_kv_heads]`, dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerScales {
    /// Batches and K/V heads.
    pub shape: [usize; 2],
    /// Of Q.
    pub q: u64,
    /// Of K.
    pub k: u64,
    /// Of V.
    pub v: u64,
}

/// A peer that is not timed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The peer's label.
    pub label: String,
    /// One sentence.
    pub reason: String,
}

/// Makes subjects of other implementations.
pub trait PeerSource {
    /// What is missing altogether, one sentence each, said once: no Python, no PyTorch, no FlashAttention-3.
    fn absences(&self) -> Vec<String> {
        Vec::new()
    }

    /// The peers for a problem, in the order they are to stand in tables. Each has run once before it is returned, so
    /// that whatever it does the first time is over; one that does not serve the problem is [`Absent`].
    fn peers<'a>(&'a mut self, case: &Case, tensors: &PeerTensors) -> Vec<Result<Box<dyn Subject + 'a>, Absent>>;
}

/// No peers.
impl PeerSource for () {
    fn peers<'a>(&'a mut self, _: &Case, _: &PeerTensors) -> Vec<Result<Box<dyn Subject + 'a>, Absent>> {
        Vec::new()
    }
}
