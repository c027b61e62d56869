//! Kernels of one target: the defaults of `mma` and `wgmma`, their backward passes, and split-KV of `wgmma`.

use flashcore_ir::Target;
use flashcore_kernels::{Config, UnknownConfig, mma, wgmma};
use flashcore_problem::{Alibi, DType, Direction, KvLengths, ProblemBuilder, QLengths};

use super::Kernels;
use crate::shipped::{HEAD_DIMS, of_mma, of_wgmma, one_head, proposed};

/// Kinds of lengths on the device.
const LENGTHS: [(QLengths, KvLengths); 3] = [
    (QLengths::Equal, KvLengths::Cache),
    (
        QLengths::Packed { total: 8, used: true },
        KvLengths::Paged {
            page_size: 16,
            pages: 9,
            max_pages: 8,
        },
    ),
    (
        QLengths::Packed { total: 8, used: true },
        KvLengths::Packed { total: 99, used: true },
    ),
];

/// Lengths on the device: the defaults of `mma` with packed heads and those of `wgmma`, their schedules and `combine`.
pub(super) fn listed_kernels(defaults: &mut Kernels, varied: &mut Kernels, target: Target) {
    for (i, head_dims) in HEAD_DIMS.into_iter().enumerate() {
        for (j, (q, kv)) in LENGTHS.into_iter().enumerate() {
            let dtype = [DType::F16, DType::BF16][(i + j) % 2];
            let shape = one_head(head_dims)
                .seq_len_q(4)
                .q_lengths(q)
                .kv_lengths(kv)
                .dtype(dtype);
            let Ok(problem) = shape.clone().build() else { continue };
            let proposals = mma::proposals(&problem, target).filter(|proposal| proposal.config.pack_heads);
            let proposals = proposals.map(|proposal| Config::Mma(proposal.config));
            let tall = wgmma::defaults(dtype).into_iter().filter(|(config, most)| {
                let fits = head_dims.0 <= most.0 && head_dims.1 <= most.1 && 2 * head_dims.0 >= most.0;
                fits && config.cluster == 1 && config.splits == 1 && target == Target::Sm90a
            });
            for config in proposals.chain(tall.map(|(config, _)| Config::Wgmma(config))) {
                defaults.add_shape(&shape, config, target);
                varied.add_shape(&shape.clone().softcap(30.0).return_lse(true), config, target);
            }
        }
    }
}

pub(super) fn mma_kernels(defaults: &mut Kernels, varied: &mut Kernels, target: Target) {
    for head_dims in HEAD_DIMS {
        let shape = one_head(head_dims);
        for config in proposed(&shape, target) {
            for dtype in [DType::F16, DType::BF16] {
                let shape = shape.clone().dtype(dtype);
                defaults.add_shape(&shape, config, target);
                // With log-sum-exp, and with a soft cap too.
                varied.add_shape(&shape.clone().return_lse(true), config, target);
                varied.add_shape(&shape.clone().softcap(30.0).return_lse(true), config, target);
                // With sinks, and with ALiBi.
                varied.add_shape(&shape.clone().sinks(dtype).return_lse(true), config, target);
                varied.add_shape(&shape.alibi(Alibi::Heads), config, target);
            }
        }
        let of = |(q, kv)| shape.clone().dtype(DType::E4M3).q_lengths(q).kv_lengths(kv);
        for narrow in LENGTHS.into_iter().chain([Default::default()]).map(of) {
            let configs = proposed(&narrow, target).into_iter();
            configs.for_each(|config| defaults.add_shape(&narrow, config, target));
        }
        // Pages that hold the keys of one head: those that are copied in boxes, and those whose keys are gathered.
        for page_size in [16, 3] {
            let (max_pages, pages) = (128_usize.div_ceil(page_size), 99);
            let kv = KvLengths::Paged {
                page_size,
                pages,
                max_pages,
            };
            let Ok(problem) = of((LENGTHS[1].0, kv)).build() else {
                continue;
            };
            for config in of_wgmma(&problem, target).take(1) {
                defaults.add(&problem, config, target);
            }
        }
        // About the default of a large problem.
        let mut all = proposed(&shape, target).into_iter();
        let Some(Config::Mma(default)) = all.rfind(|config| matches!(config, Config::Mma(_))) else {
            continue;
        };
        for config in mma::FAMILY.neighbours(&default.into()) {
            varied.add_shape(&shape, Config::Mma(config.into()), target);
        }
    }
}

/// Split-KV of family `wgmma` besides its defaults, with the largest head_dim of each: one to three
/// warpgroups, the other rescale policies, a cluster.
const SPLIT_WGMMA: [(&str, usize); 5] = [
    ("wgmma/m64n64-s3-free-cond-k3", 256),
    ("wgmma/m128n64-s2-free-always-k2", 256),
    ("wgmma/m128n96-s2-c2-pingpong-cond-k2", 192),
    ("wgmma/m192n64-s2-pingpong-spec-k2", 128),
    ("wgmma/m192n128-s2-pingpong-spec-k2", 64),
];

pub(super) fn split_wgmma_kernels(kernels: &mut Kernels) {
    let defaults = wgmma::defaults(DType::F16).into_iter();
    let defaults: Vec<_> = defaults.filter(|(config, _)| config.splits > 1).collect();
    let mut turn = 0;
    for head_dims in HEAD_DIMS {
        let shape = one_head(head_dims);
        let dtype = |i: usize| [DType::F16, DType::BF16][i % 2];
        for &(config, _) in defaults.iter().filter(|(_, most)| head_dims.0 <= most.0) {
            turn += 1;
            kernels.add_shape(&shape.clone().dtype(dtype(turn)), Config::Wgmma(config), Target::Sm90a);
        }
        for (id, _) in SPLIT_WGMMA.iter().filter(|(_, most)| head_dims.0 <= *most) {
            let Ok(config) = id.parse() else { continue };
            turn += 1;
            let shape = shape.clone().dtype(dtype(turn));
            kernels.add_shape(&shape, config, Target::Sm90a);
            kernels.add_shape(&shape.softcap(30.0), config, Target::Sm90a);
        }
    }
}

/// Packed heads in family `wgmma`, with the largest head_dim of each: one to three warpgroups, rescale policies, a
/// cluster, split-KV.
const PACKED_WGMMA: [(&str, usize); 6] = [
    ("wgmma/m64n128-s2-free-spec-gqa", 128),
    ("wgmma/m128n128-s2-pingpong-spec-qreg-gqa", 128),
    ("wgmma/m192n128-s2-pingpong-spec-gqa", 64),
    ("wgmma/m192n64-s2-pingpong-spec-qreg-gqa", 128),
    ("wgmma/m128n64-s2-c2-free-cond-qreg-gqa", 256),
    ("wgmma/m128n64-s2-pingpong-spec-gqa-k2", 256),
];

/// Query heads per K/V head that are packed: warps store their rows, or warpgroups.
const PACKED: [usize; 3] = [4, 5, 16];

pub(super) fn packed_wgmma_kernels(kernels: &mut Kernels) {
    let mut turn = 0;
    for head_dims in HEAD_DIMS {
        for (id, _) in PACKED_WGMMA.iter().filter(|(_, most)| head_dims.0 <= *most) {
            let Ok(config) = id.parse() else { continue };
            for group in PACKED {
                turn += 1;
                let dtype = [DType::F16, DType::BF16][turn / 4 % 2];
                let shape = one_head(head_dims).heads(group, 1).dtype(dtype);
                let shape = shape.return_lse(turn % 3 == 0);
                kernels.add_shape(&shape, config, Target::Sm90a);
                kernels.add_in_two_warpgroups(&shape, config, group);
                if !id.contains("-c2") && !id.contains("-k2") {
                    let (q, kv) = LENGTHS[turn / 3 % 3];
                    kernels.add_shape(&shape.q_lengths(q).kv_lengths(kv), config, Target::Sm90a);
                }
            }
        }
    }
}

/// The backward passes of families `wgmma` and `mma` that a target gets: with a soft cap, deterministic, and of packed
/// lengths.
pub(super) fn backward_tensor_core_kernels(kernels: &mut Kernels, target: Target) {
    let (q, kv) = LENGTHS[2];
    for head_dims in HEAD_DIMS {
        for dtype in [DType::F16, DType::BF16] {
            // Few tiles of keys, each of many rows: the first proposal of `wgmma` shares them, the second one does not.
            let shape = one_head(head_dims).seq_len(1024).dtype(dtype);
            let shape = shape.direction(Direction::Backward);
            let packed = shape.clone().seq_len_q(4).q_lengths(q).kv_lengths(kv);
            let variants = [
                shape.clone(),
                shape.clone().deterministic(true),
                packed.clone(),
                packed.clone().deterministic(true),
                shape.clone().softcap(30.0),
                packed.softcap(30.0).deterministic(true),
            ];
            for problem in variants.into_iter().flat_map(ProblemBuilder::build) {
                let of_wgmma = of_wgmma(&problem, target).take(2);
                for config in of_wgmma.chain(of_mma(&problem, target).take(1)) {
                    kernels.add(&problem, config, target);
                }
            }
        }
    }
}

/// Where family `wgmma` holds V in registers in the backward pass, or would if ptxas did not write over it
/// (docs/hardware-notes.md), and head_dim_v is not head_dim. CI assembles what is written of these.
const OTHER_HEAD_DIM_V: [(usize, usize); 9] = [
    (72, 64),
    (80, 48),
    (88, 64),
    (96, 64),
    (64, 96),
    (136, 64),
    (160, 96),
    (192, 64),
    (128, 192),
];

/// Its backward passes of these, in order and not.
pub(super) fn backward_of_other_head_dim_v(kernels: &mut Kernels) {
    let (q, kv) = LENGTHS[2];
    for head_dims in OTHER_HEAD_DIM_V {
        let shape = one_head(head_dims).direction(Direction::Backward);
        let packed = shape.clone().seq_len_q(4).q_lengths(q).kv_lengths(kv);
        let variants = [shape, packed].into_iter();
        let variants = variants.flat_map(|shape| [DType::F16, DType::BF16].map(|dtype| shape.clone().dtype(dtype)));
        for shape in variants {
            let both = [false, true].map(|ordered| shape.clone().deterministic(ordered).build());
            for problem in both.into_iter().flatten() {
                for config in of_wgmma(&problem, Target::Sm90a).take(1) {
                    kernels.add(&problem, config, Target::Sm90a);
                }
            }
        }
    }
}

/// The tiles of family `wgmma` in the backward pass at head_dim 64: the default and the smallest, of few heads and of
/// many, whose blocks prepare statistics of later heads.
pub(super) fn backward_tiles_of_64_columns(kernels: &mut Kernels) -> Result<(), UnknownConfig> {
    for config in ["wgmma/m128n128-s2-pingpong", "wgmma/m64n64-s2-free"] {
        for dtype in [DType::F16, DType::BF16] {
            let shape = one_head((64, 64)).dtype(dtype).direction(Direction::Backward);
            kernels.add_shape(&shape, config.parse()?, Target::Sm90a);
            kernels.add_shape(&shape.heads(512, 512).seq_len(64), config.parse()?, Target::Sm90a);
        }
    }
    Ok(())
}
