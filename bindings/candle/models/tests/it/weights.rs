//! Random weights that are the same on every machine and device, without files.

use candle::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// Gives any tensor that a model asks for: matrices of variance `2 / columns`, so that activations
/// keep their size and tokens vary; vectors (of norms) around 1.
struct Random;

/// Weights of any model.
pub(crate) fn random(dtype: DType, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Random), dtype, device.clone())
}

impl SimpleBackend for Random {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        // FNV-1a of the name, then SplitMix64.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        let (center, reach) = match shape.dims() {
            [_, columns] => (0.0, (6.0 / *columns as f32).sqrt()),
            _ => (1.0, 0.2),
        };
        let value = |_| {
            state = u64::wrapping_add(state, 0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            // 24 bits of [0, 1), made [-1, 1).
            let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
            center + reach * (2.0 * unit - 1.0)
        };
        let values = (0..shape.elem_count()).map(value).collect::<Vec<f32>>();
        Tensor::from_vec(values, shape, &Device::Cpu)?
            .to_dtype(dtype)?
            .to_device(device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle::bail!("{name}: random weights need a shape")
    }

    /// No optional tensors, such as biases.
    fn contains_tensor(&self, _: &str) -> bool {
        false
    }
}
