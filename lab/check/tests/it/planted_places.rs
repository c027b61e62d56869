//! Mistakes that stay clean on a small problem: each is found on a problem that reaches it, or harmless, with the
//! proof.

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckOptions, Verdict};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;
use flashcore_problem::{Mask, Problem};

use crate::planted::{check_with, place};

const MMA: &str = "mma/m128n64-w4x1-s2-b1-qreg-xor-spec";
const WGMMA: &str = "wgmma/m128n128-s3-pingpong-spec-qreg";

/// Of one sequence: heads, rows, keys, head size of Q and K and of V, mask.
type Shape = (usize, usize, usize, [usize; 2], Mask);

/// With fewer keys than rows, the first tiles of rows see no key, and have no K block.
const BEFORE_ALL_KEYS: Mask = Mask::window(Some(5), Some(3));

/// Checks a problem with the `number`th mistake of an operator, whose place contains a text. The card has few SMs, so
/// that a block of a persistent kernel computes many tiles.
fn verdict(id: &str, (operator, number): (Operator, usize), at: &str, shape: Shape) -> Verdict {
    let (heads, rows, keys, [head_dim, head_dim_v], mask) = shape;
    let builder = Problem::builder().heads(heads, heads).seq_len_q(rows).seq_len_kv(keys);
    let problem = builder
        .head_dim(head_dim)
        .head_dim_v(head_dim_v)
        .mask(mask)
        .build()
        .unwrap();
    let target = if id == MMA { Target::Sm89 } else { Target::Sm90a };
    let plan = Plan::new(&problem, &id.parse().unwrap(), Chip { target, sms: 3 }).unwrap();
    let kernel = &plan.main.kernel;
    let places = mutations(kernel).into_iter().filter(|m| m.operator == operator);
    let mistake = places.skip(number - 1).find(|m| place(m, kernel).contains(at)).unwrap();
    let mutant = mistake.apply(kernel);
    check_with(&plan, mutant, plan.main.launch.clone(), &CheckOptions::default()).verdict
}

/// A stage that was never used is free: the wait for it matters from the second use on. K has 3 stages and Q two
/// tiles a warpgroup, so that a block must compute several tiles of a K block each.
#[test]
fn a_wait_for_a_free_stage_is_found_where_a_stage_is_used_again() {
    let wait = |number| (Operator::DropPhaseWait, number);
    let few = (2, 64, 100, [64, 64], Mask::FULL);
    for (number, at, many) in [
        (1, "self.keys.tile", (4, 130, 200, [64, 64], Mask::FULL)),
        (2, "q.acquire()", (48, 150, 100, [64, 64], Mask::FULL)),
    ] {
        assert_eq!(verdict(WGMMA, wait(number), at, few), Verdict::Clean, "{number}");
        assert_eq!(verdict(WGMMA, wait(number), at, many), Verdict::Findings, "{number}");
    }
}

/// The leading offset is the distance of slabs. Where k runs along swizzled rows it has no meaning, since a step of k
/// is within a row of a slab (PTX ISA, "Strides of matrix descriptors": assumed 1): K, whatever the problem. Where k
/// runs along the columns, V, it has one as soon as the values have two slabs.
#[test]
fn a_distance_of_slabs_is_found_where_there_are_slabs() {
    let shape = |head_dim_v| (2, 150, 300, [64, head_dim_v], Mask::CAUSAL);
    let leading = (Operator::DescriptorLeading, 1);
    assert_eq!(verdict(WGMMA, leading, "S = Q*K", shape(64)), Verdict::Clean);
    assert_eq!(verdict(WGMMA, leading, "S = Q*K", shape(128)), Verdict::Clean);
    assert_eq!(verdict(WGMMA, leading, "O += P*V", shape(64)), Verdict::Clean);
    assert_eq!(verdict(WGMMA, leading, "O += P*V", shape(128)), Verdict::Findings);
}

/// The last barrier of `compute` is for the output tile, which reuses Q's: nothing may be written there before all
/// have read Q. With Q in registers that is done before the first K block, whose own barrier follows: the last one is
/// redundant where there is a K block, whatever the widths, and needed in a tile of rows without one.
#[test]
fn a_barrier_before_the_output_is_found_where_no_key_is_seen() {
    let barrier = (Operator::DropBarrier, 4);
    for dims in [[64, 64], [128, 32]] {
        for keys in [23, 200] {
            let clean = (4, 130, keys, dims, Mask::FULL);
            assert_eq!(
                verdict(MMA, barrier, "k.barrier();", clean),
                Verdict::Clean,
                "{clean:?}"
            );
        }
        let found = (4, 300, 23, dims, BEFORE_ALL_KEYS);
        assert_eq!(
            verdict(MMA, barrier, "k.barrier();", found),
            Verdict::Findings,
            "{found:?}"
        );
    }
}
