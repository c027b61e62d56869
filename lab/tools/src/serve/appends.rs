//! Random appends on a device, compared with float64.

use std::process::ExitCode;

use flashcore::cuda::DeviceBuffer;
use flashcore::{
    AppendTensors, Attention, DType, Device, DeviceAppend, DeviceRotary, Error, Queue, RotaryTensors, SlotMapping,
};
use flashcore_problem::POISON;
use flashcore_problem::append::{AppendCase, AppendReference, random_append};

/// Caches of K and V, Q and the keys of each sequence, after an append.
struct After {
    caches: [Vec<u8>; 2],
    q: Vec<u8>,
    seqused_k: Vec<i32>,
}

pub(super) fn main(device: &Device, seed: u64, count: u64) -> crate::Ran {
    let attention = Attention::new(device.clone())?;
    let (mut wrong, mut refused) = (0, 0);
    for number in 0..count {
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(number);
        let mut case = random_append(seed);
        // The host's calls refuse values that contradict the append.
        if device.context().is_some() && number % 3 == 0 {
            case.spoil(seed, false);
        }
        let found = match device.context() {
            Some(_) => on_a_gpu(&attention, &case),
            None => on_the_host(&attention, &case),
        };
        let judged = match found {
            // A GPU moves e4m3 rows in words.
            Err(Error::Refused { .. }) if case.append.dtype == DType::E4M3 => {
                refused += 1;
                continue;
            }
            Err(error) => Err(error.to_string()),
            Ok(after) => judge(&case, &after),
        };
        if let Err(why) = judged {
            println!("append {number} of seed {seed}: {why}: {:?}", case.append);
            wrong += 1;
        }
    }
    let right = count - wrong - refused;
    println!("{right} of {count} appends are right on {device}, {refused} are refused, {wrong} are wrong");
    Ok(if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn judge(case: &AppendCase, after: &After) -> Result<(), String> {
    let want = case.reference();
    let append = &case.append;
    let before = [case.k_cache.bytes(), case.v_cache.bytes()];
    let layouts = [append.k_cache, append.v_cache];
    for (i, name) in ["k_cache", "v_cache"].into_iter().enumerate() {
        let expected = if i == 0 { &want.k_cache } else { &want.v_cache };
        AppendReference::compare(expected, append.dtype, &layouts[i], before[i], &after.caches[i])
            .map_err(|why| format!("{name}: {why}"))?;
    }
    if let Some(rotary) = &append.rotary {
        let before = vec![POISON; after.q.len()];
        AppendReference::compare(&want.q, append.dtype, &rotary.q_out, &before, &after.q)
            .map_err(|why| format!("q_out: {why}"))?;
    }
    match append.seqused_k && after.seqused_k != want.seqused_k {
        true => Err(format!(
            "seqused_k is {:?}; it must be {:?}",
            after.seqused_k, want.seqused_k
        )),
        false => Ok(()),
    }
}

fn on_the_host(attention: &Attention, case: &AppendCase) -> Result<After, Error> {
    let (mut k_cache, mut v_cache) = (case.k_cache.clone(), case.v_cache.clone());
    let rotary = case.append.rotary;
    let mut q_out = rotary.map(|rotary| flashcore::Tensor::poisoned(case.append.dtype, rotary.q_out));
    let mut seqused_k = vec![0; case.append.batch];
    let caches = [k_cache.view_mut(), v_cache.view_mut()];
    let mut tensors = AppendTensors::new([case.k_new.view(), case.v_new.view()], caches);
    (tensors.values, tensors.slot_mapping) = (case.values(), case.slots());
    tensors.seqused_k = case.append.seqused_k.then_some(&mut seqused_k[..]);
    if let (Some([cos, sin, q]), Some(q_out)) = (&case.rotary, &mut q_out) {
        tensors.rotary = Some(RotaryTensors {
            cos: cos.view(),
            sin: sin.view(),
            q: Some(q.view()),
            q_out: q_out.view_mut(),
        });
    }
    attention.append(&case.append, tensors)?;
    Ok(After {
        caches: [k_cache, v_cache].map(|cache| cache.bytes().to_vec()),
        q: q_out.map_or(Vec::new(), |q| q.bytes().to_vec()),
        seqused_k,
    })
}

/// By the call that takes device memory, which takes any values.
fn on_a_gpu(attention: &Attention, case: &AppendCase) -> Result<After, Error> {
    let mut queue = Queue::new(&attention.device())?;
    let upload = |bytes: &[u8]| DeviceBuffer::from_host(queue.stream(), bytes);
    let [k, v, k_cache, v_cache] = [&case.k_new, &case.v_new, &case.k_cache, &case.v_cache].map(|t| upload(t.bytes()));
    let (k, v, k_cache, v_cache) = (k?, v?, k_cache?, v_cache?);
    let values = case
        .values
        .try_map(|values| DeviceBuffer::from_host(queue.stream(), values))?;
    let slots = case.slots().map(|slots| match slots {
        SlotMapping::I32(slots) => DeviceBuffer::from_host(queue.stream(), slots),
        SlotMapping::I64(slots) => DeviceBuffer::from_host(queue.stream(), slots),
    });
    let slots = slots.transpose()?;
    let after = DeviceBuffer::from_host(queue.stream(), &vec![0; case.append.batch])?;
    let rotary = match (&case.rotary, &case.append.rotary) {
        (Some(tensors), Some(rotary)) => {
            let [cos, sin, q] = tensors.each_ref().map(|tensor| upload(tensor.bytes()));
            let bytes = rotary.q_out.span() * case.append.dtype.size_bytes();
            Some([cos?, sin?, q?, upload(&vec![POISON; bytes])?])
        }
        _ => None,
    };
    let caches = [k_cache.as_slice(), v_cache.as_slice()];
    let mut tensors = DeviceAppend::new([k.as_slice(), v.as_slice()], caches);
    tensors.values = values.map(DeviceBuffer::as_slice);
    tensors.slot_mapping = slots.as_ref().map(DeviceBuffer::as_slice);
    tensors.seqused_k = case.append.seqused_k.then(|| after.as_slice());
    tensors.rotary = rotary.as_ref().map(|[cos, sin, q, q_out]| DeviceRotary {
        cos: cos.as_slice(),
        sin: sin.as_slice(),
        q: q.as_slice(),
        q_out: q_out.as_slice(),
    });
    attention.append_on(&mut queue, &case.append, &tensors)?;
    let stream = queue.stream();
    let q = rotary.as_ref().map(|[.., q_out]| q_out.to_vec::<u8>(stream));
    Ok(After {
        caches: [k_cache.to_vec(stream)?, v_cache.to_vec(stream)?],
        q: q.transpose()?.unwrap_or_default(),
        seqused_k: after.to_vec(stream)?,
    })
}
