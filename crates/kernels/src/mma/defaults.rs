//! Which config the family proposes where none is named: the table of the nearest [`Card`], read from top to bottom.
//!
//! Rows of the H200 for its architecture were measured (`evidence/h200/levers-mma.jsonl`; decoding at head_dim 128).
//! Those for others follow from the same kernels and the shared memory there is; they await such cards.

use flashcore_ir::{Chip, Target};
use flashcore_problem::{Direction, Problem};

use super::{Config, backward};
use crate::card::{Card, Proposal, Row};
use crate::select::grouped;
use crate::size::Size;

/// What the table proposes for a problem on a GPU, best first; a [`Target`] stands for its usual card. Some may be
/// refused.
pub fn proposals(problem: &Problem, chip: impl Into<Chip>) -> Box<dyn Iterator<Item = Proposal<Config>> + '_> {
    let chip = chip.into();
    let card = Card::nearest(chip);
    if problem.direction() == Direction::Backward {
        return Box::new(backward::proposals(problem, card));
    }
    let is_decode = Size::of(problem, chip) == Size::Decode;
    let rows = card.mma.iter().filter(move |row| row.serves(problem, chip, card));
    Box::new(rows.map(move |row| {
        let shares_keys = row.config.pack_heads || is_decode;
        let split = shares_keys.then(|| row.config.split_for(problem, chip.sms));
        row.proposal().map(|config| split.unwrap_or(config))
    }))
}

/// Every config of the table, whatever the problem, the largest head_dim that it is there for, and a target that it is
/// for.
///
/// ```
/// use flashcore_kernels::mma;
/// assert!(mma::defaults().iter().any(|(config, ..)| config.pack_heads));
/// ```
pub fn defaults() -> Vec<(Config, usize, Target)> {
    let target = |row: &Row<Config>| row.targets.first().copied().unwrap_or(Target::Sm80);
    let rows = Card::all().iter().flat_map(|card| &card.mma);
    let rows = grouped(rows.map(|row| (row.config, (row.head_dim, target(row)))));
    let most = |all: &[(usize, Target)]| all.iter().map(|(head_dim, _)| *head_dim).max().unwrap_or(0);
    let rows = rows.into_iter().map(|(config, all)| (config, most(&all), all[0].1));
    rows.collect()
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
                            Size::of(&problem, target.into()).to_string(),
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
                    assert_eq!(Size::of(&problem, target.into()), Size::Decode);
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
