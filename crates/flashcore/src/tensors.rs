//! Tensors in device memory, in the form that `bindings/python` still takes.

use flashcore_cuda::{Context, DeviceSlice};
use flashcore_problem::{Lengths, Name, Problem};

use crate::cuda::Steps;

/// Tensors in device memory, each in the problem's layout and starting at its first element.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DeviceTensors<'a> {
    /// `[batch, seq_len_q, num_heads, head_dim]`; packed `[1, total, num_heads, head_dim]`.
    pub q: DeviceSlice<'a>,
    /// `[batch, seq_len_kv, num_kv_heads, head_dim]`; packed `[1, total, num_kv_heads, head_dim]`; in
    /// pages `[pages, page_size, num_kv_heads, head_dim]`.
    pub k: DeviceSlice<'a>,
    /// As K, with `head_dim_v`.
    pub v: DeviceSlice<'a>,
    /// Written, and read by the backward pass: as Q with `head_dim_v`, of
    /// [`Problem::out_dtype`](crate::Problem::out_dtype).
    pub out: DeviceSlice<'a>,
    /// Written where the problem asks for it, and read by the backward pass: f32 `[batch, num_heads,
    /// seq_len_q]`; of packed query rows `[num_heads, total]`.
    pub lse: Option<DeviceSlice<'a>>,
    /// The scales of Q, K and V where they are e4m3, and only then.
    pub scales: Option<DeviceScales<'a>>,
    /// Sinks where the problem has any, and only then: `[num_heads]` of
    /// [`Problem::sinks`](crate::Problem::sinks). Finite, or −∞ for none; that is not checked here.
    pub sinks: Option<DeviceSlice<'a>>,
    /// ALiBi slopes where the problem has any, and only then: f32 `[num_heads]` or `[batch,
    /// num_heads]`, as [`Problem::alibi`](crate::Problem::alibi) says. They are not negative; kernels
    /// take the magnitude of those that are.
    pub alibi_slopes: Option<DeviceSlice<'a>>,
    /// The values of lengths where the problem has any, i32: those of
    /// [`Problem::length_entries`](crate::Problem::length_entries). Kernels read them when they run,
    /// so a captured graph takes what they hold at each launch. Lengths above the problem's bounds
    /// are cut to them, which leaves rows unwritten; pages outside the cache count as zeros. Neither
    /// is an error unless [`Options::checks`](crate::Options::checks) asks for it.
    pub lengths: Lengths<DeviceSlice<'a>>,
    /// Only for [`Attention::run_foreign`](crate::Attention::run_foreign), as a [`Queue`](crate::Queue) has its own: as
    /// many bytes as the plan asks for
    /// ([`Attention::workspace_bytes`](crate::Attention::workspace_bytes)), starting at a multiple of 16; most plans ask
    /// for none. What it holds does not matter.
    pub workspace: Option<DeviceSlice<'a>>,
    /// Which steps run: [`DeviceTensors::make_schedule`], [`DeviceTensors::reuse_schedule`].
    pub(crate) steps: Steps,
    /// What the backward pass has besides, and only it.
    pub gradients: Option<DeviceGradients<'a>>,
}

/// The gradients of a backward pass in device memory, each in the layout of
/// [`Problem::gradient_layouts`](crate::Problem::gradient_layouts).
#[derive(Clone, Copy, Debug)]
pub struct DeviceGradients<'a> {
    /// Read: the gradient of O.
    pub dout: DeviceSlice<'a>,
    /// Written: the gradient of Q.
    pub dq: DeviceSlice<'a>,
    /// Written: the gradient of K.
    pub dk: DeviceSlice<'a>,
    /// Written: the gradient of V.
    pub dv: DeviceSlice<'a>,
}

/// Scales of e4m3 tensors in device memory, each f32 `[batch, num_kv_heads]`, dense. An element
/// stands for itself times the scale of its sequence and K/V head ([`TensorView::with_scales`](crate::TensorView::with_scales),
/// and the same of sequences).
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
    /// Q, K, V and O. The other fields are set where the problem or the plan needs them.
    pub fn new(q: DeviceSlice<'a>, k: DeviceSlice<'a>, v: DeviceSlice<'a>, out: DeviceSlice<'a>) -> DeviceTensors<'a> {
        DeviceTensors {
            q,
            k,
            v,
            out,
            lse: None,
            scales: None,
            sinks: None,
            alibi_slopes: None,
            lengths: Lengths::default(),
            workspace: None,
            steps: Steps::All,
            gradients: None,
        }
    }

    /// The same by the raw addresses of Q, K, V and O.
    ///
    /// # Safety
    /// Each address is one of the context's device, followed by as much memory as the problem's layout of the tensor
    /// spans. It stays allocated for the lifetime `'a` and for as long as work enqueued with it runs.
    #[allow(unsafe_code)] // raw memory is the point
    pub unsafe fn from_raw(context: &Context, problem: &Problem, addresses: [u64; 4]) -> DeviceTensors<'a> {
        let named = [Name::Q, Name::K, Name::V, Name::Out].map(|name| problem.tensor(name));
        let bytes = named.map(|spec| spec.map_or(0, |spec| spec.bytes() as usize));
        // SAFETY: the caller's part.
        let slice = |n: usize| unsafe { DeviceSlice::from_raw(context, addresses[n], bytes[n]) };
        DeviceTensors::new(slice(0), slice(1), slice(2), slice(3))
    }

    /// The call makes the schedule of its plan in the workspace and computes nothing, for calls that
    /// [use it](DeviceTensors::reuse_schedule). Of the tensors it reads lengths only. Plans without a
    /// [schedule](crate::Attention::schedule) do nothing.
    #[must_use]
    pub fn make_schedule(self) -> DeviceTensors<'a> {
        DeviceTensors {
            steps: Steps::Schedule,
            ..self
        }
    }

    /// The workspace holds the schedule that an earlier call made, and it is used again. Layers of a
    /// model step do so after the first. Only plans for lengths on the device have a schedule; others
    /// ignore this.
    ///
    /// Lengths should be those that it was made for. Otherwise results are wrong, but no kernel leaves
    /// its tensors and the workspace (`stale_schedules.rs` of `lab/check`).
    ///
    /// # Safety
    /// When the work runs, the workspace holds a whole schedule that a call made whose
    /// [`Schedule`](crate::Schedule) is equal to this one's, and only calls that made or used it have
    /// written to the workspace since. So it is in the stream of that call, or ordered after it, and so
    /// is every replay of a graph that captures it; nothing makes the schedule anew meanwhile. Otherwise
    /// any memory may be read or written.
    #[allow(unsafe_code)] // kernels trust the schedule
    #[must_use]
    pub unsafe fn reuse_schedule(self) -> DeviceTensors<'a> {
        DeviceTensors {
            steps: Steps::AfterSchedule,
            ..self
        }
    }

    /// What the addresses of Q, K, V, O and gradients are all multiples of, in bytes, at most 16:
    /// plans depend on it.
    pub fn alignment(&self) -> u32 {
        let gradients = self.gradients.iter().flat_map(|g| [g.dout, g.dq, g.dk, g.dv]);
        let tensors = [self.q, self.k, self.v, self.out].into_iter().chain(gradients);
        1 << tensors.fold(16, |all, tensor| all | tensor.address()).trailing_zeros()
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
            "sinks" => self.sinks,
            "alibi_slopes" => self.alibi_slopes,
            "workspace" => self.workspace,
            "dout" => self.gradients.map(|gradients| gradients.dout),
            "dq" => self.gradients.map(|gradients| gradients.dq),
            "dk" => self.gradients.map(|gradients| gradients.dk),
            "dv" => self.gradients.map(|gradients| gradients.dv),
            other => self.lengths.named(other).copied(),
        }
    }
}
