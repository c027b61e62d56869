//! The kernel that checks lengths, offsets, pages, slots and positions on the device: it finds what the host finds, is
//! silent where the host is, and touches no foreign memory, whatever the values are.
//!
//! `FLASHCORE_SEED` moves to other cases, `FLASHCORE_PROBLEMS` sets how many (150).

use std::collections::BTreeSet;

use flashcore_ir::{BufferSpec, Target};
use flashcore_kernels::checks::{RECORD_WORDS, of_append, of_problem, violation};
use flashcore_kernels::{KernelCache, Step};
use flashcore_problem::rng::Rng;
use flashcore_problem::{
    Append, AppendPlace, AppendValues, KvLengths, Lengths, Mask, Problem, ProblemError, QLengths, SlotMapping,
    random_lengths,
};
use flashcore_sim::{SimOptions, simulate};
use flashcore_testkit::{AppendCase, random_append};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::number;

const HOSTILE: [i32; 9] = [i32::MIN, -2, -1, 0, 1, 79, 1 << 20, i32::MAX - 1, i32::MAX];

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Runs a launch, which must be clean under the simulator, and returns what it found, and how many.
fn run(step: &Step, seed: u64, content: impl Fn(&BufferSpec) -> Vec<u8>) -> (Option<ProblemError>, u32) {
    assert!(step.kernel.requires().is_met_by(Target::Sm80));
    let content = |spec: &BufferSpec| match spec.name {
        "record" => vec![0; spec.bytes as usize],
        _ => content(spec),
    };
    let mut buffers: Vec<Vec<u8>> = step.launch.buffers.iter().map(content).collect();
    let options = SimOptions {
        seed,
        ..SimOptions::default()
    };
    let report = simulate(&step.kernel, &step.launch, &mut buffers, &options).unwrap();
    assert!(
        report.findings.is_empty(),
        "{}: {:?}",
        step.kernel.name(),
        report.findings
    );
    let record = buffers.last().unwrap();
    let words: Vec<u32> = record
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    let record: [u32; RECORD_WORDS] = words.try_into().unwrap();
    (violation(&record), record[0])
}

fn of_lengths(
    problem: &Problem,
    lengths: &Lengths<Vec<i32>>,
    kernels: &KernelCache,
    seed: u64,
) -> (Option<ProblemError>, u32) {
    let step = of_problem(problem, true, kernels).unwrap().unwrap();
    run(&step, seed, |spec| bytes(lengths.named(spec.name).unwrap()))
}

fn of_case(case: &AppendCase, kernels: &KernelCache, seed: u64) -> (Option<ProblemError>, u32) {
    let step = of_append(&case.append, kernels).unwrap();
    run(&step, seed, |spec| match (case.values.named(spec.name), case.slots()) {
        (Some(values), _) => bytes(values),
        (None, Some(SlotMapping::I32(slots))) => bytes(slots),
        (None, Some(SlotMapping::I64(slots))) => slots.iter().flat_map(|slot| slot.to_le_bytes()).collect(),
        (None, None) => panic!("{} is not known", spec.name),
    })
}

/// The argument that an error names.
fn argument(error: &ProblemError) -> &'static str {
    match error {
        ProblemError::Lengths { argument, .. } => argument,
        other => panic!("{other}"),
    }
}

/// Both sides find something or nothing. Where few values are wrong, the kernel's argument is one that the host names;
/// of many, the host tells the first of each sequence.
fn compare(found: (Option<ProblemError>, u32), host: &[ProblemError], few: bool, what: &str) -> bool {
    let (found, count) = found;
    assert_eq!(
        found.is_some(),
        !host.is_empty(),
        "{what}: {found:?}, the host: {host:?}"
    );
    assert_eq!(found.is_some(), count > 0, "{what}");
    if let (Some(found), true) = (&found, few) {
        let names: BTreeSet<_> = host.iter().map(argument).collect();
        assert!(names.contains(argument(found)), "{what}: {found}, the host: {host:?}");
    }
    found.is_some()
}

fn problems() -> impl Iterator<Item = (u64, Problem)> {
    let limits = RandomLimits {
        max_seq: 300,
        max_work: 1_500_000,
        max_batch: 6,
        lengths: true,
        ..RandomLimits::default()
    };
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 150));
    let problems = (first..first + count).map(move |seed| (seed, random_problem(seed, &limits).unwrap()));
    problems.filter(|(_, problem)| problem.has_lengths())
}

#[test]
fn lengths_of_random_problems_are_clean() {
    let (kernels, mut names) = (KernelCache::default(), BTreeSet::new());
    for (seed, problem) in problems() {
        let lengths = random_lengths(&problem, seed);
        let (found, count) = of_lengths(&problem, &lengths, &kernels, seed);
        assert!(found.is_none() && count == 0, "{problem}: {found:?}");
        names.insert(
            of_problem(&problem, true, &kernels)
                .unwrap()
                .unwrap()
                .kernel
                .name()
                .to_string(),
        );
    }
    assert!(number("FLASHCORE_PROBLEMS", 150) < 150 || names.len() > 10, "{names:?}");
}

/// One value at a time is replaced, and in the end all are.
#[test]
fn wrong_lengths_are_found_where_the_host_finds_them() {
    let (kernels, mut rng) = (KernelCache::default(), Rng::new(3));
    let (mut wrong, mut right, mut arguments) = (0, 0, BTreeSet::new());
    for (seed, problem) in problems() {
        let clean = random_lengths(&problem, seed);
        for round in 0..4 {
            let mut lengths = clean.clone();
            let mut arrays = lengths_mut(&mut lengths);
            let planted = match round {
                3 => usize::MAX,
                _ => rng.below(arrays.len()),
            };
            for (n, (name, array)) in arrays.iter_mut().enumerate() {
                let only = rng.below(array.len());
                for (place, value) in array.iter_mut().enumerate() {
                    // Offsets may start above 0, which the host refuses.
                    let is_start = name.starts_with("cu_") && place == 0;
                    let planted = if round == 3 {
                        rng.chance(0.3)
                    } else {
                        n == planted && place == only
                    };
                    if planted {
                        *value = *rng.pick(&HOSTILE).unwrap();
                        *value = if is_start { (*value).min(0) } else { *value };
                    }
                }
            }
            let host = problem.length_findings(&lengths.as_slices());
            let found = of_lengths(&problem, &lengths, &kernels, seed);
            arguments.extend(found.0.as_ref().map(argument));
            if compare(found, &host, round < 3, &format!("{problem} of {lengths:?}")) {
                wrong += 1
            } else {
                right += 1
            }
        }
    }
    let few = number("FLASHCORE_PROBLEMS", 150) < 150;
    assert!(
        few || wrong > 150 && right > 20 && arguments.len() == 5,
        "{wrong}, {right}, {arguments:?}"
    );
}

fn lengths_mut(lengths: &mut Lengths<Vec<i32>>) -> Vec<(&'static str, &mut Vec<i32>)> {
    let Lengths {
        cu_seqlens_q,
        seqused_q,
        cu_seqlens_k,
        seqused_k,
        block_table,
    } = lengths;
    let arrays = [cu_seqlens_q, seqused_q, cu_seqlens_k, seqused_k, block_table];
    let arrays = Lengths::<i32>::NAMES.into_iter().zip(arrays);
    arrays
        .filter_map(|(name, array)| Some((name, array.as_mut()?)))
        .collect()
}

/// The host also reports two writers of a row, which are in the cache, each for itself.
fn without_two_writers(found: Vec<ProblemError>) -> Vec<ProblemError> {
    let two = |error: &ProblemError| {
        ["only one may", "they must differ"]
            .iter()
            .any(|why| error.to_string().ends_with(why))
    };
    found.into_iter().filter(|error| !two(error)).collect()
}

#[test]
fn values_of_random_appends_are_clean() {
    let kernels = KernelCache::default();
    for seed in 0..number("FLASHCORE_PROBLEMS", 150) {
        let case = random_append(seed);
        let (found, count) = of_case(&case, &kernels, seed);
        assert!(found.is_none() && count == 0, "seed {seed}: {found:?}");
    }
}

#[test]
fn wrong_values_of_appends_are_found_where_the_host_finds_them() {
    let (kernels, mut rng) = (KernelCache::default(), Rng::new(4));
    let (mut wrong, mut right, mut arguments) = (0, 0, BTreeSet::new());
    for seed in 0..2 * number("FLASHCORE_PROBLEMS", 150) {
        let clean = random_append(seed);
        let mut spoiled = random_append(seed);
        spoiled.spoil(seed, false);
        let mut all = random_append(seed);
        all.spoil(seed, true);
        for starts in [&mut all.values.cu_seqlens_k_new, &mut all.values.cu_seqlens_q]
            .into_iter()
            .flatten()
        {
            starts[0] = starts[0].min(0);
        }
        // One argument with the values that it has in the spoiled case.
        let names: Vec<&str> = AppendValues::<i32>::NAMES
            .into_iter()
            .filter(|name| clean.values.named(name) != spoiled.values.named(name))
            .collect();
        let mut one = random_append(seed);
        if let Some(&name) = rng.pick(&names) {
            let of = |other: &str| if other == name { &spoiled.values } else { &clean.values };
            one.values = AppendValues::from(AppendValues::<i32>::NAMES.map(|other| of(other).named(other).cloned()));
        }
        for (case, what) in [(&one, "one"), (&spoiled, "spoiled"), (&all, "all")] {
            let host = without_two_writers(case.append.findings(&case.values(), case.slots()));
            let found = of_case(case, &kernels, seed);
            arguments.extend(found.0.as_ref().map(argument));
            let text = format!("seed {seed}, {what}, {:?} of {:?}", case.append, case.values());
            if compare(found, &host, what == "one", &text) {
                wrong += 1
            } else {
                right += 1
            }
        }
    }
    let few = number("FLASHCORE_PROBLEMS", 150) < 150;
    assert!(
        few || wrong > 400 && right > 20 && arguments.len() >= 9,
        "{wrong}, {right}, {arguments:?}"
    );
}

/// Problem, clean values, and what is planted in them.
struct Planted {
    problem: Problem,
    clean: Lengths<Vec<i32>>,
    wrong: Lengths<Vec<i32>>,
    message: &'static str,
}

fn packed() -> Problem {
    let problem = Problem::builder()
        .batch(3)
        .heads(2, 1)
        .head_dim(64)
        .seq_len_q(40)
        .seq_len_kv(60);
    let problem = problem.q_lengths(QLengths::Packed { total: 90, used: false });
    let problem = problem.kv_lengths(KvLengths::Packed { total: 120, used: true });
    problem.build().unwrap()
}

fn paged(mask: Mask) -> Problem {
    let paged = KvLengths::Paged {
        page_size: 16,
        pages: 20,
        max_pages: 8,
    };
    let problem = Problem::builder()
        .batch(2)
        .heads(2, 1)
        .head_dim(64)
        .seq_len_q(1)
        .seq_len_kv(100);
    problem.mask(mask).kv_lengths(paged).build().unwrap()
}

fn planted() -> Vec<Planted> {
    let of_packed = |q: [i32; 4], k: [i32; 4], used: [i32; 3]| Lengths {
        cu_seqlens_q: Some(q.to_vec()),
        cu_seqlens_k: Some(k.to_vec()),
        seqused_k: Some(used.to_vec()),
        ..Lengths::default()
    };
    let of_pages = |used: [i32; 2], page: i32| Lengths {
        seqused_k: Some(used.to_vec()),
        block_table: Some((0..16).map(|i| if i == 11 { page } else { i }).collect()),
        ..Lengths::default()
    };
    let clean = || of_packed([0, 40, 50, 90], [0, 60, 60, 120], [60, 0, 59]);
    let of = |wrong, message| Planted {
        problem: packed(),
        clean: clean(),
        wrong,
        message,
    };
    let of_cache = |wrong, message| Planted {
        problem: paged(Mask::CAUSAL),
        clean: of_pages([100, 64], 19),
        wrong,
        message,
    };
    vec![
        of(
            of_packed([0, 40, 30, 70], [0, 60, 60, 120], [60, 0, 59]),
            "cu_seqlens_q has 30 in entry 2, of sequence 1; allowed are 40 to 90: offsets start at 0 or more, do not \
             fall, and end within their tensors",
        ),
        of(
            of_packed([0, 40, 50, 90], [0, 60, 60, 121], [60, 0, 59]),
            "cu_seqlens_k has 121 in entry 3, of sequence 2; allowed are 60 to 120: offsets start at 0 or more, do not \
             fall, and end within their tensors",
        ),
        of(
            of_packed([-3, 37, 50, 90], [0, 60, 60, 120], [60, 0, 59]),
            "cu_seqlens_q has -3 in entry 0, of sequence 0; allowed are 0 to 90: offsets start at 0 or more, do not \
             fall, and end within their tensors",
        ),
        of(
            of_packed([0, 40, 40, 81], [0, 60, 60, 120], [60, 0, 59]),
            "cu_seqlens_q gives sequence 2 41 rows; the bound max_seqlen_q (seq_len_q of a Problem) is 40: raise it",
        ),
        of(
            of_packed([0, 40, 50, 90], [0, 60, 60, 120], [60, 0, -1]),
            "seqused_k has -1 for sequence 2; allowed are 0 to 60",
        ),
        of_cache(
            of_pages([101, 64], 19),
            "seqused_k has 101 for sequence 0; allowed are 0 to 100",
        ),
        of_cache(
            of_pages([100, 64], 20),
            "block_table has 20 in entry 3 of sequence 1, which needs that page; the cache has pages 0 to 19",
        ),
        of_cache(
            of_pages([100, 64], -1),
            "block_table has -1 in entry 3 of sequence 1, which needs that page; the cache has pages 0 to 19",
        ),
    ]
}

#[test]
fn planted_violations_are_named_and_their_clean_twins_are_not() {
    let kernels = KernelCache::default();
    for Planted {
        problem,
        clean,
        wrong,
        message,
    } in planted()
    {
        assert_eq!(
            of_lengths(&problem, &clean, &kernels, 1).1,
            0,
            "the clean twin of {message}"
        );
        let (found, _) = of_lengths(&problem, &wrong, &kernels, 1);
        assert_eq!(found.map(|error| error.to_string()).as_deref(), Some(message));
    }
    // A page that no row sees may be missing: of 64 keys the last row sees 40 to 63.
    let window = paged(Mask::window(Some(23), Some(0)));
    let table = |i: i32, page: i32| Lengths {
        seqused_k: Some(vec![100, 64]),
        block_table: Some((0..16).map(|at| if at == 8 + i { page } else { at }).collect()),
        ..Lengths::default()
    };
    let found = |i, page| of_lengths(&window, &table(i, page), &kernels, 1).1;
    assert_eq!([found(0, -1), found(1, -1), found(2, -1), found(3, -1)], [0, 0, 1, 1]);
    assert_eq!(
        [found(0, 20), found(0, -2), found(4, -7)],
        [1, 1, 0],
        "the fifth page has no keys"
    );
    // Offsets may start above 0.
    let mut lengths = planted()[0].clean.clone();
    lengths.cu_seqlens_q = Some(vec![10, 50, 60, 90]);
    assert_eq!(of_lengths(&packed(), &lengths, &kernels, 1).1, 0);
}

/// An append of three sequences to slots, i64, of a cache of 5 pages of 4 rows.
#[test]
fn slots_outside_the_cache_are_named() {
    let kernels = KernelCache::default();
    let mut found = 0;
    for seed in 0..400 {
        let mut case = random_append(seed);
        let AppendPlace::Slots { wide } = case.append.place else {
            continue;
        };
        let (rows, most) = (case.append.new_rows(), case.append.slots() as i64);
        let Some(slots) = case.slots.as_mut().filter(|slots| wide && !slots.is_empty()) else {
            continue;
        };
        if case.append.rotary.is_some() {
            continue; // a row may be of no sequence
        }
        let last = rows - 1;
        for (slot, is_wrong) in [
            (-1, false),
            (most, true),
            (-2, true),
            (1 << 32, true),
            (i64::MIN + 1, true),
        ] {
            slots.fill(-1);
            slots[last] = slot;
            let step = of_append(&case.append, &kernels).unwrap();
            let wide: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
            let (error, _) = run(&step, seed, |spec| match spec.name {
                "slot_mapping" => wide.clone(),
                name => bytes(case.values.named(name).unwrap()),
            });
            let want = format!(
                "slot_mapping has {slot} for row {last}; allowed are -1 (skip) and 0 to {}",
                most - 1
            );
            assert_eq!(error.map(|error| error.to_string()), is_wrong.then_some(want));
            found += usize::from(is_wrong);
        }
    }
    assert!(found > 20, "{found}");
}

/// More rows than a block has threads, and more sequences than one.
#[test]
fn every_new_row_of_many_is_looked_at() {
    let (new, cache) = ([300, 1, 1, 8].into(), [40, 16, 1, 8].into());
    let append = Append::to_slots(flashcore_problem::DType::F32, [new, new], [cache, cache], false);
    let step = of_append(&append, &KernelCache::default()).unwrap();
    for wrong in [None, Some(0), Some(127), Some(128), Some(299)] {
        let slot = |row: i32| if Some(row) == wrong { 640 } else { row };
        let slots: Vec<i32> = (0..300).map(slot).collect();
        let (found, count) = run(&step, 1, |_| bytes(&slots));
        assert_eq!(count, u32::from(wrong.is_some()));
        assert_eq!(
            found.is_some_and(|error| error.to_string().contains(&format!("for row {}", wrong.unwrap()))),
            wrong.is_some()
        );
    }
}
