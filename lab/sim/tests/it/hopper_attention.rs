//! The Hopper attention example: correct and clean under many schedules, with tails.

use crate::common;

#[allow(dead_code)]
#[path = "../../../../crates/ir/examples/hopper_attention.rs"]
mod example;

use common::Case;
use flashcore_ir::Arg;
use flashcore_problem::rng::Rng;
use half::f16;

fn attention(seq_len_q: usize, seq_len_kv: usize, heads: usize, seed: u64) {
    let dim = example::HEAD_DIM as usize;
    let mut rng = Rng::new(seed);
    // [seq][heads][head_dim], mapped as (head_dim, seq, heads).
    let mut tensor = |seq: usize| -> Vec<f16> {
        let count = seq * heads * dim;
        (0..count).map(|_| f16::from_f32(2.0 * rng.unit() - 1.0)).collect()
    };
    let (q, k, v) = (tensor(seq_len_q), tensor(seq_len_kv), tensor(seq_len_kv));
    let shape = |seq: usize| {
        let row = 2 * dim as u64;
        (
            vec![dim as u64, seq as u64, heads as u64],
            vec![heads as u64 * row, row],
        )
    };
    let scale = 1.0 / (dim as f32).sqrt();
    let mut case = Case::new(32, |_| {});
    case.kernel = example::attention().unwrap();
    let ((q_dims, q_strides), (k_dims, k_strides)) = (shape(seq_len_q), shape(seq_len_kv));
    let zeros = vec![f16::NAN; seq_len_q * heads * dim];
    let mut case = case
        .tensor_of("q", &q, q_dims.clone(), q_strides.clone(), false)
        .tensor_of("k", &k, k_dims.clone(), k_strides.clone(), false)
        .tensor_of("v", &v, k_dims, k_strides, false)
        .tensor_of("out", &zeros, q_dims, q_strides, true)
        .arg(Arg::U32(seq_len_kv as u32))
        .arg(Arg::F32(scale * std::f32::consts::LOG2_E))
        .grid(seq_len_q.div_ceil(example::ROWS as usize) as u32)
        .seed(seed);
    case.grid_y = heads as u32;
    case.run_clean();
    let got: Vec<f64> = case.buffers[3]
        .chunks_exact(2)
        .map(|w| f16::from_le_bytes([w[0], w[1]]).to_f64())
        .collect();
    let at = |tensor: &[f16], row: usize, head: usize, col: usize| tensor[(row * heads + head) * dim + col].to_f64();
    for head in 0..heads {
        for row in 0..seq_len_q {
            let score = |key: usize| {
                (0..dim)
                    .map(|d| at(&q, row, head, d) * at(&k, key, head, d))
                    .sum::<f64>()
            };
            let scores: Vec<f64> = (0..seq_len_kv).map(|key| score(key) * f64::from(scale)).collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = p.iter().sum();
            for d in 0..dim {
                let expected = (0..seq_len_kv).map(|key| p[key] * at(&v, key, head, d)).sum::<f64>() / sum;
                let value = got[(row * heads + head) * dim + d];
                assert!(
                    (value - expected).abs() < 1e-3,
                    "head {head}, row {row}, {d}: {value} {expected}"
                );
            }
        }
    }
}

#[test]
fn correct_and_clean_under_many_schedules() {
    for seed in 0..12 {
        attention(64, 192, 1, seed);
    }
}

#[test]
fn tails_and_heads() {
    attention(100, 150, 3, 1);
    attention(7, 33, 2, 2);
    attention(64, 64, 1, 3);
}
