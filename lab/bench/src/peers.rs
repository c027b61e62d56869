//! Peers: other implementations timed in the same process, on the same tensors, by the same protocol.
//!
//! The bench runs inside the peers' process, not the other way round: a binding (Python's, say) calls
//! [`run`](crate::run) with a [`PeerSource`] that makes subjects of its functions.

use flashcore_problem::{DType, Layout, Problem};

use crate::{Case, Subject};

/// A tensor that the bench owns, for a peer to wrap without copying. Valid for as long as the peer's subjects
/// live; its values change between inspections.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerTensor {
    /// `q`, `k`, `v`, or `out`, the output that all subjects share: a peer that writes elsewhere
    /// gives [`Subject::answer`].
    /// Scales of e4m3 tensors, f32 `[batch, num_kv_heads]`, dense, are `q_scale`, `k_scale` and `v_scale`.
    pub name: &'static str,
    /// Address of the first element, on the device or the host.
    pub address: u64,
    /// Bytes from there on.
    pub bytes: usize,
    /// Element type.
    pub dtype: DType,
    /// Shape, `[batch, seq, heads, head_dim]` but for scales.
    pub shape: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<i64>,
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
#[derive(Clone, Debug, PartialEq)]
pub struct PeerTensors {
    /// Where.
    pub place: PeerPlace,
    /// Each tensor, by name.
    pub tensors: Vec<PeerTensor>,
}

impl PeerTensors {
    /// The tensors of a problem at these addresses (with bytes) of q, k, v and out, and of the scales of q, k and v.
    pub(crate) fn new(
        place: PeerPlace,
        problem: &Problem,
        [q, k, v, out]: [(u64, usize); 4],
        scales: Option<[u64; 3]>,
    ) -> PeerTensors {
        let tensor = |name, (address, bytes), dtype, layout: &Layout| PeerTensor {
            name,
            address,
            bytes,
            dtype,
            shape: layout.shape.to_vec(),
            strides: layout.strides.to_vec(),
        };
        let mut tensors = vec![
            tensor("q", q, problem.dtype(), problem.q_layout()),
            tensor("k", k, problem.dtype(), problem.k_layout()),
            tensor("v", v, problem.dtype(), problem.v_layout()),
            tensor("out", out, problem.out_dtype(), problem.o_layout()),
        ];
        let names = ["q_scale", "k_scale", "v_scale"];
        let scales = names.into_iter().zip(scales.into_iter().flatten());
        tensors.extend(scales.map(|(name, address)| PeerTensor {
            name,
            address,
            bytes: problem.num_scales() * size_of::<f32>(),
            dtype: DType::F32,
            shape: vec![problem.batch(), problem.num_kv_heads()],
            strides: vec![problem.num_kv_heads() as i64, 1],
        }));
        PeerTensors { place, tensors }
    }
}

/// The label of a peer or kernel that is not timed, and why, in a sentence.
pub type Absent = (String, String);

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
