//! Attention and its gradients on storages of any device.
//!
//! candle's operations have one result, so that the log-sum-exp, which the backward pass reads, is
//! not kept: a second forward pass computes it again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle::backend::{BackendDevice, BackendStorage};
use candle::op::BackpropOp;
use candle::{CpuStorage, DType, Layout, Result, Shape, Storage, Tensor};
use flashcore::{Attention, Device, GradientLayouts, Name, Problem, ProblemBuilder};

use crate::op::Lengths;
use crate::problem::{INPUTS, problem};
use crate::{Error, FlashAttn};

/// The library on the CPU, or on a device by the number that candle and the library both take from the driver.
pub(crate) fn attention(ordinal: Option<usize>) -> Result<Arc<Attention>> {
    static ATTENTION: Mutex<BTreeMap<Option<usize>, Arc<Attention>>> = Mutex::new(BTreeMap::new());
    let mut made = ATTENTION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(attention) = made.get(&ordinal) {
        return Ok(attention.clone());
    }
    let device = match ordinal {
        None => Device::cpu(),
        Some(ordinal) => Device::cuda(ordinal as u32).map_err(Error::from)?,
    };
    let attention = Arc::new(Attention::new(device).map_err(Error::from)?);
    made.insert(ordinal, attention.clone());
    Ok(attention)
}

/// What `bwd` returns.
pub(crate) type Found = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

/// A tensor that is read, from an element on.
pub(crate) type Read<'a, S> = (Name, &'a S, usize);

/// A storage that the library computes on.
pub(crate) trait Memory: BackendStorage<Device: BackendDevice<Storage = Self>> {
    /// A tensor's storage, if it is of this kind.
    fn of(storage: &Storage) -> Option<&Self>;

    fn into_storage(self) -> Storage;

    /// Memory of which kernels write all.
    fn empty(device: &Self::Device, shape: &Shape, dtype: DType) -> Result<Self>;

    /// Computes a problem on tensors of its layouts.
    fn run<'a>(
        problem: &Problem,
        lengths: Lengths<'_>,
        device: &Self::Device,
        read: Vec<Read<'_, Self>>,
        written: impl IntoIterator<Item = (Name, &'a mut Self)>,
    ) -> Result<()>
    where
        Self: 'a;
}

/// Attention of q, k and v.
pub(crate) fn forward<S: Memory>(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(&S, &Layout); 3],
) -> Result<(S, Shape)> {
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let (q, layout) = tensors[0];
    let (device, shape) = (q.device(), layout.shape());
    let Some(problem) = problem(options, lengths, given, device.location())? else {
        return Ok((device.zeros_impl(shape, q.dtype())?, shape.clone()));
    };
    let mut out = new(device, lengths, shape, q.dtype())?;
    let slopes = options.alibi_slopes.as_ref().map(Tensor::storage_and_layout);
    let mut read = inputs(tensors).to_vec();
    if let Some((storage, layout)) = &slopes {
        match S::of(storage) {
            Some(storage) => read.push((Name::AlibiSlopes, storage, layout.start_offset())),
            None => candle::bail!("alibi_slopes are not on the device of q"),
        }
    }
    S::run(&problem, lengths, device, read, [(Name::Out, &mut out)])?;
    Ok((out, shape.clone()))
}

/// The gradients of q, k and v by that of the result, contiguous. Rows of no sequence have 0.
pub(crate) fn gradients(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    [q, k, v]: [&Tensor; 3],
    gradient: &Tensor,
) -> Result<Found> {
    let dout = gradient.contiguous()?;
    let held = [q, k, v, &dout].map(Tensor::storage_and_layout);
    let storages = held.each_ref().map(|(storage, layout)| (&**storage, *layout));
    let found = backward::<CpuStorage>(options, lengths, storages)?;
    #[cfg(feature = "cuda")]
    let found = match found {
        None => backward::<candle::CudaStorage>(options, lengths, storages)?,
        found => found,
    };
    let Some([dq, dk, dv]) = found else {
        candle::bail!("q, k, v and the gradient are on different devices, or on one without flash attention");
    };
    let tensor = |storage, of: &Tensor| Some(Tensor::from_storage(storage, of.shape(), BackpropOp::none(), false));
    Ok((tensor(dq, q), tensor(dk, k), tensor(dv, v)))
}

/// The gradients of tensors that are all in this kind of storage.
fn backward<S: Memory>(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    given: [(&Storage, &Layout); 4],
) -> Result<Option<[Storage; 3]>> {
    let [Some(q), Some(k), Some(v), Some(dout)] = given.map(|(storage, layout)| Some((S::of(storage)?, layout))) else {
        return Ok(None);
    };
    let tensors = [q, k, v];
    let given = tensors.map(|(storage, layout)| (storage.dtype(), layout));
    let (device, dtype) = (q.0.device(), q.0.dtype());
    let [of_q, of_k, of_v] = tensors.map(|(_, layout)| layout.shape());
    let Some(problem) = problem(options, lengths, given, device.location())? else {
        let zeros = |shape| device.zeros_impl(shape, dtype).map(S::into_storage);
        return Ok(Some([zeros(of_q)?, zeros(of_k)?, zeros(of_v)?]));
    };
    // A problem with slopes has no backward pass, and was refused.
    let dense = |layout: &flashcore::Layout| flashcore::Layout::bshd(layout.shape);
    let layouts = GradientLayouts {
        dout: *problem.o_layout(),
        dq: dense(problem.q_layout()),
        dk: dense(problem.k_layout()),
        dv: dense(problem.v_layout()),
    };
    let backward = ProblemBuilder::from(&problem).gradient_layouts(layouts).build();
    let backward = backward.map_err(Error::from)?;
    let forward = backward.forward();
    let new = |shape| new(device, lengths, shape, dtype);
    let (mut out, mut found) = (new(of_q)?, [new(of_q)?, new(of_k)?, new(of_v)?]);
    let mut lse: S = device.zeros_impl(&Shape::from(forward.lse_len()), DType::F32)?;
    let written = [(Name::Out, &mut out), (Name::Lse, &mut lse)];
    S::run(&forward, lengths, device, inputs(tensors).to_vec(), written)?;
    let saved = [
        (Name::Out, &out, 0),
        (Name::Lse, &lse, 0),
        (Name::Dout, dout.0, dout.1.start_offset()),
    ];
    let read = inputs(tensors).into_iter().chain(saved).collect();
    let names = [Name::Dq, Name::Dk, Name::Dv];
    S::run(&backward, lengths, device, read, names.into_iter().zip(&mut found))?;
    Ok(Some(found.map(S::into_storage)))
}

fn inputs<'a, S>(tensors: [(&'a S, &Layout); 3]) -> [Read<'a, S>; 3] {
    [0, 1, 2].map(|n| (INPUTS[n], tensors[n].0, tensors[n].1.start_offset()))
}

/// Memory that kernels write; 0 where it has rows of no sequence.
fn new<S: Memory>(device: &S::Device, lengths: Lengths<'_>, shape: &Shape, dtype: DType) -> Result<S> {
    match lengths {
        None => S::empty(device, shape, dtype),
        Some(_) => device.zeros_impl(shape, dtype),
    }
}
