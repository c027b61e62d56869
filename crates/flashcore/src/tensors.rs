//! Tensors in device memory, as [`Attention::forward_on`](crate::Attention::forward_on) and
//! [`Attention::backward_on`](crate::Attention::backward_on) take them.

use flashcore_cuda::{Context, CudaError, DeviceBuffer, DeviceSlice, Stream};
use flashcore_problem::{DType, Layout, Lengths, Problem, TensorView};

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

/// The steps of a plan that a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    All,
    /// Those that make the schedule.
    Schedule,
    /// All others.
    AfterSchedule,
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
/// stands for itself times the scale of its sequence and K/V head ([`TensorView::with_scales`],
/// [`TensorView::with_scales_of`]).
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

    /// The same by the raw addresses of Q, K, V and O, such as those of another library's tensors
    /// (`CUdeviceptr`, `tensor.data_ptr()`). [`DeviceSlice::from_raw`] makes the other fields.
    ///
    /// They go into [`Attention::run_foreign`](crate::Attention::run_foreign), which has an example.
    ///
    /// # Safety
    /// Each address is one of the context's device, followed by as much memory as the problem's
    /// layout of the tensor spans. It stays allocated for the lifetime `'a` that the caller picks
    /// and for as long as work enqueued with it runs.
    #[allow(unsafe_code)] // raw memory is the point
    pub unsafe fn from_raw(context: &Context, problem: &Problem, [q, k, v, out]: [u64; 4]) -> DeviceTensors<'a> {
        let slice = |address, layout: &Layout, dtype: DType| {
            // SAFETY: the caller's part.
            unsafe { DeviceSlice::from_raw(context, address, layout.span() * dtype.size_bytes()) }
        };
        DeviceTensors::new(
            slice(q, problem.q_layout(), problem.dtype()),
            slice(k, problem.k_layout(), problem.dtype()),
            slice(v, problem.v_layout(), problem.dtype()),
            slice(out, problem.o_layout(), problem.out_dtype()),
        )
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

/// The scales of e4m3 tensors in separate device memory, for
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

/// The sinks and ALiBi slopes of a problem in separate device memory, for
/// [`Attention::forward_on`](crate::Attention::forward_on). They live as long as this does.
#[derive(Debug)]
pub struct HeadValueBuffers {
    sinks: Option<DeviceBuffer>,
    alibi_slopes: Option<DeviceBuffer>,
}

impl HeadValueBuffers {
    /// Allocates memory for what Q carries ([`TensorView::with_sinks`],
    /// [`TensorView::with_alibi_slopes`]) and copies it there in `stream`.
    ///
    /// # Errors
    ///
    /// The driver cannot allocate or copy.
    pub fn upload(stream: &Stream, problem: &Problem, q: &TensorView<'_>) -> Result<HeadValueBuffers, CudaError> {
        let sinks = q.sinks().map(|_| problem.sink_bytes(q));
        let sinks = sinks.map(|sinks| DeviceBuffer::from_host(stream, &sinks));
        let slopes = q.alibi_slopes().map(|slopes| DeviceBuffer::from_host(stream, slopes));
        Ok(HeadValueBuffers {
            sinks: sinks.transpose()?,
            alibi_slopes: slopes.transpose()?,
        })
    }

    /// The sinks, as [`DeviceTensors::sinks`] takes them.
    pub fn sinks(&self) -> Option<DeviceSlice<'_>> {
        self.sinks.as_ref().map(DeviceBuffer::as_slice)
    }

    /// The slopes, as [`DeviceTensors::alibi_slopes`] takes them.
    pub fn alibi_slopes(&self) -> Option<DeviceSlice<'_>> {
        self.alibi_slopes.as_ref().map(DeviceBuffer::as_slice)
    }
}
