//! Scores of any size: rows below the limit of their dtype are right, at every policy of the softmax, in splits and
//! with sinks; rows past it are NaN, output and log-sum-exp; rows without keys stay zeros. The inputs' scores carry no
//! rounding, so that no tolerance hides a wrong row.

use flashcore_check::{CheckError, CheckOptions, Verdict, check_plan, judge_elsewhere};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;
use flashcore_problem::{
    DType, GradientRow, InputKind, Inputs, Mask, Problem, TensorView, reference, reference_gradients,
};
use flashcore_sim::{SimOptions, simulate};

/// Each family and rule of rescaling, whole and in splits.
const KERNELS: [&str; 11] = [
    "scalar/naive-t32-v16",
    "scalar/tiled-m16n16-w4-v16",
    "mma/m64n64-w4x1-s2-b1-qreg-xor-always",
    "mma/m64n32-w4x1-s2-b1-qreg-xor-cond",
    "mma/m32n32-w2x2-s3-b1-qreg-xor-spec",
    "wgmma/m64n64-s2-free-always",
    "wgmma/m128n64-s2-pingpong-cond",
    "wgmma/m64n128-s2-free-spec",
    "wgmma/m64n64-s2-free-always-k3",
    "wgmma/m128n64-s2-pingpong-cond-k2",
    "wgmma/m64n128-s2-free-spec-k3",
];

fn plan(problem: &Problem, kernel: &str) -> Option<Plan> {
    let (target, sms) = (Target::Sm90a, 2);
    Plan::new(problem, &kernel.parse().unwrap(), Chip { target, sms }).ok()
}

/// Some rows see no key, some few; the window ends before the last keys.
fn problem(dtype: DType, case: u64) -> Problem {
    let problem = Problem::builder()
        .dtype(dtype)
        .heads(2, 1)
        .head_dim(64)
        .return_lse(true);
    let problem = problem.seq_len_q(75).seq_len_kv(201).mask(match case % 3 {
        0 => Mask::FULL,
        1 => Mask::CAUSAL.top_left(),
        _ => Mask::window(Some(3), Some(0)).top_left(),
    });
    let problem = if case % 2 == 1 && dtype != DType::E4M3 {
        problem.sinks(DType::F32)
    } else {
        problem
    };
    problem.build().unwrap()
}

fn options(seed: u64) -> CheckOptions {
    CheckOptions {
        inputs: InputKind::OneHot,
        seed,
        ..CheckOptions::default()
    }
}

/// What the last step leaves in a buffer.
fn left_in(plan: &Plan, seed: u64, name: &str) -> Vec<u8> {
    let mut left = Vec::new();
    let gate = judge_elsewhere(plan, &options(seed), |step, contents| {
        simulate(&step.kernel, &step.launch, contents, &SimOptions::default())?;
        let buffers = step.launch.buffers.iter().zip(contents.iter());
        for (_, bytes) in buffers.filter(|(spec, _)| spec.name == name) {
            left.clone_from(bytes);
        }
        Ok::<_, CheckError>(())
    });
    let gate = gate.unwrap();
    assert!(
        gate.passed(),
        "{} by {}, seed {seed}: {gate}",
        plan.problem,
        plan.config
    );
    left
}

#[test]
fn every_kernel_is_right_below_the_limit() {
    let mut checked = 0;
    for (place, kernel) in KERNELS.into_iter().enumerate() {
        for (at, dtype) in DType::ALL.into_iter().enumerate() {
            for seed in 0..3 {
                let case = seed + (place + at) as u64;
                let Some(plan) = plan(&problem(dtype, case), kernel) else {
                    continue;
                };
                let report = check_plan(&plan, &options(case)).unwrap();
                assert_eq!(
                    report.verdict,
                    Verdict::Clean,
                    "{} by {kernel}, seed {case}\n{report}",
                    plan.problem
                );
                checked += 1;
            }
        }
    }
    assert!(checked >= 60, "{checked}");
}

/// The comparison takes right rows past the limit as well. Kernels give NaN, whole rows of it, and zeros where no key
/// is visible.
#[test]
fn rows_past_the_limit_are_nan_and_rows_without_keys_are_zeros() {
    let (mut past, mut below) = (0, 0);
    for (place, kernel) in KERNELS.into_iter().enumerate() {
        for dtype in DType::ALL {
            let Some(plan) = plan(&problem(dtype, 1), kernel) else {
                continue;
            };
            let seed = place as u64;
            let (out, lse) = (left_in(&plan, seed, "out"), left_in(&plan, seed, "lse"));
            let problem = &plan.problem;
            let inputs = Inputs::generate(problem, InputKind::OneHot, seed);
            let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
            let out = TensorView::new("out", problem.out_dtype(), *problem.o_layout(), &out).unwrap();
            for row in reference(problem, &q, &k, &v).unwrap() {
                let [b, h, s] = row.index;
                let at = (b * problem.num_heads() + h) * problem.seq_len_q() + s;
                let lse = f32::from_ne_bytes(lse[4 * at..][..4].try_into().unwrap());
                let values: Vec<f32> = (0..64).map(|d| out.get(b, s, h, d)).collect();
                let is_past = row.is_past_limit(dtype);
                (past, below) = (past + usize::from(is_past), below + usize::from(!is_past));
                let nan = values.iter().filter(|x| x.is_nan()).count();
                assert_eq!(
                    (nan, lse.is_nan()),
                    (if is_past { 64 } else { 0 }, is_past),
                    "{problem} by {kernel}: {s}"
                );
            }
        }
    }
    assert!(past > 500 && below > 500, "{past} {below}");
}

/// Rows whose log-sum-exp is past the limit make their dQ NaN, and dK and dV of the keys that they see. Other rows of
/// dQ are right.
#[test]
fn gradients_past_the_limit_are_nan() {
    // No power of two times the scale is at the limit.
    let shape = Problem::builder()
        .dtype(DType::BF16)
        .heads(2, 2)
        .head_dim(64)
        .seq_len(70);
    let problem = shape
        .mask(Mask::CAUSAL)
        .softmax_scale(48.0)
        .build()
        .unwrap()
        .backward()
        .unwrap();
    let seed = 3;
    let want = reference_gradients(&problem, &Inputs::generate(&problem, InputKind::OneHot, seed)).unwrap();
    let count = |rows: &[GradientRow]| rows.iter().filter(|row| row.may_be_nan).count();
    assert!((20..120).contains(&count(&want.dq)), "{}", count(&want.dq));
    for kernel in [
        "scalar/tiled-m16n16-w4-v16",
        "mma/m32n32-w2x2-s3-b1-qsh-xor",
        "wgmma/m64n64-s3-free",
        "wgmma/m128n128-s2-pingpong",
    ] {
        let plan = plan(&problem, kernel).unwrap();
        let nan_rows = |name: &str| {
            let bytes = left_in(&plan, seed, name);
            let tensor = TensorView::new("gradient", DType::BF16, *problem.q_layout(), &bytes).unwrap();
            let is_nan = |[_, h, s]: [usize; 3]| (0..64).filter(|&d| tensor.get(0, s, h, d).is_nan()).count();
            want.dq
                .iter()
                .map(|row| (row.index, is_nan(row.index)))
                .collect::<Vec<_>>()
        };
        for (row, (index, nan)) in want.dq.iter().zip(nan_rows("dq")) {
            assert_eq!((row.index, nan), (index, 64 * usize::from(row.may_be_nan)), "{kernel}");
        }
        // Row `s` sees key `s`.
        for name in ["dk", "dv"] {
            for (row, (index, nan)) in want.dq.iter().zip(nan_rows(name)) {
                assert!(nan == 64 || !row.may_be_nan, "{kernel}: {name} {index:?}");
            }
        }
    }
}

/// A sink far below all scores counts where a row sees no key, also past the limit of scores.
#[test]
fn sinks_below_the_limit_are_the_log_sum_exp_of_rows_without_keys() {
    let kernels = [
        "mma/m64n64-w4x1-s2-b1-qreg-xor-always",
        "wgmma/m64n64-s2-free-always",
        "wgmma/m64n64-s2-free-always-k3",
    ];
    for kernel in kernels {
        let problem = Problem::builder()
            .dtype(DType::F16)
            .heads(2, 1)
            .head_dim(64)
            .return_lse(true);
        let problem = problem
            .seq_len_q(270)
            .seq_len_kv(201)
            .mask(Mask::CAUSAL)
            .sinks(DType::F32);
        let plan = plan(&problem.build().unwrap(), kernel).unwrap();
        let mut lse = Vec::new();
        let _ = judge_elsewhere(&plan, &options(1), |step, contents| {
            let names: Vec<_> = step.launch.buffers.iter().map(|spec| spec.name).collect();
            for (name, bytes) in names.iter().zip(contents.iter_mut()) {
                if *name == "sinks" {
                    *bytes = [-1e9f32; 2].iter().flat_map(|sink| sink.to_le_bytes()).collect();
                }
            }
            simulate(&step.kernel, &step.launch, contents, &SimOptions::default())?;
            for (name, bytes) in names.iter().zip(contents.iter()) {
                if *name == "lse" {
                    lse = bytes
                        .chunks(4)
                        .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
                        .collect();
                }
            }
            Ok::<_, CheckError>(())
        });
        assert_eq!(lse.len(), 2 * 270, "{kernel}");
        for (row, lse) in lse.iter().enumerate() {
            let is_sink = (lse / -1e9 - 1.0).abs() < 1e-6;
            // The first 69 rows of each head see no key, and the others' scores are far above the sink.
            assert_eq!(is_sink, row % 270 < 69, "{kernel}: row {row}: {lse}");
        }
    }
}
