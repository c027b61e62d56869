//! Times attention on the CPU and prints one JSON line per case.
//!
//! ```sh
//! cargo run --release -p flashcore-tools -- cpu-bench
//! cargo run --release -p flashcore-tools -- cpu-bench --threads 16 --config cpu/m128n128 --dtype f32
//! ```
//!
//! With `--serve` it reads case names from standard input, one per line, and prints one result line
//! for each. `scripts/bench_cpu_vs_torch.py` uses this to alternate with PyTorch.

use std::error::Error;
use std::io::BufRead;
use std::time::Instant;

use flashcore_cpu::{Options, SimdLevel, attention_with, default_config};
use flashcore_problem::{DType, InputKind, Inputs, Layout, Mask, Problem, Tensor};
use serde_json::json;

/// A case repeats until it has run this long, and at least [`MIN_ROUNDS`] times.
const SECONDS_A_CASE: f64 = 1.5;
const MIN_ROUNDS: usize = 5;

/// A problem in PyTorch's memory order, `[batch, heads, seq, head_dim]`.
fn case(heads: usize, seq_len: usize, head_dim: usize, dtype: DType, causal: bool) -> Result<Problem, Box<dyn Error>> {
    Ok(Problem::builder()
        .heads(heads, heads)
        .seq_len(seq_len)
        .head_dim(head_dim)
        .dtype(dtype)
        .mask(if causal { Mask::CAUSAL } else { Mask::FULL })
        .layout(Layout::bhsd)
        .build()?)
}

/// `(name, problem)` of every case, for example `h8-s2048-d64-f32-causal`.
fn cases() -> Result<Vec<(String, Problem)>, Box<dyn Error>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (heads, seq_len, head_dim) in [(8, 512, 64), (8, 2048, 64), (16, 4096, 128)] {
            for causal in [false, true] {
                let name = format!(
                    "h{heads}-s{seq_len}-d{head_dim}-{dtype}-{}",
                    if causal { "causal" } else { "full" }
                );
                cases.push((name, case(heads, seq_len, head_dim, dtype, causal)?));
            }
        }
    }
    Ok(cases)
}

/// A case with its tensors.
struct Bench<'a> {
    name: &'a str,
    problem: &'a Problem,
    inputs: Inputs,
    out: Tensor,
}

impl<'a> Bench<'a> {
    fn new(name: &'a str, problem: &'a Problem) -> Bench<'a> {
        Bench {
            name,
            problem,
            inputs: Inputs::generate(problem, InputKind::Normal, 1),
            out: Tensor::poisoned(problem.out_dtype(), *problem.o_layout()),
        }
    }

    /// Seconds of one call.
    fn round(&mut self, options: &Options<'_>) -> Result<f64, Box<dyn Error>> {
        let Inputs { q, k, v } = &self.inputs;
        let mut out = self.out.view_mut();
        let start = Instant::now();
        attention_with(options, self.problem, q.view(), k.view(), v.view(), &mut out, None)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Warms up, measures, and prints the result line.
    fn report(&mut self, options: &Options<'_>, rounds: Option<usize>) -> Result<(), Box<dyn Error>> {
        self.round(options)?;
        let (mut samples, mut spent) = (Vec::new(), 0.0);
        while match rounds {
            Some(rounds) => samples.len() < rounds,
            None => samples.len() < MIN_ROUNDS || spent < SECONDS_A_CASE,
        } {
            let seconds = self.round(options)?;
            samples.push(seconds);
            spent += seconds;
        }
        samples.sort_by(f64::total_cmp);
        let median = samples[samples.len() / 2];
        let threads = rayon::current_num_threads();
        let config = options.config.unwrap_or_else(|| default_config(self.problem, threads));
        let line = json!({
            "case": self.name,
            "problem": self.problem.to_string(),
            "config": config.to_string(),
            "simd": options.simd.unwrap_or_else(SimdLevel::best).name(),
            "threads": threads,
            "rounds": samples.len(),
            "median_ms": median * 1e3,
            "min_ms": samples[0] * 1e3,
            "gflops": self.problem.flops() / median / 1e9,
        });
        println!("{line}");
        Ok(())
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    let (mut only, mut serve, mut rounds) = (String::new(), false, None);
    let mut args = crate::arguments();
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or(format!("{flag} needs a value"));
        match flag.as_str() {
            "--threads" => {
                let threads = value()?.parse()?;
                rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
            }
            "--config" => options.config = Some(value()?.parse()?),
            "--simd" => options.simd = Some(serde_json::from_value(json!(value()?))?),
            "--only" => only = value()?,
            "--rounds" => rounds = Some(value()?.parse::<usize>()?.max(1)),
            "--serve" => serve = true,
            _ => {
                return Err(format!(
                    "unknown flag {flag}; flags are --threads N, --config ID, --simd LEVEL, --only PART_OF_CASE, \
                     --rounds N, --serve"
                )
                .into());
            }
        }
    }
    let cases = cases()?;
    if serve {
        let mut bench: Option<Bench<'_>> = None;
        for line in std::io::stdin().lock().lines() {
            let asked = line?;
            if bench.as_ref().is_none_or(|bench| bench.name != asked) {
                bench = cases
                    .iter()
                    .find(|(name, _)| *name == asked)
                    .map(|(name, problem)| Bench::new(name, problem));
            }
            match &mut bench {
                Some(bench) => bench.report(&options, rounds)?,
                None => println!("{}", json!({ "error": format!("no case is named {asked}") })),
            }
        }
        return Ok(());
    }
    for (name, problem) in cases.iter().filter(|(name, _)| name.contains(&only)) {
        Bench::new(name, problem).report(&options, rounds)?;
    }
    Ok(())
}
