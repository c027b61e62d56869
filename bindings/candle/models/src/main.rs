//! Checks the adapter on a CUDA device by the tokens of models. Prints a JSON object a line; exits with 1 if a result
//! is wrong.

#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use candle::{DType, Device, Result};
use flashcore_candle_models::generate::{Generated, Model, Sizes, generate, load};
use serde_json::json;

/// Whether Llama and Mistral can be asked for flash attention.
const HAS_FLASH: bool = cfg!(feature = "flash-attn");

fn main() -> ExitCode {
    match Device::new_cuda(0).and_then(|device| tokens(&device)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{}", json!({ "error": error.to_string() }));
            ExitCode::FAILURE
        }
    }
}

/// Tokens on the device against tokens of candle's own attention: on the device where the model can be asked for it,
/// and on the CPU.
fn tokens(device: &Device) -> Result<bool> {
    let (sizes, mut all) = (Sizes::TINY, true);
    let prompt: Vec<u32> = (0..101)
        .map(|i| (i * i * 7 + 3 * i + 3) % sizes.vocabulary as u32)
        .collect();
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
            let differs = |other: &Generated| got.tokens.iter().zip(&other.tokens).position(|(a, b)| a != b);
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
