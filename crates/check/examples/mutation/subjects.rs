//! The kernels that mistakes are planted in, the problems that are to show them, and the verdict on each.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan, source};
use flashcore_ir::{Kernel, Target};
use flashcore_kernels::Plan;
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, Layout, Mask, Problem, ProblemError};
use serde::Serialize;

/// Instructions after which a warp counts as caught in a loop: several times those of the longest problem here.
const MAX_INSTRUCTIONS: u64 = 300_000;

/// Factor on the usual scale with which scores of normal inputs differ so much that references rise by more than
/// probabilities can hold, in one row and not in the next.
const SHARP: f32 = 20.0;

/// A kernel to plant mistakes in.
pub(crate) struct Subject {
    /// What it stands for.
    pub(crate) name: &'static str,
    pub(crate) kernel: &'static str,
    pub(crate) target: Target,
    pub(crate) dtype: DType,
    /// Whether blocks are persistent, so that it takes more tiles than an H200 has SMs for a block to have several.
    persistent: bool,
}

/// The default of the mission on the card that `flashcore check` takes, the default for f32, and a default of Hopper's.
pub(crate) const SUBJECTS: [Subject; 3] = [
    Subject {
        name: "mma, the mission's default on an L4",
        kernel: "mma/m128n64-w4x1-s2-b1-qreg-xor-bold",
        target: Target::Sm89,
        dtype: DType::F16,
        persistent: false,
    },
    Subject {
        name: "tiled, the mission's default in f32",
        kernel: "scalar/tiled-m32n32-w8-v16",
        target: Target::Sm89,
        dtype: DType::F32,
        persistent: false,
    },
    Subject {
        name: "wgmma, a causal default of head_dim 64 on an H200",
        kernel: "wgmma/m128n128-s3-turns-bold",
        target: Target::Sm90a,
        dtype: DType::F16,
        persistent: true,
    },
];

/// Query heads, heads of K and V, rows, keys, mask, factor on the scale, inputs.
type Case = (usize, usize, usize, usize, Mask, f32, InputKind);

/// Together: tails of rows and keys, whole tiles, grouped heads, masked and whole tiles of keys, bounds of windows at
/// many columns of a tile, rows that see nothing, references that must rise, row by row.
fn cases(persistent: bool) -> Vec<Case> {
    use InputKind::{EqualRows, Extremes, HugeLogit, NegativeScores, Normal, RisingScores, SmallIntegers};
    let (wide, last) = (Mask::window(Some(80), Some(5)), Mask::window(Some(30), Some(3)));
    let past = Mask::window(Some(5), Some(3));
    let mut cases = vec![
        (4, 2, 45, 150, Mask::CAUSAL, 1.0, Normal),
        (4, 2, 130, 200, Mask::FULL, 1.0, SmallIntegers),
        (2, 1, 70, 197, Mask::FULL, 1.0, RisingScores),
        // Fewer keys than a tile; tiles of rows that see nothing, before all keys and after them.
        (4, 2, 150, 23, past, 1.0, NegativeScores),
        (4, 2, 150, 23, past.top_left(), 1.0, Normal),
        (2, 2, 128, 64, Mask::FULL, 1.0, Normal),
        (6, 2, 256, 256, Mask::CAUSAL, 1.0, SmallIntegers),
        (2, 2, 64, 320, wide, 1.0, Normal),
        (2, 2, 72, 320, wide, 1.0, SmallIntegers),
        (2, 2, 81, 320, wide, 1.0, Normal),
        (4, 2, 200, 200, Mask::CAUSAL.top_left(), 1.0, Extremes),
        (2, 1, 100, 300, Mask::FULL, 1.0, HugeLogit),
        (2, 1, 130, 130, Mask::CAUSAL, 1.0, EqualRows),
        (16, 8, 72, 320, wide, SHARP, Normal),
        (16, 8, 8, 201, last, 4.0 * SHARP, Normal),
        (16, 8, 24, 197, last, 4.0 * SHARP, Normal),
        (16, 8, 64, 384, Mask::CAUSAL, SHARP, Normal),
        (16, 8, 64, 768, Mask::FULL, SHARP, Normal),
        (16, 8, 192, 512, Mask::FULL, 2.0 * SHARP, Normal),
    ];
    if persistent {
        cases.extend([
            (90, 45, 150, 23, past, 1.0, Normal),
            (90, 45, 150, 140, Mask::CAUSAL, 1.0, SmallIntegers),
            (60, 30, 300, 300, Mask::CAUSAL, SHARP, Normal),
        ]);
    }
    cases
}

/// Rows of each tensor lie otherwise, so that no stride can stand for another. Copies of 16 bytes need multiples of 8
/// elements.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "by", content = "how")]
pub(crate) enum Fate {
    /// Refused before it ran: the launch proof, or the simulator does not know such an instruction.
    Refused(String),
    /// A finding, by its kind.
    Found(String),
    /// No finding, but a wrong answer, or another one under another schedule.
    Wrong,
    /// Nothing showed it.
    Survived,
}

impl Subject {
    const HEAD_DIM: usize = 64;

    /// Plans of all problems, which share a kernel.
    pub(crate) fn plans(&self) -> Result<Vec<(Plan, CheckOptions)>, Box<dyn std::error::Error>> {
        let config = self.kernel.parse()?;
        let mut plans: Vec<(Plan, CheckOptions)> = Vec::new();
        for (i, case) in cases(self.persistent).into_iter().enumerate() {
            let inputs = case.6;
            let plan = Plan::new(&self.problem(case, i % 3 == 1)?, &config, self.target)?;
            let options = CheckOptions {
                inputs,
                max_instructions: MAX_INSTRUCTIONS,
                ..CheckOptions::default()
            };
            plans.push((plan, options));
        }
        Ok(plans)
    }

    fn problem(&self, case: Case, apart: bool) -> Result<Problem, ProblemError> {
        let (heads, kv_heads, rows, keys, mask, scale, _) = case;
        // Two sequences where problems are small.
        let batch = if heads <= 6 { 2 } else { 1 };
        let builder = Problem::builder().batch(batch).heads(heads, kv_heads);
        let builder = builder.seq_len_q(rows).seq_len_kv(keys).head_dim(Self::HEAD_DIM);
        let builder = builder.dtype(self.dtype).mask(mask);
        let builder = builder.softmax_scale(scale * Problem::default_scale(Self::HEAD_DIM));
        let [q, k, v, o] = layouts(batch, heads, kv_heads, rows, keys, Self::HEAD_DIM);
        if apart {
            builder.layouts(q, k, v, o).build()
        } else {
            builder.build()
        }
    }
}

/// `count` of a kernel's mutations: each time an operator is drawn, then a place of those it has left.
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
pub(crate) fn fate(mutation: &Mutation, plans: &[(Plan, CheckOptions)]) -> (Fate, Option<usize>) {
    for (i, (plan, options)) in plans.iter().enumerate() {
        let mut mutant = plan.clone();
        mutant.main.kernel = Arc::new(mutation.apply(&plan.main.kernel));
        let fate = match check_plan(&mutant, options) {
            Err(error) => Fate::Refused(error.to_string()),
            Ok(report) => match report.verdict {
                Verdict::Clean => continue,
                Verdict::Refused => Fate::Refused(report.refusals[0].to_string()),
                Verdict::Findings => Fate::Found(report.findings[0].finding.kind.name().to_string()),
                Verdict::Wrong => Fate::Wrong,
            },
        };
        return (fate, Some(i));
    }
    (Fate::Survived, None)
}
