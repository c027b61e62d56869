//! Sets of problems that are benched together.

use flashcore_problem::{
    BACKWARD, DType, Direction, KvLengths, Lengths, Problem, ProblemBuilder, ProblemError, Sequence, current_name,
};
use serde::{Deserialize, Deserializer, Serialize};

use crate::sequences::{self, Sequences, Values};
use crate::{BenchError, Result, problem_file, problem_text};

/// A problem with the name it has in tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Short name, such as `d128-s4096-causal`.
    #[serde(deserialize_with = "stored_name")]
    pub name: String,
    /// What is asked.
    pub problem: Problem,
    /// Which lengths its sequences have, where the problem has lengths: [`sequences::lengths`].
    #[serde(default)]
    pub sequences: Vec<Sequences>,
    /// The values of its lengths, in place of those that `sequences` stand for.
    pub values: Option<Values>,
}

impl Case {
    /// A problem, with sequences that are all as long where it has lengths.
    pub fn new(name: impl Into<String>, problem: Problem) -> Case {
        Case {
            name: name.into(),
            problem,
            sequences: Vec::new(),
            values: None,
        }
    }

    /// The values of its lengths.
    ///
    /// # Errors
    /// [`sequences::lengths`], or values that contradict the problem.
    pub fn lengths(&self) -> Result<Lengths<Vec<i32>>> {
        let Some(values) = &self.values else {
            return sequences::lengths(&self.problem, &self.sequences);
        };
        let lengths = values.lengths(&self.problem)?;
        self.problem.sequences(&lengths.as_slices())?;
        Ok(lengths)
    }

    /// Operations and least bytes of a run, of the lengths that its sequences have.
    ///
    /// # Errors
    /// As [`Case::lengths`].
    pub fn work(&self) -> Result<Work> {
        let problem = &self.problem;
        if !problem.has_lengths() {
            return Ok(Work::of_bounds(problem));
        }
        let lengths = self.lengths()?;
        let all = problem.sequences(&lengths.as_slices())?;
        let pairs = |one: &Sequence<'_>| -> f64 { (0..one.len_q).map(|row| one.keys.keys(row).len() as f64).sum() };
        let bound = one_head_pairs(problem) * problem.batch() as f64;
        let share = all.iter().map(pairs).sum::<f64>() / bound.max(1.0);
        let of = |len: fn(&Sequence<'_>) -> usize| all.iter().map(len).sum::<usize>();
        let (rows, keys) = (of(|one| one.len_q), of(|one| one.len_kv));
        let bytes = match problem.direction() {
            Direction::Forward => row_bytes(problem, rows, keys),
            Direction::Backward => gradient_bytes(row_bytes(problem, rows, keys), rows * problem.num_heads()),
        };
        Ok(Work {
            flops: problem.flops() * share,
            bytes,
        })
    }

    /// Its backward pass, with `-backward` after the name.
    ///
    /// # Errors
    /// [`Problem::backward`].
    pub fn backward(&self) -> Result<Case, ProblemError> {
        let name = match self.problem.direction() {
            Direction::Forward => format!("{}{BACKWARD}", self.name),
            Direction::Backward => self.name.clone(),
        };
        Ok(Case {
            name,
            problem: self.problem.backward()?,
            sequences: self.sequences.clone(),
            values: self.values.clone(),
        })
    }

    /// The same with gradients that are the same bits in every run.
    ///
    /// # Errors
    /// [`BenchError::Given`]: a forward pass, of which all runs give the same bits.
    pub fn deterministic(&self) -> Result<Case> {
        if self.problem.direction() == Direction::Forward {
            return Err(BenchError::Given(format!(
                "{}: --deterministic is for backward passes; add --backward",
                self.name
            )));
        }
        Ok(Case {
            problem: ProblemBuilder::from(&self.problem).deterministic(true).build()?,
            ..self.clone()
        })
    }
}

/// Reads the name of a problem that was stored, perhaps when it had another name ([`current_name`]).
///
/// # Errors
/// It is no text.
pub fn stored_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(current_name(&String::deserialize(from)?).into_owned())
}

/// The files of sets: problem files, of which `dtype` is left out.
const SMALL: &str = include_str!("sets/small.toml");
const ACCEPTANCE: &str = include_str!("sets/acceptance.toml");
const CANONICAL: &str = include_str!("sets/canonical.toml");
const LLAMA: &str = include_str!("sets/llama.toml");
const DECODE: &str = include_str!("sets/decode.toml");
const HEAD_SIZES: &str = include_str!("sets/head-sizes.toml");
const VARLEN: &str = include_str!("sets/varlen.toml");
const PAGED: &str = include_str!("sets/paged.toml");
const MIXED: &str = include_str!("sets/mixed.toml");
const DOCUMENTS: &str = include_str!("sets/documents.toml");

/// Sets there are, and the files whose problems they have: all of them but in [`FP8`] and in [`TRAINING`].
pub(crate) const SETS: [(&str, &[&str]); 12] = [
    ("small-set", &[SMALL]),
    ("acceptance", &[ACCEPTANCE]),
    ("canonical", &[CANONICAL]),
    ("llama", &[LLAMA]),
    ("decode", &[DECODE]),
    ("all", &[SMALL, CANONICAL, LLAMA, DECODE]),
    (FP8, &[CANONICAL]),
    ("head-sizes", &[HEAD_SIZES]),
    ("varlen", &[VARLEN]),
    ("paged", &[PAGED]),
    ("mixed", &[MIXED]),
    (TRAINING, &[CANONICAL, LLAMA, DOCUMENTS]),
];

/// The names of the sets.
pub fn set_names() -> [&'static str; SETS.len()] {
    SETS.map(|(name, _)| name)
}

/// What the set of the small shapes was called, as their first problem was.
const OLD: &str = "mission";
/// The set of the long problems with large heads: where fp8 pays.
const FP8: &str = "fp8";
/// The set of backward passes of training: of the canonical grid those at 512, 2k, 8k and 16k.
const TRAINING: &str = "backward";

fn set(name: &str, files: &[&str], dtype: DType) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for text in files {
        cases.extend(problem_file::cases(text, true, Some(dtype)).map_err(BenchError::Given)?);
    }
    match name {
        FP8 => {
            cases.retain(|Case { problem, .. }| problem.head_dim() >= 128 && problem.seq_len_q() >= 8192);
            let renamed = cases.iter_mut();
            renamed.for_each(|case| case.name = format!("{dtype}-{}", case.name));
            Ok(cases)
        }
        TRAINING => {
            cases.retain(|case| ![1024, 4096].contains(&case.problem.seq_len_q()));
            Ok(cases.iter().map(Case::backward).collect::<Result<_, _>>()?)
        }
        _ => Ok(cases),
    }
}

/// The problems of a name: a set, a named problem, a file (`.json`, `.toml`), or the text of a problem. `dtype`
/// replaces the fp16 of the sets (of `fp8` the e4m3); named problems and files keep their own unless it is given. The
/// name of a set with `-backward` after it is that of the backward passes of its problems, but of those with caches.
///
/// # Errors
/// [`BenchError::UnknownProblems`], a mistake in a file, or a problem that makes no sense.
pub fn cases(name: &str, dtype: Option<DType>) -> Result<Vec<Case>> {
    let (of, is_backward) = match name.strip_suffix(BACKWARD) {
        Some(of) => (of, true),
        None => (name, false),
    };
    let of = if of == OLD { "small-set" } else { of };
    if let Some((_, files)) = SETS.into_iter().find(|(known, _)| *known == of) {
        let usual = if of == FP8 { DType::E4M3 } else { DType::F16 };
        let forward = set(of, files, dtype.unwrap_or(usual))?;
        return if is_backward {
            let trained = forward.iter().filter(|case| !has_cache(&case.problem));
            Ok(trained.map(Case::backward).collect::<Result<_, _>>()?)
        } else {
            Ok(forward)
        };
    }
    if let Ok(named) = Problem::named(name) {
        let builder = ProblemBuilder::from(&named).dtype(dtype.unwrap_or(named.dtype()));
        return Ok(vec![Case::new(current_name(name), builder.build()?)]);
    }
    if problem_file::is_file(name) {
        return problem_file::read(name, dtype);
    }
    if let Some(case) = member(&current_name(name), dtype)? {
        return Ok(vec![case]);
    }
    if let Some(problem) = problem_text::read(name).transpose()? {
        let builder = ProblemBuilder::from(&problem).dtype(dtype.unwrap_or(problem.dtype()));
        let problem = builder.build()?;
        return Ok(vec![Case::new(problem.to_string(), problem)]);
    }
    Err(BenchError::UnknownProblems(name.to_string()))
}

/// A problem of a set by its name there, or its backward pass.
fn member(name: &str, dtype: Option<DType>) -> Result<Option<Case>> {
    for (set, _) in SETS {
        // Not every set has problems of every dtype.
        for case in cases(set, dtype).unwrap_or_default() {
            if case.name == name {
                return Ok(Some(case));
            }
            if name.strip_suffix(BACKWARD) == Some(case.name.as_str()) && !has_cache(&case.problem) {
                return Ok(Some(case.backward()?));
            }
        }
    }
    Ok(None)
}

/// Whether keys are in caches, which are read and not trained.
fn has_cache(problem: &Problem) -> bool {
    !matches!(problem.kv_lengths(), KvLengths::Equal | KvLengths::Packed { .. })
}

/// What a run of a problem takes at the very least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Floating-point operations over visible keys ([`Problem::flops`]).
    pub flops: f64,
    /// Bytes that must move: each input read once, each output written once. Of lengths, the rows that sequences have.
    pub bytes: f64,
}

impl Work {
    /// Of a problem whose sequences all have the length of its bounds.
    pub fn of_bounds(problem: &Problem) -> Work {
        Work {
            flops: problem.flops(),
            bytes: least_bytes(problem),
        }
    }
}

/// Pairs of a row and a key that it sees, of a head of a sequence as long as the bounds.
fn one_head_pairs(problem: &Problem) -> f64 {
    let rows = 0..problem.seq_len_q();
    rows.map(|row| problem.visible_keys(row).len() as f64).sum()
}

/// Bytes of so many rows of Q and O, and of K and V, of a forward pass.
fn row_bytes(problem: &Problem, rows: usize, keys: usize) -> f64 {
    let (size, out) = (problem.dtype().size_bytes(), problem.out_dtype().size_bytes());
    let (d, d_v) = (problem.head_dim(), problem.head_dim_v());
    let of_q = rows * problem.num_heads() * (d * size + d_v * out);
    (of_q + keys * problem.num_kv_heads() * (d + d_v) * size) as f64
}

/// Bytes that must move at the very least: each input read once, each output written once.
pub fn least_bytes(problem: &Problem) -> f64 {
    let inputs = [problem.q_layout(), problem.k_layout(), problem.v_layout()];
    let read: usize = inputs.iter().map(|layout| layout.num_elements()).sum();
    let out = problem.o_layout().num_elements() * problem.out_dtype().size_bytes();
    let read = read * problem.dtype().size_bytes() + 3 * problem.num_scales() * size_of::<f32>();
    match problem.gradient_layouts() {
        None => (read + out) as f64,
        Some(_) => gradient_bytes((read + out) as f64, problem.lse_len()),
    }
}

/// Bytes of a backward pass, from those of its forward pass and the rows of all heads: O and dO are read, with the
/// log-sum-exp, and gradients are as large as what they are of.
fn gradient_bytes(forward: f64, rows: usize) -> f64 {
    2.0 * forward + (rows * size_of::<f32>()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_the_lengths_of_their_names() {
        let work = |set: &str, name: &str| {
            let cases = cases(set, Some(DType::BF16)).unwrap();
            let case = cases.into_iter().find(|case| case.name == name).unwrap();
            (case.work().unwrap(), case)
        };
        let (packed, _) = work("varlen", "varlen-4x8k");
        let (dense, case) = work("varlen", "dense-4x8k");
        assert_eq!(packed, dense);
        assert_eq!(dense, Work::of_bounds(&case.problem));
        let (decode, case) = work("paged", "paged64-b64-4k");
        assert_eq!(
            decode.bytes,
            (64u64 * 4096 * 8 * 256 * 2 + 2 * 64 * 32 * 128 * 2) as f64
        );
        assert_eq!(decode.flops, 4.0 * (64 * 32) as f64 * (4096 * 128) as f64);
        assert_eq!(case.lengths().unwrap().block_table.unwrap().len(), 64 * 64);
        // Lengths that differ count as they are, not as their bounds.
        let (cache, case) = work("decode", "cache-b64-1k-8k");
        let of_bounds = Work::of_bounds(&case.problem).bytes;
        assert!(cache.bytes < 0.62 * of_bounds && cache.bytes > 0.5 * of_bounds);
        let (mixed, _) = work("mixed", "mixed16-2k-at-8k-63x1-at-4k");
        let pairs = 2048.0 * (6144.0 + 2049.0 / 2.0) + 63.0 * 4096.0;
        assert!((mixed.flops / (4.0 * 128.0 * 32.0 * pairs) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn names_of_before_are_those_of_now() {
        for (old, now) in [
            ("mission", "small-set"),
            ("mission-backward", "small-set-backward"),
            ("mission-b2-causal", "small-b2-causal"),
            ("mission-bf16-backward", "small-bf16-backward"),
        ] {
            assert_eq!(cases(old, None).unwrap(), cases(now, None).unwrap());
        }
        let stored = serde_json::to_string(&cases("small-b2", None).unwrap()[0]).unwrap();
        let stored = stored.replace("small", "mission");
        assert_eq!(
            serde_json::from_str::<Case>(&stored).unwrap(),
            cases("small-b2", None).unwrap()[0]
        );
    }

    #[test]
    fn the_canonical_grid_has_the_same_tokens_and_hidden_everywhere() {
        let cases = cases("canonical", None).unwrap();
        assert_eq!(cases.len(), 36);
        for Case { problem, .. } in &cases {
            assert_eq!(problem.batch() * problem.seq_len_q(), 16_384);
            assert_eq!(problem.num_heads() * problem.head_dim(), 2_048);
        }
        assert_eq!(super::cases("all", None).unwrap().len(), 36 + 4 + 1 + 4 + 6);
        let fp8 = super::cases("fp8", None).unwrap();
        assert_eq!((fp8.len(), fp8[0].name.as_str()), (8, "e4m3-d128-s8192"));
        assert!(fp8.iter().all(|case| case.problem.dtype() == DType::E4M3));
        let sizes = super::cases("head-sizes", None).unwrap();
        let names: Vec<&str> = sizes.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[..3], ["d96-s4096", "d96-s4096-causal", "d192-s4096"]);
        assert_eq!(
            names[5..],
            ["d192v128-s4096-causal", "d192v128-s8192", "d192v128-s8192-causal"]
        );
        assert_eq!(
            sizes[7].problem.to_string(),
            "B2 H16/16 Sq8192 Skv8192 D192 fp16 causal Dv128"
        );
        assert!(
            SETS.iter()
                .all(|(name, _)| super::cases(name, Some(DType::BF16)).is_ok())
        );
    }

    #[test]
    fn every_set_has_a_backward_pass_but_that_of_e4m3() {
        for (name, _) in SETS {
            let backward = super::cases(&format!("{name}-backward"), None);
            if name == "fp8" {
                assert!(backward.unwrap_err().to_string().contains("dtype is e4m3"));
                continue;
            }
            let mut forward = super::cases(name, None).unwrap();
            forward.retain(|case| !has_cache(&case.problem));
            assert_eq!(forward.len(), backward.as_ref().unwrap().len());
            for (forward, backward) in forward.iter().zip(backward.unwrap()) {
                assert_eq!(backward, forward.backward().unwrap());
                assert_eq!(backward.backward().unwrap(), backward);
                if name == "backward" {
                    continue;
                }
                assert_eq!(backward.name, format!("{}-backward", forward.name));
                assert!(least_bytes(&backward.problem) > 2.0 * least_bytes(&forward.problem));
                let [forward, backward] = [forward, &backward].map(|case| case.work().unwrap());
                assert!(
                    (backward.flops / forward.flops - 2.5).abs() < 0.3,
                    "{forward:?} {backward:?}"
                );
                assert!(backward.bytes > 2.0 * forward.bytes && backward.bytes < 2.1 * forward.bytes);
            }
        }
    }

    #[test]
    fn backward_passes_of_training_have_as_many_tokens_each() {
        let cases = cases("backward", Some(DType::BF16)).unwrap();
        assert_eq!(cases.len(), 24 + 1 + 4);
        for case in &cases {
            assert!(case.name.ends_with("-backward") && case.problem.direction() == Direction::Backward);
            let [batch, rows, ..] = case.problem.q_layout().shape;
            assert_eq!(
                batch * rows,
                if case.name.starts_with("llama8b") { 8192 } else { 16_384 }
            );
        }
        let documents = cases
            .iter()
            .find(|case| case.name == "documents-d128-backward")
            .unwrap();
        let starts = documents.lengths().unwrap().cu_seqlens_q.unwrap();
        assert_eq!((starts.len(), starts[9]), (10, 16_384));
        assert!(
            starts
                .windows(2)
                .all(|ends| (200..=4000).contains(&(ends[1] - ends[0])))
        );
        // Five products of each visible pair, and each token of nine tensors once.
        let pairs: f64 = starts
            .windows(2)
            .map(|ends| f64::from(ends[1] - ends[0]))
            .map(|len| len * (len + 1.0) / 2.0)
            .sum();
        let work = documents.work().unwrap();
        assert!((work.flops / (10.0 * 2048.0 * pairs) - 1.0).abs() < 1e-9);
        assert_eq!(work.bytes, (16_384 * (8 * 2048 * 2 + 16 * 4)) as f64);
    }

    #[test]
    fn names_are_of_sets_problems_and_members() {
        let error = cases("cannonical", None).unwrap_err();
        assert!(
            matches!(&error, BenchError::UnknownProblems(name) if name == "cannonical"),
            "{error}"
        );
        assert!(set_names().contains(&"canonical"));
        let named = cases("vit-l16", Some(DType::BF16)).unwrap();
        assert_eq!(named[0].problem.dtype(), DType::BF16);
        let member = cases("d128-s4096-causal", Some(DType::BF16)).unwrap();
        assert_eq!(
            member[0].problem.to_string(),
            "B4 H16/16 Sq4096 Skv4096 D128 bf16 causal"
        );
        let backward = cases("d64-s1024-backward", None).unwrap();
        assert_eq!(backward[0].problem.direction(), Direction::Backward);
        assert_eq!(cases("documents-d64-backward", None).unwrap().len(), 1);
        assert!(cases("cache-b64-4k-backward", None).is_err());
    }
}
