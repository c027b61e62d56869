//! Tensors in device memory, as [`Attention::forward_on`](crate::Attention::forward_on) takes them.

use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};
use flashcore_problem::TensorView;

/// Tensors in device memory, each in the problem's layout and starting at its first element.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensors<'a> {
    /// `[batch, seq_len_q, num_heads, head_dim]`.
    pub q: DeviceSlice<'a>,
    /// `[batch, seq_len_kv, num_kv_heads, head_dim]`.
    pub k: DeviceSlice<'a>,
    /// `[batch, seq_len_kv, num_kv_heads, head_dim_v]`.
    pub v: DeviceSlice<'a>,
    /// Written: `[batch, seq_len_q, num_heads, head_dim_v]`, of
    /// [`Problem::out_dtype`](crate::Problem::out_dtype).
    pub out: DeviceSlice<'a>,
    /// Written where the problem asks for it: f32 `[batch, num_heads, seq_len_q]`.
    pub lse: Option<DeviceSlice<'a>>,
    /// The scales of Q, K and V where they are e4m3, and only then.
    pub scales: Option<DeviceScales<'a>>,
    /// As many bytes as the plan asks for
    /// ([`Plan::workspace_bytes`](crate::Plan::workspace_bytes)), starting at a multiple of 16;
    /// most plans ask for none. What it holds does not matter.
    pub workspace: Option<DeviceSlice<'a>>,
}

/// Scales of e4m3 tensors in device memory, each f32 `[batch, num_kv_heads]`, dense. An element
/// stands for itself times the scale of its batch and K/V head ([`TensorView::with_scales`]).
/// Scales are finite and above 0; that is not checked here.
#[derive(Clone, Copy, Debug)]
pub struct DeviceScales<'a> {
    /// Of Q; a head of Q has the scale of the K/V head that serves it.
    pub q: DeviceSlice<'a>,
    /// Of K.
    pub k: DeviceSlice<'a>,
    /// Of V.
    pub v: DeviceSlice<'a>,
}

impl<'a> DeviceTensors<'a> {
    /// What the addresses of Q, K, V and O are all multiples of, in bytes, at most 16: plans depend
    /// on it.
    pub fn alignment(&self) -> u32 {
        let addresses = [self.q, self.k, self.v, self.out].map(DeviceSlice::address);
        1 << (addresses[0] | addresses[1] | addresses[2] | addresses[3] | 16).trailing_zeros()
    }

    /// The memory of a launch's buffer, by the buffer's name; `None` where it was not given, or no
    /// buffer is called so.
    pub fn named(&self, buffer: &str) -> Option<DeviceSlice<'a>> {
        match buffer {
            "q" => Some(self.q),
            "k" => Some(self.k),
            "v" => Some(self.v),
            "out" => Some(self.out),
            "lse" => self.lse,
            "q_scale" => self.scales.map(|scales| scales.q),
            "k_scale" => self.scales.map(|scales| scales.k),
            "v_scale" => self.scales.map(|scales| scales.v),
            "workspace" => self.workspace,
            _ => None,
        }
    }
}

/// The scales of e4m3 tensors in device memory of their own, for
/// [`Attention::forward_on`](crate::Attention::forward_on).
///
/// They live as long as this does; [`as_slices`](Self::as_slices) goes into
/// [`DeviceTensors::scales`].
#[derive(Debug)]
pub struct ScaleBuffers([DeviceBuffer; 3]);

impl ScaleBuffers {
    /// Allocates memory for the scales of `[q, k, v]` ([`TensorView::with_scales`], each f32
    /// `[batch, num_kv_heads]`) and copies them there in `stream`; `None` where one of the three
    /// has none.
    ///
    /// # Errors
    ///
    /// The driver cannot allocate or copy.
    pub fn upload(stream: &Stream, tensors: [&TensorView<'_>; 3]) -> Result<Option<ScaleBuffers>, CudaError> {
        let [Some(q), Some(k), Some(v)] = tensors.map(TensorView::scales) else {
            return Ok(None);
        };
        let upload = |scales: &[f32]| DeviceBuffer::from_host(stream, scales);
        Ok(Some(ScaleBuffers([upload(q)?, upload(k)?, upload(v)?])))
    }

    /// The scales, as [`DeviceTensors::scales`] takes them.
    pub fn as_slices(&self) -> DeviceScales<'_> {
        let [q, k, v] = self.0.each_ref().map(DeviceBuffer::as_slice);
        DeviceScales { q, k, v }
    }
}
