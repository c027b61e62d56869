//! Times of decoding with lengths on the device: a row for each sequence, from contiguous and paged caches.
//!
//! ```sh
//! cargo run --release -p flashcore-tools --example decode_times             # the default kernel
//! cargo run --release -p flashcore-tools --example decode_times -- KERNEL   # another one
//! ```
//!
//! bf16, 32 heads of 128 elements that share 8 of K and V. Medians of nine graphs of 20 calls, once with a schedule in
//! each call, once with the schedule of the first call kept, as layers of a model do. Bytes are those of K and V below
//! the lengths. Length `i` of a batch is `lo + (i · 2654435761 >> 8) % (hi − lo + 1)`, so that others can be given the
//! same. One output row of each case is compared with float64.

use std::error::Error;

use flashcore::cuda::{DeviceBuffer, Event, Graph, Stream};
use flashcore::plans::Plans;
use flashcore::{Attention, DType, Device, DeviceTensors, KvLengths, Lengths, Mask, Problem};
use flashcore_problem::rng::Rng;
use half::bf16;

mod times;

use times::{HEAD_DIM, HEADS, KV_HEADS, PATTERN, error, repeated};

/// Sequences, and the range of their lengths.
const CASES: [(usize, usize, usize); 6] = [
    (1, 4096, 4096),
    (1, 32_768, 32_768),
    (8, 1024, 8192),
    (64, 1024, 8192),
    (64, 4096, 4096),
    (256, 512, 2048),
];

/// Keys of a page; 0 for a contiguous cache.
const PAGES: [usize; 4] = [0, 16, 64, 128];

const CALLS: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cuda(0)?;
    let attention = match std::env::args().nth(1) {
        Some(kernel) => Attention::with_kernel(device.clone(), kernel.parse()?)?,
        None => Attention::with_plans(device.clone(), Plans::none()),
    };
    let Device::Cuda(context) = device else {
        return Err("a CUDA device is needed".into());
    };
    let stream = Stream::new(&context)?;
    let mut rng = Rng::new(3);
    let pattern: Vec<bf16> = (0..PATTERN).map(|_| bf16::from_f32(rng.normal())).collect();
    for (batch, lo, hi) in CASES {
        let lens: Vec<i32> = (0..batch as u64)
            .map(|i| (lo as u64 + ((i * 2_654_435_761) >> 8) % (hi - lo + 1) as u64) as i32)
            .collect();
        let keys: usize = lens.iter().map(|&len| len as usize).sum();
        let bytes = (keys * KV_HEADS * HEAD_DIM * 4) as f64;
        for page_size in PAGES {
            let max_pages = hi.div_ceil(page_size.max(1));
            let pages = batch * max_pages;
            let kv_lengths = match page_size {
                0 => KvLengths::Cache,
                _ => KvLengths::Paged {
                    page_size,
                    pages,
                    max_pages,
                },
            };
            let problem = Problem::builder()
                .batch(batch)
                .heads(HEADS, KV_HEADS)
                .head_dim(HEAD_DIM)
                .seq_len_q(1)
                .seq_len_kv(hi)
                .dtype(DType::BF16)
                .mask(Mask::CAUSAL)
                .kv_lengths(kv_lengths)
                .build()?;
            let mut table: Vec<i32> = (0..pages as i32).collect();
            (1..pages).rev().for_each(|i| table.swap(i, rng.below(i + 1)));
            let cache = repeated(&stream, &pattern, problem.k_layout().span())?;
            let values = repeated(&stream, &pattern, problem.v_layout().span())?;
            let q = repeated(&stream, &pattern, problem.q_layout().span())?;
            let out = DeviceBuffer::new(&context, 2 * problem.o_layout().span())?;
            let seqused_k = DeviceBuffer::from_host(&stream, &lens)?;
            let block_table = DeviceBuffer::from_host(&stream, &table)?;
            let workspace = DeviceBuffer::new(&context, attention.workspace_bytes(&problem, 16)? as usize)?;
            let mut tensors = DeviceTensors::new(q.as_slice(), cache.as_slice(), values.as_slice(), out.as_slice());
            tensors.workspace = Some(workspace.as_slice());
            tensors.lengths = Lengths {
                seqused_k: Some(seqused_k.as_slice()),
                block_table: (page_size > 0).then(|| block_table.as_slice()),
                ..Lengths::default()
            };
            attention.forward_on(&stream, &problem, &tensors)?;
            stream.synchronize()?;
            let mut times = [0.0; 2];
            for (time, reuse) in times.iter_mut().zip([false, true]) {
                tensors.reuse_schedule = reuse;
                let calls =
                    |stream: &Stream| (0..CALLS).try_for_each(|_| attention.forward_on(stream, &problem, &tensors));
                let graph = Graph::capture(&stream, calls)?;
                let mut all = Vec::new();
                for _ in 0..10 {
                    let (start, end) = (Event::new(&context)?, Event::new(&context)?);
                    start.record(&stream)?;
                    graph.launch(&stream)?;
                    end.record(&stream)?;
                    end.synchronize()?;
                    all.push(f64::from(start.elapsed_ms(&end)?) * 1e3 / CALLS as f64);
                }
                // The first one warms up.
                all[1..].sort_by(f64::total_cmp);
                *time = all[5];
            }
            let found: Vec<bf16> = out.to_vec::<u16>(&stream)?.into_iter().map(bf16::from_bits).collect();
            let len = lens[batch - 1] as usize;
            let row_of = |key: usize| match page_size {
                0 => (batch - 1) * hi + key,
                _ => table[(batch - 1) * max_pages + key / page_size] as usize * page_size + key % page_size,
            };
            println!(
                "B{batch} {lo}..{hi} page {page_size}: {:.1} us, schedule kept {:.1} us, {:.2} TB/s, error {:.1e}, {}",
                times[0],
                times[1],
                bytes / times[1] / 1e6,
                error(&pattern, &found, batch, len, row_of),
                attention.plan(&problem)?.kernel(),
            );
        }
    }
    Ok(())
}
