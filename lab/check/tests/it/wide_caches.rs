//! Caches of more than 2^31 elements: a page or a sequence far from the first gives the bits that it gives next to it.

use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;
use flashcore_problem::tensor::write_element;
use flashcore_problem::{DType, KvLengths, Layout, Problem};
use flashcore_sim::{SimOptions, simulate};

const KEYS: usize = 20;
const PAGED: KvLengths = KvLengths::Paged {
    page_size: 16,
    pages: 2,
    max_pages: 2,
};

/// O of two sequences of a row, whose K and V have a page or sequence every `stride` elements. The buffers are zeros
/// but for the rows of the cache: memory that nothing touches is not there.
fn output(kernel: &str, kv_lengths: KvLengths, stride: usize, table: [i32; 4]) -> Vec<u8> {
    let rows = if kv_lengths == PAGED { 16 } else { KEYS };
    let row = Layout::bshd([2, 1, 2, 64]);
    let mut cache = Layout::bshd([2, rows, 1, 64]);
    cache.strides[0] = stride as i64;
    let problem = Problem::builder()
        .batch(2)
        .heads(2, 1)
        .head_dim(64)
        .seq_len_q(1)
        .seq_len_kv(KEYS)
        .dtype(DType::BF16)
        .kv_lengths(kv_lengths)
        .layouts(row, cache, cache, row)
        .build()
        .unwrap();
    let chip = Chip {
        target: Target::Sm90a,
        sms: 4,
    };
    let plan = Plan::new(&problem, &kernel.parse().unwrap(), chip).unwrap();
    assert_eq!(plan.steps().count(), 1);
    let launch = &plan.main.launch;
    let words = |words: &[i32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let contents = launch.buffers.iter().map(|spec| match spec.name {
        "block_table" => words(&table),
        "seqused_k" => words(&[20, 17]),
        name => {
            let mut bytes = vec![0; spec.bytes as usize];
            let starts = if ["k", "v"].contains(&name) {
                vec![0, stride]
            } else {
                vec![0]
            };
            for (part, start) in starts.into_iter().enumerate() {
                for index in 0..(rows * 64).min(bytes.len() / 2 - start) {
                    let random = ((index + 5000 * part + name.len()) as u32).wrapping_mul(2_654_435_761) >> 20;
                    write_element(DType::BF16, &mut bytes, start + index, random as f32 / 2048.0 - 1.0);
                }
            }
            bytes
        }
    });
    let mut buffers: Vec<Vec<u8>> = contents.collect();
    let report = simulate(&plan.main.kernel, launch, &mut buffers, &SimOptions::default()).unwrap();
    assert!(report.is_clean(), "{kernel}: {:?}", report.findings);
    let out = launch.buffers.iter().position(|spec| spec.name == "out").unwrap();
    buffers.swap_remove(out)
}

#[test]
fn pages_and_sequences_are_found_in_64_bits() {
    let far = (1 << 31) + 64;
    for kernel in ["scalar/tiled-m32n32-w4-v16", "mma/m16n32-w1x2-s2-b1-qsh-xor-cond"] {
        for kv_lengths in [PAGED, KvLengths::Cache] {
            let near = output(kernel, kv_lengths, 64 * KEYS, [1, 0, 0, 1]);
            assert!(output(kernel, kv_lengths, far, [1, 0, 0, 1]) == near, "{kernel}");
        }
        // The other page is not the same: an offset that loses its high bits would be found.
        let near = output(kernel, PAGED, 64 * KEYS, [1, 0, 0, 1]);
        assert!(output(kernel, PAGED, 64 * KEYS, [0, 0, 0, 1]) != near, "{kernel}");
    }
}
