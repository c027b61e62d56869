//! The steps of random problems of all families, dtypes, kinds of lengths and both directions, and the launches that
//! are not part of a plan. They have random strides, masks and sizes; the other problems that are dumped do not.

use flashcore_ir::{Arg, Chip, Launch, Table, Target};
use flashcore_kernels::{
    Config, KernelCache, Plan, Refusal, Step, Tap, append, checks, merge_states, mma, scalar, wgmma,
};
use flashcore_problem::{DType, Direction, KvLengths, Problem};
use flashcore_testkit::random_append;
use flashcore_testkit::{RandomLimits, random_backward, random_problem};

use super::Kernels;

/// Configs of what few problems choose: splits, clusters, packed heads, other rungs.
const IDS: [&str; 10] = [
    "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa",
    "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa-k3",
    "mma/m64n32-w4x1-s2-b1-qsh-xor-cond",
    "wgmma/m128n64-s2-pingpong-spec",
    "wgmma/m128n64-s2-pingpong-spec-gqa",
    "wgmma/m128n64-s2-pingpong-spec-k3",
    "wgmma/m128n64-s2-c2-pingpong-spec",
    "scalar/naive-t128-v2",
    "ladder/hybrid-m64n32-w4",
    "ladder/mma-m64n64-w4",
];

/// Configs that are built with a tap, too.
const TAPPED: [&str; 2] = ["scalar/tiled-m32n32-w4-v2", "mma/m64n64-w4x1-s2-b1-qreg-xor-cond"];

/// Dtypes to choose from, in turn; none stands for those of all families.
const DTYPES: [&[DType]; 3] = [&[], &[DType::E4M3], &[DType::F16, DType::BF16]];

/// SMs of the cards that plans are made for: many and few.
const SMS: [u32; 2] = [132, 20];

/// Adds every launch of `count` random problems. Returns how many problems and plans they are of.
pub(super) fn add(all: &mut Kernels, count: u64) -> Result<[usize; 2], Refusal> {
    let cache = KernelCache::default();
    let (mut problems, mut plans) = (0, 0);
    for seed in 0..count {
        let limits = RandomLimits {
            dtypes: DTYPES[seed as usize % 3],
            max_head_dim: [64, 128, 256][seed as usize / 3 % 3],
            head_dim_v: true,
            lengths: seed % 4 != 0,
            odd_strides: seed % 5 == 0,
            head_values: true,
            max_batch: 5,
            ..RandomLimits::default()
        };
        let forward = random_problem(seed, &limits);
        let limits = RandomLimits { dtypes: &[], ..limits };
        let drawn = [forward, random_backward(seed, &limits)].into_iter().flatten();
        let rare = (seed % 8 == 0).then(|| rare(seed as usize / 8));
        for problem in drawn.chain(rare.into_iter().flatten()) {
            problems += 1;
            let mut drawn = Vec::new();
            for sms in SMS {
                let target = Target::Sm90a;
                let chip = Chip { target, sms };
                let plan = |config| Plan::with_cache(&problem, &config, chip, &cache);
                drawn.extend(configs(&problem, chip).into_iter().map(plan));
            }
            for config in TAPPED.iter().flat_map(|id| id.parse()) {
                drawn.extend(Tap::ALL.map(|tap| Plan::with_tap(&problem, &config, Target::Sm90a, tap)));
            }
            for plan in drawn.iter().flatten() {
                plans += 1;
                plan.steps().for_each(|step| all.add_launch(step));
            }
            for pages in [false, true] {
                let steps = checks::of_problem(&problem, pages, &cache)?;
                steps.iter().for_each(|step| all.add_launch(step));
            }
            let merged = merge_states::step(&problem, 2 + seed as usize % 7, 16, &cache);
            merged.iter().for_each(|step| all.add_launch(step));
        }
        let append = random_append(seed).append;
        all.add_launch(&checks::of_append(&append, &cache)?);
        let step = append::step(&append, Target::Sm90a, 16, &cache);
        step.iter().for_each(|step| all.add_launch(step));
    }
    Ok([problems, plans])
}

/// Problems of plans that random ones do not get: batch-invariant caches, and gradients whose statistics the main
/// kernel prepares ahead or whose tiles of keys several blocks share.
fn rare(number: usize) -> Vec<Problem> {
    let shape = |head_dim| {
        Problem::builder()
            .head_dim(head_dim)
            .dtype([DType::F16, DType::BF16][number % 2])
    };
    let decode = shape([64, 128][number % 2])
        .batch(2 + number % 7)
        .heads(8, 2)
        .seq_len_kv(700 + 90 * number);
    let decode = decode
        .seq_len_q(1 + number % 40)
        .kv_lengths(KvLengths::Cache)
        .batch_invariant(128);
    let gradients = |heads, len| {
        shape(64)
            .heads(heads, heads)
            .seq_len(len)
            .direction(Direction::Backward)
    };
    let ahead = gradients(512, 64 * (1 + number % 5)).return_lse(true);
    let shared = gradients(1 + number % 3, 900 + 70 * number);
    [decode, ahead, shared]
        .into_iter()
        .flat_map(|problem| problem.build())
        .collect()
}

fn configs(problem: &Problem, chip: Chip) -> Vec<Config> {
    let of_mma = mma::proposals(problem, chip).map(|proposal| Config::Mma(proposal.config));
    let of_wgmma = wgmma::proposals(problem, chip).into_iter();
    let of_wgmma = of_wgmma.map(|proposal| Config::Wgmma(proposal.config));
    let of_scalar = scalar::preferred_configs(problem, 16).into_iter().map(Config::Scalar);
    let given = IDS.iter().flat_map(|id| id.parse());
    let proposed = of_mma.take(2).chain(of_wgmma.take(2)).chain(of_scalar.take(1));
    proposed.chain(given).collect()
}

/// A launch in a line; of a table, how many numbers it has and a hash of them.
pub(super) fn line(step: &Step) -> String {
    let mut launch: Launch = step.launch.clone();
    for arg in &mut launch.args {
        if let Arg::Table(table) = arg {
            let hash = table
                .iter()
                .fold(0x811c_9dc5u32, |hash, word| (hash ^ word).wrapping_mul(0x0100_0193));
            *table = Table::new(vec![table.len() as u32, hash]);
        }
    }
    format!("{} {launch:?}\n", step.kernel.name())
}
