//! FlashCore's attention under the name of candle-flash-attn, so that `[patch.crates-io]` puts it in
//! its place, in candle-transformers too. The functions are those of [`flashcore_candle`].

pub use flashcore_candle::*;
