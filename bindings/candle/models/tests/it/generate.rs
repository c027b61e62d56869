//! Greedy tokens of candle-transformers' models with random weights.

use candle::{DType, Device, Result, Tensor};
use candle_transformers::models::{llama, mistral, qwen3};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::weights;

/// The architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// Calls flash attention where its config says so, on any device.
    Llama,
    /// As Llama.
    Mistral,
    /// Calls flash attention on CUDA, and only there, in builds that have it.
    Qwen3,
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Layers.
    pub(crate) layers: usize,
    /// Query heads, and heads of K and V.
    pub(crate) heads: [usize; 2],
    /// Columns of a head.
    pub(crate) head_dim: usize,
    /// Columns between the matrices of an MLP.
    pub(crate) intermediate: usize,
    /// Tokens there are.
    pub(crate) vocabulary: usize,
    /// Longest sequence.
    pub(crate) positions: usize,
}

impl Sizes {
    /// Small enough for a test on the CPU.
    pub(crate) const TINY: Sizes = Sizes {
        layers: 3,
        heads: [4, 2],
        head_dim: 16,
        intermediate: 96,
        vocabulary: 128,
        positions: 256,
    };

    /// The `config.json` of a model, with what each of them asks for.
    fn config<T: DeserializeOwned>(&self, flash: bool) -> Result<T> {
        let config = json!({
            "hidden_size": self.heads[0] * self.head_dim, "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary, "num_hidden_layers": self.layers, "num_attention_heads": self.heads[0],
            "num_key_value_heads": self.heads[1], "head_dim": self.head_dim, "hidden_act": "silu",
            "max_position_embeddings": self.positions, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            "tie_word_embeddings": false, "attention_bias": false, "sliding_window": null, "max_window_layers": 0,
            "use_sliding_window": false, "use_flash_attn": flash,
        });
        serde_json::from_value(config).map_err(candle::Error::wrap)
    }
}

/// What a model generated.
#[derive(Clone, Debug)]
pub(crate) struct Generated {
    /// The tokens after the prompt.
    pub(crate) tokens: Vec<u32>,
    /// Their logits, `[vocabulary]` each.
    pub(crate) logits: Vec<Vec<f32>>,
}

/// Generates `new` tokens with a model of [`load`].
pub(crate) fn generate(step: &mut Step, device: &Device, prompt: &[u32], new: usize) -> Result<Generated> {
    let (mut tokens, mut all_logits) = (Vec::new(), Vec::new());
    let mut next = prompt.to_vec();
    let mut position = 0;
    while tokens.len() < new {
        let input = Tensor::new(next.as_slice(), device)?.unsqueeze(0)?;
        let logits = step(&input, position)?
            .flatten_all()?
            .to_dtype(DType::F32)?
            .to_vec1::<f32>()?;
        position += next.len();
        let largest = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        next = vec![largest.unwrap_or_default() as u32];
        tokens.extend(&next);
        all_logits.push(logits);
    }
    Ok(Generated {
        tokens,
        logits: all_logits,
    })
}

/// Logits of the last token of an input at a position; position 0 begins a new sequence.
pub(crate) type Step = Box<dyn FnMut(&Tensor, usize) -> Result<Tensor>>;

/// A model with random weights. `flash` asks Llama and Mistral for flash attention.
pub(crate) fn load(model: Model, sizes: &Sizes, flash: bool, dtype: DType, device: &Device) -> Result<Step> {
    let weights = weights::random(dtype, device);
    match model {
        Model::Llama => {
            let config = sizes.config::<llama::LlamaConfig>(flash)?.into_config(flash);
            let model = llama::Llama::load(weights, &config)?;
            let mut cache = llama::Cache::new(true, dtype, &config, device)?;
            let device = device.clone();
            Ok(Box::new(move |input, position| {
                if position == 0 {
                    cache = llama::Cache::new(true, dtype, &config, &device)?;
                }
                model.forward(input, position, &mut cache)
            }))
        }
        Model::Mistral => {
            let mut model = mistral::Model::new(&sizes.config(flash)?, weights)?;
            Ok(Box::new(move |input, position| {
                if position == 0 {
                    model.clear_kv_cache();
                }
                model.forward(input, position)
            }))
        }
        Model::Qwen3 => {
            let mut model = qwen3::ModelForCausalLM::new(&sizes.config(flash)?, weights)?;
            Ok(Box::new(move |input, position| {
                if position == 0 {
                    model.clear_kv_cache();
                }
                model.forward(input, position)
            }))
        }
    }
}
