//! Sinks and ALiBi: every family gives the float64 answer, and mistakes in them are found.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many a family has (12).

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::{Config, FAMILIES, KernelCache, Plan};
use flashcore_problem::rng::Rng;
use flashcore_problem::{
    Alibi, DType, InputKind, Inputs, KvLengths, Mask, Problem, ProblemBuilder, Tensor, Tolerance, compare, compare_lse,
    reference,
};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::{assert_clean, inputs_of, number};
use crate::planted::{check_with, quoted};

/// Few SMs, so that a block has several tiles.
const CHIP: Chip = Chip {
    target: Target::Sm90a,
    sms: 3,
};

/// A plan for a problem by a random config of a family.
fn drawn(family: &str, problem: &Problem, rng: &mut Rng, kernels: &KernelCache) -> Option<Plan> {
    let family = FAMILIES.into_iter().find(|known| known.name == family).unwrap();
    (0..2000).find_map(|_| {
        let config = Config::of(&family, family.sample(rng));
        Plan::with_cache(problem, &config, CHIP, kernels).ok()
    })
}

/// Random problems with sinks or ALiBi, of equal lengths and of others.
fn equals_float64(family: &'static str, dtypes: &'static [DType], with_lengths: bool) {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 12) as usize);
    let kernels = KernelCache::default();
    let mut rng = Rng::stream(first, 3);
    let (mut done, mut sinks, mut biases, mut splits) = (0, 0, 0, 0);
    for seed in first.. {
        if done == count {
            break;
        }
        assert!(seed < first + 40 * count as u64, "{done} of {family} are served");
        let limits = RandomLimits {
            max_seq: 200,
            max_work: 1_000_000,
            dtypes,
            odd_strides: false,
            head_dim_v: true,
            lengths: with_lengths && seed % 2 == 1,
            head_values: true,
            ..RandomLimits::default()
        };
        let problem = random_problem(seed, &limits).unwrap();
        if problem.sinks().is_none() && problem.alibi().is_none() {
            continue;
        }
        let Some(plan) = drawn(family, &problem, &mut rng, &kernels) else {
            continue;
        };
        assert_clean(&plan, seed, inputs_of(seed));
        sinks += usize::from(problem.sinks().is_some());
        biases += usize::from(problem.alibi().is_some());
        splits += usize::from(!plan.then.is_empty());
        done += 1;
    }
    assert!(
        2 * sinks >= done && 3 * biases >= done,
        "{sinks} sinks, {biases} biases"
    );
    let splits_too = family == "mma" || family == "wgmma" && dtypes.len() > 1;
    assert!(!splits_too || 8 * splits >= done, "{splits} of {done} are split");
}

const SIXTEEN_BITS: &[DType] = &[DType::F16, DType::BF16];

#[test]
fn scalar_equals_float64() {
    equals_float64("scalar", &[DType::F32, DType::F16, DType::BF16], true);
}

#[test]
fn the_ladder_equals_float64() {
    equals_float64("ladder", SIXTEEN_BITS, false);
}

#[test]
fn mma_equals_float64() {
    equals_float64("mma", SIXTEEN_BITS, true);
}

#[test]
fn wgmma_equals_float64() {
    equals_float64("wgmma", SIXTEEN_BITS, true);
}

#[test]
fn wgmma_in_e4m3_equals_float64() {
    equals_float64("wgmma", &[DType::E4M3], false);
}

/// A sink is added where all keys of a row have been seen: once.
#[test]
fn one_step_of_a_plan_has_the_sinks() {
    let problem = both().build().unwrap();
    for (id, at) in [
        ("scalar/tiled-m32n32-w4-v16", 0),
        ("ladder/mma-m64n64-w4", 0),
        ("mma/m64n64-w4x1-s2-b1-qreg-xor-cond", 0),
        ("mma/m64n64-w4x1-s2-b1-qreg-xor-cond-k3", 1),
        ("wgmma/m128n64-s2-pingpong-spec", 0),
        ("wgmma/m128n64-s2-pingpong-spec-k2", 1),
    ] {
        let plan = Plan::new(&problem, &id.parse().unwrap(), CHIP).unwrap();
        let has = |name: &str| -> Vec<bool> {
            let steps = plan.steps().map(|step| &step.launch.buffers);
            steps
                .map(|buffers| buffers.iter().any(|spec| spec.name == name))
                .collect()
        };
        let expected: Vec<bool> = (0..plan.steps().count()).map(|step| step == at).collect();
        assert_eq!(has("sinks"), expected, "{id}");
        assert!(has("alibi_slopes")[0], "{id}");
    }
}

/// Twice the weight of a sink, as when a partial and `combine` both add it, is no rounding error.
#[test]
fn a_sink_added_twice_is_a_wrong_answer() {
    let problem = both().return_lse(true).build().unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let want = reference(&problem, &q, &k, &v).unwrap();
    // What log(2) more weighs twice as much; nothing of the problem's dtype is rounded here.
    let exact = ProblemBuilder::from(&problem).sinks(DType::F32).build().unwrap();
    let twice: Vec<f32> = q
        .sinks()
        .unwrap()
        .iter()
        .map(|sink| sink + std::f32::consts::LN_2)
        .collect();
    let got = reference(&exact, &q.with_sinks(&twice), &k, &v).unwrap();
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let mut lse = vec![0.0; problem.lse_len()];
    for row in &got {
        let [b, h, s] = row.index;
        lse[(b * problem.num_heads() + h) * problem.seq_len_q() + s] = row.lse as f32;
        for (d, &x) in row.out.iter().enumerate() {
            out.set(b, s, h, d, x as f32);
        }
    }
    let found = compare(&problem, &out.view(), &want, Tolerance::of(problem.dtype())).unwrap();
    assert!(found.failures > found.elements / 8, "{found}");
    let found = compare_lse(&problem, &lse, &want, Tolerance::of(DType::F32)).unwrap();
    assert!(found.failures > found.elements / 8, "{found}");
}

/// Two sequences of four heads with everything. Rows see keys on both sides, so that the sign of a distance counts.
fn both() -> ProblemBuilder {
    Problem::builder()
        .batch(2)
        .heads(4, 2)
        .seq_len_q(40)
        .seq_len_kv(100)
        .head_dim(64)
        .mask(Mask::window(Some(90), Some(20)))
        .sinks(DType::BF16)
        .alibi(Alibi::BatchHeads)
        .return_lse(true)
}

/// Each mistake, at each place of the lines that do it, is found in every family.
#[test]
fn planted_mistakes_are_found() {
    // Lines are those of the caller: of a bias that of the score, of a sink that of a row's end.
    let biased = ["bias.subtract(score, key())", "biases[half].subtract"].as_slice();
    let total = ["params.total("].as_slice();
    let table: [(&str, Operator, &[&str]); 9] = [
        ("the slope of the next head", Operator::NextAccess, &["slope.load_with"]),
        (
            "the slope of another batch",
            Operator::StrideOne,
            &["alibi.batch_stride, head"],
        ),
        ("a slope that is not scaled", Operator::DropFactor, &["alibi.per_score"]),
        ("a bias of the other sign", Operator::OtherSign, biased),
        ("a difference for a distance", Operator::DropFunction, biased),
        ("the sink of the next head", Operator::NextAccess, total),
        ("a sink that is not in base 2", Operator::DropFactor, total),
        ("no sink", Operator::DropAddend, total),
        ("a sink above the maximum", Operator::Unclamp, total),
    ];
    let problem = both().build().unwrap();
    // Of four heads one has a sink far above its scores, and two have usual ones.
    let is_mixed = |seed: &u64| {
        let inputs = Inputs::generate(&problem, InputKind::Normal, *seed);
        let sinks = inputs.q.view().sinks().unwrap().to_vec();
        sinks.contains(&100.0) && sinks.iter().filter(|sink| sink.abs() < 8.0).count() > 1
    };
    let options = CheckOptions {
        seed: (0..1000).find(is_mixed).unwrap(),
        ..CheckOptions::default()
    };
    for id in [
        "scalar/tiled-m32n32-w4-v16",
        "mma/m64n64-w4x1-s2-b1-qreg-xor-spec",
        "mma/m32n32-w1x2-s2-b1-qsh-xor-cond-gqa",
        "wgmma/m64n64-s2-free-spec",
    ] {
        let plan = Plan::new(&problem, &id.parse().unwrap(), CHIP).unwrap();
        assert_eq!(check_plan(&plan, &options).unwrap().verdict, Verdict::Clean, "{id}");
        let all = mutations(&plan.main.kernel);
        for (name, operator, lines) in &table {
            let of_lines = |mutation: &&Mutation| lines.iter().any(|line| quoted(mutation.line).contains(line));
            let places: Vec<_> = all
                .iter()
                .filter(|m| m.operator == *operator)
                .filter(of_lines)
                .collect();
            // To its caller, the whole epilogue of this kernel is one line.
            if places.is_empty() && id.contains("-w4x1-") && *lines == total {
                continue;
            }
            assert!(!places.is_empty(), "{id}: no place for {name}");
            // Unrolled loops have many; at some, all distances have one sign.
            let found = places.iter().step_by(places.len().div_ceil(8)).any(|mutation| {
                let kernel = mutation.apply(&plan.main.kernel);
                let report = check_with(&plan, kernel, plan.main.launch.clone(), &options);
                report.verdict != Verdict::Clean
            });
            assert!(found, "{id}: {name}");
        }
    }
}

/// A row that sees no key has output 0 and its sink as log-sum-exp; without a sink −∞.
#[test]
fn rows_without_keys_have_their_sink() {
    for (id, lengths) in [
        ("scalar/naive-t64-v16", KvLengths::Cache),
        ("mma/m64n64-w4x1-s2-b1-qreg-xor-cond", KvLengths::Equal),
        ("mma/m64n64-w4x1-s2-b1-qreg-xor-cond-gqa", KvLengths::Cache),
        ("mma/m64n64-w4x1-s2-b1-qreg-xor-cond-k2", KvLengths::Equal),
        ("wgmma/m64n64-s2-free-cond", KvLengths::Cache),
        ("wgmma/m64n64-s2-free-cond", KvLengths::Equal),
    ] {
        let problem = both()
            .seq_len_q(200)
            .seq_len_kv(60)
            .kv_lengths(lengths)
            .build()
            .unwrap();
        let plan = Plan::new(&problem, &id.parse().unwrap(), CHIP).unwrap();
        let report = check_plan(&plan, &CheckOptions::default()).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{id}\n{report}");
    }
}
