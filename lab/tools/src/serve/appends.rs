//! Random appends on a device, compared with float64.

use std::process::ExitCode;

use flashcore::{
    AppendValues, Attention, DType, Device, Error, Host, Name, Operands, Queue, SlotMapping, Task, Tensor,
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

/// The operands that a case reads.
fn operands(case: &AppendCase) -> Operands<'_, Host> {
    let mut operands = Operands::new()
        .with(Name::KNew, &case.k_new)
        .with(Name::VNew, &case.v_new);
    for (word, values) in AppendValues::<()>::NAMES.into_iter().zip(case.values.arrays()) {
        if let (Some(name), Some(values)) = (Name::from_word(word), values) {
            operands = operands.with(name, values);
        }
    }
    if let Some([cos, sin, q]) = &case.rotary {
        let tables = operands.with(Name::RotaryCos, cos).with(Name::RotarySin, sin);
        operands = tables.with(Name::Q, q);
    }
    match case.slots() {
        Some(SlotMapping::I32(slots)) => operands.with(Name::SlotMapping, slots),
        Some(SlotMapping::I64(slots)) => operands.with(Name::SlotMapping, slots),
        None => operands,
    }
}

fn on_the_host(attention: &Attention, case: &AppendCase) -> Result<After, Error> {
    let (mut k_cache, mut v_cache) = (case.k_cache.clone(), case.v_cache.clone());
    let rotary = case.append.rotary;
    let mut q_out = rotary.map(|rotary| Tensor::poisoned(case.append.dtype, rotary.q_out));
    let mut seqused_k = vec![0; case.append.batch];
    let mut given = operands(case)
        .with_mut(Name::KCache, &mut k_cache)
        .with_mut(Name::VCache, &mut v_cache);
    if case.append.seqused_k {
        given = given.with_mut(Name::SequsedK, &mut seqused_k);
    }
    if let Some(q_out) = &mut q_out {
        given = given.with_mut(Name::QOut, q_out);
    }
    attention.run(&case.append, given)?;
    Ok(After {
        caches: [k_cache, v_cache].map(|cache| cache.bytes().to_vec()),
        q: q_out.map_or(Vec::new(), |q| q.bytes().to_vec()),
        seqused_k,
    })
}

/// By the call that takes device memory, which takes any values.
fn on_a_gpu(attention: &Attention, case: &AppendCase) -> Result<After, Error> {
    let mut queue = Queue::new(&attention.device())?;
    let given = operands(case);
    let mut tensors = Vec::new();
    for spec in case.append.tensors() {
        let tensor = match (spec.name, given.get(spec.name)) {
            (Name::KCache, _) => queue.upload(&case.k_cache)?,
            (Name::VCache, _) => queue.upload(&case.v_cache)?,
            (_, Some(view)) => queue.upload(view)?,
            (_, None) => queue.empty(&spec)?,
        };
        if spec.name == Name::QOut {
            tensor.as_slice().fill(queue.stream(), POISON)?;
        }
        tensors.push((spec, tensor));
    }
    let mut on_device = Operands::new();
    for (spec, tensor) in &mut tensors {
        on_device = if spec.is_written() {
            on_device.with_mut(spec.name, tensor)
        } else {
            on_device.with(spec.name, &*tensor)
        };
    }
    attention.run_on(&mut queue, &case.append, on_device)?;
    let bytes = |name: Name| -> Result<Vec<u8>, Error> {
        let Some((_, tensor)) = tensors.iter().find(|(spec, _)| spec.name == name) else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; tensor.as_slice().len()];
        tensor.as_slice().copy_to_host(queue.stream(), &mut bytes)?;
        Ok(bytes)
    };
    let (caches, q, keys) = (
        [bytes(Name::KCache)?, bytes(Name::VCache)?],
        bytes(Name::QOut)?,
        bytes(Name::SequsedK)?,
    );
    let seqused_k = keys
        .chunks_exact(4)
        .map(|key| i32::from_ne_bytes([key[0], key[1], key[2], key[3]]));
    Ok(After {
        caches,
        q,
        seqused_k: seqused_k.collect(),
    })
}
