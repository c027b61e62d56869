//! [`Attention::append`] and [`Attention::append_on`]: new rows into a cache, before attention.

#[cfg(feature = "cuda")]
use flashcore_cuda::{DeviceBuffer, DeviceSlice};
#[cfg(feature = "cuda")]
use flashcore_ir::BufferSpec;
use flashcore_problem::{Append, AppendTensors};
#[cfg(feature = "cuda")]
use flashcore_problem::{AppendPlace, AppendValues, ProblemError, SlotMapping};

#[cfg(feature = "cuda")]
use crate::Queue;
use crate::attention::Backend;
#[cfg(feature = "cuda")]
use crate::cuda::{CudaAttention, Stream, check_apart};
use crate::{Attention, Error};

/// The tensors of an [`Append`] in device memory, each in its layout and starting at its first element.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DeviceAppend<'a> {
    /// New rows of K, `[batch, seq_new, kv_heads, head_dim]` or packed `[1, total, kv_heads, head_dim]`.
    pub k_new: DeviceSlice<'a>,
    /// New rows of V, the same with its `head_dim`.
    pub v_new: DeviceSlice<'a>,
    /// The cache of K, written: `[cache_batch, capacity, kv_heads, head_dim]`, or in pages `[pages,
    /// page_size, kv_heads, head_dim]`.
    pub k_cache: DeviceSlice<'a>,
    /// The cache of V, written.
    pub v_cache: DeviceSlice<'a>,
    /// The arrays that [`Append::entries`] names, i32. The kernel reads them when it runs, so a captured
    /// graph takes what they hold at each launch. Lengths above the append's bounds are cut to them;
    /// rows whose page or slot is not in the cache are not written.
    pub values: AppendValues<DeviceSlice<'a>>,
    /// A slot for each new row, i64 or i32, where those say where rows go. −1 skips a row.
    pub slot_mapping: Option<DeviceSlice<'a>>,
    /// Written, if [`Append::seqused_k`]: the keys of each sequence afterwards, i32 `[batch]`. Not the
    /// memory of `cache_seqlens`, which other blocks still read.
    pub seqused_k: Option<DeviceSlice<'a>>,
    /// What a rotary embedding has besides.
    pub rotary: Option<DeviceRotary<'a>>,
}

/// The tensors of a [`Rotary`](crate::Rotary) embedding in device memory.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug)]
pub struct DeviceRotary<'a> {
    /// Cosines, `[positions, rotary_dim / 2]`, dense.
    pub cos: DeviceSlice<'a>,
    /// Sines, the same.
    pub sin: DeviceSlice<'a>,
    /// Q.
    pub q: DeviceSlice<'a>,
    /// Written: Q, rotated. The same memory as `q` rotates it in place: then the rows of Q may lie between
    /// those of K and V, as in a packed QKV. Rows of no sequence stay.
    pub q_out: DeviceSlice<'a>,
}

#[cfg(feature = "cuda")]
impl<'a> DeviceRotary<'a> {
    /// The tables, and Q to rotate in place.
    pub fn in_place(cos: DeviceSlice<'a>, sin: DeviceSlice<'a>, q: DeviceSlice<'a>) -> DeviceRotary<'a> {
        DeviceRotary { cos, sin, q, q_out: q }
    }
}

#[cfg(feature = "cuda")]
impl<'a> DeviceAppend<'a> {
    /// New rows of K and V, and the cache. The other fields are set where the append needs them.
    pub fn new(new: [DeviceSlice<'a>; 2], cache: [DeviceSlice<'a>; 2]) -> DeviceAppend<'a> {
        let ([k_new, v_new], [k_cache, v_cache]) = (new, cache);
        DeviceAppend {
            k_new,
            v_new,
            k_cache,
            v_cache,
            values: AppendValues::default(),
            slot_mapping: None,
            seqused_k: None,
            rotary: None,
        }
    }

    /// What the addresses of tensors are all multiples of, in bytes, at most 16.
    pub(crate) fn alignment(&self) -> u32 {
        let rotary = self.rotary.iter().flat_map(|r| [r.cos, r.sin, r.q, r.q_out]);
        let tensors = [self.k_new, self.v_new, self.k_cache, self.v_cache];
        let tensors = tensors.into_iter().chain(rotary);
        1 << tensors.fold(16, |all, tensor| all | tensor.address()).trailing_zeros()
    }

    /// The memory of a launch's buffer.
    pub(crate) fn named(&self, buffer: &str) -> Option<DeviceSlice<'a>> {
        match buffer {
            "k_new" => Some(self.k_new),
            "v_new" => Some(self.v_new),
            "k_cache" => Some(self.k_cache),
            "v_cache" => Some(self.v_cache),
            "slot_mapping" => self.slot_mapping,
            "seqused_k" => self.seqused_k,
            "rotary_cos" => self.rotary.map(|rotary| rotary.cos),
            "rotary_sin" => self.rotary.map(|rotary| rotary.sin),
            "q" => self.rotary.map(|rotary| rotary.q),
            "q_out" => self.rotary.map(|rotary| rotary.q_out),
            other => self.values.named(other).copied(),
        }
    }

    /// Refuses what the launch cannot see: arrays of no use.
    fn check(&self, append: &Append) -> Result<(), Error> {
        append.check()?;
        let wide = matches!(append.place, AppendPlace::Slots { wide: true });
        let slot_bytes = if wide { 8 } else { 4 };
        let slots = self.slot_mapping.map(|slots| slots.len() / slot_bytes);
        append.check_given(&self.values, |array| array.len() / size_of::<i32>(), slots)?;
        let refuse = |argument, why: &str| {
            let why = why.to_string();
            Err(Error::Problem(ProblemError::Lengths { argument, why }))
        };
        if self.seqused_k.is_some() != append.seqused_k {
            return refuse(
                "seqused_k",
                "is given exactly where the append writes it (Append::seqused_k)",
            );
        }
        if self.rotary.is_some() != append.rotary.is_some() {
            return refuse(
                "rotary_cos",
                "is given, with rotary_sin and q, exactly where the append rotates",
            );
        }
        Ok(())
    }

    /// Whether Q is rotated in its own memory.
    fn is_in_place(&self) -> bool {
        self.rotary
            .is_some_and(|rotary| rotary.q.address() == rotary.q_out.address())
    }

    /// Refuses outputs in the memory of inputs: `buffers` of a launch that are at these addresses.
    pub(crate) fn check_apart(&self, buffers: &[BufferSpec], address: impl Fn(usize) -> u64) -> Result<(), Error> {
        let in_place = self.is_in_place();
        check_apart(buffers, address, |written, read| may_share(in_place, written, read))
    }
}

/// Q that is rotated in place is its own output, and may have its rows between new ones of K and V, as in a packed QKV.
#[cfg(feature = "cuda")]
fn may_share(in_place: bool, written: &str, read: &str) -> bool {
    in_place && written == "q_out" && ["q", "k_new", "v_new"].contains(&read)
}

impl Attention {
    /// Writes new rows of K and V into a cache, and rotates K and Q if the append does, on tensors in
    /// host memory. Attention over the cache follows, with the lengths afterwards
    /// ([`AppendTensors::seqused_k`]).
    ///
    /// On a GPU this copies the tensors there and those that are written back; for a cache that lives
    /// there use [`Attention::append_on`].
    ///
    /// ```
    /// use flashcore::{Append, AppendTensors, AppendValues, Attention, DType, Device, TensorView, TensorViewMut};
    ///
    /// // Sequence 0 has 3 keys and gets one; sequence 1 has none. Pages of 2 keys: page 4 has keys 2 and 3.
    /// let (new, pages) = ([2, 1, 1, 64].into(), [5, 2, 1, 64].into());
    /// let append = Append { seqused_k: true, ..Append::to_pages(DType::F32, [new, new], [pages, pages], 2) };
    /// let (rows, mut k, mut v, mut keys) = ([1f32; 128], [0f32; 640], [0f32; 640], [0; 2]);
    /// let rows = TensorView::from_slice(new, &rows)?;
    /// let cache = [TensorViewMut::from_slice(pages, &mut k)?, TensorViewMut::from_slice(pages, &mut v)?];
    /// let mut tensors = AppendTensors::new([rows, rows], cache);
    /// tensors.values = AppendValues {
    ///     cache_seqlens: Some(&[3, 0]),
    ///     block_table: Some(&[1, 4, 0, -1]), // [batch, max_pages]
    ///     ..AppendValues::default()
    /// };
    /// tensors.seqused_k = Some(&mut keys);
    /// Attention::new(Device::cpu())?.append(&append, tensors)?;
    /// assert_eq!((k[9 * 64], k[0], keys), (1.0, 1.0, [4, 1]));
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// An append that is invalid ([`Append::check`]), tensors that are not its own, values that
    /// contradict it ([`Append::findings`]), or a failure of the device. Nothing is written then.
    pub fn append(&self, append: &Append, tensors: AppendTensors<'_>) -> Result<(), Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => Ok(flashcore_cpu::append(append, tensors)?),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => append_host(cuda, append, tensors),
        }
    }

    /// Puts an append on tensors in device memory into a queue, and returns at once.
    ///
    /// It is one launch, which allocates nothing and waits for nothing: it may be captured into a graph
    /// with the attention that follows, once it is [warm](Attention::warmup_append).
    ///
    /// ```no_run
    /// use flashcore::cuda::DeviceSlice;
    /// use flashcore::{Append, AppendValues, Attention, DType, DeviceAppend, Error, Queue};
    ///
    /// /// Appends one token of each of 8 sequences, at vLLM's slots.
    /// fn enqueue(attention: &Attention, queue: &mut Queue, new: [DeviceSlice<'_>; 2], cache: [DeviceSlice<'_>; 2],
    ///     slots: DeviceSlice<'_>) -> Result<(), Error>
    /// {
    ///     let (rows, pages) = ([8, 1, 8, 128].into(), [4000, 16, 8, 128].into());
    ///     let append = Append::to_slots(DType::BF16, [rows, rows], [pages, pages], true);
    ///     let mut tensors = DeviceAppend::new(new, cache);
    ///     tensors.slot_mapping = Some(slots);
    ///     attention.append_on(queue, &append, &tensors)
    /// }
    /// ```
    ///
    /// # Errors
    /// An append that is invalid, buffers that are missing, too small, of another device or shared, e4m3
    /// rows that do not start at multiples of 4 bytes, a rotation of e4m3 before sm_90 or of columns that
    /// are no multiple of 8, or a launch that cannot work.
    #[cfg(feature = "cuda")]
    pub fn append_on(&self, queue: &mut Queue, append: &Append, tensors: &DeviceAppend<'_>) -> Result<(), Error> {
        let cuda = self.on_cuda()?;
        tensors.check(append)?;
        cuda.append_on(queue.stream(), append, tensors)
    }

    /// Compiles what appends need, of tensors that start at multiples of 16 bytes, so that no later call
    /// waits for a compiler, and calls can be captured. The CPU has nothing to compile.
    ///
    /// # Errors
    /// The first append that is invalid or cannot be served, and why.
    pub fn warmup_append(&self, appends: &[Append]) -> Result<(), Error> {
        for append in appends {
            append.check()?;
            match &self.backend {
                #[cfg(feature = "cpu")]
                Backend::Cpu(_) => {}
                #[cfg(feature = "cuda")]
                Backend::Cuda(cuda) => drop(cuda.prepare_append(append, 16)?),
            }
        }
        Ok(())
    }
}

#[cfg(feature = "cuda")]
fn append_host(cuda: &CudaAttention, append: &Append, mut tensors: AppendTensors<'_>) -> Result<(), Error> {
    tensors.check(append)?;
    append.rows(&tensors.values, tensors.slot_mapping)?;
    let stream = Stream::new(cuda.context())?;
    let upload = |bytes: &[u8]| DeviceBuffer::from_host(&stream, bytes);
    let new = [upload(tensors.k_new.bytes())?, upload(tensors.v_new.bytes())?];
    // The whole extent travels both ways, so that rows that are not written come back as they were.
    let cache = [
        upload(tensors.k_cache.bytes_mut())?,
        upload(tensors.v_cache.bytes_mut())?,
    ];
    let values = tensors
        .values
        .try_map(|values| DeviceBuffer::from_host(&stream, values))?;
    let slots = match tensors.slot_mapping {
        Some(SlotMapping::I32(slots)) => Some(DeviceBuffer::from_host(&stream, slots)?),
        Some(SlotMapping::I64(slots)) => Some(DeviceBuffer::from_host(&stream, slots)?),
        None => None,
    };
    let keys = DeviceBuffer::new(cuda.context(), if append.seqused_k { 4 * append.batch } else { 0 })?;
    let rotary = match &mut tensors.rotary {
        None => None,
        Some(rotary) => {
            let q = rotary.q.map(|q| upload(q.bytes())).transpose()?;
            let tables = [upload(rotary.cos.bytes())?, upload(rotary.sin.bytes())?];
            Some((tables, q, upload(rotary.q_out.bytes_mut())?))
        }
    };
    let mut device = DeviceAppend::new(
        new.each_ref().map(DeviceBuffer::as_slice),
        cache.each_ref().map(DeviceBuffer::as_slice),
    );
    device.values = values.map(DeviceBuffer::as_slice);
    device.slot_mapping = slots.as_ref().map(DeviceBuffer::as_slice);
    device.seqused_k = append.seqused_k.then(|| keys.as_slice());
    device.rotary = rotary.as_ref().map(|([cos, sin], q, q_out)| DeviceRotary {
        cos: cos.as_slice(),
        sin: sin.as_slice(),
        q: q.as_ref().unwrap_or(q_out).as_slice(),
        q_out: q_out.as_slice(),
    });
    device.check(append)?;
    cuda.append_on(&stream, append, &device)?;
    cache[0].as_slice().copy_to_host(&stream, tensors.k_cache.bytes_mut())?;
    cache[1].as_slice().copy_to_host(&stream, tensors.v_cache.bytes_mut())?;
    if let (Some(host), Some((.., device))) = (&mut tensors.rotary, &rotary) {
        device.as_slice().copy_to_host(&stream, host.q_out.bytes_mut())?;
    }
    if let Some(host) = tensors.seqused_k {
        host.copy_from_slice(&keys.to_vec::<i32>(&stream)?);
    }
    stream.synchronize()?;
    Ok(())
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use flashcore_ir::Target;
    use flashcore_kernels::{KernelCache, append};
    use flashcore_problem::{DType, Rotary};

    use super::*;

    #[test]
    fn outputs_over_inputs_are_refused() {
        let (new, cache, q) = ([2, 3, 1, 64].into(), [2, 40, 1, 64].into(), [2, 3, 4, 64].into());
        let rotary = Rotary {
            q,
            q_out: q,
            packed_q: false,
            positions: 40,
            dim: 64,
            interleaved: false,
            q_at_one_position: false,
            seqlens: false,
        };
        let append = Append {
            seqused_k: true,
            rotary: Some(rotary),
            ..Append::to_cache(DType::BF16, [new, new], [cache, cache])
        };
        let step = append::step(&append, Target::Sm80, 16, &KernelCache::default()).unwrap();
        let buffers = &step.launch.buffers;
        let apart = |i: usize| buffers[..i].iter().map(|spec| spec.bytes).sum::<u64>();
        let of_both = |[written, read]: [&str; 2], in_place: bool| {
            let place = |name| buffers.iter().position(|spec| spec.name == name).unwrap();
            let address = |i: usize| apart(if i == place(written) { place(read) } else { i });
            check_apart(buffers, address, |to, from| may_share(in_place, to, from))
        };
        let inputs = ["k_new", "v_new", "cache_seqlens", "rotary_cos", "rotary_sin", "q"];
        for written in ["k_cache", "v_cache", "seqused_k", "q_out"] {
            for read in inputs {
                let in_place = may_share(true, written, read);
                assert_eq!(of_both([written, read], true).is_ok(), in_place, "{written} {read}");
                let error = of_both([written, read], false).unwrap_err();
                assert!(matches!(error, Error::SharedMemory { .. }), "{error}");
            }
        }
        // Interleaved caches.
        of_both(["k_cache", "v_cache"], false).unwrap();
    }
}
