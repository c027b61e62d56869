//! The kernels that mistakes are planted in, the problems that are to show them, and the verdict on
//! each.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan, source};
use flashcore_ir::{Chip, Kernel, Target};
use flashcore_kernels::Plan;
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, Layout, Mask, Problem, ProblemError};

/// Instructions after which a warp counts as caught in a loop: several times those of the longest
/// problem here.
const MAX_INSTRUCTIONS: u64 = 300_000;

/// Factor on the usual scale with which scores of normal inputs differ so much that references rise
/// by more than probabilities can hold, in one row and not in the next.
const SHARP: f32 = 20.0;

/// A kernel to plant mistakes in.
pub(crate) struct Subject {
    /// What it stands for.
    pub(crate) name: &'static str,
    pub(crate) kernel: &'static str,
    pub(crate) target: Target,
    pub(crate) dtype: DType,
    head_dim: usize,
}

/// A default on the card that `flashcore check` takes, the default for f32, and two defaults of
/// Hopper's.
pub(crate) const SUBJECTS: [Subject; 4] = [
    Subject {
        name: "mma, the default of head_dim 64 on an L4 with many blocks",
        kernel: "mma/m128n64-w4x1-s2-b1-qreg-xor-spec",
        target: Target::Sm89,
        dtype: DType::F16,
        head_dim: 64,
    },
    Subject {
        name: "tiled, the small shape's default in f32",
        kernel: "scalar/tiled-m32n32-w8-v16",
        target: Target::Sm89,
        dtype: DType::F32,
        head_dim: 64,
    },
    Subject {
        name: "wgmma, a default of head_dim 64 on an H200",
        kernel: "wgmma/m128n128-s3-pingpong-spec-qreg",
        target: Target::Sm90a,
        dtype: DType::F16,
        head_dim: 64,
    },
    Subject {
        name: "wgmma, a default of head_dim 128 that holds a part of Q in registers",
        kernel: "wgmma/m192n64-s3-pingpong-spec-qreg",
        target: Target::Sm90a,
        dtype: DType::F16,
        head_dim: 128,
    },
];

/// A problem. Heads of K and V are half of the query heads.
struct Case {
    heads: usize,
    rows: usize,
    keys: usize,
    mask: Mask,
    /// Factor on the usual scale.
    scale: f32,
    inputs: InputKind,
}

fn case(heads: usize, rows: usize, keys: usize, mask: Mask, scale: f32, inputs: InputKind) -> Case {
    Case {
        heads,
        rows,
        keys,
        mask,
        scale,
        inputs,
    }
}

/// Together: tails of rows and keys, whole tiles, masked and whole tiles of keys, rows that see
/// nothing, references that must rise, row by row. The quickest, and those that show most, come
/// first.
fn cases(is_persistent: bool) -> Vec<Case> {
    use InputKind::{EqualRows, Extremes, HugeLogit, NegativeScores, Normal, RisingScores, SmallIntegers};
    let past = Mask::window(Some(5), Some(3));
    let mut cases = vec![
        case(4, 45, 150, Mask::CAUSAL, 1.0, Normal),
        case(4, 130, 200, Mask::FULL, 1.0, SmallIntegers),
        case(2, 70, 197, Mask::FULL, 1.0, RisingScores),
        // Fewer keys than a tile; fully masked tiles of rows, before all keys and after them.
        case(4, 150, 23, past, 1.0, NegativeScores),
        case(4, 150, 23, past.top_left(), 1.0, Normal),
        case(2, 128, 64, Mask::FULL, 1.0, Normal),
        case(6, 256, 256, Mask::CAUSAL, 1.0, SmallIntegers),
        case(4, 200, 200, Mask::CAUSAL.top_left(), 1.0, Extremes),
        case(2, 100, 300, Mask::FULL, 1.0, HugeLogit),
        case(2, 130, 130, Mask::CAUSAL, 1.0, EqualRows),
    ];
    // Both bounds of a window at every column of a tile, in every K block.
    let lefts = [80, 94, 107, 121, 190, 301, 255, 5];
    for (left, right) in lefts.into_iter().zip([5, 19, 32, 46, 64, 127, 200, 3]) {
        cases.push(case(2, 128, 520, Mask::window(Some(left), Some(right)), 1.0, Normal));
    }
    // The same where the bounds are what decides if a reference must rise, in one half of a warp's
    // rows or in the other.
    for rows in [8, 16, 24, 40, 128] {
        let last = Mask::window(Some(30), Some(3));
        cases.push(case(16, rows, 201, last, 4.0 * SHARP, Normal));
        cases.push(case(2, rows, 400, Mask::FULL, SHARP, RisingScores));
    }
    cases.extend([
        case(16, 72, 320, Mask::window(Some(80), Some(5)), SHARP, Normal),
        case(16, 64, 384, Mask::CAUSAL, SHARP, Normal),
        case(16, 64, 768, Mask::FULL, 4.0 * SHARP, Normal),
        case(16, 192, 640, Mask::FULL, 8.0 * SHARP, Normal),
    ]);
    if is_persistent {
        // Blocks with many tiles of rows: with keys for one turn, for two, for many; where the next
        // tile is seen at once and where not, where a warpgroup has no rows in every other tile.
        cases.extend([
            case(48, 150, 100, Mask::FULL, 1.0, SmallIntegers),
            case(24, 150, 23, past, 1.0, Normal),
            case(24, 150, 300, Mask::CAUSAL, 1.0, Normal),
            case(12, 300, 300, Mask::CAUSAL, SHARP, Normal),
            case(12, 128, 900, Mask::FULL, SHARP, Normal),
        ]);
    }
    // A tile of rows before all keys, which has no K block.
    cases.push(case(2, 300, 23, past, 1.0, Normal));
    cases
}

/// Rows of each tensor lie otherwise, so that no stride can stand for another. Copies of 16 bytes
/// need multiples of 8 elements.
fn layouts(batch: usize, heads: usize, kv_heads: usize, rows: usize, keys: usize, head_dim: usize) -> [Layout; 4] {
    let dense = |seq, heads| [batch, seq, heads, head_dim];
    let apart = |shape: [usize; 4], gap: usize| {
        let [_, s, h, d] = shape;
        let (seq, head) = (d + gap, s * (d + gap) + gap);
        Layout {
            shape,
            strides: [(h * head + gap) as i64, seq as i64, head as i64, 1],
        }
    };
    [
        Layout::bshd(dense(rows, heads)),
        apart(dense(keys, kv_heads), 8),
        apart(dense(keys, kv_heads), 16),
        apart(dense(rows, heads), 24),
    ]
}

/// What became of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Refused before it ran: the launch proof, or the simulator does not know such an instruction.
    Refused,
    /// A finding.
    Found,
    /// No finding, but a wrong output, or one that depends on the schedule.
    Wrong,
    /// Nothing showed it.
    Survived,
}

impl Subject {
    /// Plans of all problems, which share a kernel.
    pub(crate) fn plans(&self) -> Result<Vec<(Plan, CheckOptions)>, Box<dyn std::error::Error>> {
        let config = self.kernel.parse()?;
        let mut plans: Vec<(Plan, CheckOptions)> = Vec::new();
        for (i, case) in cases(self.target == Target::Sm90a).into_iter().enumerate() {
            // Few SMs make the lists of tiles of persistent kernels longer.
            let (target, sms) = (self.target, 3);
            let plan = Plan::new(&self.problem(&case, i % 3 == 1)?, &config, Chip { target, sms })?;
            let mut options = CheckOptions {
                inputs: case.inputs,
                ..CheckOptions::default()
            };
            options.sim.max_instructions = MAX_INSTRUCTIONS;
            plans.push((plan, options));
        }
        Ok(plans)
    }

    fn problem(&self, case: &Case, apart: bool) -> Result<Problem, ProblemError> {
        let (heads, kv_heads, rows, keys) = (case.heads, case.heads / 2, case.rows, case.keys);
        // Two sequences where problems are small.
        let batch = if heads <= 6 && keys <= 400 { 2 } else { 1 };
        let builder = Problem::builder().batch(batch).heads(heads, kv_heads);
        let builder = builder.seq_len_q(rows).seq_len_kv(keys).head_dim(self.head_dim);
        let builder = builder.dtype(self.dtype).mask(case.mask);
        let builder = builder.softmax_scale(case.scale * Problem::default_scale(self.head_dim));
        let [q, k, v, o] = layouts(batch, heads, kv_heads, rows, keys, self.head_dim);
        if apart {
            builder.layouts(q, k, v, o).build()
        } else {
            builder.build()
        }
    }
}

/// `count` of a kernel's mutations: each time an operator is drawn, then a place of those it has
/// left.
pub(crate) fn sample(kernel: &Kernel, count: usize, seed: u64) -> Vec<Mutation> {
    let mut by_operator: BTreeMap<Operator, Vec<Mutation>> = BTreeMap::new();
    for mutation in mutations(kernel) {
        by_operator.entry(mutation.operator).or_default().push(mutation);
    }
    let mut rng = Rng::new(seed);
    let mut drawn = Vec::new();
    while drawn.len() < count && !by_operator.is_empty() {
        let operators: Vec<Operator> = by_operator.keys().copied().collect();
        let operator = operators[rng.below(operators.len())];
        if let Some(places) = by_operator.get_mut(&operator) {
            drawn.push(places.swap_remove(rng.below(places.len())));
            if places.is_empty() {
                by_operator.remove(&operator);
            }
        }
    }
    drawn
}

/// Where a mistake is planted, as text: the kernel's line, then the verbs that it calls.
pub(crate) fn place(mutation: &Mutation, kernel: &Kernel) -> String {
    let backtrace = kernel.backtrace(mutation.site);
    let verbs: Vec<&str> = backtrace.iter().filter_map(|(_, verb)| *verb).collect();
    let quoted = source::quote(mutation.line.file, mutation.line.line).unwrap_or_default();
    format!("{}; {}", quoted.trim(), verbs.join(", "))
}

/// Runs a kernel with a mistake on one problem after another until one shows it.
pub(crate) fn fate(mutation: &Mutation, plans: &[(Plan, CheckOptions)]) -> Fate {
    for (plan, options) in plans {
        let mut mutant = plan.clone();
        mutant.main.kernel = Arc::new(mutation.apply(&plan.main.kernel));
        match check_plan(&mutant, options).map(|report| report.verdict) {
            Ok(Verdict::Clean) => {}
            Err(_) | Ok(Verdict::Refused) => return Fate::Refused,
            Ok(Verdict::Findings) => return Fate::Found,
            Ok(Verdict::Wrong) => return Fate::Wrong,
        }
    }
    Fate::Survived
}
