//! Tokens with flash attention against tokens without it, on the CPU.

#![allow(clippy::unwrap_used, missing_docs)]

use candle::{DType, Device};
use flashcore_candle_models::generate::{Generated, Model, Sizes, generate, load};

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
