//! Sets of problems that are benched together, and files of them.

use std::path::Path;

use flashcore_problem::{DType, Layout, Mask, NAMED_PROBLEMS, Problem, ProblemBuilder, ProblemError};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// A problem with the name it has in tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Short name, such as `d128-s4096-causal`.
    pub name: String,
    /// What is asked.
    pub problem: Problem,
}

/// Sets there are, with a line on each.
pub const SETS: [(&str, &str); 7] = [
    (
        "mission",
        "B1 and B2 H8 S512 D64, full and causal: where the project began",
    ),
    (
        "canonical",
        "head_dim 64, 128, 256 × 512 to 16k × full and causal, 16,384 tokens, hidden 2,048",
    ),
    ("llama", "32/8 heads, D128, causal prefill of 8k"),
    ("decode", "32/8 heads, D128, one row against 4k to 128k keys"),
    ("all", "every one of the above"),
    (
        "fp8",
        "e4m3 with scales: head_dim 128, 256 × 8k, 16k × full and causal, of the canonical grid",
    ),
    (
        "head-sizes",
        "head_dim 96, 192, and 192 with values of 128, × 4k × full and causal; the last at 8k too",
    ),
];

/// Tokens a canonical problem has in all.
const CANONICAL_TOKENS: usize = 16_384;
/// Heads times head_dim of a canonical problem.
const CANONICAL_HIDDEN: usize = 2_048;

/// The problems of a name: a set, a named problem, or a file (`.json`, `.toml`). `dtype` replaces the fp16 of the
/// sets (of `fp8` the e4m3); named problems and files keep their own unless it is given.
///
/// # Errors
/// [`BenchError::UnknownProblems`], [`BenchError::ProblemFile`], or a problem that makes no sense.
pub fn cases(name: &str, dtype: Option<DType>) -> Result<Vec<Case>, BenchError> {
    let of_sets = dtype.unwrap_or(DType::F16);
    match name {
        "mission" => Ok(mission(of_sets)?),
        "canonical" => Ok(canonical(of_sets)?),
        "llama" => Ok(llama(of_sets)?),
        "decode" => Ok(decode(of_sets)?),
        "fp8" => Ok(fp8(dtype.unwrap_or(DType::E4M3))?),
        "head-sizes" => Ok(head_sizes(of_sets)?),
        "all" => Ok([mission, canonical, llama, decode]
            .into_iter()
            .map(|set| set(of_sets))
            .collect::<Result<Vec<_>, _>>()?
            .concat()),
        _ => named_or_file(name, dtype),
    }
}

fn named_or_file(name: &str, dtype: Option<DType>) -> Result<Vec<Case>, BenchError> {
    if let Some(named) = NAMED_PROBLEMS.iter().find(|named| named.name == name) {
        let mut builder = named.builder();
        if let Some(dtype) = dtype {
            builder = builder.dtype(dtype);
        }
        return Ok(vec![case(name, builder)?]);
    }
    let path = Path::new(name);
    if path.is_file() {
        return read_file(path, dtype);
    }
    Err(BenchError::UnknownProblems {
        given: name.to_string(),
        sets: SETS.map(|(name, _)| name).join(", "),
        problems: NAMED_PROBLEMS
            .iter()
            .map(|named| named.name)
            .collect::<Vec<_>>()
            .join(", "),
    })
}

fn case(name: impl Into<String>, builder: ProblemBuilder) -> Result<Case, ProblemError> {
    Ok(Case {
        name: name.into(),
        problem: builder.build()?,
    })
}

fn mission(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    ["mission", "mission-causal", "mission-b2", "mission-b2-causal"]
        .into_iter()
        .filter_map(|name| NAMED_PROBLEMS.iter().find(|named| named.name == name))
        .map(|named| case(named.name, named.builder().dtype(dtype)))
        .collect()
}

fn canonical(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let mut cases = Vec::new();
    for head_dim in [64, 128, 256] {
        let heads = CANONICAL_HIDDEN / head_dim;
        for (mask, suffix) in [(Mask::FULL, ""), (Mask::CAUSAL, "-causal")] {
            for seq_len in [512, 1024, 2048, 4096, 8192, 16_384] {
                let builder = Problem::builder()
                    .batch(CANONICAL_TOKENS / seq_len)
                    .heads(heads, heads)
                    .seq_len(seq_len)
                    .head_dim(head_dim)
                    .mask(mask)
                    .dtype(dtype);
                cases.push(case(format!("d{head_dim}-s{seq_len}{suffix}"), builder)?);
            }
        }
    }
    Ok(cases)
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

/// Head sizes between those of the canonical grid, 16 heads each: 96 (Phi-3), and 192 with values of 192, or of 128 as in
/// DeepSeek-V3's prefill.
fn head_sizes(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let mut cases = Vec::new();
    for (head_dim, head_dim_v, seq_len) in [(96, 96, 4096), (192, 192, 4096), (192, 128, 4096), (192, 128, 8192)] {
        for (mask, suffix) in [(Mask::FULL, ""), (Mask::CAUSAL, "-causal")] {
            let builder = Problem::builder()
                .batch(CANONICAL_TOKENS / seq_len)
                .heads(16, 16)
                .seq_len(seq_len)
                .head_dim(head_dim)
                .head_dim_v(head_dim_v)
                .mask(mask)
                .dtype(dtype);
            let values = if head_dim_v == head_dim {
                String::new()
            } else {
                format!("v{head_dim_v}")
            };
            cases.push(case(format!("d{head_dim}{values}-s{seq_len}{suffix}"), builder)?);
        }
    }
    Ok(cases)
}

fn llama_layer(dtype: DType) -> ProblemBuilder {
    Problem::builder().heads(32, 8).head_dim(128).dtype(dtype)
}

fn llama(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let prefill = llama_layer(dtype).seq_len(8192).mask(Mask::CAUSAL);
    Ok(vec![case("llama8b-prefill-8k", prefill)?])
}

fn decode(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    [(64, 4), (1, 4), (1, 32), (1, 128)]
        .into_iter()
        .map(|(batch, kilo)| {
            let builder = llama_layer(dtype).batch(batch).seq_len_q(1).seq_len_kv(kilo * 1024);
            case(format!("llama8b-decode-b{batch}-{kilo}k"), builder)
        })
        .collect()
}

/// A file: an object with a list `problems`, or in JSON that list by itself.
#[derive(Deserialize)]
#[serde(untagged)]
enum File {
    Keyed { problems: Vec<Entry> },
    List(Vec<Entry>),
}

/// One problem of a file. What is left out is as in the problem that `like` names, or as
/// [`Problem::builder`] has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<String>,
    like: Option<String>,
    batch: Option<usize>,
    heads: Option<usize>,
    kv_heads: Option<usize>,
    seq: Option<usize>,
    seq_q: Option<usize>,
    seq_kv: Option<usize>,
    head_dim: Option<usize>,
    head_dim_v: Option<usize>,
    dtype: Option<String>,
    causal: Option<bool>,
    window: Option<[Option<u32>; 2]>,
    softcap: Option<f32>,
    scale: Option<f32>,
    layout: Option<String>,
}

fn read_file(path: &Path, dtype: Option<DType>) -> Result<Vec<Case>, BenchError> {
    let bad = |reason: String| BenchError::ProblemFile {
        path: path.display().to_string(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let file: File = if is_toml {
        toml::from_str(&text).map_err(|error| bad(error.to_string()))?
    } else {
        serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?
    };
    let (File::Keyed { problems } | File::List(problems)) = file;
    if problems.is_empty() {
        return Err(bad("it lists no problem".to_string()));
    }
    let number = |(index, entry): (usize, Entry)| {
        let name = entry.name.clone();
        entry.case(dtype).map_err(|reason| {
            bad(format!(
                "problem {}{}: {reason}",
                index + 1,
                name.map_or(String::new(), |n| format!(" ({n})"))
            ))
        })
    };
    problems.into_iter().enumerate().map(number).collect()
}

impl Entry {
    fn case(self, dtype: Option<DType>) -> Result<Case, String> {
        let base = match &self.like {
            None => None,
            Some(name) => Some(Problem::named(name).map_err(|error| error.to_string())?),
        };
        let mut builder = match &self.like {
            None => Problem::builder(),
            Some(name) => match NAMED_PROBLEMS.iter().find(|named| named.name == name) {
                Some(named) => named.builder(),
                None => Problem::builder(),
            },
        };
        if self.heads.is_some() || self.kv_heads.is_some() {
            let heads = self.heads.or(base.as_ref().map(Problem::num_heads)).unwrap_or(1);
            builder = builder.heads(heads, self.kv_heads.unwrap_or(heads));
        }
        let of_file = self
            .dtype
            .map(|name| DType::from_name(&name).ok_or(format!("no dtype is named `{name}`")))
            .transpose()?;
        macro_rules! set {
            ($($given:expr => $method:ident),* $(,)?) => {
                $(if let Some(value) = $given { builder = builder.$method(value); })*
            };
        }
        set! {
            self.batch => batch,
            self.seq => seq_len,
            self.seq_q => seq_len_q,
            self.seq_kv => seq_len_kv,
            self.head_dim => head_dim,
            self.head_dim_v => head_dim_v,
            dtype.or(of_file) => dtype,
            self.causal.map(|causal| if causal { Mask::CAUSAL } else { Mask::FULL }) => mask,
            self.window.map(|[left, right]| Mask::window(left, right)) => mask,
            self.softcap => softcap,
            self.scale => softmax_scale,
        }
        builder = match self.layout.as_deref() {
            None => builder,
            Some("bshd") => builder.layout(Layout::bshd),
            Some("bhsd") => builder.layout(Layout::bhsd),
            Some(other) => return Err(format!("no layout is named `{other}`; allowed: bshd, bhsd")),
        };
        let problem = builder.build().map_err(|error| error.to_string())?;
        Ok(Case {
            name: self.name.unwrap_or_else(|| problem.to_string()),
            problem,
        })
    }
}

/// Bytes that must move at the very least: each input read once, the output written once.
pub fn least_bytes(problem: &Problem) -> f64 {
    let inputs = [problem.q_layout(), problem.k_layout(), problem.v_layout()];
    let read: usize = inputs.iter().map(|layout| layout.num_elements()).sum();
    let written = problem.o_layout().num_elements();
    let scales = 3 * problem.num_scales() * size_of::<f32>();
    (read * problem.dtype().size_bytes() + scales + written * problem.out_dtype().size_bytes()) as f64
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
        assert_eq!(super::cases("all", None).unwrap().len(), 36 + 4 + 1 + 4);
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
    fn files_of_both_kinds_are_read() {
        let folder = std::env::temp_dir().join(format!("flashcore-problems-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let json = folder.join("own.json");
        std::fs::write(
            &json,
            r#"[{"like": "llama8b-prefill-2k", "seq": 1000, "head_dim_v": 64}, {"heads": 4, "seq": 77, "causal": true, "window": null}]"#,
        )
        .unwrap();
        let read = cases(json.to_str().unwrap(), None).unwrap();
        assert_eq!(
            read[0].problem.to_string(),
            "B1 H32/8 Sq1000 Skv1000 D128 bf16 causal Dv64"
        );
        assert_eq!(read[1].name, "B1 H4/4 Sq77 Skv77 D64 fp16 causal");
        let toml = folder.join("own.toml");
        std::fs::write(
            &toml,
            "[[problems]]\nname = \"mine\"\nheads = 8\nkv_heads = 2\nseq = 64\ndtype = \"f32\"\nlayout = \"bhsd\"\n",
        )
        .unwrap();
        let read = cases(toml.to_str().unwrap(), None).unwrap();
        assert_eq!((read[0].name.as_str(), read[0].problem.dtype()), ("mine", DType::F32));
        for (text, expected) in [
            (r#"[{"head_dim": 7}]"#, "problem 1: "),
            (
                r#"[{"name": "x", "dtype": "int8"}]"#,
                "problem 1 (x): no dtype is named `int8`",
            ),
            ("[]", "lists no problem"),
            (r#"{"problem": []}"#, "own.json: "),
        ] {
            std::fs::write(&json, text).unwrap();
            let error = cases(json.to_str().unwrap(), None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
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
    }
}
