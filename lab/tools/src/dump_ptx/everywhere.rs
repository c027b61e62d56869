//! Kernels that every target gets: `scalar`, split-KV of `mma`, appends, the ladder, builds with a tap.

use flashcore_ir::Target;
use flashcore_kernels::ladder::{self, scores};
use flashcore_kernels::{Config, KernelCache, Plan, Refusal, Tap, append, checks, scalar};
use flashcore_problem::{Append, DType, KvLengths, Layout, Problem, ProblemBuilder, QLengths, Rotary};
use flashcore_testkit::random_append;

use super::Kernels;
use crate::shipped::one_head;

pub(super) fn scalar_kernels(kernels: &mut Kernels) {
    for problem in problems() {
        for config in scalar::FAMILY.configs().map(scalar::Config::from) {
            let preferred = scalar::preferred_configs(&problem, 16);
            let varied = problem.dtype() != DType::F16 || problem.softcap().is_some() || config.vector_bytes != 16;
            let with_widest = scalar::Config {
                vector_bytes: preferred[0].vector_bytes,
                ..config
            };
            if varied && !preferred.contains(&with_widest) {
                continue;
            }
            kernels.add(&problem, Config::Scalar(config), Target::Sm90a);
        }
    }
}

/// The defaults of the backward pass, with equal lengths and with packed ones.
pub(super) fn backward_kernels(kernels: &mut Kernels) {
    let packed = one_head((64, 64))
        .seq_len_q(4)
        .q_lengths(QLengths::Packed { total: 8, used: true })
        .kv_lengths(KvLengths::Packed { total: 99, used: true });
    let problems = problems().into_iter().chain(packed.build());
    for problem in problems.flat_map(|problem| problem.backward()) {
        for config in scalar::preferred_configs(&problem, 16) {
            kernels.add(&problem, Config::Scalar(config), Target::Sm90a);
        }
    }
}

/// Split-KV in every way: warps along rows and along keys, each rescale policy, and enough splits
/// for each variant of `combine`.
const SPLIT: [&str; 5] = [
    "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa-k33",
    "mma/m16n32-w1x2-s4-b3-qreg-xor-spec-gqa-k24",
    "mma/m16n128-w1x8-s2-b1-qsh-xor-always-gqa-k16",
    "mma/m64n32-w4x1-s2-b1-qsh-xor-cond-k2",
    "mma/m32n64-w2x2-s2-b1-qsh-xor-spec-gqa-k8",
];

pub(super) fn split_kernels(kernels: &mut Kernels) {
    for problem in problems() {
        for config in SPLIT.iter().flat_map(|id| id.parse()) {
            kernels.add(&problem, config, Target::Sm90a);
        }
    }
}

/// Appends to contiguous caches, pages and slots, of each dtype, with and without a rotary embedding.
pub(super) fn append_kernels(kernels: &mut Kernels) -> Result<(), Refusal> {
    let cache = KernelCache::default();
    for seed in 0..60 {
        let case = random_append(seed);
        kernels.add_step(&checks::of_append(&case.append, &cache)?);
        // e4m3 rows at odd addresses are refused.
        let alignment = if case.append.dtype == DType::E4M3 { 4 } else { 16 };
        match append::step(&case.append, Target::Sm90a, alignment, &cache) {
            Ok(step) => kernels.add_step(&step),
            Err(Refusal::Unsupported { .. }) if alignment == 4 => {}
            Err(refusal) => return Err(refusal),
        }
    }
    for dtype in DType::ALL {
        for interleaved in [false, true] {
            let (new, pages) = ([4, 2, 8, 128].into(), [40, 16, 8, 128].into());
            let rotary = Rotary {
                interleaved,
                ..Rotary::new([4, 2, 32, 128].into(), 16 * 9, 128)
            };
            let append = Append {
                rotary: Some(rotary),
                seqused_k: true,
                ..Append::to_pages(dtype, [new, new], [pages, pages], 9)
            };
            kernels.add_step(&append::step(&append, Target::Sm90a, 16, &cache)?);
        }
    }
    Ok(())
}

/// What checks lengths on the device, of every kind of queries and keys.
pub(super) fn check_kernels(kernels: &mut Kernels) -> Result<(), Refusal> {
    let cache = KernelCache::default();
    let packed = |used| QLengths::Packed { total: 8, used };
    let pages = KvLengths::Paged {
        page_size: 16,
        pages: 9,
        max_pages: 4,
    };
    let of_keys = |used| KvLengths::Packed { total: 99, used };
    for q in [QLengths::Equal, packed(false), packed(true)] {
        for kv in [KvLengths::Equal, of_keys(false), of_keys(true), KvLengths::Cache, pages] {
            let problem = one_head((64, 64))
                .seq_len_q(4)
                .seq_len_kv(60)
                .q_lengths(q)
                .kv_lengths(kv);
            if let Ok(problem) = problem.build() {
                let steps = [
                    checks::of_problem(&problem, true, &cache)?,
                    checks::of_problem(&problem, false, &cache)?,
                ];
                steps.iter().flatten().for_each(|step| kernels.add_step(step));
            }
        }
    }
    Ok(())
}

fn problems() -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |builder: ProblemBuilder| problems.extend(builder.build());
    for head_dim in [8, 64, 72, 128, 200, 256] {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let plain = one_head((head_dim, head_dim)).dtype(dtype);
            add(plain.clone());
            add(plain.softcap(30.0).return_lse(true));
        }
    }
    // Rows that start at any element, so that every access width has its kernel.
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let layout = Layout {
            shape: [1, 128, 1, 64],
            strides: [128 * 65, 65, 0, 1],
        };
        add(one_head((64, 64)).dtype(dtype).layouts(layout, layout, layout, layout));
    }
    add(one_head((192, 128)));
    problems
}

/// The rungs, and Q·Kᵀ by itself.
pub(super) fn ladder_kernels(kernels: &mut Kernels) {
    for problem in problems() {
        let varied = problem.dtype() != DType::F16 || problem.softcap().is_some();
        for config in ladder::FAMILY.configs().map(ladder::Config::from) {
            if !varied || (config.warps, config.cols) == (4, 64) {
                kernels.add(&problem, Config::Ladder(config), Target::Sm90a);
            }
        }
        if varied {
            continue;
        }
        for levers in scores::Levers::all() {
            match scores::plan(&problem, levers, Target::Sm90a) {
                Ok(step) => kernels.add_step(&step),
                Err(refusal) => kernels.refuse(&problem, &"Q*K by itself", &refusal),
            }
        }
    }
}

/// Builds with a tap: one config of each family, with every tap that it stores.
pub(super) fn tap_kernels(kernels: &mut Kernels) -> Result<(), Box<dyn std::error::Error>> {
    let softcapped = |problem: &Problem| problem.dtype() == DType::F16 && problem.softcap().is_some();
    for problem in problems().into_iter().filter(softcapped) {
        for id in [
            "scalar/tiled-m32n32-w4-v16",
            "mma/m64n64-w4x1-s2-b1-qreg-xor-cond",
            "ladder/mma-m64n64-w4",
        ] {
            for tap in Tap::STORED {
                let config = id.parse()?;
                let plan = Plan::with_tap(&problem, &config, Target::Sm90a, tap);
                kernels.add_plan(&problem, &config, plan);
            }
        }
    }
    Ok(())
}
