//! Which config the family proposes where none is named: one table, read from top to bottom.
//!
//! Rows for sm_90a were measured on an H200 (`evidence/h200/levers-mma.jsonl`; decoding at head_dim 128). Those for
//! other architectures follow from the same kernels and the shared memory there is; they await such cards.

use std::sync::LazyLock;

use flashcore_ir::{Chip, Target};
use flashcore_problem::{Direction, Problem};

use super::{Config, backward};
use crate::size::{Size, has_few_rows, has_one_block, is_short_cache, is_short_chunk};

struct Default {
    /// Targets it is for; none means all.
    targets: &'static [Target],
    /// Largest head_dim it is for.
    head_dim: usize,
    /// Sizes it is for.
    sizes: &'static [Size],
    /// Whether it is for a problem on a GPU, if that is limited further.
    only: Option<fn(&Problem, Chip) -> bool>,
    id: &'static str,
    why: &'static str,
}

const ANY: &[Target] = &[];
/// Shared memory for two blocks of 96 KB an SM, or more.
const HOPPER: &[Target] = &[Target::Sm90a, Target::Sm100];
/// Shared memory for a block of 128 KB.
const WIDE: &[Target] = &[Target::Sm80, Target::Sm90a, Target::Sm100];
const AMPERE: &[Target] = &[Target::Sm80];
const OTHERS: &[Target] = &[Target::Sm80, Target::Sm86, Target::Sm89, Target::Sm120];
use Size::{Decode, Large, Medium, Small};

const FEW_ROWS_WHY: &str = "few rows over long caches: their keys are shared out among all SMs";

/// First match that nothing refuses. Ids are without the family's name.
#[rustfmt::skip]
const TABLE: &[Default] = &[
    Default { targets: HOPPER, head_dim: 64, sizes: &[Decode], only: Some(is_short_cache),
        id: "m16n128-w1x4-s3-b2-qreg-xor-cond", why: "few keys: a block for each head, in one launch, is done before a schedule is made" },
    Default { targets: HOPPER, head_dim: 128, sizes: &[Decode], only: Some(is_short_cache),
        id: "m16n64-w1x4-s3-b2-qreg-xor-cond", why: "few keys: a block for each head, in one launch, is done before a schedule is made" },
    // Two blocks an SM, each with two tiles of 32 KB on their way while it works on a third.
    Default { targets: HOPPER, head_dim: 64, sizes: &[Decode], only: None,
        id: "m16n128-w1x4-s3-b2-qreg-xor-cond-gqa", why: "heads that share K and V share a tile of 16 rows; 128 KB an SM are on their way" },
    Default { targets: HOPPER, head_dim: 128, sizes: &[Decode], only: None,
        id: "m16n64-w1x4-s3-b2-qreg-xor-cond-gqa", why: "heads that share K and V share a tile of 16 rows; 128 KB an SM are on their way" },
    Default { targets: HOPPER, head_dim: 256, sizes: &[Decode], only: None,
        id: "m16n32-w1x2-s3-b2-qreg-xor-cond-gqa", why: "heads that share K and V share a tile of 16 rows; 128 KB an SM are on their way" },
    Default { targets: ANY, head_dim: 64, sizes: &[Decode], only: None,
        id: "m16n64-w1x4-s4-b1-qreg-xor-cond-gqa", why: "heads that share K and V share a tile of 16 rows; 48 KB an SM are on their way" },
    Default { targets: ANY, head_dim: 128, sizes: &[Decode], only: None,
        id: "m16n32-w1x2-s4-b1-qreg-xor-cond-gqa", why: "heads that share K and V share a tile of 16 rows; 48 KB an SM are on their way" },
    Default { targets: ANY, head_dim: 192, sizes: &[Decode], only: None,
        id: "m16n32-w1x2-s3-b1-qreg-xor-cond-gqa", why: "heads that share K and V share a tile of 16 rows" },
    Default { targets: ANY, head_dim: 256, sizes: &[Decode], only: None,
        id: "m32n16-w2x1-s4-b1-qreg-xor-cond-gqa", why: "heads that share K and V share a tile of rows; there is no room to merge warps, nor registers for 32 keys" },
    Default { targets: HOPPER, head_dim: 64, sizes: &[Small, Medium, Large], only: Some(has_few_rows),
        id: "m32n128-w2x2-s2-b2-qreg-xor-cond-gqa", why: FEW_ROWS_WHY },
    Default { targets: HOPPER, head_dim: 128, sizes: &[Small, Medium, Large], only: Some(has_few_rows),
        id: "m32n64-w2x2-s2-b2-qreg-xor-cond-gqa", why: FEW_ROWS_WHY },
    Default { targets: ANY, head_dim: 64, sizes: &[Small, Medium, Large], only: Some(has_few_rows),
        id: "m32n64-w2x2-s3-b1-qreg-xor-cond-gqa", why: FEW_ROWS_WHY },
    Default { targets: ANY, head_dim: 128, sizes: &[Small, Medium, Large], only: Some(has_few_rows),
        id: "m32n32-w2x2-s3-b1-qreg-xor-cond-gqa", why: FEW_ROWS_WHY },
    Default { targets: HOPPER, head_dim: 256, sizes: &[Small, Medium, Large], only: Some(has_few_rows),
        id: "m16n32-w1x2-s3-b2-qreg-xor-cond-gqa", why: FEW_ROWS_WHY },
    Default { targets: HOPPER, head_dim: 64, sizes: &[Small, Medium], only: Some(is_short_chunk),
        id: "m32n128-w2x2-s2-b2-qreg-xor-cond", why: "few rows and keys: two blocks an SM, of 32 rows of a head, are done before a schedule is made" },
    Default { targets: HOPPER, head_dim: 64, sizes: &[Small], only: None,
        id: "m32n128-w2x2-s4-b1-qreg-xor-cond", why: "32 rows a block fill the SMs, and two warps share the keys" },
    Default { targets: HOPPER, head_dim: 64, sizes: &[Medium], only: None,
        id: "m64n128-w2x2-s2-b1-qreg-xor-cond", why: "64 rows a block fill the SMs, and two warps share the keys" },
    Default { targets: OTHERS, head_dim: 64, sizes: &[Medium], only: Some(has_one_block),
        id: "m128n64-w8x1-s2-b1-qreg-xor-spec", why: "an SM has one block at most, in which eight warps hide more latency than four" },
    Default { targets: ANY, head_dim: 64, sizes: &[Medium, Large], only: None,
        id: "m128n64-w4x1-s2-b1-qreg-xor-spec", why: "32 rows a warp halve the reads of K and V, and speculative softmax shortens the chain of a tile" },
    Default { targets: HOPPER, head_dim: 128, sizes: &[Small], only: None,
        id: "m32n128-w2x2-s3-b1-qreg-xor-cond", why: "32 rows a block fill the SMs, and two warps share the keys" },
    Default { targets: HOPPER, head_dim: 128, sizes: &[Medium], only: None,
        id: "m64n64-w4x1-s2-b1-qreg-xor-cond", why: "64 rows a block fill the SMs" },
    Default { targets: HOPPER, head_dim: 128, sizes: &[Large], only: None,
        id: "m128n64-w4x1-s2-b1-qsh-xor-spec", why: "32 rows a warp halve the reads of K and V, and speculative softmax shortens the chain of a tile; Q has no room in registers beside its output" },
    Default { targets: HOPPER, head_dim: 128, sizes: &[Large], only: None,
        id: "m128n64-w4x1-s2-b1-qsh-xor-cond", why: "the same for caps with log-sum-exp, where speculative softmax has no registers" },
    Default { targets: AMPERE, head_dim: 128, sizes: &[Medium, Large], only: None,
        id: "m128n32-w4x1-s2-b1-qsh-xor-cond", why: "as on Hopper, with tiles of which two blocks fit an SM" },
    Default { targets: HOPPER, head_dim: 256, sizes: &[Small], only: None,
        id: "m32n32-w2x2-s3-b1-qreg-xor-cond", why: "32 rows a block fill the SMs, and two warps share the keys" },
    Default { targets: HOPPER, head_dim: 256, sizes: &[Medium, Large], only: Some(|problem, _| problem.seq_len_kv() <= 512),
        id: "m64n32-w4x1-s2-b1-qreg-xor-cond", why: "two blocks an SM even out short rows" },
    Default { targets: WIDE, head_dim: 256, sizes: &[Medium, Large], only: None,
        id: "m128n32-w8x1-s2-b1-qreg-xor-cond", why: "16 rows a warp leave room for their output and for Q in registers" },
    Default { targets: HOPPER, head_dim: 256, sizes: &[Medium, Large], only: None,
        id: "m64n32-w4x1-s2-b1-qreg-xor-cond", why: "the same for log-sum-exp and for older compilers, which run out of registers above" },
    // What every target has room for.
    Default { targets: ANY, head_dim: 64, sizes: &[Small], only: None,
        id: "m32n64-w2x2-s3-b1-qreg-xor-cond", why: "32 rows a block fill the SMs, and two warps share the keys" },
    Default { targets: ANY, head_dim: 128, sizes: &[Small], only: None,
        id: "m32n32-w2x2-s3-b1-qreg-xor-cond", why: "32 rows a block fill the SMs, and two warps share the keys" },
    Default { targets: ANY, head_dim: 128, sizes: &[Medium, Large], only: None,
        id: "m64n32-w4x1-s2-b1-qreg-xor-cond", why: "two blocks of 48 KB fit an SM of 100 KB" },
    Default { targets: ANY, head_dim: 256, sizes: &[Small, Medium, Large], only: None,
        id: "m64n32-w4x1-s2-b1-qreg-xor-cond", why: "one block of 96 KB fits an SM of 100 KB" },
    Default { targets: ANY, head_dim: 256, sizes: &[Small, Medium, Large], only: None,
        id: "m64n16-w4x1-s2-b1-qreg-xor-cond", why: "tiles of 16 keys leave registers where the compiler runs out of them above" },
    Default { targets: ANY, head_dim: 256, sizes: &[Small, Medium, Large], only: None,
        id: "m64n16-w4x1-s2-b1-qsh-xor-cond", why: "the smallest tiles, where others have no room" },
];

/// A config that the table proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The config.
    pub config: Config,
    /// Why the table has it there.
    pub why: &'static str,
    /// What the row is for.
    pub size: Size,
}

/// The rows with their configs.
static ROWS: LazyLock<Vec<(&Default, Config)>> = LazyLock::new(|| {
    let rows = TABLE.iter().map(|row| Some((row, Config::from_id(row.id)?)));
    rows.flatten().collect()
});

/// What the table proposes for a problem on a GPU, best first; a [`Target`] stands for its usual card. Some may be
/// refused.
pub fn proposals(problem: &Problem, chip: impl Into<Chip>) -> impl Iterator<Item = Proposal> {
    let chip = chip.into();
    let size = Size::of(problem, chip);
    let is_backward = problem.direction() == Direction::Backward;
    let backward = is_backward.then(|| backward::proposals(problem)).into_iter().flatten();
    let backward = backward.map(move |(config, why)| Proposal { config, why, size });
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let rows = ROWS.iter().filter(move |(row, _)| {
        !is_backward
            && (row.targets.is_empty() || row.targets.contains(&chip.target))
            && (head_dim <= row.head_dim && row.sizes.contains(&size))
            && row.only.is_none_or(|only| only(problem, chip))
    });
    let forward = rows.map(move |(row, config)| Proposal {
        config: if config.pack_heads || size == Decode {
            config.split_for(problem, chip.sms)
        } else {
            *config
        },
        why: row.why,
        size,
    });
    backward.chain(forward)
}

/// Every config of the table, whatever the problem, the largest head_dim that it is there for, and a target that it is
/// for.
///
/// ```
/// use flashcore_kernels::mma;
/// assert!(mma::defaults().iter().any(|(config, ..)| config.pack_heads));
/// ```
pub fn defaults() -> Vec<(Config, usize, Target)> {
    let mut defaults: Vec<(Config, usize, Target)> = Vec::new();
    for &(row, config) in ROWS.iter() {
        let target = row.targets.first().copied().unwrap_or(Target::Sm80);
        match defaults.iter_mut().find(|(other, ..)| *other == config) {
            Some((_, head_dim, _)) => *head_dim = row.head_dim.max(*head_dim),
            None => defaults.push((config, row.head_dim, target)),
        }
    }
    defaults
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{KvLengths, Mask};

    use super::*;
    use crate::{Config as AnyConfig, Plan};

    /// Problems of each size, (batch, heads, rows): on a target of 58 SMs as on one of 170.
    const PROBLEMS: [(Size, usize, usize, usize); 3] = [
        (Size::Small, 1, 4, 512),
        (Size::Medium, 2, 8, 1024),
        (Size::Large, 8, 32, 4096),
    ];

    #[test]
    fn every_id_of_the_table_is_a_config() {
        for row in TABLE {
            let config = Config::from_id(row.id).unwrap_or_else(|| panic!("{}", row.id));
            assert_eq!(config.to_string(), row.id);
        }
    }

    /// The whole table as text, resolved: what is chosen, for review.
    #[test]
    fn defaults() {
        let mut text = String::new();
        for target in [Target::Sm80, Target::Sm89, Target::Sm90a, Target::Sm120] {
            for head_dim in [64, 96, 128, 192, 256] {
                for (name, mask) in [("full", Mask::FULL), ("causal", Mask::CAUSAL)] {
                    for (_, batch, heads, rows) in PROBLEMS {
                        let problem = Problem::builder()
                            .batch(batch)
                            .heads(heads, heads)
                            .seq_len(rows)
                            .head_dim(head_dim)
                            .mask(mask)
                            .build()
                            .unwrap();
                        let chosen = proposals(&problem, target)
                            .find(|p| Plan::new(&problem, &AnyConfig::Mma(p.config), target).is_ok())
                            .unwrap();
                        text += &format!(
                            "{target:<7} D{head_dim:<4}{name:<7}{:<7} {}\n",
                            chosen.size.to_string(),
                            chosen.config
                        );
                    }
                }
            }
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn short_caches_take_one_launch() {
        let launches = |batch, keys| {
            let problem = Problem::builder()
                .batch(batch)
                .heads(32, 8)
                .seq_len_q(1)
                .seq_len_kv(keys);
            let problem = problem.head_dim(128).kv_lengths(KvLengths::Cache).build().unwrap();
            let config = proposals(&problem, Target::Sm90a).next().unwrap().config;
            let plan = Plan::new(&problem, &AnyConfig::Mma(config), Target::Sm90a).unwrap();
            plan.steps().count()
        };
        assert_eq!(
            [(4, 500), (4, 513), (5, 500)].map(|(batch, keys)| launches(batch, keys)),
            [1, 3, 3]
        );
    }

    /// The keys of few rows over long caches are shared out: by a schedule, or by splits where there is one sequence.
    #[test]
    fn keys_of_few_rows_are_shared_out() {
        let chosen = |batch, heads: (usize, usize), rows, keys| {
            let problem = Problem::builder().batch(batch).heads(heads.0, heads.1);
            let problem = problem.seq_len_q(rows).seq_len_kv(keys).head_dim(128);
            let problem = problem.kv_lengths(KvLengths::Cache).build().unwrap();
            let kernels = crate::KernelCache::default();
            let plan = crate::select(&problem, Target::Sm90a, 16, &kernels).unwrap().plan;
            (plan.config.to_string(), plan.schedule_steps())
        };
        let few = "mma/m32n64-w2x2-s2-b2-qreg-xor-cond-gqa";
        for (batch, heads, rows, keys) in [(64, (32, 8), 8, 4096), (2, (32, 1), 1, 600), (2, (8, 8), 20, 4096)] {
            assert_eq!(chosen(batch, heads, rows, keys), (few.to_string(), 1));
        }
        for (heads, rows, keys, splits) in [((32, 8), 5, 4096, 32), ((32, 1), 1, 600, 10), ((8, 8), 20, 4096, 32)] {
            assert_eq!(chosen(1, heads, rows, keys), (format!("{few}-k{splits}"), 0));
        }
        // More rows; one head a tile, for which SMs are too few.
        assert_eq!(chosen(1, (32, 8), 12, 4096).0, "wgmma/m64n128-s2-free-spec-gqa");
        assert_eq!(chosen(1, (8, 8), 64, 4096).0, "wgmma/m64n128-s2-free-spec");
        for (batch, heads, rows, keys) in [(1, (32, 8), 5, 512), (1, (8, 8), 64, 1024), (32, (8, 8), 20, 4096)] {
            assert_eq!(chosen(batch, heads, rows, keys).1, 0, "{batch} {heads:?} {rows} {keys}");
        }
    }

    /// The defaults for decoding, by heads, heads of K/V, batch, keys.
    #[test]
    fn decoding() {
        let mut text = String::new();
        for target in [Target::Sm80, Target::Sm89, Target::Sm90a, Target::Sm120] {
            for head_dim in [64, 128, 192, 256] {
                for (heads, kv_heads, batch, keys) in [
                    (32, 8, 1, 4096),
                    (32, 8, 1, 131_072),
                    (32, 8, 64, 4096),
                    (16, 1, 1, 8192),
                    (12, 12, 1, 300),
                ] {
                    let problem = Problem::builder()
                        .batch(batch)
                        .heads(heads, kv_heads)
                        .seq_len_q(1)
                        .seq_len_kv(keys)
                        .head_dim(head_dim)
                        .build()
                        .unwrap();
                    let chosen = proposals(&problem, target)
                        .find(|p| Plan::new(&problem, &AnyConfig::Mma(p.config), target).is_ok())
                        .unwrap();
                    assert_eq!(chosen.size, Size::Decode);
                    text += &format!(
                        "{target:<7} D{head_dim:<4}H{heads}/{kv_heads} B{batch} x {keys:<7} {}\n",
                        chosen.config
                    );
                }
            }
        }
        insta::assert_snapshot!(text);
    }
}
