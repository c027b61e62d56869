//! candle-transformers' models, unchanged, on FlashCore: `[patch.crates-io]` puts the package of the
//! folder `shim` where they ask for candle-flash-attn. The tests compare tokens on the CPU; the
//! command checks and times a GPU.

pub mod generate;
pub mod weights;
