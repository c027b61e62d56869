//! Times of an append, of attention, and of both in one graph.

use flashcore::cuda::{Context, DeviceBuffer, Event};
use flashcore::{
    Append, Attention, DType, Device, DeviceAppend, DeviceRotary, DeviceTensors, Error, KvLengths, Mask, Problem,
    Queue, Rotary,
};

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const PAGE_SIZE: usize = 16;
/// Calls in a graph, and graphs of which the median is taken.
const CALLS: usize = 20;
const ROUNDS: usize = 9;
/// Sequences, keys before the step, and new rows of each.
const CASES: [(usize, usize, usize); 5] = [
    (1, 4096, 1),
    (8, 4096, 1),
    (64, 4096, 1),
    (256, 1024, 1),
    (1, 6144, 2048),
];

pub(super) fn main(device: &Device) -> crate::Ran {
    let Some(context) = device.context() else {
        return Err("times are those of a GPU".into());
    };
    let attention = Attention::new(device.clone())?;
    println!("bf16, 32/8 heads, D128, pages of 16, Q and K rotated; us, medians of {ROUNDS} graphs of {CALLS} calls");
    for case in CASES {
        println!("{}", timed(&attention, context, case)?);
    }
    crate::verdict(true)
}

fn timed(
    attention: &Attention,
    context: &Context,
    (batch, keys, rows): (usize, usize, usize),
) -> Result<String, Error> {
    let max_pages = (keys + rows).div_ceil(PAGE_SIZE);
    let paged = KvLengths::Paged {
        page_size: PAGE_SIZE,
        pages: batch * max_pages,
        max_pages,
    };
    let problem = Problem::builder()
        .batch(batch)
        .heads(HEADS, KV_HEADS)
        .head_dim(HEAD_DIM);
    let problem = problem.seq_len_q(rows).seq_len_kv(keys + rows).dtype(DType::BF16);
    let problem = problem.mask(Mask::CAUSAL).kv_lengths(paged).build()?;
    let (new, cache) = ([batch, rows, KV_HEADS, HEAD_DIM].into(), *problem.k_layout());
    let append = Append {
        seqused_k: true,
        rotary: Some(Rotary::new(*problem.q_layout(), max_pages * PAGE_SIZE, HEAD_DIM)),
        ..Append::to_pages(DType::BF16, [new, new], [cache, cache], max_pages)
    };
    attention.warmup(std::slice::from_ref(&problem))?;
    attention.warmup_append(std::slice::from_ref(&append))?;
    let mut queue = Queue::new(&attention.device())?;
    let zeros = |elements: usize| -> Result<DeviceBuffer, Error> {
        let buffer = DeviceBuffer::new(context, elements * 2)?;
        buffer.as_slice().fill(queue.stream(), 0)?;
        Ok(buffer)
    };
    let (q, out) = (zeros(problem.q_layout().span())?, zeros(problem.o_layout().span())?);
    let (k, v) = (zeros(append.k_new.span())?, zeros(append.v_new.span())?);
    let (k_cache, v_cache) = (zeros(cache.span())?, zeros(cache.span())?);
    let table: Vec<i32> = (0..(batch * max_pages) as i32).rev().collect();
    let table = DeviceBuffer::from_host(queue.stream(), &table)?;
    let before = DeviceBuffer::from_host(queue.stream(), &vec![keys as i32; batch])?;
    let after = DeviceBuffer::from_host(queue.stream(), &vec![(keys + rows) as i32; batch])?;
    let tables = zeros(max_pages * PAGE_SIZE * HEAD_DIM)?;
    let workspace = DeviceBuffer::new(context, (attention.workspace_bytes(&problem, 16)? as usize).max(16))?;
    let caches = [k_cache.as_slice(), v_cache.as_slice()];
    let mut appended = DeviceAppend::new([k.as_slice(), v.as_slice()], caches);
    (appended.values.cache_seqlens, appended.seqused_k) = (Some(before.as_slice()), Some(after.as_slice()));
    appended.values.block_table = Some(table.as_slice());
    appended.rotary = Some(DeviceRotary::in_place(
        tables.as_slice(),
        tables.as_slice(),
        q.as_slice(),
    ));
    let mut tensors = DeviceTensors::new(q.as_slice(), caches[0], caches[1], out.as_slice());
    (tensors.lengths.seqused_k, tensors.lengths.block_table) = (Some(after.as_slice()), Some(table.as_slice()));
    tensors.workspace = Some(workspace.as_slice());
    let mut graph = |does: [bool; 2], kept: bool| {
        queue.capture(|queue| {
            for _ in 0..CALLS {
                if does[0] {
                    attention.append_on(queue, &append, &appended)?;
                }
                // SAFETY: all live until the stream was waited for; nothing changes the lengths, and all runs of the
                // workspace are of this problem, in this stream.
                #[allow(unsafe_code)] // a schedule that is reused is what is timed
                if does[1] {
                    let tensors = if kept {
                        unsafe { tensors.reuse_schedule() }
                    } else {
                        tensors
                    };
                    unsafe { attention.run_foreign(queue.stream(), &problem, &tensors, |_| None)? };
                }
            }
            Ok(())
        })
    };
    let graphs = [
        graph([true, false], false)?,
        graph([false, true], false)?,
        graph([false, true], true)?,
        graph([true, true], false)?,
        graph([true, true], true)?,
    ];
    let mut all = graphs.each_ref().map(|_| Vec::new());
    for round in 0..=ROUNDS {
        for (graph, times) in graphs.iter().zip(&mut all) {
            let (start, end) = (Event::new(context)?, Event::new(context)?);
            start.record(queue.stream())?;
            graph.launch(queue.stream())?;
            end.record(queue.stream())?;
            end.synchronize()?;
            // The first round warms up.
            if round > 0 {
                times.push(f64::from(start.elapsed_ms(&end)?) * 1e3 / CALLS as f64);
            }
        }
    }
    let [append_us, made, kept, both, both_kept] = all.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    // Rows of K and V are read and written, and so is Q.
    let bytes = 4 * batch * rows * HEAD_DIM * (2 * KV_HEADS + HEADS);
    let rate = bytes as f64 / append_us / 1e3;
    Ok(format!(
        "{batch} x {rows} rows after {keys} keys: append {append_us:.2} ({rate:.0} GB/s), attention {made:.1} (schedule kept \
         {kept:.1}), both {both:.1} ({both_kept:.1})"
    ))
}
