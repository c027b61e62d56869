//! Gradients on the host against the float64 reference.

use flashcore_cpu::{CpuConfig, Options, SimdLevel, run};
use flashcore_problem::{
    DType, Gradients, InputKind, Inputs, KvLengths, Mask, Name, Operands, Problem, QLengths, Tensor, Tolerance, View,
    ViewMut, compare_gradient, others_untouched, reference_gradients,
};
use flashcore_testkit::{RandomLimits, random_backward};

fn compute(options: &Options<'_>, problem: &Problem, inputs: &Inputs) -> Gradients<Tensor> {
    let layouts = problem.gradient_layouts().unwrap();
    let [mut dq, mut dk, mut dv] =
        [layouts.dq, layouts.dk, layouts.dv].map(|layout| Tensor::poisoned(problem.dtype(), layout));
    let carried = inputs.carried(problem).unwrap();
    let operands = carried.operands().with_mut(Name::Dq, &mut dq);
    let operands = operands.with_mut(Name::Dk, &mut dk).with_mut(Name::Dv, &mut dv);
    run(options, problem, operands).unwrap();
    Gradients { dq, dk, dv }
}

/// Compares all gradients with the reference, and returns the largest share of what is allowed.
fn assert_right(options: &Options<'_>, problem: &Problem, kind: InputKind, seed: u64) -> f64 {
    let inputs = Inputs::generate(problem, kind, seed);
    let got = compute(options, problem, &inputs);
    let want = reference_gradients(problem, &inputs).unwrap();
    let tolerance = Tolerance::of_gradient(problem.dtype());
    let mut most = 0f64;
    for (i, name) in Gradients::<()>::NAMES.into_iter().enumerate() {
        let (got, want) = (got.each()[i].view(), want.each()[i]);
        others_untouched(&got, want.iter().map(|row| row.index))
            .unwrap_or_else(|written| panic!("seed {seed}, {name} of {problem}: {written}"));
        if want.is_empty() {
            continue;
        }
        let found = compare_gradient(name, &got, want, tolerance).unwrap();
        assert!(found.passed, "seed {seed}, {kind}, {name} of {problem}: {found}");
        most = most.max(found.of_allowed);
    }
    most
}

fn limits() -> RandomLimits {
    RandomLimits {
        max_work: 2_500_000,
        head_dim_v: true,
        ..RandomLimits::default()
    }
}

#[test]
fn random_problems() {
    let mut most = 0f64;
    for seed in 0..112 {
        let limits = RandomLimits {
            lengths: seed % 2 == 1,
            max_batch: 4,
            ..limits()
        };
        let problem = random_backward(seed, &limits).unwrap();
        let kind = match seed % 4 {
            0 => InputKind::ALL[seed as usize / 4 % InputKind::ALL.len()],
            _ => InputKind::Normal,
        };
        most = most.max(assert_right(&Options::default(), &problem, kind, seed));
    }
    println!("at most {most:.2} of the allowed error");
    assert!(most > 0.05, "a tolerance that nothing comes near finds nothing");
}

#[test]
fn every_instruction_set_and_tile() {
    for level in SimdLevel::available() {
        for (seed, tiles) in [(16, 4), (32, 20), (64, 128), (256, 64)].into_iter().enumerate() {
            let options = Options {
                simd: Some(level),
                config: Some(CpuConfig {
                    tile_q: tiles.0,
                    tile_kv: tiles.1,
                }),
                ..Options::default()
            };
            for seed in (0..4).map(|i| 1000 + 4 * seed as u64 + i) {
                let problem = random_backward(seed, &limits()).unwrap();
                assert_right(&options, &problem, InputKind::Normal, seed);
            }
        }
    }
}

/// Documents of 0 to 200 rows, of which some use fewer, and rows that see nothing.
#[test]
fn packed_documents() {
    for (dtype, mask) in [
        (DType::BF16, Mask::CAUSAL),
        (DType::F16, Mask::window(Some(20), Some(3))),
        (DType::F32, Mask::CAUSAL.top_left()),
    ] {
        let problem = Problem::builder()
            .batch(6)
            .heads(4, 2)
            .head_dim(40)
            .seq_len(200)
            .dtype(dtype);
        let q = QLengths::Packed { total: 500, used: true };
        let kv = KvLengths::Packed {
            total: 700,
            used: false,
        };
        let problem = problem.q_lengths(q).kv_lengths(kv).mask(mask).offsets(-9, 0);
        let problem = problem.build().unwrap().backward().unwrap();
        for seed in 0..4 {
            assert_right(&Options::default(), &problem, InputKind::Normal, seed);
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let problem = random_backward(1006, &limits()).unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = Options {
            pool: Some(&pool),
            ..Options::default()
        };
        let got = compute(&options, &problem, &inputs);
        got.each().map(|tensor| tensor.bytes().to_vec())
    };
    assert_eq!(with(1), with(7));
}

#[test]
fn what_is_not_the_problem_s_is_refused() {
    let problem = Problem::builder().heads(2, 2).seq_len(16).head_dim(64);
    let problem = problem.return_lse(true).build().unwrap().backward().unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let saved = inputs.saved.as_ref().unwrap();
    let refused = |problem: &Problem, lse: &[f32], dout: &Tensor| {
        let [mut dq, mut dk, mut dv] = [(); 3].map(|()| Tensor::poisoned(problem.dtype(), *problem.q_layout()));
        let qkv = [&inputs.q, &inputs.k, &inputs.v].map(View::from);
        let gradients = [&mut dq, &mut dk, &mut dv].map(ViewMut::from);
        let operands = Operands::backward(qkv, [(&saved.out).into(), lse.into()], dout, gradients);
        let error = run(&Options::default(), problem, operands).unwrap_err();
        assert!(
            [dq, dk, dv]
                .iter()
                .all(|one| one.bytes().iter().all(|&byte| byte == 0xff))
        );
        error.to_string()
    };
    let forward = refused(&problem.forward(), &saved.lse, &saved.dout);
    assert_eq!(
        forward,
        "dout is of a backward pass, and this task is none: give `problem.backward()?` as the task"
    );
    let short = refused(&problem, &saved.lse[1..], &saved.dout);
    assert!(short.starts_with("lse has shape [31]"), "{short}");
    let wide = refused(&problem, &saved.lse, &Tensor::poisoned(DType::F32, *problem.o_layout()));
    assert!(wide.starts_with("dout holds f32"), "{wide}");
}
