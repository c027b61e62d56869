//! The backward direction: its problems, and the float64 reference against finite differences.

use flashcore_problem::rng::Rng;
use flashcore_problem::{
    DType, Direction, GradientRow, Gradients, InputKind, Inputs, KvLengths, Layout, Mask, Problem, ProblemBuilder,
    QLengths, Tensor, TensorView, Tolerance, compare_gradient, reference_gradient_rows, reference_gradients,
    reference_rows,
};
use flashcore_testkit::{RandomLimits, random_backward};

fn small() -> RandomLimits {
    RandomLimits {
        max_seq: 20,
        max_work: 60_000,
        head_dim_v: true,
        ..RandomLimits::default()
    }
}

/// `Σ dO·O` in float64.
fn loss(problem: &Problem, inputs: &Inputs) -> f64 {
    let lengths = inputs.lengths.as_slices();
    let rows = problem.query_rows(&lengths).unwrap();
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let dout = &inputs.saved.as_ref().unwrap().dout;
    let rows = reference_rows(problem, &q, &k, &v, &lengths, &rows).unwrap();
    let row = |row: &flashcore_problem::ReferenceRow| {
        let [b, h, s] = row.index;
        let products = row.out.iter().enumerate();
        products.map(|(d, o)| o * dout.view().value(b, s, h, d)).sum::<f64>()
    };
    rows.iter().map(row).sum()
}

fn input(inputs: &mut Inputs, which: usize) -> &mut Tensor {
    [&mut inputs.q, &mut inputs.k, &mut inputs.v]
        .into_iter()
        .nth(which)
        .unwrap()
}

/// Moves elements of an input both ways, `(row, column, by)` each: the difference of the loss, and the
/// one that the gradient foretells for the distances between what f32 holds.
fn differences(
    problem: &Problem,
    inputs: &Inputs,
    which: usize,
    rows: &[GradientRow],
    moves: &[(usize, usize, f32)],
) -> [f64; 2] {
    const STEP: f32 = 1.0 / 1024.0;
    let [mut up, mut down] = [inputs.clone(), inputs.clone()];
    let mut foretold = 0.0;
    for &(row, d, by) in moves {
        let [b, h, s] = rows[row].index;
        let moved = [(&mut up, STEP), (&mut down, -STEP)].map(|(inputs, step)| {
            let tensor = input(inputs, which);
            let x = tensor.view().get(b, s, h, d) + step * by;
            tensor.set(b, s, h, d, x);
            f64::from(x)
        });
        foretold += rows[row].values[d] * (moved[0] - moved[1]);
    }
    [loss(problem, &up) - loss(problem, &down), foretold].map(|x| x / (2.0 * f64::from(STEP)))
}

#[test]
fn reference_gradients_are_those_of_finite_differences() {
    let (mut masked, mut worst) = (0, 0f64);
    for seed in 0..100 {
        let limits = RandomLimits {
            dtypes: &[DType::F32],
            lengths: seed % 3 == 0,
            ..small()
        };
        // Elements that share an address cannot be moved alone.
        let problem = random_backward(seed, &limits).unwrap();
        let problem = ProblemBuilder::from(&problem).layout(Layout::bshd).build().unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, seed);
        let want = reference_gradients(&problem, &inputs).unwrap();
        masked += usize::from(want.dq.iter().any(|row| row.values.iter().all(|x| *x == 0.0)));
        let mut rng = Rng::new(seed);
        for (which, rows) in want.each().into_iter().enumerate() {
            if rows.is_empty() {
                continue;
            }
            let (mut error, mut size) = (0.0, 0.0);
            let mut compare = |moves: &[(usize, usize, f32)]| {
                let [found, foretold] = differences(&problem, &inputs, which, rows, moves);
                error += (found - foretold).powi(2);
                size += foretold * foretold;
            };
            for _ in 0..4 {
                let row = rng.below(rows.len());
                compare(&[(row, rng.below(rows[row].values.len()), 1.0)]);
            }
            let mut every = Vec::new();
            for (row, of) in rows.iter().enumerate() {
                every.extend((0..of.values.len()).map(|d| (row, d, rng.normal() / 8.0)));
            }
            compare(&every);
            let error = (error.sqrt() - 1e-9).max(0.0) / size.sqrt().max(1e-30);
            worst = worst.max(error);
            assert!(error <= 1e-3, "seed {seed}, input {which} of {problem}: {error:.2e}");
        }
    }
    println!("largest relative error {worst:.1e}");
    assert!(masked > 5, "{masked} problems have rows of no gradient");
}

#[test]
fn rows_and_keys_without_the_other_have_no_gradient() {
    let problem = Problem::builder().heads(4, 2).seq_len_q(9).seq_len_kv(6).head_dim(8);
    // Rows 0 to 2 see nothing, and the last two keys are seen by none.
    let problem = problem
        .mask(Mask::CAUSAL)
        .offsets(0, 2)
        .build()
        .unwrap()
        .backward()
        .unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let want = reference_gradients(&problem, &inputs).unwrap();
    let all = want.each().into_iter().flatten();
    assert!(
        all.flat_map(|row| row.values.iter().chain(&row.slack))
            .all(|x| x.is_finite())
    );
    let is_zero = |row: &&GradientRow| row.values.iter().all(|x| *x == 0.0);
    assert_eq!(want.dq.iter().filter(is_zero).count(), 4 * 5 + 4); // a row of one key has P = 1, dS = 0
    assert_eq!(want.dv.iter().filter(is_zero).count(), 2 * 2);
}

/// Gradients as a kernel on tensor cores computes them: O, P, dS and the result are rounded to the dtype.
fn rounded_gradients(problem: &Problem, inputs: &Inputs, fault: Option<&str>) -> Gradients<Tensor> {
    let layouts = problem.gradient_layouts().unwrap();
    let dtype = problem.dtype();
    let round = |x: f64| {
        f64::from(
            Tensor::from_fn(dtype, Layout::bshd([1, 1, 1, 1]), |_, _, _, _| x as f32)
                .view()
                .get(0, 0, 0, 0),
        )
    };
    let saved = inputs.saved.as_ref().unwrap();
    let row = |t: &TensorView<'_>, b: usize, s: usize, h: usize| -> Vec<f64> {
        (0..t.layout().shape[3]).map(|d| t.value(b, s, h, d)).collect()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let scale = f64::from(problem.softmax_scale());
    let (mut dq, mut dk, mut dv) = (Vec::new(), Vec::new(), Vec::new());
    for (gradient, layout) in [(&mut dq, layouts.dq), (&mut dk, layouts.dk), (&mut dv, layouts.dv)] {
        gradient.resize(layout.num_elements(), 0.0);
    }
    let at = |layout: &Layout, b: usize, s: usize, h: usize| Layout::bshd(layout.shape).offset(b, s, h, 0);
    for b in 0..problem.batch() {
        for h in 0..problem.num_heads() {
            let kv_head = h / problem.group_size();
            for i in 0..problem.seq_len_q() {
                let (q, o, dout) = (
                    row(&inputs.q.view(), b, i, h),
                    row(&saved.out.view(), b, i, h),
                    row(&saved.dout.view(), b, i, h),
                );
                let lse = f64::from(saved.lse[(b * problem.num_heads() + h) * problem.seq_len_q() + i]);
                let delta = if fault == Some("no delta") { 0.0 } else { dot(&dout, &o) };
                for j in problem.visible_keys(i) {
                    let (k, v) = (
                        row(&inputs.k.view(), b, j, kv_head),
                        row(&inputs.v.view(), b, j, kv_head),
                    );
                    let x = dot(&q, &k) * scale;
                    let (s, slope) = match problem.softcap().map(f64::from) {
                        Some(cap) => (cap * (x / cap).tanh(), 1.0 - (x / cap).tanh().powi(2)),
                        None => (x, 1.0),
                    };
                    let slope = if fault == Some("no slope") { 1.0 } else { slope };
                    let p = (s - lse).exp() * if fault == Some("P too large") { 1.03 } else { 1.0 };
                    let ds = round(p * (dot(&dout, &v) - delta) * slope);
                    let p = round(p);
                    let (dq, dk, dv) = (
                        &mut dq[at(&layouts.dq, b, i, h)..],
                        &mut dk[at(&layouts.dk, b, j, kv_head)..],
                        &mut dv[at(&layouts.dv, b, j, kv_head)..],
                    );
                    dq.iter_mut().zip(&k).for_each(|(x, k)| *x += scale * ds * k);
                    dk.iter_mut().zip(&q).for_each(|(x, q)| *x += scale * ds * q);
                    dv.iter_mut().zip(&dout).for_each(|(x, d)| *x += p * d);
                }
            }
        }
    }
    let tensor = |values: &[f64], layout: Layout| {
        Tensor::from_fn(dtype, layout, |b, s, h, d| values[at(&layout, b, s, h) + d] as f32)
    };
    Gradients::from([
        tensor(&dq, layouts.dq),
        tensor(&dk, layouts.dk),
        tensor(&dv, layouts.dv),
    ])
}

fn judge(problem: &Problem, inputs: &Inputs, got: &Gradients<Tensor>) -> [flashcore_problem::Comparison; 3] {
    let want = reference_gradients(problem, inputs).unwrap();
    let tolerance = Tolerance::of_gradient(problem.dtype());
    let names = Gradients::<()>::NAMES;
    std::array::from_fn(|i| compare_gradient(names[i], &got.each()[i].view(), want.each()[i], tolerance).unwrap())
}

/// The tolerance allows what rounding does, on every kind of inputs, and not much more.
#[test]
fn the_tolerance_of_gradients_is_that_of_rounding() {
    let mut most = [0f64; 3];
    for seed in 0..84 {
        let limits = RandomLimits {
            max_seq: 60,
            max_work: 400_000,
            ..small()
        };
        let problem = random_backward(seed, &limits).unwrap();
        let kind = InputKind::ALL[seed as usize % InputKind::ALL.len()];
        let inputs = Inputs::generate(&problem, kind, seed);
        let found = judge(&problem, &inputs, &rounded_gradients(&problem, &inputs, None));
        for (i, found) in found.iter().enumerate() {
            assert!(found.passed, "seed {seed}, {kind}, gradient {i} of {problem}: {found}");
            most[i] = most[i].max(found.of_allowed);
        }
    }
    println!("at most {most:.2?} of the allowed error");
    assert!(most.iter().all(|most| (0.2..0.9).contains(most)), "{most:?}");
}

#[test]
fn wrong_gradients_are_beyond_the_tolerance() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let problem = Problem::builder()
            .heads(2, 1)
            .seq_len(40)
            .head_dim(16)
            .dtype(dtype)
            .softcap(2.0);
        let problem = problem
            .softmax_scale(1.0)
            .mask(Mask::CAUSAL)
            .build()
            .unwrap()
            .backward()
            .unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 3);
        for (fault, wrong) in [
            ("no delta", [true, true, false]),
            ("no slope", [true, true, false]),
            ("P too large", [true; 3]),
        ] {
            let found = judge(&problem, &inputs, &rounded_gradients(&problem, &inputs, Some(fault)));
            assert_eq!(found.map(|found| !found.passed), wrong, "{fault}, {dtype}: {found:?}");
        }
        let mut got = rounded_gradients(&problem, &inputs, None);
        assert!(judge(&problem, &inputs, &got).iter().all(|found| found.passed));
        got.dk.set(0, 7, 0, 3, f32::NAN);
        assert!(!judge(&problem, &inputs, &got)[1].passed);
    }
}

#[test]
fn a_forward_problem_is_written_as_before_and_a_backward_one_reads_back() {
    let problem = Problem::named("gemma2-9b-4k").unwrap();
    let json = serde_json::to_string(&problem).unwrap();
    assert!(!json.contains("direction") && !json.contains("gradients"), "{json}");
    assert_eq!(
        serde_json::from_str::<Problem>(&json).unwrap().direction(),
        Direction::Forward
    );

    for seed in 0..40 {
        let problem = random_backward(
            seed,
            &RandomLimits {
                lengths: true,
                ..small()
            },
        )
        .unwrap();
        let json = serde_json::to_string(&problem).unwrap();
        assert!(json.contains(r#""direction":"backward""#), "{json}");
        assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem);
        assert!(problem.to_string().ends_with(" backward"), "{problem}");
        assert_eq!(ProblemBuilder::from(&problem).build().unwrap(), problem);
    }
    let asked = ProblemBuilder::from(&problem).deterministic(true).build().unwrap();
    let backward = asked.backward().unwrap();
    assert!(backward.deterministic() && !problem.backward().unwrap().deterministic());
    assert!(backward.to_string().ends_with("deterministic backward"), "{backward}");
    let json = serde_json::to_string(&backward).unwrap();
    assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), backward);
    // The key alone is enough.
    let mut value = serde_json::to_value(&problem).unwrap();
    value["direction"] = "backward".into();
    let backward: Problem = serde_json::from_value(value).unwrap();
    assert_eq!(backward, problem.backward().unwrap());
    assert_eq!(backward.gradient_layouts().unwrap().dk, *problem.k_layout());
    // A smaller problem of the same kind has gradients of its own size.
    let like = ProblemBuilder::like(&backward).seq_len(64).build().unwrap();
    assert_eq!(like.gradient_layouts().unwrap().dq, *like.q_layout());
}

#[test]
fn what_has_no_backward_pass_is_refused_by_name() {
    let builder = || Problem::builder().batch(2).heads(2, 2).seq_len(32).head_dim(64);
    let refusal = |builder: ProblemBuilder| builder.direction(Direction::Backward).build().unwrap_err().to_string();
    assert!(
        refusal(builder().dtype(DType::E4M3)).starts_with("dtype is e4m3; the backward pass takes f32, fp16 and bf16")
    );
    let paged = KvLengths::Paged {
        page_size: 16,
        pages: 4,
        max_pages: 2,
    };
    assert!(refusal(builder().kv_lengths(paged)).starts_with("kv_lengths is paged; the backward pass takes equal"));
    let packed = QLengths::Packed { total: 50, used: false };
    assert!(
        builder()
            .q_lengths(packed)
            .kv_lengths(KvLengths::Cache)
            .build()
            .unwrap()
            .backward()
            .is_ok()
    );

    let problem = builder().build().unwrap();
    let error = problem.check_direction(Direction::Backward).unwrap_err().to_string();
    assert_eq!(
        error,
        "the problem's direction is forward; this call takes backward (`Problem::backward` gives that problem)"
    );
    let backward = problem.backward().unwrap();
    let mut layouts = *backward.gradient_layouts().unwrap();
    layouts.dq.strides[0] = 0;
    let error = builder().gradient_layouts(layouts).build().unwrap_err().to_string();
    assert!(error.starts_with("dq has strides"), "{error}");
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    assert!(reference_gradients(&problem, &inputs).is_err());
    assert!(reference_gradients(&backward, &inputs).is_err()); // O and dO were not generated
}

/// Up to the order of sums, some rows of the gradients are those of all of them.
#[test]
fn some_rows_equal_those_of_all() {
    for seed in 0..20 {
        let limits = RandomLimits {
            lengths: seed % 2 == 1,
            head_dim_v: true,
            ..RandomLimits::default()
        };
        let problem = random_backward(seed, &limits).unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, seed);
        let lengths = inputs.lengths.as_slices();
        let sequences = problem.sequences(&lengths).unwrap();
        let whole = reference_gradients(&problem, &inputs).unwrap();
        for (number, one) in sequences.iter().enumerate() {
            let kv_head = seed as usize % problem.num_kv_heads();
            let head = kv_head * problem.group_size() + problem.group_size() - 1;
            let rows: Vec<[usize; 2]> = (0..one.len_q).step_by(3).map(|row| [head, row]).collect();
            let keys: Vec<usize> = (0..one.len_kv).rev().step_by(5).collect();
            let some = reference_gradient_rows(&problem, &inputs, (number, kv_head), &rows, &keys).unwrap();
            let (all, some) = (whole.each(), some.each());
            assert_eq!(some.map(Vec::len), [rows.len(), keys.len(), keys.len()], "{problem}");
            for (all, some) in all.iter().zip(some) {
                for row in some {
                    let want = all.iter().find(|want| want.index == row.index).unwrap();
                    let pairs = want.values.iter().zip(&row.values);
                    let slacks = want.slack.iter().zip(&row.slack);
                    for (want, got) in pairs.chain(slacks) {
                        assert!(
                            (want - got).abs() <= 1e-9 * (1.0 + want.abs()),
                            "{problem}: {want} {got}"
                        );
                    }
                }
            }
        }
    }
}
