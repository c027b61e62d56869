//! Mistakes planted in a Hopper kernel, one by one: each is found under every one of a few schedules.

#[allow(dead_code)] // it has a `main` of its own
#[path = "../../../../crates/ir/examples/hopper_attention.rs"]
mod example;

use std::collections::BTreeMap;

use flashcore_check::mutate::{Operator, mutations};
use flashcore_ir::{Arg, BufferSpec, Kernel, Launch};
use flashcore_sim::{SimOptions, simulate};

/// 70 query rows, 300 keys, one head, all ones.
fn launch(kernel: &Kernel) -> Launch {
    let dim = u64::from(example::HEAD_DIM);
    let seqs = [70, 300, 300, 70];
    let mut args = Vec::new();
    for (slot, name) in ["q", "k", "v", "out"].into_iter().enumerate() {
        let boxes = kernel.tensor_box(name).expect("a tensor map");
        args.push(Arg::TensorMap(boxes.recipe(
            slot,
            0,
            vec![dim, seqs[slot], 1],
            vec![2 * dim, 2 * dim],
        )));
    }
    args.extend([Arg::U32(300), Arg::F32(0.18)]);
    let names = ["q", "k", "v", "out"].into_iter().zip(seqs);
    Launch {
        grid: [2, 1, 1],
        block: [kernel.threads(), 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: kernel.ledger().total_bytes(),
        programmatic: false,
        buffers: names
            .map(|(name, seq)| BufferSpec {
                name,
                bytes: 2 * dim * seq,
                written: name == "out",
                align: 16,
            })
            .collect(),
        args,
    }
}

/// Whether a run finds something, or computes anything but ones.
fn is_found(kernel: &Kernel, seed: u64) -> (bool, bool) {
    let one = half::f16::ONE.to_le_bytes();
    let launch = launch(kernel);
    let mut buffers: Vec<Vec<u8>> = launch
        .buffers
        .iter()
        .map(|b| one.repeat(b.bytes as usize / 2))
        .collect();
    buffers[3].fill(0xff);
    let options = SimOptions {
        seed,
        ..SimOptions::default()
    };
    let report = simulate(kernel, &launch, &mut buffers, &options).expect("a launch that fits");
    let right = buffers[3].chunks_exact(2).all(|word| word == one);
    (!report.is_clean(), !right)
}

#[test]
fn every_planted_mistake_is_found_under_every_schedule() {
    let kernel = example::attention().expect("it builds");
    assert_eq!(is_found(&kernel, 0), (false, false));
    let operators = [
        Operator::DropArrive,
        Operator::ExtraArrival,
        Operator::ExtraBytes,
        Operator::HalfBytes,
        Operator::FixedParity,
        Operator::DropPhaseWait,
        Operator::DropFence,
        Operator::DropAsyncWait,
        Operator::WeakenAsyncWait,
        Operator::DropCopy,
        Operator::DescriptorStride,
        Operator::DropBarrier,
        Operator::CountBarrier,
        Operator::WrongMbarrier,
        Operator::WrongParam,
    ];
    let mut planted = BTreeMap::new();
    for mutation in mutations(&kernel) {
        // Q comes once: nobody waits for its stage to be free again, and its only phase has parity 0.
        let harmless = matches!(
            (mutation.operator, mutation.object.as_deref()),
            (Operator::ExtraArrival | Operator::DropPhaseWait, Some("q.empty"))
                | (Operator::FixedParity, Some("q.full"))
        );
        if harmless || !operators.contains(&mutation.operator) {
            continue;
        }
        *planted.entry(mutation.operator).or_insert(0) += 1;
        let mutant = mutation.apply(&kernel);
        for seed in 0..3 {
            let (finding, wrong) = is_found(&mutant, seed);
            // A store that is left out breaks no rule, but the result.
            let found = finding || wrong && mutation.operator == Operator::DropCopy;
            assert!(found, "seed {seed} does not find {mutation}");
        }
    }
    let total: u32 = planted.values().sum();
    assert!(total >= 40 && planted.len() == operators.len(), "{total}: {planted:?}");
}
