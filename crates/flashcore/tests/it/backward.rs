//! Gradients on the best device there is, against the float64 reference: on a machine with a GPU these are tests of its
//! kernels.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (24).

#[cfg(feature = "cuda")]
use flashcore::unstable::plans::{PlanSummary, Plans};
use flashcore::unstable::testing::{InputKind, Inputs, Tolerance, compare_gradient, reference_gradients};
use flashcore::{Attention, DType, Device, Gradients, Mask, Name, Options, Problem, ProblemBuilder, Tensor};
#[cfg(feature = "cuda")]
use flashcore_ir::Target;
use flashcore_problem::others_untouched;
#[cfg(feature = "cuda")]
use flashcore_problem::rng::Rng;
use flashcore_testkit::{RandomLimits, random_backward};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Poisoned gradients, and what computing them returns.
fn compute(attention: &Attention, problem: &Problem, inputs: &Inputs) -> Gradients<Tensor> {
    let layouts = problem.gradient_layouts().unwrap();
    let poisoned = |layout| Tensor::poisoned(problem.dtype(), layout);
    let [mut dq, mut dk, mut dv] = [layouts.dq, layouts.dk, layouts.dv].map(poisoned);
    let carried = inputs.carried(problem).unwrap();
    let operands = carried.operands().with_mut(Name::Dq, &mut dq);
    let operands = operands.with_mut(Name::Dk, &mut dk).with_mut(Name::Dv, &mut dv);
    attention.run(problem, operands).unwrap();
    Gradients { dq, dk, dv }
}

#[test]
fn gradients_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 24));
    let attention = Attention::new(Device::best()).unwrap();
    let mut most = [0f64; 3];
    for seed in first..first + count {
        let limits = RandomLimits {
            max_work: 3_000_000,
            lengths: seed % 2 == 1,
            head_dim_v: true,
            ..RandomLimits::default()
        };
        let problem = random_backward(seed, &limits).unwrap();
        let kind = match seed % 3 {
            0 => InputKind::ALL[seed as usize / 3 % InputKind::ALL.len()],
            _ => InputKind::Normal,
        };
        let inputs = Inputs::generate(&problem, kind, seed);
        let (got, want) = (
            compute(&attention, &problem, &inputs),
            reference_gradients(&problem, &inputs).unwrap(),
        );
        for (i, name) in Gradients::<()>::NAMES.into_iter().enumerate() {
            let (got, want) = (got.each()[i].view(), want.each()[i]);
            let rows = want.iter().map(|row| row.index);
            assert_eq!(others_untouched(&got, rows), Ok(()), "seed {seed}, {name} of {problem}");
            if want.is_empty() {
                continue;
            }
            let tolerance = Tolerance::of_gradient(problem.dtype());
            let found = compare_gradient(name, &got, want, tolerance).unwrap();
            assert!(found.passed, "seed {seed}, {kind}, {name} of {problem}: {found}");
            most[i] = most[i].max(found.of_allowed);
        }
    }
    println!(
        "{count} problems on {}: at most {most:.2?} of the allowed error",
        attention.device()
    );
}

/// Many heads: blocks of family `wgmma` prepare statistics of later heads. A plan for one SM makes most heads later
/// ones, and one for all SMs as many as there are in training.
#[cfg(feature = "cuda")]
#[test]
fn statistics_prepared_ahead_equal_float64() {
    let Some(device) = crate::gpu() else { return };
    let sms = device.context().unwrap().info().multiprocessors;
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 24));
    let mut of_later_heads = 0;
    for seed in first..first + count {
        let mut rng = Rng::new(seed);
        let window = Mask::window(Some(rng.between(0, 90) as u32), Some(rng.between(0, 90) as u32));
        let masks = [
            Mask::FULL,
            Mask::CAUSAL,
            Mask::CAUSAL.top_left(),
            window,
            window.top_left(),
        ];
        let mask = masks[rng.below(5)];
        let for_one_sm = seed % 4 > 0;
        // As many tiles of rows as of keys.
        let tiles = if for_one_sm { rng.between(1, 2) } else { 1 };
        let [rows, keys] = [(); 2].map(|()| rng.between((tiles - 1) * 128 + 1, tiles * 128));
        let (batch, heads) = if for_one_sm { (4, 8) } else { (25, 8) };
        let head_dims = [64, 48, 32, 8];
        let problem = Problem::builder()
            .batch(batch)
            .heads(heads, heads)
            .seq_len_q(rows)
            .seq_len_kv(keys)
            .head_dim(head_dims[rng.below(4)])
            .head_dim_v(head_dims[rng.below(4)])
            .dtype([DType::F16, DType::BF16][rng.below(2)])
            .mask(mask);
        let offset = if mask == Mask::FULL {
            0
        } else {
            rng.below(200) as i32 - 100
        };
        let problem = problem.offsets(offset, 0).build().unwrap().backward().unwrap();
        let options = Options {
            sm_margin: if for_one_sm { sms - 1 } else { 0 },
            ..Plans::none().into()
        };
        let attention = Attention::with(device.clone(), options).unwrap();
        if let PlanSummary::Gpu(choice) = attention.plan(&problem).unwrap() {
            of_later_heads += u64::from(choice.plan.main.kernel.name().contains("ahead"));
        }
        let inputs = Inputs::generate(&problem, InputKind::Normal, seed);
        let want = reference_gradients(&problem, &inputs).unwrap();
        // What a run before has left in the workspace is not taken for that of this one.
        for run in 0..3 {
            let got = compute(&attention, &problem, &inputs);
            for (i, name) in Gradients::<()>::NAMES.into_iter().enumerate() {
                let tolerance = Tolerance::of_gradient(problem.dtype());
                let found = compare_gradient(name, &got.each()[i].view(), want.each()[i], tolerance).unwrap();
                assert!(found.passed, "seed {seed}, run {run}, {name} of {problem}: {found}");
            }
        }
    }
    println!("{count} problems, {of_later_heads} with statistics prepared ahead");
    let is_hopper = device.context().unwrap().info().target() == Some(Target::Sm90a);
    assert!(of_later_heads == count || !is_hopper);
}

/// The same bits in 50 runs, of a problem that has a kernel without that promise.
#[test]
fn gradients_are_deterministic_where_asked() {
    let problem = Problem::builder()
        .batch(2)
        .heads(6, 2)
        .seq_len(193)
        .head_dim(64)
        .dtype(DType::BF16)
        .deterministic(true);
    let problem = problem.mask(Mask::CAUSAL).build().unwrap().backward().unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 5);
    let attention = Attention::new(Device::best()).unwrap();
    let bits = || {
        compute(&attention, &problem, &inputs)
            .each()
            .map(|tensor| tensor.bytes().to_vec())
    };
    let first = bits();
    assert!((1..50).all(|_| bits() == first));
}

fn builder() -> ProblemBuilder {
    Problem::builder().heads(4, 2).seq_len(40).head_dim(64).return_lse(true)
}

/// What the forward pass returns goes into the backward pass as it is.
#[test]
fn a_forward_pass_and_its_gradients() {
    let attention = Attention::new(Device::best()).unwrap();
    let problem = builder().dtype(DType::F32).softcap(8.0).build().unwrap();
    let backward = problem.backward().unwrap();
    let inputs = Inputs::generate(&backward, InputKind::Normal, 2);
    let dout = &inputs.saved.as_ref().unwrap().dout;
    let output = attention.forward(&problem, &inputs.q, &inputs.k, &inputs.v).unwrap();
    let got = attention
        .backward(&problem, &inputs.q, &inputs.k, &inputs.v, &output, dout)
        .unwrap();
    let want = reference_gradients(&backward, &inputs).unwrap();
    for (i, name) in Gradients::<()>::NAMES.into_iter().enumerate() {
        let (got, want) = (got.each()[i].view(), want.each()[i]);
        let found = compare_gradient(name, &got, want, Tolerance { atol: 1e-5, rtol: 1e-4 }).unwrap();
        assert!(found.passed, "{name}: {found}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let attention = Attention::new(Device::cpu()).unwrap();
    let inputs = Inputs::generate(&builder().build().unwrap(), InputKind::Normal, 2);
    let Inputs { q, k, v, .. } = &inputs;
    let error = |problem: &Problem, forward: &Problem, dout: &Tensor| {
        let output = attention.forward(forward, q, k, v).unwrap();
        attention
            .backward(problem, q, k, v, &output, dout)
            .unwrap_err()
            .to_string()
    };
    let problem = builder().build().unwrap();
    let without = builder().return_lse(false).build().unwrap();
    assert_eq!(
        error(&problem, &without, q),
        "lse was not given; call `.return_lse(true)` before `.build()`"
    );
    assert!(error(&problem, &problem, k).starts_with("dout has shape [1, 40, 2, 64]"));
    // A call of the other direction.
    let backward = problem.backward().unwrap();
    let forward = attention.forward(&backward, q, k, v).unwrap_err().to_string();
    assert!(
        forward.starts_with("the problem's direction is backward; this call takes forward"),
        "{forward}"
    );
    assert!(attention.plan(&backward).is_ok());
}
