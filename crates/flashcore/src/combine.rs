//! [`Attention::combine`] and [`Attention::combine_on`]: one result from attention over parts of the keys.

#[cfg(feature = "cuda")]
use flashcore_cuda::{DeviceBuffer, DeviceSlice};
#[cfg(feature = "cuda")]
use flashcore_kernels::merge_states;
use flashcore_problem::{Part, Problem, Tensor};

#[cfg(feature = "cuda")]
use crate::Queue;
use crate::attention::Backend;
#[cfg(feature = "cuda")]
use crate::cuda::{CudaAttention, Stream};
use crate::{Attention, Error, Output};

/// Attention of all queries over some of the keys, in device memory.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug)]
pub struct DevicePart<'a> {
    /// The output, in the layout and dtype of the problem's O. What it holds in a row whose log-sum-exp
    /// is −∞ does not matter.
    pub out: DeviceSlice<'a>,
    /// The log-sum-exp, f32, [`Problem::lse_len`] elements.
    pub lse: DeviceSlice<'a>,
}

impl<'a> From<&'a Output> for Part<'a> {
    fn from(output: &'a Output) -> Part<'a> {
        Part {
            out: output.out.view(),
            lse: output.lse.as_deref().unwrap_or_default(),
        }
    }
}

impl Attention {
    /// Merges attention over parts of the keys, such as those of several devices or of a prefix that
    /// many sequences share, into attention over all of them: `lse = ln Σ exp(lse_i)` and `out =
    /// Σ exp(lse_i − lse)·out_i`, in f32, rounded once.
    ///
    /// Parts are the results of 1 to 8 calls that return the log-sum-exp
    /// ([`ProblemBuilder::return_lse`](crate::ProblemBuilder::return_lse)). `problem` is that of any of
    /// them: it gives shape, layout and dtype of the outputs, and whether the result has a log-sum-exp.
    /// Its keys and mask do not matter. Sinks, which the log-sum-exp includes, must be given to one of
    /// the calls only. A row without keys in any part has output 0 and log-sum-exp −∞.
    ///
    /// ```
    /// use flashcore::{Attention, DType, Device, Problem, ProblemError, TensorView};
    ///
    /// fn rows(data: &[f32], first: usize, keys: usize) -> Result<TensorView<'_>, ProblemError> {
    ///     TensorView::from_slice([1, keys, 1, 8], &data[8 * first..][..8 * keys])
    /// }
    /// let problem = |keys| Problem::builder().heads(1, 1).head_dim(8).seq_len_q(1).seq_len_kv(keys)
    ///     .dtype(DType::F32).return_lse(true).build();
    /// let (q, k) = ([0.5f32; 8], [0.25f32; 24]);
    /// let v: Vec<f32> = (0..24).map(|i| (i / 8) as f32).collect(); // rows of 0, 1 and 2
    /// let q = TensorView::from_slice([1, 1, 1, 8], &q)?;
    ///
    /// // Attention over the first two keys, over the last one, and over all three.
    /// let attention = Attention::new(Device::cpu())?;
    /// let first = attention.forward(&problem(2)?, q, rows(&k, 0, 2)?, rows(&v, 0, 2)?)?;
    /// let last = attention.forward(&problem(1)?, q, rows(&k, 2, 1)?, rows(&v, 2, 1)?)?;
    /// let merged = attention.combine(&problem(1)?, &[(&first).into(), (&last).into()])?;
    /// let all = attention.forward(&problem(3)?, q, rows(&k, 0, 3)?, rows(&v, 0, 3)?)?;
    /// assert!((merged.out.as_slice::<f32>()?[0] - 1.0).abs() < 1e-6); // the mean of 0, 1 and 2
    /// assert!((merged.lse.unwrap()[0] - all.lse.unwrap()[0]).abs() < 1e-6);
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another number of parts than 1 to 8, a backward problem, parts that are not of this shape, layout
    /// and dtype or have no log-sum-exp, or a failure of the device.
    pub fn combine(&self, problem: &Problem, parts: &[Part<'_>]) -> Result<Output, Error> {
        let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), 0);
        let mut lse = problem.return_lse().then(|| vec![0.0; problem.lse_len()]);
        problem.check_parts(parts, &out.view_mut(), lse.as_deref())?;
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => flashcore_cpu::combine(problem, parts, &mut out.view_mut(), lse.as_deref_mut())?,
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => self.combine_host(cuda, problem, parts, &mut out, lse.as_deref_mut())?,
        }
        Ok(Output { out, lse })
    }

    /// The same of parts in device memory, put into a queue. It is one launch, which
    /// allocates nothing and waits for nothing. `out` and `lse`, which is given exactly where the problem
    /// asks for it, may not share memory with a part. Rows of packed tensors that are of no sequence are
    /// merged like others.
    ///
    /// Memory of other libraries comes by its address: [`DeviceSlice::from_raw`](crate::cuda::DeviceSlice::from_raw).
    ///
    /// ```no_run
    /// use flashcore::cuda::DeviceSlice;
    /// use flashcore::{Attention, DevicePart, Error, Problem, Queue};
    ///
    /// /// Attention over a prefix that all sequences share, and over the keys of each.
    /// fn merge(attention: &Attention, queue: &mut Queue, problem: &Problem, prefix: DevicePart<'_>,
    ///     own: DevicePart<'_>, out: DeviceSlice<'_>) -> Result<(), Error>
    /// {
    ///     attention.combine_on(queue, problem, &[prefix, own], out, None)
    /// }
    /// ```
    ///
    /// # Errors
    /// Another number of parts than 1 to 8, a backward problem, buffers that are missing, too small, of
    /// another device or shared, or a launch that cannot work.
    #[cfg(feature = "cuda")]
    pub fn combine_on(
        &self,
        queue: &mut Queue,
        problem: &Problem,
        parts: &[DevicePart<'_>],
        out: DeviceSlice<'_>,
        lse: Option<DeviceSlice<'_>>,
    ) -> Result<(), Error> {
        combine_in(self.on_cuda()?, queue.stream(), problem, parts, out, lse)
    }

    #[cfg(feature = "cuda")]
    fn combine_host(
        &self,
        cuda: &CudaAttention,
        problem: &Problem,
        parts: &[Part<'_>],
        out: &mut Tensor,
        lse: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        let stream = Stream::new(cuda.context())?;
        let upload = |part: &Part<'_>| {
            let out = DeviceBuffer::from_host(&stream, part.out.bytes())?;
            Ok((out, DeviceBuffer::from_host(&stream, part.lse)?))
        };
        let uploaded = parts.iter().map(upload).collect::<Result<Vec<_>, Error>>()?;
        let device: Vec<DevicePart<'_>> = uploaded
            .iter()
            .map(|(out, lse)| DevicePart {
                out: out.as_slice(),
                lse: lse.as_slice(),
            })
            .collect();
        // The gaps of the output stay as they are.
        let device_out = DeviceBuffer::from_host(&stream, out.bytes())?;
        let device_lse = DeviceBuffer::new(cuda.context(), 4 * problem.lse_len())?;
        let merged = lse.is_some().then(|| device_lse.as_slice());
        combine_in(cuda, &stream, problem, &device, device_out.as_slice(), merged)?;
        device_out.as_slice().copy_to_host(&stream, out.bytes_mut())?;
        if let Some(lse) = lse {
            lse.copy_from_slice(&device_lse.to_vec::<f32>(&stream)?);
        }
        stream.synchronize()?;
        Ok(())
    }
}

#[cfg(feature = "cuda")]
fn combine_in(
    cuda: &CudaAttention,
    stream: &Stream,
    problem: &Problem,
    parts: &[DevicePart<'_>],
    out: DeviceSlice<'_>,
    lse: Option<DeviceSlice<'_>>,
) -> Result<(), Error> {
    problem.check_part_count(parts.len())?;
    if lse.is_some() && !problem.return_lse() {
        return Err(Error::Unwanted { tensor: "lse" });
    }
    let outs = parts.iter().map(|part| part.out.address());
    let all = outs.fold(16 | out.address(), |all, address| all | address);
    let named = |buffer: &str| {
        let of = |names: [&str; flashcore_problem::MOST_PARTS]| names.iter().position(|name| *name == buffer);
        match (of(merge_states::OUTS), of(merge_states::LSES)) {
            (Some(part), _) => Some(parts[part].out),
            (_, Some(part)) => Some(parts[part].lse),
            _ if buffer == "out" => Some(out),
            _ if buffer == "lse" => lse,
            _ => None,
        }
    };
    cuda.merge_on(stream, problem, parts.len(), 1 << all.trailing_zeros(), named)
}
