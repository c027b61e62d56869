//! Results against float64.

use candle::{DType, Device, Tensor};
use flashcore_candle::*;

use crate::cases::{Case, devices};

fn run(make: fn(u64, usize) -> Case) {
    for (device, seed) in devices().flat_map(|device| (0..120).map(move |seed| (device.clone(), seed))) {
        // A GPU gets some of many tiles.
        let case = make(seed, if device.is_cuda() && seed % 3 == 0 { 300 } else { 40 });
        let compared = case
            .run(&device)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}: {case:?}"));
        assert!(compared.passed, "seed {seed}: {compared}: {case:?}");
    }
}

#[test]
fn equal_lengths() {
    run(Case::dense);
}

#[test]
fn packed_sequences() {
    run(Case::packed);
}

#[test]
fn alibi() {
    run(|seed, longest| Case::dense(seed, longest).with_alibi());
    run(|seed, longest| Case::packed(seed, longest).with_alibi());
}

#[test]
fn pages() {
    run(Case::paged);
}

#[test]
fn without_rows_or_keys_the_result_is_zeros() {
    let some = Tensor::ones((2, 5, 2, 16), DType::F32, &Device::Cpu).unwrap();
    let none = some.narrow(1, 0, 0).unwrap();
    let out = flash_attn(&none, &some, &some, 1.0, false).unwrap();
    assert_eq!(out.dims(), [2, 0, 2, 16]);
    let out = flash_attn(&some, &none, &none, 1.0, false).unwrap();
    assert_eq!(
        out.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
        [0.0; 2 * 5 * 2 * 16]
    );
}
