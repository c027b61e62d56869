//! The backward pass on Hopper: [preprocess](gradients::preprocess), the [main kernel](kernel), and the
//! [rounding of dQ](dq_sums).

mod consumer;
mod dq_sums;
mod kernel;
mod producer;
#[cfg(test)]
mod tests;

use flashcore_ir::{Arg, Chip, Kernel, Launch, Target};
use flashcore_problem::{DType, GradientLayouts, Layout, Problem};
use half::{bf16, f16};

use super::defaults::Proposal;
use super::{ALIGNMENT, Config, FAMILY, NAME, add_tensor, check_repeated};
use crate::Refusal;
use crate::attention::gradients::{self, PADDING, Workspace};
use crate::attention::params::{SIXTEEN_BITS, Shape, add_rows, check_problem, grid};
use crate::attention::softmax::Rescale;
use crate::attention::tensor_rows::RowsOf;
use crate::family::Values;
use crate::step::{Identity, KernelCache, Step};

/// Keys of a warpgroup, and the rows and columns of its part of dQ.
const UNIT: u32 = 64;

/// Tiles of dQ in shared memory: one is added up while the next is written.
const DQ_STAGES: u32 = 2;

/// Head sizes, of Q and K and of V.
const HEAD_DIMS: [usize; 2] = [64, 128];

/// What to use where this has no kernel.
const REMEDY: &str = "family scalar does";

/// A config of the levers that the backward pass has.
const fn tile(rows: u32, cols: u32, stages: u32) -> Config {
    Config {
        rows,
        cols,
        stages,
        cluster: 1,
        pingpong: false,
        rescale: Rescale::Never,
        splits: 1,
        q_in_registers: false,
        min_blocks: 1,
        max_registers: 0,
        pack_heads: false,
    }
}

/// The default of each head size, and why.
const DEFAULTS: [(usize, Proposal); 2] = [
    (
        64,
        Proposal {
            config: tile(128, 128, 2),
            why: "two warpgroups of 64 keys, each of which has half of the rows of dQ",
        },
    ),
    (
        128,
        Proposal {
            config: tile(64, 128, 2),
            why: "two warpgroups of 64 keys, each of which has half of the columns of dQ",
        },
    ),
];

/// The default of a problem on Hopper; it refuses what has no kernel, and says why.
pub(super) fn proposals(problem: &Problem) -> Vec<Proposal> {
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let default = DEFAULTS.iter().find(|(most, _)| head_dim <= *most);
    let (_, proposal) = default.unwrap_or(&DEFAULTS[DEFAULTS.len() - 1]);
    vec![*proposal]
}

/// The defaults of the backward pass, each with the head size that it is for.
///
/// ```
/// let ids = flashcore_kernels::wgmma::backward_defaults().map(|(config, head_dim)| (config.to_string(), head_dim));
/// assert_eq!(ids[1], ("m64n128-s2-free".to_string(), 128));
/// ```
pub fn defaults() -> [(Config, usize); 2] {
    DEFAULTS.map(|(head_dim, proposal)| (proposal.config, head_dim))
}

/// Preprocess, the main kernel, and what makes dQ of its sums.
pub(super) fn plan(
    problem: &Problem,
    config: &Config,
    chip: Chip,
    kernels: &KernelCache,
) -> Result<(Vec<Step>, Step, Vec<Step>), Refusal> {
    check_problem(problem, NAME, &SIXTEEN_BITS)?;
    check_served(problem, chip)?;
    FAMILY.check(&Values::from(*config))?;
    let shape = Shape::new(problem, ALIGNMENT, None);
    check_levers(config, &shape)?;

    let workspace = Workspace::new(problem, shape.head_dim);
    let (family, levers) = ("wgmma backward", Values::from(*config));
    let kernel = kernels.get_or_build(Identity { family, levers, shape }, |levers, shape| {
        let (name, config) = (named(levers, shape, "backward"), &Config::from(*levers));
        Kernel::build(name, threads(config), |k| match shape.dtype {
            DType::F16 => kernel::body::<f16>(k, config, shape),
            _ => kernel::body::<bf16>(k, config, shape),
        })
    })?;
    let kv_heads = problem.batch() * problem.num_kv_heads();
    let blocks = problem.seq_len_kv().div_ceil(config.cols as usize) * kv_heads;
    let mut launch = Launch::of(&kernel, grid(NAME, [blocks, 1, 1])?);
    for (name, layout) in tensors(problem).into_iter().flatten() {
        add_tensor(&mut launch, &kernel, problem.dtype(), name, &layout, RowsOf::Batch)?;
    }
    let slot = workspace.add_statistics(&mut launch, true);
    workspace.add_dq_sums(&mut launch, slot);
    launch.args.push(Arg::F32(problem.softmax_scale()));
    launch.args.push(Arg::U32(heads_at_once(problem, &workspace)));
    add_rows(&mut launch, problem, &shape);
    Ok((
        vec![gradients::preprocess(problem, &shape, workspace, kernels)?],
        Step { kernel, launch },
        vec![dq_sums::step(problem, config, &shape, workspace, kernels)?],
    ))
}

fn named(levers: &Values, shape: &Shape, what: &str) -> String {
    shape.kernel_name(&format!("{}-{what}", FAMILY.id(levers)))
}

/// The tensors of the main kernel, those that it reads and those that it writes.
fn tensors(problem: &Problem) -> Option<[(&'static str, Layout); 6]> {
    let GradientLayouts { dout, dk, dv, .. } = *problem.gradient_layouts()?;
    let (q, k, v) = (*problem.q_layout(), *problem.k_layout(), *problem.v_layout());
    Some([("q", q), ("k", k), ("v", v), ("dout", dout), ("dk", dk), ("dv", dv)])
}

/// Refuses problems that have no kernel.
fn check_served(problem: &Problem, chip: Chip) -> Result<(), Refusal> {
    let refuse = |what: String| Err(Refusal::unsupported(NAME, what, REMEDY));
    if chip.target != Target::Sm90a {
        return refuse(format!("the backward pass on {}", chip.target));
    }
    if problem.has_lengths() {
        return refuse("the backward pass of packed sequences or caches with lengths".to_string());
    }
    if problem.deterministic() {
        return refuse("a deterministic backward pass: blocks add to dQ in the order in which they come".to_string());
    }
    if problem.softcap().is_some() {
        return refuse("the backward pass of scores with a soft cap".to_string());
    }
    let (head_dim, head_dim_v) = (problem.head_dim(), problem.head_dim_v());
    if head_dim != head_dim_v {
        return refuse(format!(
            "the backward pass of head_dim {head_dim} with head_dim_v {head_dim_v}"
        ));
    }
    if !HEAD_DIMS.contains(&head_dim) {
        return refuse(format!(
            "the backward pass of head_dim {head_dim} (64 and 128 are served)"
        ));
    }
    for (name, layout) in tensors(problem).iter().flatten() {
        check_repeated(name, layout, || "copy them, or use family scalar")?;
    }
    Ok(())
}

/// Refuses levers that the backward pass does not have, and tiles that do not go together.
fn check_levers(config: &Config, shape: &Shape) -> Result<(), Refusal> {
    let usual = Values::from(tile(config.rows, config.cols, config.stages));
    let levers = FAMILY.levers.iter().zip(Values::from(*config)).zip(usual);
    for ((lever, given), usual) in levers {
        if given != usual {
            let allowed = format!(
                "{} in the backward pass, whose levers are rows, cols and stages",
                lever.print(usual)
            );
            return Err(Refusal::lever(lever.name, lever.print(given), allowed));
        }
    }
    if !PADDING.is_multiple_of(config.rows) {
        return Err(Refusal::lever("rows", config.rows, "64 and 128 in the backward pass"));
    }
    if ![64, 128].contains(&config.cols) {
        let allowed = "64 and 128 in the backward pass: 64 keys for each of one or two warpgroups";
        return Err(Refusal::lever("cols", config.cols, allowed));
    }
    let rows = UNIT * config.cols / shape.head_dim;
    if config.rows != rows {
        let (cols, head_dim) = (config.cols, shape.head_dim);
        let allowed = match PADDING.is_multiple_of(rows.max(1)) && rows >= UNIT {
            true => format!(
                "{rows} for {cols} keys and head_dim {head_dim}: each warpgroup computes 64 x 64 elements of dQ"
            ),
            false => format!("none for {cols} keys and head_dim {head_dim}: take cols 128, which shares dQ out evenly"),
        };
        return Err(Refusal::lever("rows", config.rows, allowed));
    }
    Ok(())
}

/// Warpgroups that compute.
fn warpgroups(config: &Config) -> u32 {
    config.cols / UNIT
}

/// Threads a block: those that compute, and a warpgroup that copies.
fn threads(config: &Config) -> u32 {
    128 * (1 + warpgroups(config))
}

/// Registers of a thread that copies, and of one that computes.
fn registers(config: &Config) -> (u32, u32) {
    match warpgroups(config) {
        1 => (56, 248),
        _ => (24, 240),
    }
}

/// Bytes of Q, dO and dQ's sums that stay in the L2 cache while blocks of several heads read and add to them.
const HEADS_BYTES: usize = 16 << 20;

/// Most K/V heads whose tiles run at the same time.
const MOST_HEADS: usize = 8;

/// K/V heads of all batches whose tiles run at the same time. Where tiles differ in their work, the longest of several heads
/// go first; but not of more than the L2 cache holds.
fn heads_at_once(problem: &Problem, workspace: &Workspace) -> u32 {
    let (range, rows, keys) = (problem.key_range(), problem.seq_len_q(), problem.seq_len_kv());
    let all_alike = i64::from(range.hi) >= keys as i64 - 1 && i64::from(range.lo) <= 1 - rows as i64;
    match all_alike {
        true => 1,
        false => (HEADS_BYTES / (8 * workspace.stride * problem.head_dim())).clamp(1, MOST_HEADS) as u32,
    }
}

/// What makes its shared memory smaller, for a refusal.
pub(super) fn remedy_for_shared_memory(config: &Config, problem: &Problem) -> String {
    let saved = (config.stages - 2) * config.rows * 4 * (problem.head_dim() as u32 + 2);
    format!("stages {} to 2 saves {saved} B", config.stages)
}
