//! Mistakes planted in family `mma`: every barrier, wait, stage, swizzle, operand and accumulator matters, and a
//! mistake in any of them is found; the kernels as they are, are clean.
//!
//! `FLASHCORE_EVERY` says that every Nth mistake is planted (8), from the one that `FLASHCORE_SEED` says (0).
//! With 1 all are, which takes minutes, and each mistake held to be harmless must have been so somewhere.

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::Plan;
use flashcore_problem::{InputKind, Mask, Problem};
use flashcore_sim::FindingKind::{BarrierMismatch, MissingLanes, MissingWait, OutOfBounds, Race};

use crate::common::number;
use crate::planted::{Fault, check_with, find_all_with, place, quoted};

/// Factor on the usual scale with which scores of normal inputs differ so much that references rise by more than
/// probabilities can hold, in one row and not in the next.
const SHARP: f32 = 20.0;

/// A kernel to plant mistakes in, and where one is none.
struct Case {
    kernel: &'static str,
    head_dim: usize,
    harmless: &'static [Harmless],
}

/// Mistakes that are none in a kernel: what they break, it does not need.
struct Harmless {
    operator: Operator,
    /// Text of the line, or the verb that it calls.
    place: &'static str,
    why: &'static str,
}

const fn harmless(operator: Operator, place: &'static str, why: &'static str) -> Harmless {
    Harmless { operator, place, why }
}

const LAST_WAIT: &str = "k.cp_async_wait(0);";
const Q_COMMIT: &str = "block.copy_q(";
const PLACE: &str = "WarpPlace::new(";

const SAME_IN_EVERY_LANE: Harmless = harmless(
    Operator::DropExchange,
    PLACE,
    "the warp's number is the same in every lane; the exchange only tells the compiler",
);
const NOTHING_ON_ITS_WAY: &str = "whatever was copied, has been waited for: by then only empty groups are open";
const PADDING: &str = "columns past head_dim: zeros that nobody stores";

/// Together: both places of Q, one and more warps along the keys, odd and even rings, each rule of rescaling, head
/// sizes with and without padding.
#[rustfmt::skip]
const CASES: [Case; 4] = [
    Case { kernel: "mma/m32n32-w2x1-s3-b1-qreg-xor-cond", head_dim: 64, harmless: &[
        SAME_IN_EVERY_LANE,
    ] },
    Case { kernel: "mma/m16n64-w1x2-s2-b1-qsh-xor-always", head_dim: 64, harmless: &[
        SAME_IN_EVERY_LANE,
        harmless(Operator::DropWait, LAST_WAIT, NOTHING_ON_ITS_WAY),
        harmless(Operator::WeakenWait, LAST_WAIT, NOTHING_ON_ITS_WAY),
        harmless(Operator::DropCommit, Q_COMMIT, "Q is waited for with the first tile"),
    ] },
    Case { kernel: "mma/m32n32-w2x1-s2-b1-qreg-xor-spec-gqa", head_dim: 40, harmless: &[
        SAME_IN_EVERY_LANE,
        harmless(Operator::CountBarrier, "epilogue.store(", "a warp stores the rows that it computed"),
        harmless(Operator::DropStore, "epilogue.store(", PADDING),
        harmless(Operator::NextColumns, "O += P*V", PADDING),
        harmless(Operator::DropRescale, "raise_maxima", PADDING),
    ] },
    Case { kernel: "mma/m64n32-w2x1-s2-b1-qsh-xor-spec", head_dim: 32, harmless: &[
        SAME_IN_EVERY_LANE,
        harmless(Operator::WeakenWait, LAST_WAIT, "the newest group has no copies in it"),
        harmless(Operator::DropCommit, Q_COMMIT, "Q is waited for with the first tile"),
    ] },
];

impl Case {
    /// Plans on problems that each mistake shows on at least one of: tails of rows, keys and columns, masked and
    /// whole tiles, bounds of windows at every column of a tile, references that must rise, row by row.
    fn plans(&self) -> Vec<(Plan, CheckOptions)> {
        let (wide, last) = (Mask::window(Some(40), Some(3)), Mask::window(Some(30), Some(3)));
        let past = Mask::window(Some(5), Some(3));
        [
            (45, 150, Mask::CAUSAL, 1.0, InputKind::Normal),
            (70, 197, Mask::FULL, 1.0, InputKind::RisingScores),
            (64, 256, Mask::FULL, SHARP, InputKind::Normal),
            // Fewer keys than a tile; tiles of rows that see nothing, before all keys and after them.
            (130, 23, past, 1.0, InputKind::NegativeScores),
            (130, 23, past.top_left(), 1.0, InputKind::Normal),
            (64, 160, wide, 1.0, InputKind::Normal),
            (72, 160, wide, 1.0, InputKind::SmallIntegers),
            (80, 160, wide, 1.0, InputKind::Normal),
            (88, 160, wide, 1.0, InputKind::Normal),
            (72, 160, wide, SHARP, InputKind::Normal),
            (80, 160, wide, SHARP, InputKind::Normal),
            // The last eight rows alone see the last tile: any of four row halves of a warp, or of two where a query
            // is two rows. All tiles are masked.
            (8, 101, last, 4.0 * SHARP, InputKind::Normal),
            (16, 101, last, 4.0 * SHARP, InputKind::Normal),
            (24, 101, last, 4.0 * SHARP, InputKind::Normal),
            (32, 101, last, 4.0 * SHARP, InputKind::Normal),
            (4, 97, last, 4.0 * SHARP, InputKind::Normal),
            (8, 97, last, 4.0 * SHARP, InputKind::Normal),
            (64, 384, Mask::CAUSAL, SHARP, InputKind::Normal),
            (64, 768, Mask::FULL, SHARP, InputKind::Normal),
            // Rows on both sides of the limit of scores.
            (64, 96, Mask::FULL, 64.0, InputKind::OneHot),
        ]
        .into_iter()
        .map(|(q, kv, mask, scale, inputs)| {
            // Many rows, where it takes luck that one rises and its neighbours do not.
            let heads = if scale > 1.0 { 16 } else { 4 };
            let builder = Problem::builder().heads(heads, heads / 2).seq_len_q(q).seq_len_kv(kv);
            let builder = builder.head_dim(self.head_dim).mask(mask).return_lse(true);
            let builder = builder.softmax_scale(scale * Problem::default_scale(self.head_dim));
            let plan = Plan::new(&builder.build().unwrap(), &self.kernel.parse().unwrap(), Target::Sm80).unwrap();
            let options = CheckOptions {
                inputs,
                ..CheckOptions::default()
            };
            (plan, options)
        })
        .collect()
    }
}

/// Mistakes that must be found wherever they are planted.
const EVERYWHERE: [Operator; 18] = [
    Operator::DropBarrier,
    Operator::CountBarrier,
    Operator::DropWait,
    Operator::WeakenWait,
    Operator::DropCommit,
    Operator::DropStore,
    Operator::NextAccess,
    Operator::DropStep,
    Operator::HalfWarp,
    Operator::ShrinkBuffer,
    Operator::DropSwizzle,
    Operator::FlipTranspose,
    Operator::NextColumns,
    Operator::DropRescale,
    Operator::RaiseThreshold,
    Operator::HalfMask,
    Operator::VoteAll,
    Operator::DropExchange,
];

/// Whether each such mistake must be found, wherever it is planted. The rest of the operators change how indices
/// and bounds are worked out, where much is cut off again elsewhere; `flashcore-tools mutation` samples all of them.
fn must_be_found(mutation: &Mutation) -> bool {
    let line = quoted(mutation.line);
    // Exchanges among lanes are meant, not votes and barriers of warps.
    let shuffles = mutation.what.starts_with("shfl");
    match mutation.operator {
        Operator::BoundOne | Operator::Unmask => line.contains("warp.mask("),
        Operator::StrideSixteen | Operator::DropRemainder => line.contains("_place.at(self.ring."),
        Operator::HalfWarp | Operator::DropExchange => shuffles,
        operator => EVERYWHERE.contains(&operator),
    }
}

fn is_found(mutation: &Mutation, plans: &[(Plan, CheckOptions)]) -> bool {
    plans.iter().any(|(plan, options)| {
        let kernel = mutation.apply(&plan.main.kernel);
        check_with(plan, kernel, plan.main.launch.clone(), options).verdict != Verdict::Clean
    })
}

/// Plants mistakes that must be found, and asserts that they are.
fn assert_all_found(case: &Case) {
    let plans = case.plans();
    let kernel = &plans[0].0.main.kernel;
    let every = number("FLASHCORE_EVERY", 8).max(1) as usize;
    let planted: Vec<Mutation> = mutations(kernel)
        .into_iter()
        .filter(must_be_found)
        .skip(number("FLASHCORE_SEED", 0) as usize % every)
        .step_by(every)
        .collect();
    let mut excused = vec![false; case.harmless.len()];
    let mut survivors = Vec::new();
    for mutation in planted.iter().filter(|mutation| !is_found(mutation, &plans)) {
        let place = place(mutation, kernel);
        let excuse = |h: &Harmless| h.operator == mutation.operator && place.contains(h.place);
        match case.harmless.iter().position(excuse) {
            Some(index) => excused[index] = true,
            None => survivors.push(format!("{mutation}: {place}")),
        }
    }
    println!(
        "{}: {} mistakes, {} not found",
        case.kernel,
        planted.len(),
        survivors.len()
    );
    assert!(survivors.is_empty(), "{}:\n{}", case.kernel, survivors.join("\n"));
    for (harmless, excused) in case.harmless.iter().zip(excused) {
        assert!(
            excused || every > 1,
            "{}: {} is always found; not so: {}",
            case.kernel,
            harmless.operator,
            harmless.why
        );
    }
}

#[test]
fn mistakes_with_q_in_registers_and_three_stages_are_found() {
    assert_all_found(&CASES[0]);
}

#[test]
fn mistakes_with_warps_along_the_keys_are_found() {
    assert_all_found(&CASES[1]);
}

#[test]
fn mistakes_with_bold_rescaling_and_padding_are_found() {
    assert_all_found(&CASES[2]);
}

#[test]
fn mistakes_with_two_blocks_of_rows_a_warp_are_found() {
    assert_all_found(&CASES[3]);
}

/// On the first problem of each under many schedules, on the others under a few: what is found does not depend on them.
#[test]
fn the_kernels_as_they_are_are_clean_over_20_schedules() {
    for case in CASES {
        for (i, (plan, options)) in case.plans().into_iter().enumerate() {
            let schedules = if i == 0 { 20 } else { 2 };
            let report = check_plan(&plan, &CheckOptions { schedules, ..options }).unwrap();
            assert_eq!(report.verdict, Verdict::Clean, "{}\n{report}", case.kernel);
            assert_eq!(report.schedules.len(), schedules as usize);
        }
    }
}

#[rustfmt::skip]
const PLANTED: &[Fault] = &[
    Fault { name: "no barrier: a tile is read before all of it has arrived", operator: Operator::DropBarrier,
        place: "ring.wait();", object: "", found: Some(MissingWait), at: "warp.scores(", of: "k_tile" },
    Fault { name: "no barrier: a stage is refilled while another warp reads it", operator: Operator::DropBarrier,
        place: "ring.wait();", object: "", found: Some(Race), at: "ring.refill(", of: "k_tile" },
    Fault { name: "barrier count: one warp of two", operator: Operator::CountBarrier,
        place: "ring.wait();", object: "", found: Some(BarrierMismatch), at: "ring.wait();", of: "" },
    Fault { name: "no wait for the copies", operator: Operator::DropWait,
        place: "ring.wait();", object: "", found: Some(MissingWait), at: "warp.scores(", of: "k_tile" },
    Fault { name: "a wait for one group too few", operator: Operator::WeakenWait,
        place: "ring.wait();", object: "", found: Some(MissingWait), at: "warp.scores(", of: "k_tile" },
    Fault { name: "a ring of one stage: the tile being read is overwritten", operator: Operator::DropRemainder,
        place: "ring.refill(", object: "", found: Some(Race), at: "ring.refill(", of: "k_tile" },
    Fault { name: "an ldmatrix row past the tile", operator: Operator::ShrinkBuffer,
        place: "let v_tile", object: "v_tile", found: Some(OutOfBounds), at: "ring.refill(", of: "v_tile" },
    Fault { name: "rows of K past its end are read", operator: Operator::Unmask,
        place: "ring.refill(", object: "", found: Some(OutOfBounds), at: "ring.refill(", of: "k" },
    Fault { name: "half a warp's mask in a full warp's exchange", operator: Operator::HalfWarp,
        place: "self.raise_maxima(", object: "", found: Some(MissingLanes), at: "self.raise_maxima(", of: "" },
];

#[test]
fn planted_mistakes_are_found_with_kind_and_line() {
    let (plan, options) = CASES[3].plans().remove(0);
    find_all_with(&plan, PLANTED, &options);
}
