//! Problems for kernels of the user, which serve less than ours do.

use flashcore::{DType, Mask, Problem};
use flashcore_problem::rng::Rng;
use flashcore_testkit::{RandomLimits, random_problem};

/// Problems that are drawn for one that is served.
const TRIES: usize = 4000;

/// A random problem that is served: one of all that ours serve, or a plain one, which most kernels are written for:
/// dense tensors, full or causal. `None` if none of 4,000 is.
///
/// ```
/// use flashcore_bench::parity::problem_served;
/// let problem = problem_served(1, &|problem| problem.head_dim() == 64 && problem.num_heads() == 2).unwrap();
/// assert_eq!((problem.head_dim(), problem.num_heads()), (64, 2));
/// assert!(problem_served(1, &|_| false).is_none());
/// ```
pub fn problem_served(seed: u64, serves: &dyn Fn(&Problem) -> bool) -> Option<Problem> {
    let limits = RandomLimits {
        dtypes: &[DType::F16, DType::BF16],
        max_work: 20_000_000,
        ..RandomLimits::default()
    };
    let mut rng = Rng::stream(seed, 11);
    let mut drawn = (0..TRIES).filter_map(|_| {
        if rng.chance(0.25) {
            random_problem(rng.next_u64(), &limits).ok()
        } else {
            plain(&mut rng)
        }
    });
    drawn.find(serves)
}

fn plain(rng: &mut Rng) -> Option<Problem> {
    let (kv_heads, group) = (rng.between(1, 4), [1, 1, 2, 4][rng.below(4)]);
    let seq_kv = rng.between(1, 400);
    let seq_q = if rng.chance(0.5) { seq_kv } else { rng.between(1, 400) };
    let problem = Problem::builder()
        .batch(rng.between(1, 3))
        .heads(kv_heads * group, kv_heads)
        .seq_len_q(seq_q)
        .seq_len_kv(seq_kv)
        .head_dim([32, 64, 64, 128, 96, 256][rng.below(6)])
        .dtype([DType::F16, DType::BF16][rng.below(2)])
        .mask([Mask::FULL, Mask::CAUSAL][rng.below(2)]);
    problem.build().ok()
}
