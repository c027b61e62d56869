//! Times of an append, of attention, and of both in one graph, on a GPU.
//!
//! ```sh
//! cargo run --release -p flashcore-tools --example append_times
//! ```

use flashcore::unstable::cuda::{Context, Event};
use flashcore::{
    Append, Attention, DType, Device, Error, Graph, KvLengths, Layout, Mask, Name, Operands, Problem, Queue, Rotary,
    Tensor,
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cuda(0)?;
    let context = device.context().ok_or("times are those of a GPU")?;
    let attention = Attention::new(device.clone())?;
    println!("bf16, 32/8 heads, D128, pages of 16, Q and K rotated; us, medians of {ROUNDS} graphs of {CALLS} calls");
    for case in CASES {
        println!("{}", timed(&attention, context, case)?);
    }
    Ok(())
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
    let (prepared, rows_prepared) = (attention.prepare(&problem)?, attention.prepare(&append)?);
    let device = attention.device();
    let mut queue = Queue::new(&device)?;
    let mut zeros = |layout: Layout| queue.upload(&Tensor::filled(DType::BF16, layout, 0));
    let (mut q, mut out) = (zeros(*problem.q_layout())?, zeros(*problem.o_layout())?);
    let (k, v) = (zeros(append.k_new)?, zeros(append.v_new)?);
    let (mut k_cache, mut v_cache) = (zeros(cache)?, zeros(cache)?);
    let tables = zeros([max_pages * PAGE_SIZE, HEAD_DIM / 2].into())?;
    let table: Vec<i32> = (0..(batch * max_pages) as i32).rev().collect();
    let table = queue.upload(&table)?;
    let before = queue.upload(&vec![keys as i32; batch])?;
    let mut after = queue.upload(&vec![(keys + rows) as i32; batch])?;
    let mut graph = |does: [bool; 2], kept: bool| -> Result<Graph, Error> {
        let mut queue = Queue::recording(&device)?;
        let mut schedule = None;
        for _ in 0..CALLS {
            if does[0] {
                let operands = Operands::append(&k, &v, &mut k_cache, &mut v_cache)
                    .with(Name::CacheSeqlens, &before)
                    .with_mut(Name::SequsedK, &mut after)
                    .with(Name::BlockTable, &table)
                    .with(Name::RotaryCos, &tables)
                    .with(Name::RotarySin, &tables)
                    .with_mut(Name::QOut, &mut q);
                attention.run_on(&mut queue, &rows_prepared, operands)?;
            }
            if does[1] {
                // Nothing changes the lengths between the calls of a graph.
                if kept && schedule.is_none() {
                    schedule = queue.schedule(&prepared, &Operands::new().with(Name::SequsedK, &after))?;
                }
                let operands = Operands::forward(&q, &k_cache, &v_cache, &mut out).with(Name::SequsedK, &after);
                let mut operands = operands.with(Name::BlockTable, &table);
                if let Some(schedule) = &mut schedule {
                    operands = operands.schedule(schedule);
                }
                attention.run_on(&mut queue, &prepared, operands)?;
            }
        }
        queue.finish()
    };
    let mut graphs = [
        graph([true, false], false)?,
        graph([false, true], false)?,
        graph([false, true], true)?,
        graph([true, true], false)?,
        graph([true, true], true)?,
    ];
    let mut all = graphs.each_ref().map(|_| Vec::new());
    for round in 0..=ROUNDS {
        for (graph, times) in graphs.iter_mut().zip(&mut all) {
            let (start, end) = (Event::new(context)?, Event::new(context)?);
            start.record(queue.stream())?;
            queue.launch(graph)?;
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
