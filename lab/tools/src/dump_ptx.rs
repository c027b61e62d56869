//! Writes the PTX of the kernels that a release is assembled with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use flashcore_ir::{Chip, Target};
use flashcore_kernels::ladder::{self, scores};
use flashcore_kernels::{Config, KernelCache, Plan, Refusal, Step, Tap, UnknownConfig, append, mma, scalar, wgmma};
use flashcore_problem::append::random_append;
use flashcore_problem::{
    Alibi, Append, DType, Direction, KvLengths, Layout, Problem, ProblemBuilder, QLengths, Rotary,
};

use crate::shipped::{HEAD_DIMS, one_head, plan_rows, proposed};

/// Writes the PTX of the kernels that a release is assembled with, one file each.
///
/// FOLDER has what is assembled for every target and must be clean: of family `scalar` every tile
/// and warp count at the usual head sizes, and every dtype, access width and option on the default
/// tile, and the default kernels of the backward pass; of family `mma` split-KV, with the combine
/// kernels; appends; the ladder; builds with a tap.
///
/// FOLDER/sm_NN has what is assembled for that target and must be clean: the defaults of families
/// `mma` and `wgmma`, the kernels of the shipped plan tables, the backward passes of both, and
/// split-KV of `wgmma`.
///
/// FOLDER/varied/sm_NN has what may need more registers than there are, which only the compiler can tell (the driver
/// layer then refuses to load it, and another config is chosen): the defaults with log-sum-exp, with and without soft
/// cap, with sinks and with ALiBi, and every lever of `mma` at each of its values, one at a time.
///
/// What refuses its problem has a line in refused.txt of its folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    folder: PathBuf,
    /// Write all. Otherwise a seventh of `varied` is written, and defaults at one head size and
    /// dtype each in turn, which takes a minute.
    #[arg(long)]
    full: bool,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let Options { folder, full } = options;
    let mut everywhere = Kernels::default();
    scalar_kernels(&mut everywhere);
    backward_kernels(&mut everywhere);
    append_kernels(&mut everywhere)?;
    ladder_kernels(&mut everywhere);
    split_kernels(&mut everywhere);
    tap_kernels(&mut everywhere)?;
    everywhere.write(folder)?;
    let rows = plan_rows()?;
    for target in TARGETS {
        let mut defaults = Kernels::default();
        let mut varied = Kernels::default();
        mma_kernels(&mut defaults, &mut varied, target, *full);
        backward_tensor_core_kernels(&mut defaults, target, *full);
        listed_kernels(&mut defaults, &mut varied, target, *full);
        // With log-sum-exp, and with a soft cap too.
        for row in rows.iter().filter(|row| row.target == target) {
            let shape = one_head(row.head_dims).dtype(row.dtype);
            defaults.add_shape(&shape, row.config, row.target);
            let shape = shape.return_lse(true);
            varied.add_shape(&shape, row.config, row.target);
            varied.add_shape(&shape.softcap(30.0), row.config, row.target);
        }
        if target == Target::Sm90a {
            split_wgmma_kernels(&mut defaults, *full);
            packed_wgmma_kernels(&mut defaults, *full);
            backward_tiles_of_64_columns(&mut defaults)?;
        }
        defaults.write(&folder.join(target.name()))?;
        varied.write(&folder.join("varied").join(target.name()))?;
    }
    crate::verdict(true)
}

/// Distinct kernels by name: problems that differ only in lengths and strides share one.
#[derive(Default)]
struct Kernels {
    by_name: BTreeMap<String, String>,
    refused: BTreeSet<String>,
}

impl Kernels {
    fn add(&mut self, problem: &Problem, config: Config, target: Target) {
        self.add_plan(problem, &config, Plan::new(problem, &config, target));
    }

    /// The same for a shape, if there is such a problem.
    fn add_shape(&mut self, shape: &ProblemBuilder, config: Config, target: Target) {
        if let Ok(problem) = shape.clone().build() {
            self.add(&problem, config, target);
        }
    }

    /// The kernel with the heads of a query in two warpgroups: of as many queries as a tile holds, on one SM, since
    /// that saves a round of tiles.
    fn add_in_two_warpgroups(&mut self, shape: &ProblemBuilder, config: Config, group: usize) {
        let Config::Wgmma(levers) = config else { return };
        let chip = Chip {
            target: Target::Sm90a,
            sms: 1,
        };
        if let Ok(problem) = shape.clone().seq_len_q(levers.rows as usize / group).build() {
            self.add_plan(&problem, &config, Plan::new(&problem, &config, chip));
        }
    }

    fn add_plan(&mut self, problem: &Problem, config: &Config, plan: Result<Plan, Refusal>) {
        match plan {
            Ok(plan) => plan.steps().for_each(|step| self.add_step(step)),
            Err(refusal) => self.refuse(problem, config, &refusal),
        }
    }

    fn refuse(&mut self, problem: &Problem, what: &dyn Display, refusal: &Refusal) {
        self.refused.insert(format!("{problem}: {what}: {refusal}\n"));
    }

    fn add_step(&mut self, step: &Step) {
        let name = step.kernel.name().to_string();
        self.by_name.insert(name, step.kernel.to_ptx());
    }

    fn write(&self, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
        std::fs::create_dir_all(folder)?;
        for (name, ptx) in &self.by_name {
            std::fs::write(folder.join(format!("{name}.ptx")), ptx)?;
        }
        let refused: String = self.refused.iter().cloned().collect();
        std::fs::write(folder.join("refused.txt"), refused)?;
        println!(
            "{} kernels in {} ({} configs refused their problem)",
            self.by_name.len(),
            folder.display(),
            self.refused.len()
        );
        Ok(())
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

fn split_kernels(kernels: &mut Kernels) {
    for problem in problems() {
        for config in SPLIT.iter().flat_map(|id| id.parse()) {
            kernels.add(&problem, config, Target::Sm90a);
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

fn split_wgmma_kernels(kernels: &mut Kernels, full: bool) {
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
        let others = SPLIT_WGMMA.iter().enumerate();
        for (i, (id, _)) in others.filter(|(_, (_, most))| head_dims.0 <= *most) {
            let Ok(config) = id.parse() else { continue };
            turn += 1;
            for (j, capped) in [false, true].into_iter().enumerate() {
                let shape = shape.clone().dtype(dtype(turn));
                let shape = if capped { shape.softcap(30.0) } else { shape };
                if full || turn % 8 == i % 4 + 4 * j {
                    kernels.add_shape(&shape, config, Target::Sm90a);
                }
            }
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

fn packed_wgmma_kernels(kernels: &mut Kernels, full: bool) {
    let mut turn = 0;
    for head_dims in HEAD_DIMS {
        for (id, _) in PACKED_WGMMA.iter().filter(|(_, most)| head_dims.0 <= *most) {
            let Ok(config) = id.parse() else { continue };
            for group in PACKED {
                turn += 1;
                if !full && turn % 4 != 0 {
                    continue;
                }
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

fn scalar_kernels(kernels: &mut Kernels) {
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
fn backward_kernels(kernels: &mut Kernels) {
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

/// The backward passes of families `wgmma` and `mma` that a target gets: with a soft cap, deterministic, and of packed
/// lengths. Without `full` a third of them.
fn backward_tensor_core_kernels(kernels: &mut Kernels, target: Target, full: bool) {
    let (q, kv) = LENGTHS[2];
    let mut turn = 0;
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
            turn += 1; // a shape has twelve, a multiple of three: each begins one further
            for problem in variants.into_iter().flat_map(ProblemBuilder::build) {
                let of_wgmma = wgmma::proposals(&problem, target).into_iter();
                let of_wgmma = of_wgmma.map(|proposal| Config::Wgmma(proposal.config));
                let of_mma = mma::proposals(&problem, target).map(|proposal| Config::Mma(proposal.config));
                for (mut configs, most) in [(of_wgmma.collect::<Vec<_>>(), 2), (of_mma.collect(), 1)] {
                    turn += 1;
                    // Tiles with too little room leave the problem to the next ones.
                    configs.retain(|config| Plan::new(&problem, config, target).is_ok());
                    if full || turn % 3 == 0 {
                        configs.truncate(most);
                        configs.iter().for_each(|config| kernels.add(&problem, *config, target));
                    }
                }
            }
        }
    }
}

/// The tiles of family `wgmma` in the backward pass at head_dim 64: the default and the smallest, of few heads and of
/// many, whose blocks prepare statistics of later heads.
fn backward_tiles_of_64_columns(kernels: &mut Kernels) -> Result<(), UnknownConfig> {
    for config in ["wgmma/m128n128-s2-pingpong", "wgmma/m64n64-s2-free"] {
        for dtype in [DType::F16, DType::BF16] {
            let shape = one_head((64, 64)).dtype(dtype).direction(Direction::Backward);
            kernels.add_shape(&shape, config.parse()?, Target::Sm90a);
            kernels.add_shape(&shape.heads(512, 512).seq_len(64), config.parse()?, Target::Sm90a);
        }
    }
    Ok(())
}

/// Appends to contiguous caches, pages and slots, of each dtype, with and without a rotary embedding.
fn append_kernels(kernels: &mut Kernels) -> Result<(), Refusal> {
    let cache = KernelCache::default();
    for seed in 0..60 {
        let case = random_append(seed);
        // e4m3 rows at odd addresses are refused.
        let alignment = if case.append.dtype == DType::E4M3 { 4 } else { 16 };
        match append::step(&case.append, alignment, &cache) {
            Ok(step) => kernels.add_step(&step),
            Err(Refusal::Unsupported { .. }) if alignment == 4 => {}
            Err(refusal) => return Err(refusal),
        }
    }
    for dtype in [DType::F16, DType::BF16, DType::F32] {
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
            kernels.add_step(&append::step(&append, 16, &cache)?);
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
fn ladder_kernels(kernels: &mut Kernels) {
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
fn tap_kernels(kernels: &mut Kernels) -> Result<(), Box<dyn std::error::Error>> {
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

const TARGETS: [Target; 4] = [Target::Sm80, Target::Sm89, Target::Sm90a, Target::Sm120];

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
fn listed_kernels(defaults: &mut Kernels, varied: &mut Kernels, target: Target, full: bool) {
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
                if full || (i + j).is_multiple_of(3) {
                    defaults.add_shape(&shape, config, target);
                }
                if full || (i + j) % 3 == 1 {
                    varied.add_shape(&shape.clone().softcap(30.0).return_lse(true), config, target);
                }
            }
        }
    }
}

fn mma_kernels(defaults: &mut Kernels, varied: &mut Kernels, target: Target, full: bool) {
    let mut turn = 0;
    for head_dims in HEAD_DIMS {
        let shape = one_head(head_dims);
        for config in proposed(&shape, target) {
            for (i, dtype) in [DType::F16, DType::BF16].into_iter().enumerate() {
                let shape = shape.clone().dtype(dtype);
                if full || turn % 2 == i {
                    defaults.add_shape(&shape, config, target);
                }
                // With log-sum-exp, and with a soft cap too.
                if full || turn % 4 == i {
                    varied.add_shape(&shape.clone().return_lse(true), config, target);
                }
                if full || turn % 4 == i + 2 {
                    varied.add_shape(&shape.clone().softcap(30.0).return_lse(true), config, target);
                }
                // With sinks, and with ALiBi.
                if full || turn % 4 == i {
                    varied.add_shape(&shape.clone().sinks(dtype).return_lse(true), config, target);
                    varied.add_shape(&shape.alibi(Alibi::Heads), config, target);
                }
            }
            turn += 1;
        }
        let of = |(q, kv)| shape.clone().dtype(DType::E4M3).q_lengths(q).kv_lengths(kv);
        for narrow in LENGTHS.into_iter().chain([Default::default()]).map(of) {
            let configs = proposed(&narrow, target).into_iter();
            configs.for_each(|config| defaults.add_shape(&narrow, config, target));
        }
        // About the default of a large problem.
        let mut all = proposed(&shape, target).into_iter();
        let Some(Config::Mma(default)) = all.rfind(|config| matches!(config, Config::Mma(_))) else {
            continue;
        };
        for (i, config) in mma::FAMILY.neighbours(&default.into()).into_iter().enumerate() {
            if full || i % HEAD_DIMS.len() == turn % HEAD_DIMS.len() {
                varied.add_shape(&shape, Config::Mma(config.into()), target);
            }
        }
    }
}
