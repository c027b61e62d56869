//! Gradients against float64.

use candle::{DType, Device, Tensor, Var};
use flashcore_candle::*;

use crate::cases::{Case, devices};

fn run(make: fn(u64, usize) -> Case) {
    let mut most = 0f64;
    for (device, seed) in devices().flat_map(|device| (0..40).map(move |seed| (device.clone(), seed))) {
        let case = make(seed, if device.is_cuda() && seed % 3 == 0 { 300 } else { 24 });
        let compared = case
            .run_backward(&device)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}: {case:?}"));
        for found in compared {
            assert!(found.passed, "seed {seed}: {found}: {case:?}");
            most = most.max(found.of_allowed);
        }
    }
    assert!(most > 0.05, "a tolerance that nothing comes near finds nothing");
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
fn one_tensor_for_all_three_and_a_sum() {
    let x = Var::randn(0f32, 1., (1, 5, 2, 16), &Device::Cpu).unwrap();
    let loss = |x: &Tensor| flash_attn(x, x, x, 0.25, true).unwrap().sum_all().unwrap();
    // The gradient of a sum is broadcast.
    let gradients = loss(&x).backward().unwrap();
    let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (found, at) = (values(gradients.get(&x).unwrap()), values(&x));
    let central = |i: usize| {
        let moved = |step: f32| {
            let mut at = at.clone();
            at[i] += step;
            loss(&Tensor::from_vec(at, (1, 5, 2, 16), &Device::Cpu).unwrap())
        };
        let (up, down) = (moved(1e-2), moved(-1e-2));
        (up.to_scalar::<f32>().unwrap() - down.to_scalar::<f32>().unwrap()) / 2e-2
    };
    for i in (0..at.len()).step_by(7) {
        assert!(
            (found[i] - central(i)).abs() < 5e-3,
            "{i}: {} and {}",
            found[i],
            central(i)
        );
    }
}

#[test]
fn without_rows_or_keys_gradients_are_zeros() {
    let some = Var::ones((2, 5, 2, 16), DType::F32, &Device::Cpu).unwrap();
    let none = some.narrow(1, 0, 0).unwrap();
    let out = flash_attn(&some, &none, &none, 1.0, false).unwrap();
    let gradients = out.sum_all().unwrap().backward().unwrap();
    let found = gradients.get(&some).unwrap().flatten_all().unwrap().to_vec1::<f32>();
    assert_eq!(found.unwrap(), [0.0; 2 * 5 * 2 * 16]);
}

#[test]
fn pages_have_no_gradients() {
    let q = Var::ones((6, 2, 16), DType::F32, &Device::Cpu).unwrap();
    let cache = Tensor::ones((3, 32, 1, 16), DType::F32, &Device::Cpu).unwrap();
    let sums = Tensor::new(&[0u32, 2, 6], &Device::Cpu).unwrap();
    let table = Tensor::new(&[[0u32], [2]], &Device::Cpu).unwrap();
    let out = flash_attn_varlen_paged_windowed(
        &q, &cache, &cache, &sums, &sums, &table, None, 4, 4, 1.0, None, None, 32, None,
    );
    let error = out.unwrap().sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(
        error.contains("the backward pass takes equal, packed and cached K and V"),
        "{error}"
    );
}
