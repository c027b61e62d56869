//! One kernel and its launch, and a cache of kernels.

use std::any::{Any, TypeId};
use std::sync::Arc;

use flashcore_ir::{BuildErrors, Kernel, Launch};

use crate::args::Built;
use crate::attention::params::Shape;
use crate::{Recent, Refusal};

/// Kernels that are kept. Problems of one model need two or three.
const RECENT_KERNELS: usize = 64;

/// Everything that is baked into a kernel: the code that builds it, and what that builds it from. Lengths, strides,
/// mask and scale are not in it: they are arguments.
#[derive(Debug)]
struct Identity {
    build: TypeId,
    key: Box<dyn Any + Send + Sync>,
    shape: Shape,
}

/// The 64 kernels used last, by what is baked into them.
///
/// ```
/// use flashcore_ir::Target;
/// use flashcore_kernels::{KernelCache, Plan};
/// use flashcore_problem::Problem;
/// use std::sync::Arc;
/// let (kernels, config) = (KernelCache::default(), "scalar/tiled-m32n32-w4-v16".parse()?);
/// let (short, long) = (Problem::named("small")?, Problem::builder().heads(2, 2).seq_len(4000).head_dim(64).build()?);
/// let kernel = |problem| Plan::with_cache(problem, &config, Target::Sm89, &kernels).map(|plan| plan.main.kernel);
/// assert!(Arc::ptr_eq(&kernel(&short)?, &kernel(&long)?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KernelCache(Recent<Identity, Arc<dyn Any + Send + Sync>>);

impl Default for KernelCache {
    fn default() -> KernelCache {
        KernelCache(Recent::new(RECENT_KERNELS))
    }
}

impl KernelCache {
    /// The kernel that `build` makes of a key, such as a config, and a shape. `build` captures nothing, and each
    /// closure has its own type, so kernels of one identity have the same code, and serve the same requests.
    pub(crate) fn get_or_build<K, R, F>(&self, key: K, shape: Shape, build: F) -> Result<Arc<Built<R>>, Refusal>
    where
        K: Copy + PartialEq + Send + Sync + 'static,
        R: 'static,
        F: Fn(K, &Shape) -> Result<Built<R>, BuildErrors> + 'static,
    {
        const {
            assert!(
                size_of::<F>() == 0,
                "what a kernel is built from is its key and its shape"
            )
        };
        let code = TypeId::of::<F>();
        let is = |other: &Identity| {
            other.build == code && other.shape == shape && other.key.downcast_ref::<K>() == Some(&key)
        };
        let kernel = self.0.get_or_make(is, || {
            let kernel: Arc<dyn Any + Send + Sync> = Arc::new(build(key, &shape)?);
            let (build, key) = (code, Box::new(key));
            Ok::<_, Refusal>((Identity { build, key, shape }, kernel))
        })?;
        Ok(kernel.downcast().expect("code builds kernels for one kind of request"))
    }
}

/// A kernel and everything it takes to run it.
#[derive(Clone, Debug)]
pub struct Step {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// Its launch, with the buffers that it uses. A buffer's name (`q`, `k`, `v`, `out`, `lse`,
    /// `workspace`) means the same memory in every step of a plan.
    pub launch: Launch,
}

/// The steps of a plan.
pub(crate) struct Steps {
    pub before: Vec<Step>,
    pub main: Step,
    pub then: Vec<Step>,
}

impl Steps {
    /// A plan of one step.
    pub(crate) fn alone(main: Step) -> Steps {
        let (before, then) = (Vec::new(), Vec::new());
        Steps { before, main, then }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use flashcore_ir::Target;
    use flashcore_ir::proof::prove_launch;
    use flashcore_problem::rng::Rng;
    use flashcore_problem::{DType, Layout, Mask, Problem, ProblemBuilder};

    use super::*;
    use crate::attention::scheduler::tests::LISTS;
    use crate::{Config, Plan, select};

    /// What has no part in a kernel, drawn anew.
    fn with_arguments(builder: ProblemBuilder, rng: &mut Rng) -> ProblemBuilder {
        let (kv_heads, group) = (rng.between(1, 4), rng.between(1, 4));
        let masks = [
            Mask::FULL,
            Mask::CAUSAL,
            Mask::CAUSAL.top_left(),
            Mask::window(Some(70), Some(9)),
        ];
        let builder = builder.batch(rng.between(1, 3)).heads(kv_heads * group, kv_heads);
        let builder = builder.seq_len_q(rng.between(1, 700)).seq_len_kv(rng.between(1, 3000));
        let builder = builder
            .offsets(rng.below(50) as i32, rng.below(50) as i32)
            .softmax_scale(0.01 + rng.unit());
        let layout = [Layout::bshd, Layout::bhsd][rng.below(2)];
        builder.mask(masks[rng.below(masks.len())]).layout(layout)
    }

    #[test]
    fn kernels_of_one_identity_have_the_same_ptx() {
        let (mut rng, cache) = (Rng::new(17), KernelCache::default());
        let ids = [
            "wgmma/m128n64-s2-pingpong-spec",
            "wgmma/m128n64-s2-pingpong-spec-k3",
            "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa-k2",
            "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa-k40",
            "scalar/tiled-m32n32-w4-v16",
            "ladder/mma-m64n64-w4",
        ];
        let (mut found, mut built) = (0, HashSet::new());
        for _ in 0..120 {
            let dtype = [DType::F16, DType::BF16, DType::E4M3][rng.below(3)];
            let builder = Problem::builder()
                .head_dim(64)
                .head_dim_v([64, 32][rng.below(2)])
                .dtype(dtype);
            let builder = if rng.chance(0.3) {
                builder.softcap(20.0 + rng.unit())
            } else {
                builder
            };
            let problem = with_arguments(builder.return_lse(rng.chance(0.3)), &mut rng)
                .build()
                .unwrap();
            let config: Config = ids[rng.below(ids.len())].parse().unwrap();
            let Ok(plan) = Plan::with_cache(&problem, &config, Target::Sm90a, &cache) else {
                continue;
            };
            let fresh = Plan::new(&problem, &config, Target::Sm90a).unwrap();
            for (step, fresh) in plan.steps().zip(fresh.steps()) {
                found += usize::from(!built.insert(Arc::as_ptr(&step.kernel)));
                assert!(
                    step.kernel.to_ptx() == fresh.kernel.to_ptx(),
                    "{} for {problem} by {config}",
                    fresh.kernel
                );
                assert_eq!(step.launch, fresh.launch);
                assert_eq!(prove_launch(&step.kernel, &step.launch, Target::Sm90a, None), []);
            }
        }
        assert!(
            found > 40 && built.len() > 20,
            "{found} were found, {} built",
            built.len()
        );
    }

    /// Were one of these not in the identity, a kernel of other code would be found.
    #[test]
    fn what_is_baked_in_tells_kernels_apart() {
        let base = || Problem::builder().heads(2, 2).head_dim(64).seq_len(500);
        let cache = KernelCache::default();
        for (id, others) in [
            (
                "mma/m64n64-w4x1-s2-b1-qreg-xor-cond",
                [
                    "mma/m64n64-w4x1-s2-b1-qreg-xor-cond-k2",
                    "mma/m64n32-w4x1-s2-b1-qreg-xor-cond",
                ],
            ),
            (
                "wgmma/m128n64-s2-pingpong-spec",
                ["wgmma/m128n64-s2-pingpong-spec-k2", "wgmma/m128n64-s2-pingpong-cond"],
            ),
        ] {
            let kernel = |builder: ProblemBuilder, id: &str| {
                let (problem, config) = (builder.build().unwrap(), id.parse().unwrap());
                Plan::with_cache(&problem, &config, Target::Sm90a, &cache)
                    .unwrap()
                    .main
                    .kernel
            };
            let problems = [
                base(),
                base().return_lse(true),
                base().softcap(30.0),
                base().dtype(DType::BF16),
                base().head_dim(80),
                base().head_dim_v(32),
            ];
            let mut kernels: Vec<_> = problems.into_iter().map(|problem| kernel(problem, id)).collect();
            kernels.extend(others.map(|id| kernel(base(), id)));
            let texts: HashSet<String> = kernels
                .iter()
                .map(|kernel| kernel.to_ptx().replace(kernel.name(), ""))
                .collect();
            assert_eq!(texts.len(), kernels.len());
        }
    }

    /// A new length builds no kernel, and at most the one list that its launch has.
    #[test]
    fn new_lengths_build_nothing_but_their_launches() {
        let cache = KernelCache::default();
        let mut built = HashSet::new();
        let decode = (3000..3400).map(|keys| (1, keys));
        let prefill = (0..100).map(|i| (100 + 81 * i, 100 + 81 * i));
        for (rows, keys) in decode.chain(prefill) {
            let problem = Problem::builder().heads(32, 8).seq_len_q(rows).seq_len_kv(keys);
            let problem = problem.head_dim(128).mask(Mask::CAUSAL).build().unwrap();
            LISTS.set(0);
            let plan = select(&problem, Target::Sm90a, 16, &cache).unwrap().plan;
            assert_eq!(LISTS.get(), plan.main.launch.tables().count(), "{problem}");
            built.extend(plan.steps().map(|step| Arc::as_ptr(&step.kernel)));
        }
        assert!(built.len() <= 16, "{} kernels", built.len());
    }
}
