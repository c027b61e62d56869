//! Properties that hold for all problems.

use std::collections::HashSet;

use flashcore_problem::tensor::{read_element, write_element};
use flashcore_problem::{
    CausalAlign, DType, InputKind, Inputs, Layout, Mask, Problem, ReferenceRow, Slack, Tensor, Tolerance, compare,
    gaps_untouched,
};
use flashcore_testkit::{RandomLimits, random_problem};
use proptest::prelude::*;

/// Whether a key is visible, by definition.
fn is_visible(p: &Problem, row: usize, key: usize) -> bool {
    let mask = p.mask();
    let shift = match mask.align {
        CausalAlign::BottomRight => p.seq_len_kv() as i64 - p.seq_len_q() as i64,
        _ => 0,
    };
    let q_position = row as i64 + shift + i64::from(p.q_offset());
    let k_position = key as i64 + i64::from(p.kv_offset());
    let left = mask.window_left.is_none_or(|w| k_position >= q_position - i64::from(w));
    let right = mask
        .window_right
        .is_none_or(|w| k_position <= q_position + i64::from(w));
    left && right
}

fn any_mask() -> impl Strategy<Value = Mask> {
    let window = || prop_oneof![Just(None), (0u32..40).prop_map(Some), Just(Some(u32::MAX))];
    (window(), window(), any::<bool>()).prop_map(|(left, right, top_left)| {
        let mask = Mask::window(left, right);
        if top_left { mask.top_left() } else { mask }
    })
}

proptest! {
    #[test]
    fn key_ranges_match_the_mask_definition(
        seq_len_q in 1usize..40,
        seq_len_kv in 1usize..40,
        mask in any_mask(),
        q_offset in -50i32..50,
        kv_offset in -50i32..50,
    ) {
        let p = Problem::builder().heads(1, 1).head_dim(64)
            .seq_len_q(seq_len_q)
            .seq_len_kv(seq_len_kv)
            .mask(mask)
            .offsets(q_offset, kv_offset)
            .build()
            .unwrap();
        let mut pairs = 0;
        for row in 0..seq_len_q {
            let keys = p.visible_keys(row);
            prop_assert!(keys.start <= keys.end && keys.end <= seq_len_kv);
            for key in 0..seq_len_kv {
                prop_assert_eq!(keys.contains(&key), is_visible(&p, row, key), "row {} key {}", row, key);
                pairs += usize::from(keys.contains(&key));
            }
        }
        prop_assert_eq!(p.flops(), (pairs * 2 * (64 + 64)) as f64);
    }

    #[test]
    fn offsets_at_the_limits_do_not_overflow(q in prop_oneof![Just(-(1i32 << 28)), Just(1 << 28)], mask in any_mask()) {
        let p = Problem::builder().heads(1, 1).head_dim(64).seq_len(3).mask(mask).offsets(q, -q).build().unwrap();
        for row in 0..3 {
            for key in 0..3 {
                prop_assert_eq!(p.visible_keys(row).contains(&key), is_visible(&p, row, key));
            }
        }
    }

    #[test]
    fn layouts_of_random_problems_are_injective(seed in any::<u64>()) {
        let limits = RandomLimits { max_seq: 24, max_work: 200_000, ..RandomLimits::default() };
        let p = random_problem(seed, &limits).unwrap();
        let layout = p.o_layout();
        let [nb, ns, nh, nd] = layout.shape;
        let mut seen = HashSet::new();
        for b in 0..nb { for s in 0..ns { for h in 0..nh { for d in 0..nd {
            let at = layout.offset(b, s, h, d);
            prop_assert!(at < layout.span());
            prop_assert!(seen.insert(at), "{:?} twice", [b, s, h, d]);
        }}}}
        prop_assert_eq!(seen.len(), layout.num_elements());
    }

    #[test]
    fn overlapping_layouts_are_not_injective(
        shape in prop::array::uniform4(1usize..5),
        strides in prop::array::uniform3(0i64..40),
    ) {
        let layout = Layout { shape, strides: [strides[0], strides[1], strides[2], 1] };
        let [nb, ns, nh, nd] = shape;
        let mut seen = HashSet::new();
        let mut overlap = false;
        for b in 0..nb { for s in 0..ns { for h in 0..nh { for d in 0..nd {
            overlap |= !seen.insert(layout.offset(b, s, h, d));
        }}}}
        prop_assert!(!(overlap && layout.check_injective("out").is_ok()), "{:?}", layout);
    }

    #[test]
    fn inputs_leave_gaps_poisoned(seed in any::<u64>()) {
        let limits = RandomLimits { max_seq: 24, max_work: 200_000, head_dim_v: true, ..RandomLimits::default() };
        let p = random_problem(seed, &limits).unwrap();
        let inputs = Inputs::generate(&p, InputKind::Normal, seed);
        for tensor in [&inputs.q, &inputs.k, &inputs.v] {
            prop_assert!(gaps_untouched(&tensor.view()).is_ok());
        }
        prop_assert!(p.check_inputs(&inputs.q.view(), &inputs.k.view(), &inputs.v.view()).is_ok());
    }

    #[test]
    fn json_round_trip(seed in any::<u64>()) {
        let p = random_problem(seed, &RandomLimits { head_dim_v: true, ..RandomLimits::default() }).unwrap();
        let json = serde_json::to_string(&p).unwrap();
        prop_assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), p);
    }

    #[test]
    fn rounding_to_a_dtype_is_within_half_a_unit_in_the_last_place(value in -400f32..400.0) {
        for (dtype, relative, smallest) in [
            (DType::F32, 0.0, 0.0),
            (DType::F16, 2f32.powi(-11), 2f32.powi(-25)),
            (DType::BF16, 2f32.powi(-8), 0.0),
            (DType::E4M3, 2f32.powi(-4), 2f32.powi(-10)),
        ] {
            let mut bytes = [0u8; 4];
            write_element(dtype, &mut bytes, 0, value);
            let back = read_element(dtype, &bytes, 0);
            prop_assert!((back - value).abs() <= (value.abs() * relative).max(smallest), "{} {} {}", dtype, value, back);
        }
    }

    #[test]
    fn errors_beyond_the_tolerance_fail(error in 1.1e-2f32..1e6, at in 0usize..64) {
        let p = Problem::builder().heads(1, 1).head_dim(64).seq_len(1).dtype(DType::F32).build().unwrap();
        let slack = Slack { out: vec![0.0; 64], hull: vec![[-1.0, 1.0]; 64], lse: 0.0 };
        let want = [ReferenceRow { index: [0; 3], out: vec![0.0; 64], lse: 0.0, largest_score: 0.0, slack }];
        let out = Tensor::from_fn(DType::F32, *p.o_layout(), |_, _, _, d| if d == at { error } else { 0.0 });
        let found = compare(&p, &out.view(), &want, Tolerance { atol: 1e-2, rtol: 1e-2 }).unwrap();
        prop_assert!(!found.passed);
        prop_assert_eq!(found.worst.unwrap().index, [0, 0, 0, at]);
    }
}

#[test]
fn every_e4m3_number_round_trips() {
    for byte in 0..=255u8 {
        let value = read_element(DType::E4M3, &[byte], 0);
        let mut back = [0];
        write_element(DType::E4M3, &mut back, 0, value);
        assert_eq!(back[0], byte, "{value}");
    }
}

#[test]
fn e4m3_rounds_to_even_and_saturates() {
    let round = |value: f32| {
        let mut byte = [0];
        write_element(DType::E4M3, &mut byte, 0, value);
        read_element(DType::E4M3, &byte, 0)
    };
    // Between 16 and 32 the spacing is 2: 17 is halfway between 16 and 18, 19 between 18 and 20.
    assert_eq!((round(17.0), round(19.0), round(17.1)), (16.0, 20.0, 18.0));
    assert_eq!(
        (round(1e9), round(-449.0), round(f32::INFINITY)),
        (448.0, -448.0, 448.0)
    );
    // The smallest subnormal is 2⁻⁹; half of it rounds to even, which is zero.
    assert_eq!(
        (round(2f32.powi(-9)), round(2f32.powi(-10)), round(1.9 * 2f32.powi(-7))),
        (2f32.powi(-9), 0.0, 2f32.powi(-6))
    );
    assert!(round(f32::NAN).is_nan());
}

#[test]
fn names_of_input_kinds_round_trip() {
    for kind in InputKind::ALL {
        assert_eq!(InputKind::from_name(&kind.to_string()), Some(kind));
    }
    assert_eq!(InputKind::from_name("uniform"), None);
}
