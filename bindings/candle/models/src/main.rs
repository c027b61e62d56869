//! Checks and times the adapter on a CUDA device. Prints a JSON object a line; exits with 1 if a
//! result is wrong.
//!
//! usage: flashcore-candle-models [tokens | times]...   default: both

#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::Instant;

use candle::{DType, Device, Result, Tensor};
use flashcore_candle_models::generate::{Generated, Model, Sizes, generate, load};
use serde_json::json;

/// Whether Llama and Mistral can be asked for flash attention.
const HAS_FLASH: bool = cfg!(feature = "flash-attn");

fn main() -> ExitCode {
    let mut parts: Vec<String> = std::env::args().skip(1).collect();
    if parts.is_empty() {
        parts = ["tokens", "times"].map(String::from).to_vec();
    }
    match run(&parts) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{}", json!({ "error": error.to_string() }));
            ExitCode::FAILURE
        }
    }
}

fn run(parts: &[String]) -> Result<bool> {
    let device = Device::new_cuda(0)?;
    let mut passed = true;
    for part in parts {
        passed &= match part.as_str() {
            "tokens" => tokens(&device)?,
            "times" => times(&device)?,
            other => candle::bail!("there is no part {other}; allowed: tokens, times"),
        };
    }
    Ok(passed)
}

/// Where two lists of tokens first differ.
fn first_difference(a: &[u32], b: &[u32]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a != b)
}

fn prompt(length: usize, sizes: &Sizes) -> Vec<u32> {
    (0..length as u64)
        .map(|i| ((i * i * 7 + 3 * i + 3) % sizes.vocabulary as u64) as u32)
        .collect()
}

/// Tokens on the device against tokens of candle's own attention: on the device where the model can be asked for it,
/// and on the CPU.
fn tokens(device: &Device) -> Result<bool> {
    let (sizes, mut all) = (Sizes::TINY, true);
    let prompt = prompt(101, &sizes);
    for model in [Model::Llama, Model::Mistral, Model::Qwen3] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let on = |device: &Device, flash| {
                let mut step = load(model, &sizes, flash, dtype, device)?;
                generate(&mut step, device, &prompt, 100)
            };
            let got: Generated = on(device, HAS_FLASH)?;
            let host = on(&Device::Cpu, false)?;
            // Qwen3 has no switch.
            let without = match model {
                Model::Qwen3 => None,
                _ => Some(on(device, false)?),
            };
            let differs = |other: &Generated| first_difference(&got.tokens, &other.tokens);
            let passed = dtype != DType::F32 || (differs(&host).or(without.as_ref().and_then(differs)).is_none());
            all &= passed;
            let line = json!({
                "tokens": format!("{model:?}"), "dtype": dtype.as_str(), "flash": HAS_FLASH, "ids": got.tokens,
                "differs_from_candle_at": without.as_ref().and_then(differs),
                "compared_with_candle": without.is_some(),
                "differs_from_host_at": differs(&host), "passed": passed,
            });
            println!("{line}");
        }
    }
    Ok(all)
}

/// Microseconds of a call: the median of 20 means of ten calls.
fn time(device: &Device, mut call: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    const CALLS: u32 = 10;
    for _ in 0..CALLS {
        call()?;
    }
    let mut means = Vec::new();
    for _ in 0..20 {
        device.synchronize()?;
        let started = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        device.synchronize()?;
        means.push(started.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
    }
    means.sort_by(f64::total_cmp);
    Ok(means[means.len() / 2])
}

/// candle's own attention, as its models compute it.
fn unfused(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, mask: Option<&Tensor>) -> Result<Tensor> {
    let groups = q.dim(2)? / k.dim(2)?;
    let [q, k, v] = [q, k, v].map(|x| x.transpose(1, 2)?.contiguous());
    let k = candle_transformers::utils::repeat_kv(k?, groups)?;
    let v = candle_transformers::utils::repeat_kv(v?, groups)?;
    let scores = (q?.matmul(&k.t()?)? * scale)?;
    let scores = match mask {
        Some(mask) => scores.broadcast_add(mask)?,
        None => scores,
    };
    candle_nn::ops::softmax_last_dim(&scores)?.matmul(&v)?.transpose(1, 2)
}

/// Calls and models, with candle's own attention next to them.
fn times(device: &Device) -> Result<bool> {
    for [rows, keys, heads, kv_heads, head_dim] in [
        [512, 512, 8, 8, 64],
        [512, 512, 32, 8, 128],
        [2048, 2048, 32, 8, 128],
        [8192, 8192, 32, 8, 128],
        [1, 512, 32, 8, 128],
        [1, 8192, 32, 8, 128],
    ] {
        let dtype = DType::BF16;
        let make = |seq, heads| Tensor::randn(0f32, 1.0, (1, seq, heads, head_dim), device)?.to_dtype(dtype);
        let (q, k, v) = (make(rows, heads)?, make(keys, kv_heads)?, make(keys, kv_heads)?);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let flash = time(device, || flashcore_candle::flash_attn(&q, &k, &v, scale, true))?;
        let mask: Vec<f32> = (0..rows * keys)
            .map(|i| {
                if i % keys > i / keys + keys - rows {
                    f32::NEG_INFINITY
                } else {
                    0.0
                }
            })
            .collect();
        let mask = Tensor::from_vec(mask, (rows, keys), device)?.to_dtype(dtype)?;
        let mask = (rows > 1).then_some(&mask);
        let own = time(device, || unfused(&q, &k, &v, f64::from(scale), mask))?;
        let line = json!({
            "times": "flash_attn", "dtype": dtype.as_str(), "causal": true, "rows": rows, "keys": keys,
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "flashcore_us": flash, "candle_us": own,
        });
        println!("{line}");
    }
    let sizes = Sizes::BILLION;
    for (model, flash) in [(Model::Llama, true), (Model::Llama, false), (Model::Qwen3, true)] {
        if flash && !HAS_FLASH && model == Model::Llama {
            continue;
        }
        let mut step = load(model, &sizes, flash, DType::BF16, device)?;
        for (prompt_length, new) in [(1024, 200), (8192, 100)] {
            let prompt = prompt(prompt_length, &sizes);
            generate(&mut step, device, &prompt, 4)?; // compiles kernels
            let got = generate(&mut step, device, &prompt, new)?;
            let line = json!({
                "times": format!("{model:?}"), "dtype": "bf16", "flash": flash && HAS_FLASH,
                "prompt": prompt_length, "prefill_ms": got.prefill.as_secs_f64() * 1e3,
                "ms_per_token": got.decode.as_secs_f64() * 1e3 / (new - 1) as f64,
                "first_ids": got.tokens[..8],
            });
            println!("{line}");
        }
    }
    Ok(true)
}
