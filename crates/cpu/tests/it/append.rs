//! Appending to caches against float64, and what is refused.

use flashcore_cpu::{CpuError, Options, run};
use flashcore_problem::{
    Append, AppendPlace, AppendValues, DType, Host, Layout, Name, Operands, Rotary, SlotMapping, Tensor, View,
};
use flashcore_testkit::{AppendCase, AppendReference, random_append};

/// Runs a case, Q in place or not.
fn run_case(case: &mut AppendCase, in_place: bool) -> (Result<(), CpuError>, Option<Tensor>, Vec<i32>) {
    let AppendCase { append, rotary, .. } = case;
    let mut seqused_k = vec![0; append.batch];
    let mut q_out = append.rotary.zip(rotary.as_ref()).map(|(rotary, [_, _, q])| {
        if in_place {
            q.clone()
        } else {
            Tensor::poisoned(q.dtype(), rotary.q_out)
        }
    });
    let (values, slots) = (case.values.clone(), case.slots.clone().unwrap_or_default());
    let narrow: Vec<i32> = slots.iter().map(|&slot| slot as i32).collect();
    let mut operands = Operands::append(&case.k_new, &case.v_new, &mut case.k_cache, &mut case.v_cache);
    for (word, values) in AppendValues::<()>::NAMES.into_iter().zip(values.arrays()) {
        if let Some(values) = values {
            operands = operands.with(Name::from_word(word).unwrap(), values);
        }
    }
    if let AppendPlace::Slots { wide } = append.place {
        let slots: View<'_, Host> = if wide { (&slots).into() } else { (&narrow).into() };
        operands = operands.with(Name::SlotMapping, slots);
    }
    if append.seqused_k {
        operands = operands.with_mut(Name::SequsedK, &mut seqused_k);
    }
    if let (Some([cos, sin, q]), Some(q_out)) = (rotary, &mut q_out) {
        operands = operands.with(Name::RotaryCos, &*cos).with(Name::RotarySin, &*sin);
        if !in_place {
            operands = operands.with(Name::Q, &*q);
        }
        operands = operands.with_mut(Name::QOut, q_out);
    }
    let result = run(&Options::default(), append, operands);
    (result, q_out, seqused_k)
}

#[test]
fn equals_float64() {
    let mut rotated = 0;
    for seed in 0..600 {
        let mut case = random_append(seed);
        let in_place = seed % 3 == 0;
        if let (true, Some(rotary)) = (in_place, case.append.rotary.as_mut()) {
            rotary.q_out = rotary.q;
        }
        let before = case.clone();
        let (result, q_out, keys) = run_case(&mut case, in_place);
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{:?}", case.append));
        let want = before.reference();
        let compare = |name, expected: &[_], before: &Tensor, after: &Tensor| {
            let same = AppendReference::compare(expected, after.dtype(), after.layout(), before.bytes(), after.bytes());
            same.unwrap_or_else(|why| panic!("seed {seed}, {name}: {why}\n{:?}", case.append));
        };
        compare("k_cache", &want.k_cache, &before.k_cache, &case.k_cache);
        compare("v_cache", &want.v_cache, &before.v_cache, &case.v_cache);
        if let (Some(q_out), Some([_, _, q])) = (&q_out, &before.rotary) {
            let poison = Tensor::poisoned(q_out.dtype(), *q_out.layout());
            compare("q_out", &want.q, if in_place { q } else { &poison }, q_out);
            rotated += 1;
        }
        if case.append.seqused_k {
            assert_eq!(keys, want.seqused_k, "seed {seed}");
        }
    }
    assert!(rotated > 200, "{rotated}");
}

/// Values that contradict an append are errors before anything is written, and each is named.
#[test]
fn wrong_values_are_refused() {
    let mut refused = 0;
    for seed in 0..300 {
        let mut case = random_append(seed);
        case.spoil(seed, seed % 2 == 0);
        let found = case.append.findings(&case.values(), case.slots());
        let before = case.clone();
        let (result, ..) = run_case(&mut case, false);
        match result {
            Ok(()) => assert!(found.is_empty(), "seed {seed}: {found:?}"),
            Err(error) => {
                assert_eq!(error.to_string(), found[0].to_string());
                let name = error.to_string().split(' ').next().unwrap().to_string();
                let known = AppendValues::<()>::NAMES.contains(&name.as_str());
                assert!(
                    known || ["slot_mapping", "rotary_cos"].contains(&name.as_str()),
                    "{error}"
                );
                assert_eq!(before.k_cache.bytes(), case.k_cache.bytes());
                refused += 1;
            }
        }
    }
    assert!(refused > 200, "{refused}");
}

#[test]
fn findings_name_the_sequence_and_the_entry() {
    let (new, cache) = ([3, 4, 1, 8].into(), [9, 4, 1, 8].into());
    let append = Append {
        rotary: Some(Rotary {
            seqlens: true,
            ..Rotary::new([3, 4, 2, 8].into(), 12, 8)
        }),
        ..Append::to_pages(DType::F16, [new, new], [cache, cache], 3)
    };
    let values = AppendValues {
        cache_seqlens: Some(&[0, 9, 4][..]),
        block_table: Some(&[0, 1, 2, 3, 4, 5, 6, -1, 8]),
        seqlens_rotary: Some(&[9, 0, 0]),
        ..AppendValues::default()
    };
    let found: Vec<String> = append.findings(&values, None).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "rotary_cos has 12 positions; sequence 0 has rows up to position 12",
            "cache_seqlens has 9 for sequence 1, which appends 4 rows; there is room for 0 to 12 in all: append \
             fewer, or to a cache with room for more",
            "block_table has -1 in entry 1 of sequence 2, which gets new rows there; the cache has pages 0 to 8",
            "rotary_cos has 12 positions; sequence 0 has rows up to position 12",
        ]
    );
}

#[test]
fn two_writers_of_a_place_are_found() {
    let (new, cache) = ([3, 2, 1, 8].into(), [4, 4, 1, 8].into());
    let said = |append: &Append, values: AppendValues<&[i32]>, slots: Option<SlotMapping<'_>>| {
        let found = append.findings(&values, slots);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let mut append = Append {
        batch_idx: true,
        ..Append::to_cache(DType::F16, [new, new], [cache, cache])
    };
    let mut values = AppendValues {
        cache_seqlens: Some(&[0, 1, 1][..]),
        cache_batch_idx: Some(&[1, 3, 1][..]),
        ..AppendValues::default()
    };
    let parts = "cache_batch_idx has 1 for sequences 0 and 2, which both write row 1 there; only one may";
    assert_eq!(said(&append, values, None), [parts]);
    // Other rows of one part, or none, may be appended by two sequences.
    let apart = AppendValues {
        cache_seqlens: Some(&[0, 1, 2][..]),
        ..values
    };
    assert!(said(&append, apart, None).is_empty());
    (append.packed, append.k_new, append.v_new) = (true, [1, 4, 1, 8].into(), [1, 4, 1, 8].into());
    values.cu_seqlens_k_new = Some(&[0, 2, 4, 4]);
    assert!(said(&append, values, None).is_empty());

    let paged = Append::to_pages(DType::F16, [new, new], [cache, cache], 2);
    let values = |table| AppendValues {
        cache_seqlens: Some(&[3, 4, 4][..]),
        block_table: Some(table),
        ..AppendValues::default()
    };
    let pages = "block_table has 2 for sequences 0 and 1, which both write row 0 there; only one may";
    assert_eq!(said(&paged, values(&[0, 2, 0, 2, 0, 3]), None), [pages]);
    assert!(said(&paged, values(&[0, 1, 3, 2, 2, 3]), None).is_empty());

    let to_slots = Append::to_slots(DType::F16, [new, new], [cache, cache], false);
    let slots = SlotMapping::I32(&[5, -1, 9, -1, 5, 0]);
    let said = said(&to_slots, AppendValues::default(), Some(slots));
    assert_eq!(said, ["slot_mapping has 5 for rows 0 and 4; they must differ"]);
}

/// An append and a change of it that is refused, with what the error says.
#[test]
fn appends_that_cannot_be_are_refused() {
    let (new, cache) = (Layout::bshd([2, 3, 1, 8]), Layout::bshd([2, 10, 1, 8]));
    let base = Append::to_cache(DType::F32, [new, new], [cache, cache]);
    let rotary = Rotary::new([2, 3, 4, 8].into(), 10, 8);
    let with = |rotary| Append {
        rotary: Some(rotary),
        ..base
    };
    let broadcast = Layout {
        strides: [0, 8, 8, 1],
        ..cache
    };
    for (append, says) in [
        (Append { batch: 3, ..base }, "k_new has shape [2, 3, 1, 8]"),
        (Append { v_new: cache, ..base }, "v_new has shape [2, 10, 1, 8]"),
        (Append { seq_len_kv: 11, ..base }, "seq_len_kv is 11"),
        (
            Append {
                k_cache: broadcast,
                ..base
            },
            "k_cache has strides",
        ),
        (Append { leftpad: true, ..base }, "leftpad_k is"),
        (
            with(Rotary { positions: 9, ..rotary }),
            "rotary_cos has 9 positions; keys can have 10",
        ),
        (with(Rotary { dim: 7, ..rotary }), "rotary_dim is 7"),
        (with(Rotary { dim: 10, ..rotary }), "rotary_dim is 10"),
        (with(Rotary { q: new, ..rotary }), "q_out has shape [2, 3, 4, 8]"),
        (
            Append {
                place: AppendPlace::Slots { wide: true },
                ..with(rotary)
            },
            "seqlens_rotary was not given",
        ),
    ] {
        let error = append.check().unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}; expected {says}");
    }
    let (mut k, mut v) = (Tensor::poisoned(DType::F32, cache), Tensor::poisoned(DType::F16, cache));
    let rows = Tensor::poisoned(DType::F32, new);
    let mut fails = |v: &mut Tensor, add: fn(Operands<'static, Host>) -> Operands<'static, Host>| {
        let more = add(Operands::new());
        let mut operands = Operands::append(&rows, &rows, &mut k, v);
        for name in more.names() {
            operands = operands.with(name, more.get(name).unwrap());
        }
        run(&Options::default(), &base, operands).unwrap_err().to_string()
    };
    assert!(fails(&mut v, |none| none).starts_with("v_cache holds fp16"));
    let mut v = Tensor::poisoned(DType::F32, cache);
    assert!(fails(&mut v, |none| none).starts_with("cache_seqlens was not given; this call needs i32 [2]"));
    let with_table =
        |none: Operands<'static, Host>| none.with(Name::CacheSeqlens, &[0, 0]).with(Name::BlockTable, &[0]);
    assert!(fails(&mut v, with_table).starts_with("block_table was given, but this call has no use"));
}
