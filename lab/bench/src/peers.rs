//! Peers: other implementations timed in the same process, on the same tensors, by the same protocol.
//!
//! The bench runs inside the peers' process, not the other way round: a binding (Python's, say) calls
//! [`run`](crate::run) with a [`PeerSource`] that makes subjects of its functions.

use flashcore_problem::{DType, ElementType, Name, Problem, Task, TensorSpec};
use serde::Serialize;

use crate::{Case, Subject};

/// A tensor that the bench owns, for a peer to wrap without copying. Valid for as long as the peer's subjects
/// live; its values change between inspections.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerTensor {
    /// `q`, `k`, `v`, or `out`, the output that all subjects share: a peer that writes elsewhere
    /// gives [`Subject::own_output`].
    /// Lengths are `cu_seqlens_q` and so on, i32, as [`Lengths::NAMES`](flashcore_problem::Lengths::NAMES) has them.
    /// Scales of e4m3 tensors, f32 `[batch, num_kv_heads]`, dense, are `q_scale`, `k_scale` and `v_scale`.
    /// Of a backward problem `out` is read, as are `lse`, f32 `[batch, num_heads, seq_len_q]`, and `dout`; subjects
    /// share `dq`, `dk` and `dv`.
    pub name: &'static str,
    /// Address of the first element, on the device or the host.
    pub address: u64,
    /// Bytes from there on.
    pub bytes: usize,
    /// Element type.
    pub dtype: PeerType,
    /// Shape, `[batch, seq, heads, head_dim]` but for lengths, scales and the log-sum-exp.
    pub shape: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<i64>,
}

/// Element type of a [`PeerTensor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PeerType {
    /// Of lengths.
    #[serde(rename = "i32")]
    I32,
    /// Of tensors.
    #[serde(untagged)]
    Of(DType),
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
    /// The tensors of a problem: `address` gives the address and bytes of each that there is, by name.
    pub(crate) fn new(
        place: PeerPlace,
        problem: &Problem,
        address: &dyn Fn(&str) -> Option<(u64, usize)>,
    ) -> PeerTensors {
        let tensor = |spec: TensorSpec| {
            // Layouts have four dimensions; these have fewer.
            let rank = match spec.name {
                // No peer takes them.
                Name::Sinks | Name::AlibiSlopes => return None,
                Name::Lse => 3,
                Name::QScale | Name::KScale | Name::VScale | Name::BlockTable => 2,
                _ if spec.element == ElementType::I32 => 1,
                _ => 4,
            };
            let (name, layout) = (spec.name.as_str(), spec.layout);
            let (address, bytes) = address(name)?;
            Some(PeerTensor {
                name,
                address,
                bytes,
                dtype: match spec.element {
                    ElementType::Float(dtype) => PeerType::Of(dtype),
                    ElementType::I32 | ElementType::I64 => PeerType::I32,
                },
                shape: layout.shape[4 - rank..].to_vec(),
                strides: layout.strides[4 - rank..].to_vec(),
            })
        };
        let tensors = problem.tensors().into_iter().filter_map(tensor).collect();
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
