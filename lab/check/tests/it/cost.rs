//! The cost model: counts that can be worked out by hand, and what must hold of any prediction.

use std::sync::LazyLock;

use flashcore_check::cost::{Bound, MeasuredCard, Observation, Prediction, Rates, Resource, Unit, Work, roofline};
use flashcore_ir::{PROFILES, Profile, Target};
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::{DType, KvLengths, Mask, Problem, QLengths};
use proptest::prelude::*;

const MMA: &str = "mma/m64n64-w4x1-s2-b2-qreg-xor-cond";
const SCALAR: &str = "scalar/tiled-m32n32-w4-v16";

static KERNELS: LazyLock<KernelCache> = LazyLock::new(KernelCache::default);

fn observed(problem: &Problem, id: &str, target: Target) -> Observation {
    let plan = Plan::with_cache(problem, &id.parse::<Config>().unwrap(), target, &KERNELS).unwrap();
    Observation::with_cache(&plan, &KERNELS).unwrap()
}

fn work(problem: &Problem, id: &str) -> Work {
    observed(problem, id, Target::Sm89).total_work()
}

fn profile(name: &str) -> &'static Profile {
    Profile::named(name).unwrap()
}

fn shape(batch: usize, heads: usize, len: usize) -> Problem {
    let builder = Problem::builder().batch(batch).heads(heads, heads).seq_len(len);
    builder.head_dim(64).build().unwrap()
}

/// FLOPs of both products: `4·B·H·Sq·Skv·D`.
fn flops(problem: &Problem) -> f64 {
    let rows = problem.batch() * problem.num_heads() * problem.seq_len_q();
    4.0 * rows as f64 * problem.seq_len_kv() as f64 * problem.head_dim() as f64
}

#[test]
fn tensor_cores_do_both_products_and_nothing_else() {
    // Simulated as it is, and as a line through two shorter lengths.
    for len in [512, 16_384] {
        let problem = shape(1, 8, len);
        for id in [MMA, &format!("{MMA}-k4")] {
            let ratio = work(&problem, id)[Unit::TensorF32] / flops(&problem);
            assert!((ratio - 1.0).abs() < 1e-9, "{id} {len}: {ratio}");
        }
        assert_eq!(work(&problem, SCALAR)[Unit::TensorF32], 0.0);
    }
}

/// Hopper's products, too: blocks that stay, of one tile or of a part of one at the end, of more tiles than there are
/// SMs, of keys in splits.
#[test]
fn warpgroups_do_both_products_and_nothing_else() {
    for (id, len, waste) in [
        ("wgmma/m128n128-s2-pingpong-spec", 512, 1.0),
        ("wgmma/m128n128-s2-pingpong-spec", 4096, 1.0),
        ("wgmma/m192n128-s2-pingpong-spec", 4096, 4224.0 / 4096.0),
        ("wgmma/m64n128-s2-free-spec", 16_384, 1.0),
        ("wgmma/m128n128-s2-pingpong-spec-k4", 4096, 1.0),
        ("wgmma/m64n128-s2-free-spec-k2", 16_384, 1.0),
    ] {
        let problem = shape(1, 4, len);
        let observed = observed(&problem, id, Target::Sm90a);
        let work = observed.total_work();
        let ratio = work[Unit::TensorWgmma] / flops(&problem);
        assert!(ratio >= 1.0 - 1e-9 && ratio <= waste + 1e-9, "{id} {len}: {ratio}");
        assert_eq!(work[Unit::TensorF32], 0.0);
        // As many registers as there are fit, whoever does not know how many are taken.
        assert_eq!(observed.predict(profile("h200"), &[]).does_not_fit(), None, "{id}");
    }
}

/// Products of e4m3 have a rate of their own, twice as high; what they are converted from and to is counted, too.
#[test]
fn e4m3_does_both_products_at_twice_the_rate() {
    let at = |dtype, id: &str| {
        let builder = Problem::builder().heads(4, 4).seq_len(4096).head_dim(128).dtype(dtype);
        let problem = builder.build().unwrap();
        let observed = observed(&problem, id, Target::Sm90a);
        let prediction = observed.predict(profile("h200"), &[]);
        let uses = prediction.uses.iter();
        let tensor = uses
            .filter(|used| used.resource == Resource::Tensor)
            .map(|used| used.micros)
            .sum::<f64>();
        (observed.total_work(), tensor, flops(&problem))
    };
    let id = "wgmma/m128n128-s2-pingpong-spec";
    let (fp8, fp8_micros, flops) = at(DType::E4M3, id);
    let (fp16, fp16_micros, _) = at(DType::F16, id);
    assert_eq!((fp8[Unit::TensorWgmma], fp16[Unit::TensorE4m3]), (0.0, 0.0));
    assert!(
        (fp8[Unit::TensorE4m3] / flops - 1.0).abs() < 1e-9,
        "{}",
        fp8[Unit::TensorE4m3] / flops
    );
    assert!(
        (fp16_micros / fp8_micros - 2.0).abs() < 1e-9,
        "{fp16_micros} {fp8_micros}"
    );
    // As many exponentials, and P rounded to bytes: two elements a conversion in either case.
    assert!(
        (fp8[Unit::Mufu] / fp16[Unit::Mufu] - 1.0).abs() < 0.01 && fp8[Unit::Convert] >= fp16[Unit::Convert],
        "{fp8:?}"
    );
}

/// Their plans begin with a kernel that makes a schedule, whose blocks are not those of attention.
#[test]
fn plans_with_lengths_are_refused() {
    let builder = || {
        Problem::builder()
            .batch(4)
            .heads(8, 8)
            .seq_len(512)
            .head_dim(64)
            .mask(Mask::CAUSAL)
    };
    let packed = (
        QLengths::Packed {
            total: 2048,
            used: false,
        },
        KvLengths::Packed {
            total: 2048,
            used: false,
        },
    );
    let cached = (QLengths::Equal, KvLengths::Cache);
    for ((q, kv), id, target) in [
        (packed, "wgmma/m128n128-s2-pingpong-spec", Target::Sm90a),
        (cached, MMA, Target::Sm89),
        (cached, SCALAR, Target::Sm89),
    ] {
        let problem = builder().q_lengths(q).kv_lengths(kv).build().unwrap();
        let plan = Plan::with_cache(&problem, &id.parse::<Config>().unwrap(), target, &KERNELS).unwrap();
        let why = Observation::with_cache(&plan, &KERNELS).unwrap_err();
        assert!(
            why.to_string().contains("depends on the values of their lengths"),
            "{why}"
        );
    }
}

#[test]
fn what_was_measured_takes_the_place_of_the_profile() {
    let problem = shape(4, 16, 4096);
    let observed = observed(&problem, "wgmma/m128n128-s2-pingpong-spec", Target::Sm90a);
    let h200 = profile("h200");
    let with = |card: &MeasuredCard| observed.predict_measured(h200, Some(card), &[]);
    let assumed = observed.predict(h200, &[]);
    let none = with(&MeasuredCard::default());
    assert_eq!((none.micros, assumed.measured), (assumed.micros, None));
    let slow = MeasuredCard {
        source: "a test".to_string(),
        tensor_wgmma: Some(2048.0),
        ..MeasuredCard::default()
    };
    let slow = with(&slow);
    assert!(slow.micros > 1.3 * assumed.micros, "{} {}", slow.micros, assumed.micros);
    assert_eq!(slow.measured.as_deref(), Some("a test"));
    // Half the clock, and what is no rate is left out.
    let half = MeasuredCard {
        mhz: Some(assumed.clocks.highest / 2.0),
        tensor_wgmma: Some(f64::NAN),
        mufu: Some(-1.0),
        ..MeasuredCard::default()
    };
    let ratio = (with(&half).micros - assumed.launch_micros) / (assumed.micros - assumed.launch_micros);
    assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
}

#[test]
fn tensor_cores_bind_long_attention_on_hopper() {
    let problem = shape(4, 16, 4096);
    let p = observed(&problem, "wgmma/m128n128-s2-pingpong-spec", Target::Sm90a).predict(profile("h200"), &[]);
    let tensor = p.uses.iter().find(|used| used.resource == Resource::Tensor).unwrap();
    // The datasheet's rate at its boost clock: 2,048 fused products a clock on each of 132 SMs.
    let clocks = flops(&problem) / (2.0 * 2048.0 * 132.0);
    let by_hand = clocks / p.clocks.highest;
    assert!(
        (tensor.micros / by_hand - 1.0).abs() < 0.05,
        "{} {by_hand}",
        tensor.micros
    );
    assert!(p.micros > by_hand && p.micros < 3.0 * by_hand, "{p:?}");
}

#[test]
fn scalar_kernels_do_them_on_the_fma_pipe() {
    let problem = shape(1, 2, 512);
    let products = flops(&problem) / 2.0 / 32.0;
    let work = work(&problem, SCALAR);
    // The products, and next to them a few operations a score.
    let scores = flops(&problem) / (4.0 * 64.0) / 32.0;
    assert!(
        work[Unit::Fma] >= products && work[Unit::Fma] <= products + 8.0 * scores,
        "{work:?}"
    );
    // One exponential a score, one a row and tile for rescaling, a reciprocal a row.
    assert!(
        work[Unit::Mufu] >= scores && work[Unit::Mufu] <= 1.6 * scores,
        "{work:?}"
    );
}

#[test]
fn causal_is_half_and_a_diagonal() {
    let full = shape(1, 1, 2048);
    let causal = Problem::builder()
        .heads(1, 1)
        .seq_len(2048)
        .head_dim(64)
        .mask(Mask::CAUSAL);
    let share = work(&causal.build().unwrap(), MMA)[Unit::TensorF32] / flops(&full);
    // 32 tiles of rows: (1 + 2 + … + 32) of 32² tiles.
    assert!((share - 528.0 / 1024.0).abs() < 0.01, "{share}");
}

#[test]
fn shorter_lengths_stand_for_long_ones() {
    let at = |len| work(&shape(1, 1, len), SCALAR);
    let (two, three, four) = (at(2048), at(3072), at(4096));
    // Work is quadratic in the length, with a linear part: third differences vanish.
    let one = at(1024);
    for field in [
        |w: &Work| w[Unit::Fma],
        |w: &Work| w[Unit::Issue],
        |w: &Work| w[Unit::Passes],
        |w: &Work| w[Unit::L2Bytes],
    ] {
        let third = field(&four) - 3.0 * field(&three) + 3.0 * field(&two) - field(&one);
        assert!(third.abs() < 1e-6 * field(&four), "{third}");
    }
}

#[test]
fn bytes_of_keys_and_values_are_read_once_a_block() {
    let problem = shape(1, 1, 512);
    let tensor = 512.0 * 64.0 * 2.0;
    // Eight blocks of 64 rows read K and V each; Q is read and O written once.
    assert_eq!(work(&problem, MMA)[Unit::L2Bytes], 8.0 * 2.0 * tensor + 2.0 * tensor);
}

#[test]
fn every_card_has_a_prediction() {
    let problem = Problem::named("small").unwrap();
    for profile in PROFILES.iter() {
        for id in [MMA, SCALAR] {
            let p = observed(&problem, id, profile.target).predict(profile, &[]);
            let least = p.uses.iter().map(|used| used.micros).fold(0.0, f64::max);
            assert!(
                p.micros > 0.95 * least && p.low_micros < p.micros && p.micros < p.high_micros,
                "{p:?}"
            );
            assert!(
                p.micros > 2.0 && p.micros < 1000.0,
                "{} {id} {}",
                profile.name,
                p.micros
            );
            assert!(p.uses.windows(2).all(|pair| pair[0].micros >= pair[1].micros));
            assert!(p.lead >= 1.0);
            let tensor = p.uses.iter().any(|used| used.resource == Resource::Tensor);
            assert_eq!(tensor, id == MMA);
        }
    }
}

#[test]
fn tensor_cores_bind_what_is_made_for_them() {
    let problem = Problem::named("fa-d64-16k").unwrap();
    let p = observed(&problem, "mma/m128n64-w4x1-s2-b1-qreg-xor-cond", Target::Sm89).predict(profile("l4"), &[]);
    let tensor = p.uses.iter().find(|used| used.resource == Resource::Tensor).unwrap();
    // At the rate in the datasheet; blocks do not share out evenly over 58 SMs.
    let by_hand = flops(&problem) / 121e12 * 1e6;
    assert!(
        tensor.micros >= by_hand && tensor.micros < 1.05 * by_hand,
        "{} {by_hand}",
        tensor.micros
    );
}

#[test]
fn conflicts_are_seen() {
    let problem = Problem::named("small").unwrap();
    let time = |id| observed(&problem, id, Target::Sm89).predict(profile("l4"), &[Some(168)]);
    let (swizzled, linear) = (time(MMA), time("mma/m64n64-w4x1-s2-b2-qreg-lin-cond"));
    assert_eq!(linear.binds, Bound::Resource(Resource::Shared));
    assert!(linear.micros > 1.5 * swizzled.micros);
}

#[test]
fn a_kernel_that_does_next_to_nothing_takes_a_launch() {
    let p = observed(
        &Problem::named("tiny").unwrap(),
        "scalar/tiled-m16n16-w4-v16",
        Target::Sm89,
    );
    let p = p.predict(profile("l4"), &[Some(64)]);
    assert!(p.micros > p.launch_micros && p.micros < 12.0, "{p:?}");
}

#[test]
fn predictions_order_the_families() {
    let problem = Problem::named("small").unwrap();
    let micros = |id| observed(&problem, id, Target::Sm89).predict(profile("l4"), &[]).micros;
    let times = [MMA, SCALAR, "scalar/naive-t128-v16"].map(micros);
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn rates_and_registers_are_those_of_the_architecture() {
    assert_eq!(
        [Target::Sm80, Target::Sm89].map(|target| Rates::of(target).fma),
        [64.0, 128.0]
    );
    assert!(Rates::of(Target::Sm90a).mma_sync < 1.0);
    let id = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond";
    let observed = observed(&Problem::named("tiny").unwrap(), id, Target::Sm90a);
    let (needed, left) = observed.registers(Target::Sm90a).unwrap();
    assert!(needed > 32 && needed < left && left == 255);
}

#[test]
fn the_picture_has_all_bars_and_escapes_its_title() {
    let p = observed(&Problem::named("small").unwrap(), MMA, Target::Sm89).predict(profile("l4"), &[Some(168)]);
    let svg = roofline::svg(&p, "a < b & c");
    assert_eq!(
        svg.matches("<rect class=\"bar\"").count() + svg.matches("<rect class=\"binds\"").count(),
        p.uses.len() + 2
    );
    assert_eq!(svg.matches("class=\"binds\"").count(), 1);
    assert!(svg.contains("a &lt; b &amp; c") && svg.contains("prefers-color-scheme: dark"));
    assert!(svg.trim_end().ends_with("</svg>"));
}

fn time(problem: &Problem, id: &str, card: &Profile) -> Prediction {
    observed(problem, id, card.target).predict(card, &[Some(128)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// More sequences, more heads, longer sequences never take less on the same config.
    #[test]
    fn more_work_never_takes_less(
        batch in 1usize..6, heads in 1usize..20, tiles in 1usize..14,
        causal in any::<bool>(), tensor in any::<bool>(), card in 0usize..PROFILES.len(),
    ) {
        let make = |batch: usize, heads: usize, len: usize| {
            let mask = if causal { Mask::CAUSAL } else { Mask::FULL };
            let builder = Problem::builder().batch(batch).heads(heads, heads).seq_len(len).head_dim(64);
            builder.dtype(DType::BF16).mask(mask).build().unwrap()
        };
        let (id, card, len) = (if tensor { MMA } else { SCALAR }, &PROFILES[card], 64 * tiles);
        let base = time(&make(batch, heads, len), id, card).micros;
        for (what, more) in [
            ("batch", make(batch + 1, heads, len)),
            ("heads", make(batch, heads + 1, len)),
            ("length", make(batch, heads, len + 64)),
        ] {
            let more = time(&more, id, card).micros;
            prop_assert!(more >= base * (1.0 - 1e-9), "{what}: {more} after {base}");
        }
    }

    /// A card with twice the SMs, or the same at a higher clock, is not slower.
    #[test]
    fn a_larger_card_is_not_slower(
        batch in 1usize..4, heads in 1usize..20, tiles in 1usize..14,
        causal in any::<bool>(), tensor in any::<bool>(), card in 0usize..PROFILES.len(),
    ) {
        let mask = if causal { Mask::CAUSAL } else { Mask::FULL };
        let builder = Problem::builder().batch(batch).heads(heads, heads).seq_len(64 * tiles).head_dim(64).mask(mask);
        let id = if tensor { MMA } else { SCALAR };
        let card = PROFILES[card];
        let seen = observed(&builder.build().unwrap(), id, card.target);
        let twice = Profile {
            sms: 2 * card.sms,
            tensor_f16_f32acc_tflops: 2.0 * card.tensor_f16_f32acc_tflops,
            tensor_f16_f16acc_tflops: 2.0 * card.tensor_f16_f16acc_tflops,
            ..card
        };
        let (one, two) = (seen.predict(&card, &[Some(128)]).micros, seen.predict(&twice, &[Some(128)]).micros);
        prop_assert!(two <= one * (1.0 + 1e-9), "{two} with twice the SMs, {one} before");
        let faster = Profile { dram_gbps: 2.0 * card.dram_gbps, ..card };
        prop_assert!(seen.predict(&faster, &[Some(128)]).micros <= one * (1.0 + 1e-9));
    }
}

/// A block of a deterministic backward pass takes its tile from memory and waits for others; one that is simulated
/// alone must do neither.
#[test]
fn sums_in_turns_cost_as_much_as_sums_in_any_order() {
    let work = |deterministic| {
        let problem = Problem::builder()
            .heads(2, 1)
            .seq_len(300)
            .head_dim(64)
            .mask(Mask::CAUSAL);
        let problem = problem
            .deterministic(deterministic)
            .build()
            .unwrap()
            .backward()
            .unwrap();
        observed(&problem, "wgmma/m64n64-s2-free", Target::Sm90a).total_work()
    };
    assert_eq!(work(true), work(false));
}
