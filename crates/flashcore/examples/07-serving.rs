//! A toy decoder with a paged cache: each step appends a row of K and V of every sequence, with its
//! rotary embedding, and attends to all keys so far. On a GPU both are captured in one graph, which is
//! replayed while the lengths grow in place; without one the same calls run on the CPU.
//!
//! run with: cargo run --release -p flashcore --example 07-serving

use flashcore::cuda::{Context, DeviceBuffer};
use flashcore::{Append, AppendTensors, Attention, DType, Device, Error, KvLengths, Lengths};
use flashcore::{DeviceAppend, DeviceRotary, DeviceTensors, Mask, Problem, Queue, Rotary, RotaryTensors, Tensor, f16};

const STEPS: usize = 40;
const FIRST_LENGTHS: [i32; 2] = [0, 7]; // keys that the two sequences have in the cache before
const PAGES: [i32; 8] = [5, 1, 6, -1, 0, 3, 2, 7]; // [batch, max_pages]; no row reaches page -1

/// What a model would compute: rows `[2, 1, heads, 64]` of a step.
fn rows(step: usize, heads: usize, seed: usize) -> Tensor {
    let value = |b, h, d| (((step * 31 + b * 17 + h * 7 + d * 3 + seed) % 23) as f32 - 11.0) / 11.0;
    Tensor::from_fn(DType::F16, [2, 1, heads, 64].into(), |b, _, h, d| value(b, h, d))
}

fn main() -> Result<(), Error> {
    let problem = Problem::builder().batch(2).heads(4, 2).head_dim(64).mask(Mask::CAUSAL);
    let paged = KvLengths::Paged {
        page_size: 16,
        pages: 8,
        max_pages: 4,
    };
    let problem = problem.seq_len_q(1).seq_len_kv(64).kv_lengths(paged).build()?;
    let (new, cache) = ([2, 1, 2, 64].into(), *problem.k_layout());
    let append = Append {
        rotary: Some(Rotary::new(*problem.q_layout(), 64, 64)), // 64 positions and columns
        seqused_k: true,                                        // attention takes the lengths afterwards
        ..Append::to_pages(problem.dtype(), [new, new], [cache, cache], 4)
    };
    let angle = |position, pair| position as f32 * 10_000f32.powf(-(pair as f32) / 32.0);
    let table = |of: fn(f32) -> f32| Tensor::from_fn(DType::F16, [1, 64, 1, 32].into(), |_, p, _, i| of(angle(p, i)));
    let tables = [table(f32::cos), table(f32::sin)];

    let on_cpu = decode_on_cpu(&problem, &append, &tables)?;
    let device = Device::best();
    let Some(context) = device.context() else {
        println!("{STEPS} steps on the CPU: {problem}");
        return Ok(());
    };
    let on_gpu = decode_on_gpu(context, &problem, &append, &tables)?;
    let pairs = on_cpu.as_slice::<f16>()?.iter().zip(on_gpu.as_slice::<f16>()?);
    let error = pairs.map(|(a, b)| (a.to_f32() - b.to_f32()).abs()).fold(0.0, f32::max);
    assert!(error < 2e-3, "the GPU differs from the CPU by {error}");
    println!("{STEPS} steps on {device}, by one graph: {problem}, within {error:.1e} of the CPU");
    Ok(())
}

fn decode_on_cpu(problem: &Problem, append: &Append, [cos, sin]: &[Tensor; 2]) -> Result<Tensor, Error> {
    let attention = Attention::new(Device::cpu())?;
    let cache = || Tensor::filled(problem.dtype(), *problem.k_layout(), 0);
    let (mut k_cache, mut v_cache, mut lengths) = (cache(), cache(), FIRST_LENGTHS);
    let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), 0);
    for step in 0..STEPS {
        let (mut q, k, v, before) = (rows(step, 4, 0), rows(step, 2, 1), rows(step, 2, 2), lengths);
        let mut tensors = AppendTensors::new([k.view(), v.view()], [k_cache.view_mut(), v_cache.view_mut()]);
        tensors.values.cache_seqlens = Some(&before);
        tensors.values.block_table = Some(&PAGES);
        tensors.seqused_k = Some(&mut lengths);
        tensors.rotary = Some(RotaryTensors::in_place(cos.view(), sin.view(), q.view_mut()));
        attention.append(append, tensors)?;
        let inputs = [q.view(), k_cache.view(), v_cache.view()];
        let values = Lengths {
            seqused_k: Some(&lengths[..]),
            block_table: Some(&PAGES),
            ..Lengths::default()
        };
        attention.forward_lengths(problem, inputs, &values, &mut out, None)?;
    }
    Ok(out)
}

fn decode_on_gpu(context: &Context, problem: &Problem, append: &Append, tables: &[Tensor; 2]) -> Result<Tensor, Error> {
    let device = Device::cuda(context.ordinal())?;
    let (attention, mut queue) = (Attention::new(device.clone())?, Queue::new(&device)?);
    attention.warmup(std::slice::from_ref(problem))?; // so that nothing is compiled in the capture
    attention.warmup_append(std::slice::from_ref(append))?;
    let upload = |tensor: &Tensor| DeviceBuffer::from_host(queue.stream(), tensor.bytes());
    let cache = Tensor::filled(problem.dtype(), *problem.k_layout(), 0);
    let [cos, sin, q, k, v] = [&tables[0], &tables[1], &rows(0, 4, 0), &rows(0, 2, 1), &rows(0, 2, 2)].map(upload);
    let (cos, sin, q, k, v, k_cache, v_cache) = (cos?, sin?, q?, k?, v?, upload(&cache)?, upload(&cache)?);
    let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), 0);
    let (before, after) = (DeviceBuffer::new(context, 8)?, DeviceBuffer::new(context, 8)?);
    let (pages, device_out) = (DeviceBuffer::from_host(queue.stream(), &PAGES)?, upload(&out)?);

    let (q_slice, cache) = (q.as_slice(), [k_cache.as_slice(), v_cache.as_slice()]);
    let mut new = DeviceAppend::new([k.as_slice(), v.as_slice()], cache);
    (new.values.cache_seqlens, new.seqused_k) = (Some(before.as_slice()), Some(after.as_slice()));
    new.values.block_table = Some(pages.as_slice());
    new.rotary = Some(DeviceRotary::in_place(cos.as_slice(), sin.as_slice(), q_slice));
    let mut tensors = DeviceTensors::new(q_slice, cache[0], cache[1], device_out.as_slice());
    (tensors.lengths.seqused_k, tensors.lengths.block_table) = (Some(after.as_slice()), Some(pages.as_slice()));

    let step = queue.capture(|queue| {
        attention.append_on(queue, append, &new)?;
        attention.forward_on(queue, problem, &tensors)
    })?;
    for number in 0..STEPS {
        let lengths = FIRST_LENGTHS.map(|length| length + number as i32);
        before
            .as_slice()
            .copy_from_host(queue.stream(), lengths.map(i32::to_ne_bytes).as_flattened())?;
        for (buffer, tensor) in [
            (&q, rows(number, 4, 0)),
            (&k, rows(number, 2, 1)),
            (&v, rows(number, 2, 2)),
        ] {
            buffer.as_slice().copy_from_host(queue.stream(), tensor.bytes())?;
        }
        step.launch(queue.stream())?;
    }
    device_out.as_slice().copy_to_host(queue.stream(), out.bytes_mut())?;
    Ok(out)
}
