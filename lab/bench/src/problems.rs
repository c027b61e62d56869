//! Sets of problems that are benched together.

use flashcore_problem::{
    BACKWARD, DType, Direction, KvLengths, Lengths, Mask, Problem, ProblemBuilder, ProblemError, Sequence,
};
use serde::{Deserialize, Serialize};

use crate::sequences::{self, Sequences, Values};
use crate::{BenchError, Result, problem_file, serving};

/// A problem with the name it has in tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Short name, such as `d128-s4096-causal`.
    pub name: String,
    /// What is asked.
    pub problem: Problem,
    /// Which lengths its sequences have, where the problem has lengths: [`sequences::lengths`].
    #[serde(default)]
    pub sequences: Vec<Sequences>,
    /// The values of its lengths, in place of those that `sequences` stand for.
    #[serde(default)]
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

type Set = fn(DType) -> Result<Vec<Case>, ProblemError>;

/// Sets there are.
pub(crate) const SETS: [(&str, Set); 12] = [
    ("mission", mission),
    ("acceptance", acceptance),
    ("canonical", canonical),
    ("llama", llama),
    ("decode", decode),
    ("all", all),
    ("fp8", fp8),
    ("head-sizes", head_sizes),
    ("varlen", serving::varlen),
    ("paged", serving::paged),
    ("mixed", serving::mixed),
    ("backward", backward),
];

/// Tokens a canonical problem has in all.
const CANONICAL_TOKENS: usize = 16_384;
/// Heads times head_dim of a canonical problem.
const CANONICAL_HIDDEN: usize = 2_048;

/// The problems of a name: a set, a named problem, or a file (`.json`, `.toml`). `dtype` replaces the fp16 of the
/// sets (of `fp8` the e4m3); named problems and files keep their own unless it is given. The name of a set with
/// `-backward` after it is that of the backward passes of its problems, but of those with caches.
///
/// # Errors
/// [`BenchError::UnknownProblems`], a mistake in a file, or a problem that makes no sense.
pub fn cases(name: &str, dtype: Option<DType>) -> Result<Vec<Case>> {
    let (of, is_backward) = match name.strip_suffix(BACKWARD) {
        Some(of) => (of, true),
        None => (name, false),
    };
    if let Some((_, set)) = SETS.into_iter().find(|(known, _)| *known == of) {
        let usual = if of == "fp8" { DType::E4M3 } else { DType::F16 };
        let forward = set(dtype.unwrap_or(usual))?;
        return match is_backward {
            true => {
                let trained = forward.iter().filter(|case| !has_cache(&case.problem));
                Ok(trained.map(Case::backward).collect::<Result<_, _>>()?)
            }
            false => Ok(forward),
        };
    }
    if let Ok(named) = Problem::named(name) {
        let builder = ProblemBuilder::from(&named).dtype(dtype.unwrap_or(named.dtype()));
        return Ok(vec![case(name, builder)?]);
    }
    if problem_file::is_file(name) {
        return problem_file::read(name, dtype);
    }
    if let Some(case) = member(name, dtype)? {
        return Ok(vec![case]);
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

fn case(name: impl Into<String>, builder: ProblemBuilder) -> Result<Case, ProblemError> {
    Ok(Case::new(name, builder.build()?))
}

/// B1 and B2 H8 S512 D64, full and causal: where the project began.
fn mission(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let names = ["mission", "mission-causal", "mission-b2", "mission-b2-causal"].into_iter();
    let named = |name| case(name, ProblemBuilder::from(&Problem::named(name)?).dtype(dtype));
    names.map(named).collect()
}

/// Five shapes of 512 rows and keys, each full and causal: what the gate judges ([`crate::gate`]). The mission's two,
/// and three that change one size each: more heads, GPT-2's heads in a batch, larger heads.
fn acceptance(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let mut cases = Vec::new();
    for (batch, heads, head_dim) in [(1, 8, 64), (2, 8, 64), (1, 16, 64), (4, 12, 64), (1, 8, 128)] {
        for (mask, suffix) in [(Mask::FULL, ""), (Mask::CAUSAL, "-causal")] {
            let builder = Problem::builder()
                .batch(batch)
                .heads(heads, heads)
                .seq_len(512)
                .head_dim(head_dim)
                .mask(mask)
                .dtype(dtype);
            cases.push(case(format!("s512-b{batch}-h{heads}-d{head_dim}{suffix}"), builder)?);
        }
    }
    Ok(cases)
}

/// A grid of problems without grouped heads: head_dim, that of the values, heads and lengths; each full, then causal.
fn grid(
    dtype: DType,
    rows: impl IntoIterator<Item = (usize, usize, usize, &'static [usize])>,
) -> Result<Vec<Case>, ProblemError> {
    let mut cases = Vec::new();
    for (head_dim, head_dim_v, heads, lengths) in rows {
        let values = match head_dim_v == head_dim {
            true => String::new(),
            false => format!("v{head_dim_v}"),
        };
        for (mask, suffix) in [(Mask::FULL, ""), (Mask::CAUSAL, "-causal")] {
            for seq_len in lengths {
                let builder = Problem::builder()
                    .batch(CANONICAL_TOKENS / seq_len)
                    .heads(heads, heads)
                    .seq_len(*seq_len)
                    .head_dim(head_dim)
                    .head_dim_v(head_dim_v)
                    .mask(mask)
                    .dtype(dtype);
                cases.push(case(format!("d{head_dim}{values}-s{seq_len}{suffix}"), builder)?);
            }
        }
    }
    Ok(cases)
}

/// head_dim 64, 128, 256 × 512 to 16k × full and causal, 16,384 tokens, hidden 2,048.
fn canonical(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    const LENGTHS: [usize; 6] = [512, 1024, 2048, 4096, 8192, 16_384];
    let row = |head_dim| (head_dim, head_dim, CANONICAL_HIDDEN / head_dim, LENGTHS.as_slice());
    grid(dtype, [64, 128, 256].map(row))
}

/// The long problems of the canonical grid with large heads: where fp8 pays.
fn fp8(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let mut cases = canonical(dtype)?;
    cases.retain(|Case { problem, .. }| problem.head_dim() >= 128 && problem.seq_len_q() >= 8192);
    cases
        .iter_mut()
        .for_each(|case| case.name = format!("{dtype}-{}", case.name));
    Ok(cases)
}

/// Head sizes between those of the canonical grid, 16 heads each: 96 (Phi-3), and 192 with values of 192, or of 128 as
/// in DeepSeek-V3's prefill.
fn head_sizes(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let (long, longer): (&[usize], &[usize]) = (&[4096], &[8192]);
    let rows = [
        (96, 96, 16, long),
        (192, 192, 16, long),
        (192, 128, 16, long),
        (192, 128, 16, longer),
    ];
    grid(dtype, rows)
}

fn all(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let sets = [mission(dtype), canonical(dtype), llama(dtype), decode(dtype)];
    Ok(sets.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
}

/// Backward passes of training: the canonical grid at 512, 2k, 8k and 16k, Llama's prefill of 8k, and packed documents.
fn backward(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    const LENGTHS: [usize; 4] = [512, 2048, 8192, 16_384];
    let row = |head_dim| (head_dim, head_dim, CANONICAL_HIDDEN / head_dim, LENGTHS.as_slice());
    let mut cases = grid(dtype, [64, 128, 256].map(row))?;
    cases.extend(llama(dtype)?);
    for head_dim in [64, 128, 256] {
        let heads = CANONICAL_HIDDEN / head_dim;
        let layer = Problem::builder().heads(heads, heads).head_dim(head_dim).dtype(dtype);
        cases.push(serving::documents(format!("documents-d{head_dim}"), layer)?);
    }
    cases.push(serving::documents("documents-llama8b".to_string(), llama_layer(dtype))?);
    cases.iter().map(Case::backward).collect()
}

pub(crate) fn llama_layer(dtype: DType) -> ProblemBuilder {
    Problem::builder().heads(32, 8).head_dim(128).dtype(dtype)
}

/// Causal prefill of 8k.
fn llama(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let prefill = llama_layer(dtype).seq_len(8192).mask(Mask::CAUSAL);
    Ok(vec![case("llama8b-prefill-8k", prefill)?])
}

/// One row against 4k to 128k keys of equal lengths, then against caches with lengths on the device.
fn decode(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let equal = [(64, 4), (1, 4), (1, 32), (1, 128)].into_iter().map(|(batch, kilo)| {
        let builder = llama_layer(dtype).batch(batch).seq_len_q(1).seq_len_kv(kilo * 1024);
        case(format!("llama8b-decode-b{batch}-{kilo}k"), builder)
    });
    let mut cases = equal.collect::<Result<Vec<_>, _>>()?;
    cases.extend(serving::caches(dtype)?);
    Ok(cases)
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
    fn an_unknown_name_says_what_there_is() {
        let error = cases("cannonical", None).unwrap_err().to_string();
        assert!(
            error.contains("canonical, llama, decode") && error.contains("mission-causal"),
            "{error}"
        );
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
