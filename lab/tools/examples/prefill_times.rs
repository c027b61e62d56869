//! Times of packed prefill and of short chunks, with lengths on the device, kernel against kernel.
//!
//! ```sh
//! cargo run --release -p flashcore-tools --example prefill_times                       # default kernels
//! cargo run --release -p flashcore-tools --example prefill_times -- default KERNEL …   # others beside them
//! ```
//!
//! bf16, 32 heads of 128 elements that share 8 of K and V, causal. Prefill has as many keys as rows, in packed tensors; chunks
//! have their keys in pages of 64. Medians of nine graphs of 10 calls, the kernels in turn, each with a schedule in each call
//! and with the schedule kept; where all lengths are equal, of the same problem without lengths too. The last row of the last
//! head is compared with float64.

use std::error::Error;

use flashcore::cuda::{Context, DeviceBuffer, Event, Graph, Stream};
use flashcore::plans::Plans;
use flashcore::{Attention, DType, Device, DeviceTensors, KvLengths, Lengths, Mask, Problem, ProblemBuilder, QLengths};
use flashcore_problem::rng::Rng;
use half::bf16;

mod times;

use times::{HEAD_DIM, HEADS, KV_HEADS, PATTERN, error, repeated};

const CALLS: usize = 10;
const ROUNDS: usize = 9;
const PAGE_SIZE: usize = 64;

/// Rows and keys of each sequence.
struct Case {
    name: String,
    rows: Vec<usize>,
    keys: Vec<usize>,
}

impl Case {
    fn prefill(batch: u64, lo: u64, hi: u64) -> Case {
        // The fractions of i times the golden ratio fill the range evenly.
        let len = |i: u64| (lo + (((i * 2_654_435_769) % (1 << 32) * (hi - lo + 1)) >> 32)) as usize;
        let rows: Vec<usize> = (0..batch).map(len).collect();
        Case {
            name: format!("prefill {batch} of {lo}..{hi}"),
            keys: rows.clone(),
            rows,
        }
    }

    fn chunks(name: &str, of: &[(usize, usize, usize)]) -> Case {
        let all = of.iter().flat_map(|&(count, rows, keys)| vec![(rows, keys); count]);
        let (rows, keys) = all.unzip();
        Case {
            name: format!("chunks, {name}"),
            rows,
            keys,
        }
    }

    fn all() -> Vec<Case> {
        let mut cases = vec![
            Case::prefill(16, 100, 4000),
            Case::prefill(4, 8192, 8192),
            Case::prefill(16, 2048, 2048),
            Case::prefill(128, 16, 512),
            Case::chunks(
                "2048 rows at 8192 and 63 of 1 at 4096",
                &[(63, 1, 4096), (1, 2048, 8192)],
            ),
        ];
        for (count, rows, keys) in [
            (32, 4, 4096),
            (16, 16, 4096),
            (16, 32, 4096),
            (4, 64, 16_384),
            (16, 64, 4096),
            (16, 128, 4096),
            (16, 256, 4096),
            (16, 512, 4096),
        ] {
            cases.push(Case::chunks(
                &format!("{count} of {rows} at {keys}"),
                &[(count, rows, keys)],
            ));
        }
        cases
    }

    fn builder(&self) -> ProblemBuilder {
        Problem::builder()
            .batch(self.rows.len())
            .heads(HEADS, KV_HEADS)
            .head_dim(HEAD_DIM)
            .seq_len_q(self.rows.iter().copied().max().unwrap_or(1))
            .seq_len_kv(self.keys.iter().copied().max().unwrap_or(1))
            .dtype(DType::BF16)
            .mask(Mask::CAUSAL)
    }

    fn in_pages(&self) -> bool {
        self.rows != self.keys
    }

    fn max_pages(&self) -> usize {
        self.keys.iter().max().map_or(1, |most| most.div_ceil(PAGE_SIZE))
    }

    fn problem(&self) -> Result<Problem, Box<dyn Error>> {
        let total = |lens: &[usize]| lens.iter().sum();
        let kv_lengths = match self.in_pages() {
            true => KvLengths::Paged {
                page_size: PAGE_SIZE,
                pages: self.rows.len() * self.max_pages(),
                max_pages: self.max_pages(),
            },
            false => KvLengths::Packed {
                total: total(&self.keys),
                used: false,
            },
        };
        let q_lengths = QLengths::Packed {
            total: total(&self.rows),
            used: false,
        };
        Ok(self.builder().q_lengths(q_lengths).kv_lengths(kv_lengths).build()?)
    }

    /// The same without lengths, where none differ.
    fn dense(&self) -> Result<Option<Problem>, Box<dyn Error>> {
        let equal = self.rows.iter().all(|rows| *rows == self.rows[0]);
        let dense = (equal && !self.in_pages()).then(|| self.builder().build());
        Ok(dense.transpose()?)
    }
}

fn starts(lens: &[usize]) -> Vec<i32> {
    let ends = lens.iter().scan(0, |end, len| {
        *end += *len as i32;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

fn capture(
    stream: &Stream,
    attention: &Attention,
    problem: &Problem,
    tensors: &DeviceTensors<'_>,
) -> Result<Graph, Box<dyn Error>> {
    let calls = |stream: &Stream| (0..CALLS).try_for_each(|_| attention.forward_on(stream, problem, tensors));
    Ok(Graph::capture(stream, calls)?)
}

fn time(context: &Context, stream: &Stream, graph: &Graph) -> Result<f64, Box<dyn Error>> {
    let (start, end) = (Event::new(context)?, Event::new(context)?);
    start.record(stream)?;
    graph.launch(stream)?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(f64::from(start.elapsed_ms(&end)?) * 1e3 / CALLS as f64)
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::cuda(0)?;
    let Device::Cuda(context) = device.clone() else {
        return Err("a CUDA device is needed".into());
    };
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names.push("default".to_string());
    }
    let mut kernels = Vec::new();
    for name in &names {
        kernels.push(match name.as_str() {
            "default" => Attention::with_plans(device.clone(), Plans::none()),
            kernel => Attention::with_kernel(device.clone(), kernel.parse()?)?,
        });
    }
    let stream = Stream::new(&context)?;
    let mut rng = Rng::new(3);
    let pattern: Vec<bf16> = (0..PATTERN).map(|_| bf16::from_f32(rng.normal())).collect();
    for case in Case::all() {
        let (problem, dense) = (case.problem()?, case.dense()?);
        let pages = case.rows.len() * case.max_pages();
        let mut table: Vec<i32> = (0..pages as i32).collect();
        (1..pages).rev().for_each(|i| table.swap(i, rng.below(i + 1)));
        let k = repeated(&stream, &pattern, problem.k_layout().span())?;
        let v = repeated(&stream, &pattern, problem.v_layout().span())?;
        let q = repeated(&stream, &pattern, problem.q_layout().span())?;
        let out = DeviceBuffer::new(&context, 2 * problem.o_layout().span())?;
        let lens: Vec<i32> = case.keys.iter().map(|&len| len as i32).collect();
        let cu_seqlens_q = DeviceBuffer::from_host(&stream, &starts(&case.rows))?;
        let cu_seqlens_k = DeviceBuffer::from_host(&stream, &starts(&case.keys))?;
        let seqused_k = DeviceBuffer::from_host(&stream, &lens)?;
        let block_table = DeviceBuffer::from_host(&stream, &table)?;
        let (mut graphs, mut workspaces) = (Vec::new(), Vec::new());
        for (name, attention) in names.iter().zip(&kernels) {
            for problem in std::iter::once(&problem).chain(&dense) {
                let bytes = match attention.workspace_bytes(problem, 16) {
                    Ok(bytes) => bytes as usize,
                    Err(error) => {
                        println!("{}: {name}: {error}", case.name);
                        continue;
                    }
                };
                workspaces.push(DeviceBuffer::new(&context, bytes.max(16))?);
                let mut tensors = DeviceTensors::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice());
                tensors.workspace = workspaces.last().map(DeviceBuffer::as_slice);
                if problem.has_lengths() {
                    tensors.lengths = Lengths {
                        cu_seqlens_q: Some(cu_seqlens_q.as_slice()),
                        cu_seqlens_k: (!case.in_pages()).then(|| cu_seqlens_k.as_slice()),
                        seqused_k: case.in_pages().then(|| seqused_k.as_slice()),
                        block_table: case.in_pages().then(|| block_table.as_slice()),
                        ..Lengths::default()
                    };
                }
                attention.forward_on(&stream, problem, &tensors)?;
                let found: Vec<bf16> = out.to_vec::<u16>(&stream)?.into_iter().map(bf16::from_bits).collect();
                let (rows, sequences) = (case.rows.iter().sum(), case.rows.len());
                let before: usize = case.keys[..sequences - 1].iter().sum();
                let row_of = |key: usize| match case.in_pages() {
                    false => before + key,
                    true => {
                        let page = table[(sequences - 1) * case.max_pages() + key / PAGE_SIZE];
                        page as usize * PAGE_SIZE + key % PAGE_SIZE
                    }
                };
                let error = error(&pattern, &found, rows, case.keys[sequences - 1], row_of);
                let kernel = attention.plan(problem)?.kernel().to_string();
                let kind = if problem.has_lengths() { "made" } else { "dense" };
                let graph = capture(&stream, attention, problem, &tensors)?;
                graphs.push((format!("{kernel} {kind}, error {error:.1e}"), graph, Vec::new()));
                if problem.has_lengths() {
                    tensors.reuse_schedule = true;
                    let graph = capture(&stream, attention, problem, &tensors)?;
                    graphs.push((format!("{kernel} kept"), graph, Vec::new()));
                }
            }
        }
        // The first round warms up.
        for round in 0..=ROUNDS {
            for (_, graph, times) in &mut graphs {
                let time = time(&context, &stream, graph)?;
                times.extend((round > 0).then_some(time));
            }
        }
        for (name, _, mut times) in graphs {
            times.sort_by(f64::total_cmp);
            println!("{}: {:.1} us, {name}", case.name, times[ROUNDS / 2]);
        }
    }
    Ok(())
}
