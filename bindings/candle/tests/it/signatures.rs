//! Signatures are those of candle-flash-attn 0.11, so that its users' code compiles.

#![allow(clippy::type_complexity)] // candle-flash-attn's

use candle::{Result, Tensor};
use flashcore_candle::*;

type T<'a> = &'a Tensor;
type Side = Option<usize>;

#[test]
fn all_functions_have_candle_flash_attns_signatures() {
    let _: fn(T, T, T, f32, bool) -> Result<Tensor> = flash_attn;
    let _: fn(T, T, T, f32, Side, Side) -> Result<Tensor> = flash_attn_windowed;
    let _: fn(T, T, T, T, f32, bool) -> Result<Tensor> = flash_attn_alibi;
    let _: fn(T, T, T, T, f32, Side, Side) -> Result<Tensor> = flash_attn_alibi_windowed;
    let _: fn(T, T, T, Option<T>, f32, Side, Side, f32) -> Result<Tensor> = flash_attn_alibi_windowed_softcap;
    let _: fn(T, T, T, T, T, usize, usize, f32, bool) -> Result<Tensor> = flash_attn_varlen;
    let _: fn(T, T, T, T, T, usize, usize, f32, Side, Side) -> Result<Tensor> = flash_attn_varlen_windowed;
    let _: fn(T, T, T, T, T, T, usize, usize, f32, bool) -> Result<Tensor> = flash_attn_varlen_alibi;
    let _: fn(T, T, T, T, T, T, usize, usize, f32, Side, Side) -> Result<Tensor> = flash_attn_varlen_alibi_windowed;
    let _: fn(T, T, T, Option<T>, T, T, usize, usize, f32, Side, Side, f32) -> Result<Tensor> =
        flash_attn_varlen_alibi_windowed_softcap;
    let _: fn(T, T, T, T, T, T, Option<T>, usize, usize, f32, Side, Side, usize, Option<f32>) -> Result<Tensor> =
        flash_attn_varlen_paged_windowed;
    let op = FlashAttn {
        softmax_scale: 1.0,
        alibi_slopes: None,
        window_size_left: None,
        window_size_right: Some(0),
        softcap: None,
    };
    let q = Tensor::ones((1, 2, 1, 8), candle::DType::F32, &candle::Device::Cpu).unwrap();
    assert_eq!(q.apply_op3(&q, &q, op).unwrap().dims(), q.dims());
}
