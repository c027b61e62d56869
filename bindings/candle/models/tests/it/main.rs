//! Tokens with flash attention against tokens without it, on the CPU and on a GPU.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod generate;
mod weights;

use candle::{DType, Device};
use serde_json::json;

use generate::{Generated, Model, Sizes, generate, load};

fn tokens(model: Model, sizes: &Sizes, flash: bool, dtype: DType) -> candle::Result<Generated> {
    let prompt: Vec<u32> = (0..37).map(|i| (i * i + 3) % sizes.vocabulary as u32).collect();
    let mut step = load(model, sizes, flash, dtype, &Device::Cpu)?;
    generate(&mut step, &Device::Cpu, &prompt, 48)
}

/// The largest difference of two generations' logits.
fn difference(a: &Generated, b: &Generated) -> f32 {
    let pairs = a.logits.iter().zip(&b.logits).flat_map(|(a, b)| a.iter().zip(b));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn tokens_are_the_same_with_and_without_flash_attention() {
    for model in [Model::Llama, Model::Mistral] {
        let [with, without] = [true, false].map(|flash| tokens(model, &Sizes::TINY, flash, DType::F32).unwrap());
        assert_eq!(with.tokens, without.tokens, "{model:?}");
        let mut kinds = without.tokens.clone();
        kinds.sort_unstable();
        kinds.dedup();
        assert!(
            kinds.len() > 10,
            "{model:?} says the same again and again: {:?}",
            without.tokens
        );
        // Other kernels round differently: equal logits would mean that one kernel computed both.
        let off = difference(&with, &without);
        assert!(off > 0.0 && off < 1e-3, "{model:?}: {off}");
    }
}

/// An argument that only FlashCore refuses shows who computes.
#[test]
#[cfg(feature = "flash-attn")]
fn flash_attention_is_flashcore() {
    let sizes = Sizes {
        head_dim: 12,
        ..Sizes::TINY
    };
    tokens(Model::Llama, &sizes, false, DType::F32).unwrap();
    let error = tokens(Model::Llama, &sizes, true, DType::F32).unwrap_err().to_string();
    assert!(
        error.contains("head_dim is 12; allowed are multiples of 8 from 8 to 256"),
        "{error}"
    );
}

#[test]
fn half_precision_gives_close_logits() {
    for dtype in [DType::F16, DType::BF16] {
        let exact = tokens(Model::Llama, &Sizes::TINY, false, DType::F32).unwrap();
        let first = |flash| {
            let mut got = tokens(Model::Llama, &Sizes::TINY, flash, dtype).unwrap();
            // Later tokens depend on which token was largest.
            got.logits.truncate(1);
            difference(&got, &exact)
        };
        let (with, without) = (first(true), first(false));
        assert!(with < 2.0 * without + 1e-3, "{dtype:?}: {with} with, {without} without");
    }
}

/// Tokens on a GPU against tokens of candle's own attention: on the GPU where the model can be asked for it, and on the
/// CPU. Prints a JSON object a line. Run where `FLASHCORE_CANDLE_GPU` is set: link stubs of the libraries would end the
/// process.
#[test]
fn tokens_on_a_gpu_are_candles() {
    if std::env::var_os("FLASHCORE_CANDLE_GPU").is_none() {
        println!("skipped: FLASHCORE_CANDLE_GPU is not set");
        return;
    }
    let (gpu, sizes, has_flash) = (Device::new_cuda(0).unwrap(), Sizes::TINY, cfg!(feature = "flash-attn"));
    let prompt: Vec<u32> = (0..101)
        .map(|i| (i * i * 7 + 3 * i + 3) % sizes.vocabulary as u32)
        .collect();
    for model in [Model::Llama, Model::Mistral, Model::Qwen3] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let on = |device: &Device, flash| {
                let mut step = load(model, &sizes, flash, dtype, device).unwrap();
                generate(&mut step, device, &prompt, 100).unwrap()
            };
            let got = on(&gpu, has_flash);
            let differs_at = |other: &Generated| got.tokens.iter().zip(&other.tokens).position(|(a, b)| a != b);
            let from_host = differs_at(&on(&Device::Cpu, false));
            // Qwen3 has no switch.
            let without = (model != Model::Qwen3).then(|| on(&gpu, false));
            let from_candle = without.as_ref().and_then(differs_at);
            let line = json!({
                "tokens": format!("{model:?}"), "dtype": dtype.as_str(), "flash": has_flash, "ids": got.tokens,
                "differs_from_candle_at": from_candle, "compared_with_candle": without.is_some(),
                "differs_from_host_at": from_host,
            });
            println!("{line}");
            assert!(dtype != DType::F32 || from_host.or(from_candle).is_none(), "{line}");
        }
    }
}
