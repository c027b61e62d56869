//! The backward pass on Hopper: `preprocess`, the main kernel, `postprocess`.

mod ends;
mod kernel;

use std::sync::Arc;

use flashcore_ir::{Arg, Kernel, Launch};
use flashcore_problem::{DType, Layout, Problem};
use half::{bf16, f16};

use super::boxes;
use crate::Refusal;
use crate::attention::lengths::row_strides;
use crate::attention::params::{ALIGNMENT, Shape, add_buffer, push_buffer};
use crate::attention::score_mod::LOG2_E;
use crate::step::Step;

/// How the main kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levers {
    /// Query rows of a tile.
    pub rows: u32,
    /// Keys of a block: 64 for each warpgroup.
    pub cols: u32,
    /// Stages of Q and dO.
    pub stages: u32,
    /// Whether dV's product starts before dS is computed, for which P is held twice.
    pub dv_first: bool,
    /// Heads whose tiles run at the same time; 0 for a choice by the problem.
    pub bundle: u32,
}

/// Bytes of Q, dO and dQ that may be in use at the same time.
const BUNDLE_BYTES: u32 = 32 << 20;

impl Levers {
    fn warpgroups(&self) -> u32 {
        self.cols / kernel::UNIT
    }

    /// Registers of a thread of the producer and of the consumers.
    fn registers(&self) -> (u32, u32) {
        match self.warpgroups() {
            1 => (56, 256 - 8),
            2 => (24, 240),
            _ => (32, 160),
        }
    }
}

/// The steps that compute `dq`, `dk` and `dv` from `q`, `k`, `v`, `out`, `lse` and `dout`.
///
/// # Errors
/// What is not served.
pub fn steps(problem: &Problem, levers: Levers) -> Result<Vec<Step>, Refusal> {
    let head_dim = problem.head_dim() as u32;
    let shape = Shape::new(problem, ALIGNMENT, None);
    let id = format!("wgmma_backward_m{}n{}_s{}_{}_d{head_dim}", levers.rows, levers.cols, levers.stages, shape.dtype);
    let bf = shape.dtype == DType::BF16;
    let main = Kernel::build(id.clone(), 128 * (1 + levers.warpgroups()), |k| match bf {
        false => kernel::body::<f16>(k, &levers, &shape),
        true => kernel::body::<bf16>(k, &levers, &shape),
    })?;
    let before = Kernel::build(format!("{id}_preprocess"), ends::THREADS, |k| match bf {
        false => ends::preprocess::<f16>(k, head_dim),
        true => ends::preprocess::<bf16>(k, head_dim),
    })?;
    let after = Kernel::build(format!("{id}_postprocess"), ends::THREADS, |k| match bf {
        false => ends::postprocess::<f16>(k, &levers, head_dim),
        true => ends::postprocess::<bf16>(k, &levers, head_dim),
    })?;
    let (batch, heads) = (problem.batch() as u32, problem.num_heads() as u32);
    let (len_q, len_kv) = (problem.seq_len_q() as u32, problem.seq_len_kv() as u32);
    let q_tiles = len_q.div_ceil(levers.rows);
    let padded = q_tiles * levers.rows;
    let rows = u64::from(batch * heads) * u64::from(padded);
    let numbers = (4 * rows).next_multiple_of(256);
    let workspace = 2 * numbers + 4 * rows * u64::from(head_dim);

    let mut first = Launch::of(&before, [padded / ends::rows(head_dim), heads, batch]);
    add_rows(&mut first, "out", problem.o_layout(), false);
    add_rows(&mut first, "dout", problem.o_layout(), false);
    add_buffer(&mut first, "lse", 4 * problem.lse_len(), 4, false);
    let slot = push_buffer(&mut first, "workspace", workspace as usize, 256, true);
    let workspace_at = |slot| [0, numbers, 2 * numbers].map(|byte_offset| Arg::Buffer { slot, byte_offset });
    first.args.extend(workspace_at(slot));
    first.args.extend([len_q, padded].map(Arg::U32));

    let kv_heads = batch * heads / problem.group_size() as u32;
    let mut launch = Launch::of(&main, [len_kv.div_ceil(levers.cols) * kv_heads, 1, 1]);
    for (name, layout) in [
        ("q", problem.q_layout()),
        ("k", problem.k_layout()),
        ("v", problem.v_layout()),
        ("dout", problem.o_layout()),
        ("dk", problem.k_layout()),
        ("dv", problem.v_layout()),
    ] {
        add_map(&mut launch, &main, name, layout)?;
    }
    let slot = push_buffer(&mut launch, "workspace", workspace as usize, 256, true);
    launch.args.extend(workspace_at(slot));
    let range = problem.key_range();
    let scale = problem.softmax_scale();
    // Where tiles differ, the longest of several heads go first: of as many as the L2 cache holds Q, dO and dQ of.
    let bytes = padded * head_dim * (2 + 2 + 4);
    let bundle = match levers.bundle {
        0 if range.hi < len_kv as i32 - 1 => (BUNDLE_BYTES / bytes).clamp(1, kv_heads),
        0 => 1,
        heads => heads.min(kv_heads),
    };
    launch.args.extend([
        Arg::U32(len_q),
        Arg::U32(len_kv),
        Arg::U32(heads),
        Arg::U32(problem.group_size() as u32),
        Arg::I32(range.lo),
        Arg::I32(range.hi),
        Arg::U32(bundle),
        Arg::F32(scale * LOG2_E),
        Arg::F32(scale),
    ]);

    let mut last = Launch::of(&after, [q_tiles, heads, batch]);
    add_rows(&mut last, "dq", problem.q_layout(), true);
    let slot = push_buffer(&mut last, "workspace", workspace as usize, 256, true);
    last.args.push(workspace_at(slot)[2].clone());
    last.args.extend([Arg::U32(len_q), Arg::F32(scale)]);
    let step = |kernel, launch| Step {
        kernel: Arc::new(kernel),
        launch,
    };
    Ok(vec![step(before, first), step(main, launch), step(after, last)])
}

fn add_rows(launch: &mut Launch, name: &'static str, layout: &Layout, written: bool) {
    add_buffer(launch, name, 2 * layout.span(), ALIGNMENT, written);
    launch.args.extend(row_strides(layout).map(Arg::U32));
}

fn add_map(launch: &mut Launch, kernel: &Kernel, name: &'static str, layout: &Layout) -> Result<(), Refusal> {
    let [batch, seq, head] = row_strides(layout);
    let [batches, rows, heads, columns] = layout.shape.map(|n| n as u64);
    let stride = |stride: u32| match stride {
        0 => 2 * columns,
        stride => 2 * u64::from(stride),
    };
    let slot = push_buffer(launch, name, 2 * layout.span(), ALIGNMENT, matches!(name, "dk" | "dv"));
    let map = boxes(kernel, name)?.recipe(
        slot,
        0,
        vec![columns, rows, heads, batches],
        vec![stride(seq), stride(head), stride(batch)],
    );
    launch.args.push(Arg::TensorMap(map));
    Ok(())
}
