//! Appends to caches leave what float64 says, touch nothing else, and mistakes planted in them are found.
//!
//! `FLASHCORE_SEED` moves to other appends, `FLASHCORE_PROBLEMS` sets how many (400).

use std::collections::BTreeSet;
use std::sync::Arc;

use flashcore_check::mutate::{Operator, mutations};
use flashcore_ir::Target;
use flashcore_kernels::{KernelCache, Refusal, Step, append};
use flashcore_problem::{Append, AppendPlace, AppendValues, DType, Layout, Rotary};
use flashcore_sim::{FindingKind, SimOptions};
use flashcore_testkit::{AppendCase, e4m3_pairs, random_append};

use crate::append_report::{AppendReport, check_append};
use crate::common::number;
use crate::planted::quoted;

/// The step of a case, on memory that is aligned to 16 bytes or less; `None` where e4m3 rows cannot be moved.
fn step(case: &AppendCase, seed: u64, kernels: &KernelCache) -> Option<Step> {
    let least = case.append.dtype.size_bytes() as u32;
    let alignment = [16, 16, 4, least][seed as usize / 4 % 4].max(least);
    match append::step(&case.append, Target::Sm90a, alignment, kernels) {
        Ok(step) => Some(step),
        Err(Refusal::Unsupported { what, .. }) if case.append.dtype == DType::E4M3 => {
            let known = ["e4m3 rows that start at multiples of", "e4m3 rows of which"];
            assert!(known.iter().any(|known| what.starts_with(known)), "{what}");
            None
        }
        Err(refusal) => panic!("seed {seed}: {refusal}"),
    }
}

fn check(case: &AppendCase, step: &Step, seed: u64) -> AppendReport {
    let options = SimOptions {
        seed,
        max_instructions: 1_000_000,
        ..SimOptions::default()
    };
    let in_place = seed.is_multiple_of(3) && case.append.rotary.is_some_and(|rotary| rotary.q == rotary.q_out);
    check_append(case, step, in_place, &options).unwrap()
}

#[test]
fn random_appends_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 400));
    let (kernels, mut refused, mut kinds) = (KernelCache::default(), 0, BTreeSet::new());
    for seed in first..first + count {
        let mut case = random_append(seed);
        if let (0, Some(rotary)) = (seed % 2, case.append.rotary.as_mut()) {
            rotary.q_out = rotary.q;
        }
        let Some(step) = step(&case, seed, &kernels) else {
            refused += 1;
            continue;
        };
        let report = check(&case, &step, seed);
        let right = report.is_right() && report.values.is_empty();
        assert!(
            right,
            "seed {seed} by {}\n{report}\n{:?}",
            step.kernel.name(),
            case.append
        );
        let Append {
            dtype,
            packed,
            batch_idx,
            place,
            ..
        } = case.append;
        kinds.insert((
            dtype,
            packed,
            batch_idx,
            matches!(place, AppendPlace::Paged { .. }),
            case.append.rotary.is_some(),
        ));
    }
    assert!(refused < count / 6, "{refused} refused");
    let rotated = kinds
        .iter()
        .filter(|(dtype, .., rotary)| *dtype == DType::E4M3 && *rotary);
    let (rotated, kinds) = (rotated.count(), kinds.len());
    assert!(
        count < 400 || kinds > 40 && rotated > 5,
        "{kinds} kinds, {rotated} of rotated e4m3"
    );
}

/// Values outside their bounds: lengths are cut, rows without a place are not written, and each is reported.
#[test]
fn values_outside_the_cache_are_reported_and_touch_nothing() {
    let (kernels, mut reported) = (KernelCache::default(), 0);
    for seed in 0..200 {
        let mut case = random_append(seed);
        // Parts of the cache that two sequences have would be written twice.
        case.spoil(seed, false);
        let Some(step) = step(&case, seed, &kernels) else {
            continue;
        };
        let report = check(&case, &step, seed);
        reported += usize::from(!report.values.is_empty());
        assert!(
            report.is_right(),
            "seed {seed} by {}\n{report}\n{:?}",
            step.kernel.name(),
            case.append
        );
    }
    assert!(reported > 130, "{reported}");
}

/// Whatever the values are, starts of packed sequences included, no address leaves its tensor.
#[test]
fn hostile_values_touch_no_foreign_memory() {
    let kernels = KernelCache::default();
    for seed in 0..200 {
        let mut case = random_append(seed);
        case.spoil(seed, true);
        let Some(step) = step(&case, seed, &kernels) else {
            continue;
        };
        let report = check(&case, &step, seed);
        // Sequences that overlap write the same rows; that is all there may be.
        let worse = report
            .findings
            .iter()
            .find(|finding| finding.kind != FindingKind::BlockRace);
        assert!(worse.is_none(), "seed {seed}: {worse:?}");
    }
}

/// A mistake, and where: the memory accessed, or text of the line.
#[rustfmt::skip]
const PLANTED: [(&str, Operator, &str); 17] = [
    ("wrong page: the next entry", Operator::NextAccess, "block_table"),
    ("wrong page: the entry before", Operator::PreviousAccess, "block_table"),
    ("wrong page: the first row of each", Operator::DropRemainder, "key % self.page_size"),
    ("stale length: of the sequence before", Operator::PreviousAccess, "cache_seqlens"),
    ("no length", Operator::DropAddend, "self.length(of.sequence) + of.number"),
    ("neighbour's first row", Operator::NextAccess, "cu_seqlens_k_new"),
    ("neighbour's row of Q", Operator::PreviousAccess, "cu_seqlens_q"),
    ("neighbour's row", Operator::DropAddend, "let row = (k.block_idx(0)"),
    ("neighbour's part of the cache", Operator::PreviousAccess, "cache_batch_idx"),
    ("rotary sign", Operator::OtherSign, "a * cos[i] - b * sin[i]"),
    ("the other angle", Operator::NextAccess, "rotary_sin"),
    ("the position of the row before", Operator::DropAddend, "first.min(last) + number.min(last)"),
    ("a row past the last is written", Operator::BoundOne, "key.lt(self.seq_len_kv)"),
    ("a slot outside the cache is written", Operator::DropTerm, "slot.reinterpret::<i32>().ge(0)"),
    ("rows of no sequence are written", Operator::BoundOne, "first.le(row) & row.lt(end)"),
    ("padding is counted", Operator::DropAddend, "keys - self.load(padding"),
    ("a column is left out", Operator::DropStore, "to.store_words"),
];

#[test]
fn planted_mistakes_are_found() {
    PLANTED.iter().for_each(|mistake| find(mistake, |_| true));
}

#[test]
fn planted_mistakes_are_found_where_e4m3_is_rotated() {
    let of_rotations = ["rotary sign", "the other angle", "the position of the row before"];
    let planted = PLANTED.iter().filter(|(name, ..)| of_rotations.contains(name));
    let is_e4m3 = |append: &Append| append.dtype == DType::E4M3 && append.rotary.is_some();
    planted.for_each(|mistake| find(mistake, is_e4m3));
}

/// Fails unless a mistake can be planted in an append of this kind, and is found.
fn find(&(name, operator, place): &(&str, Operator, &str), of_kind: impl Fn(&Append) -> bool) {
    let kernels = KernelCache::default();
    let (mut planted, mut found) = (0, false);
    for seed in 0..150 {
        let mut case = random_append(seed);
        if !of_kind(&case.append) {
            continue;
        }
        // Rows without a place are seen by what must not be written.
        if seed % 2 == 1 {
            case.spoil(seed, false);
        }
        let Some(step) = step(&case, seed, &kernels) else {
            continue;
        };
        let all = mutations(&step.kernel).into_iter().filter(|m| m.operator == operator);
        let here = all.filter(|m| m.object.as_deref() == Some(place) || quoted(m.line).contains(place));
        for mutation in here {
            planted += 1;
            let mutant = Step {
                kernel: Arc::new(mutation.apply(&step.kernel)),
                ..step.clone()
            };
            found |= !check(&case, &mutant, seed).is_right();
        }
        if found {
            break;
        }
    }
    assert!(planted > 0, "{name}: nowhere to plant it");
    assert!(found, "{name}: planted {planted} times");
}

/// Bit by bit what f32 rounds to, at most 448.
#[test]
fn every_pair_of_e4m3_is_rotated() {
    for interleaved in [false, true] {
        let case = e4m3_pairs(interleaved);
        let step = append::step(&case.append, Target::Sm90a, 16, &KernelCache::default()).unwrap();
        let report = check(&case, &step, 1);
        assert!(report.is_right() && report.values.is_empty(), "{report}");
        let rotated = case.reference().k_cache;
        let count = |number: f64| {
            rotated
                .iter()
                .flatten()
                .filter(|element| element.value == number)
                .count()
        };
        assert!(count(448.0).min(count(-448.0)).min(count(0.0)) > 100);
    }
}

/// Caches of more than 2^31 elements are served; a stride that a kernel could not multiply is refused.
#[test]
fn caches_may_be_larger_than_attention_takes() {
    let new = Layout::bshd([1, 3, 1, 4]);
    let far = Layout {
        shape: [4, 4, 1, 4],
        strides: [(1 << 32) - 4, 4, 4, 1],
    };
    let append = Append::to_pages(DType::E4M3, [new, new], [far, far], 2);
    append.check().unwrap();
    let step = append::step(&append, Target::Sm90a, 16, &KernelCache::default()).unwrap();
    let cache = &step.launch.buffers[2];
    assert_eq!((cache.name, cache.bytes), ("k_cache", 3 * ((1 << 32) - 4) + 16));
    // Every offset of a page, a row and a head is a 64-bit product.
    let ptx = step.kernel.to_ptx();
    assert!(ptx.matches("mul.wide.u32").count() >= 6, "{ptx}");
    let too_far = Layout {
        strides: [1 << 32, 4, 4, 1],
        ..far
    };
    let append = Append::to_pages(DType::E4M3, [new, new], [too_far, too_far], 2);
    let error = append.check().unwrap_err().to_string();
    assert!(error.contains("strides must be below 2^32 elements"), "{error}");
}

#[test]
fn kernels_of_one_kind_are_the_same() {
    let kernels = KernelCache::default();
    let kernel = |batch: usize, heads: usize, pages: usize| {
        let (new, cache) = ([batch, 2, heads, 64].into(), [pages, 16, heads, 64].into());
        let rotary = Rotary::new([batch, 2, 2 * heads, 64].into(), 16 * 9, 64);
        let append = Append {
            rotary: Some(rotary),
            ..Append::to_pages(DType::F16, [new, new], [cache, cache], 9)
        };
        append::step(&append, Target::Sm90a, 16, &kernels).unwrap().kernel
    };
    assert!(Arc::ptr_eq(&kernel(1, 1, 4), &kernel(100, 8, 5000)));
    let names: AppendValues<()> = AppendValues::default();
    assert!(names.arrays().iter().all(Option::is_none));
}
