//! candle-transformers' models, unchanged, on FlashCore: `[patch.crates-io]` puts the package of the
//! folder `shim` where they ask for candle-flash-attn. All of it is tests, of tokens.
