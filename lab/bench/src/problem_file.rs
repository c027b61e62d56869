//! Problems from files: TOML, JSON, or a grid in YAML, with errors that name the key and its line.

use std::collections::BTreeSet;
use std::path::Path;

use flashcore_check::render::few;
use flashcore_ir::files;
use flashcore_problem::{
    Alibi, DType, Direction, KvLengths, Layout, Mask, Problem, ProblemBuilder, ProblemError, QLengths,
};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::sequences::{Sequences, Values};
use crate::{BenchError, Case, Result};

mod grid;
mod place;
mod write;

pub use write::text;

/// What to write into an empty file.
const TOML_EXAMPLE: &str = "`[[problems]]`, then `heads = 8` and `seq = 4096` on separate lines";
const JSON_EXAMPLE: &str = "`[{\"heads\": 8, \"seq\": 4096}]`";

/// The file's only table: `problems`, one entry each. JSON may be the list alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keyed {
    #[serde(deserialize_with = "entries")]
    problems: Vec<Entry>,
}

/// The list alone.
#[derive(Deserialize)]
struct Listed(#[serde(deserialize_with = "entries")] Vec<Entry>);

/// Problems of a file. One of two characters takes half a kilobyte.
const MOST_PROBLEMS: usize = 10_000;

fn entries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Entry>, D::Error> {
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Vec<Entry>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Entry>, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = list.next_element()? {
                if entries.len() == MOST_PROBLEMS {
                    return Err(A::Error::custom(format!("more than {MOST_PROBLEMS} problems")));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }
    from.deserialize_seq(List)
}

/// One problem of a file. A field that is left out is as in the problem that `like` names, or else:
/// one head, 128 rows and keys, a head_dim of 64, and the rest as [`Problem::builder`] has it.
#[derive(Default, Deserialize, Serialize)]
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
    sinks: Option<String>,
    alibi: Option<Alibi>,
    scale: Option<f32>,
    layout: Option<String>,
    q_lengths: Option<QLengths>,
    kv_lengths: Option<KvLengths>,
    sequences: Option<Vec<Sequences>>,
    values: Option<Values>,
    direction: Option<String>,
    deterministic: Option<bool>,
    batch_invariant: Option<usize>,
}

/// Whether a name is that of a problem file: it ends in `.toml`, `.json`, `.yaml` or `.yml`, perhaps with `:NAME` after
/// it.
pub fn is_file(name: &str) -> bool {
    let (path, _) = apart(name);
    Path::new(path)
        .extension()
        .is_some_and(|extension| ENDINGS.iter().any(|known| *extension == known[1..]))
}

/// `own.toml:mine` as the file and the problem's name in it, which may have colons, too.
fn apart(name: &str) -> (&str, Option<&str>) {
    let ends = ENDINGS
        .iter()
        .filter_map(|end| Some(name.find(&format!("{end}:"))? + end.len()));
    match ends.min() {
        Some(at) => (&name[..at], Some(&name[at + 1..])),
        None => (name, None),
    }
}

const ENDINGS: [&str; 4] = [".toml", ".json", ".yaml", ".yml"];

/// More is no list of problems, and may be more than memory.
const MOST_BYTES: u64 = 16 << 20;

/// The problems of `FILE`, or the one of `FILE:NAME`. `dtype` replaces what the file says.
pub fn read(name: &str, dtype: Option<DType>) -> Result<Vec<Case>> {
    let (path, wanted) = apart(name);
    let bad = |reason: String| BenchError::Given(format!("{path}: {reason}"));
    let text = files::read_text_capped(Path::new(path), MOST_BYTES).map_err(|error| bad(error.to_string()))?;
    let cases = if path.ends_with(".toml") || path.ends_with(".json") {
        cases(&text, path.ends_with(".toml"), dtype)
    } else {
        of_grid(&text, dtype)
    };
    let cases = cases.map_err(bad)?;
    let Some(wanted) = wanted else { return Ok(cases) };
    let known = names(&cases);
    let found = cases.into_iter().find(|case| case.name == wanted);
    let missing = || bad(format!("no problem is named `{wanted}`; there are {known}"));
    Ok(vec![found.ok_or_else(missing)?])
}

/// The problem of a file that has one, or of `FILE:NAME`: for commands that take a single problem.
///
/// # Errors
/// As [`read`]; and where the file has several and none is named.
pub fn read_one(name: &str) -> Result<Case> {
    let mut cases = read(name, None)?;
    match cases.len() {
        1 => Ok(cases.remove(0)),
        several => Err(BenchError::Given(format!(
            "{name}: it lists {several} problems and one is needed; write {name}:NAME with one of {}",
            names(&cases)
        ))),
    }
}

fn names(cases: &[Case]) -> String {
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    few(&names)
}

/// The problems of a file's text, or the first mistake with its line and key.
pub(crate) fn cases(text: &str, is_toml: bool, dtype: Option<DType>) -> Result<Vec<Case>, String> {
    let at = |index, wrong: Wrong| place::of_value(text, is_toml, index, &wrong.keys, &wrong.reason);
    collected(parse(text, is_toml)?, dtype, at)
}

/// The problems of a grid's text, or the first mistake with its line.
fn of_grid(text: &str, dtype: Option<DType>) -> Result<Vec<Case>, String> {
    let (lines, entries): (Vec<usize>, Vec<Entry>) = grid::entries(text)?.into_iter().unzip();
    collected(entries, dtype, |index, wrong| {
        format!("line {}: {}", lines[index], wrong.reason)
    })
}

fn collected(
    entries: Vec<Entry>,
    dtype: Option<DType>,
    place: impl Fn(usize, Wrong) -> String,
) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    let mut named = BTreeSet::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let at = |wrong: Wrong| place(index, wrong);
        if let Some(name) = entry.name.clone()
            && let Some(name) = named.replace(name)
        {
            let reason = format!("an earlier problem is named `{name}`; each name may occur once");
            return Err(at(Wrong::new(&["name"], reason)));
        }
        cases.push(entry.case(dtype).map_err(at)?);
    }
    Ok(cases)
}

fn parse(text: &str, is_toml: bool) -> Result<Vec<Entry>, String> {
    if text.trim().is_empty() {
        let example = if is_toml { TOML_EXAMPLE } else { JSON_EXAMPLE };
        return Err(format!("line 1: the file is empty; write {example}"));
    }
    let of_json = |error| place::of_json(text, &error);
    let Keyed { problems } = if is_toml {
        toml::from_str(text).map_err(|error| place::of_toml(text, &error))?
    } else if text.trim_start().starts_with('[') {
        let Listed(problems) = serde_json::from_str(text).map_err(of_json)?;
        Keyed { problems }
    } else {
        serde_json::from_str(text).map_err(of_json)?
    };
    if problems.is_empty() {
        return Err("line 1: `problems` lists no problem".to_string());
    }
    Ok(problems)
}

/// Fields of a refused problem: the keys that hold them, and what they are called in a file.
const FIELDS: [(&str, &[&str], &str); 17] = [
    ("batch", &["batch"], "batch"),
    ("heads", &["heads"], "heads"),
    ("kv_heads", &["kv_heads", "heads"], "kv_heads"),
    ("seq_len_q", &["seq_q", "seq"], "the number of query rows"),
    ("seq_len_kv", &["seq_kv", "seq"], "the number of keys"),
    ("head_dim", &["head_dim"], "head_dim"),
    ("head_dim_v", &["head_dim_v", "head_dim"], "head_dim_v"),
    ("softmax_scale", &["scale"], "scale"),
    ("softcap", &["softcap"], "softcap"),
    ("sinks", &["sinks"], "sinks"),
    ("alibi", &["alibi"], "alibi"),
    ("dtype", &["dtype"], "dtype"),
    ("total of q_lengths", &["q_lengths"], "total of q_lengths"),
    ("total of kv_lengths", &["kv_lengths"], "total of kv_lengths"),
    ("page_size", &["kv_lengths"], "page_size"),
    ("pages", &["kv_lengths"], "pages"),
    ("max_pages", &["kv_lengths"], "max_pages"),
];

/// A value that makes no sense, and the keys that may hold it: the first of them that the file has is named.
struct Wrong {
    keys: Vec<&'static str>,
    reason: String,
}

impl Wrong {
    fn new(keys: &[&'static str], reason: String) -> Wrong {
        Wrong {
            keys: keys.to_vec(),
            reason,
        }
    }

    /// Of a refused problem, with fields named as in the file. A number that is a product of several keys is reported
    /// at the largest of them: the first of `sizes`.
    fn of_problem(error: &ProblemError, sizes: Vec<&'static str>, name: Option<&str>) -> Wrong {
        let field = match error {
            ProblemError::Value { field, .. } => field,
            ProblemError::HeadGroups { .. } => "kv_heads",
            ProblemError::TooLarge { what, .. } => what.as_str(),
            _ => "",
        };
        let known = FIELDS.into_iter().find(|(known, ..)| *known == field);
        let (_, keys, called) = known.unwrap_or((field, &[], field));
        let reason = error.to_string();
        if keys.is_empty() && matches!(error, ProblemError::TooLarge { .. }) {
            let problem = name.map_or("this problem".to_string(), |name| format!("problem `{name}`"));
            let reason = format!("{reason}; it is the product of sizes of {problem}: make this one smaller");
            return Wrong { keys: sizes, reason };
        }
        match reason.strip_prefix(field) {
            Some(rest) => Wrong::new(keys, format!("{called}{rest}")),
            None => Wrong::new(keys, reason),
        }
    }
}

fn dtype_named(key: &'static str, name: &Option<String>) -> Result<Option<DType>, Wrong> {
    let Some(name) = name else { return Ok(None) };
    let known = || DType::ALL.map(DType::name).join(", ");
    let unknown = || Wrong::new(&[key], format!("no dtype is named `{name}`; allowed: {}", known()));
    DType::from_name(name).ok_or_else(unknown).map(Some)
}

/// A dense layout of a shape.
type Dense = fn([usize; 4]) -> Layout;

/// What a word is that a key has, one of two.
fn one_of<T: Copy>(key: &'static str, word: &Option<String>, known: [(&str, T); 2]) -> Result<Option<T>, Wrong> {
    let Some(word) = word else { return Ok(None) };
    let allowed = known.map(|(name, _)| name).join(", ");
    let unknown = || Wrong::new(&[key], format!("no {key} is named `{word}`; allowed: {allowed}"));
    let found = known.into_iter().find(|(name, _)| name == word);
    found.ok_or_else(unknown).map(|(_, value)| Some(value))
}

impl Entry {
    fn check_keys(&self) -> Result<(), Wrong> {
        let seq = self.seq.is_some();
        for (key, is_given, other, contradicts) in [
            ("seq_q", self.seq_q.is_some(), "seq", seq),
            ("seq_kv", self.seq_kv.is_some(), "seq", seq),
            ("window", self.window.is_some(), "causal", self.causal == Some(true)),
            ("values", self.values.is_some(), "sequences", self.sequences.is_some()),
        ] {
            if is_given && contradicts {
                let reason = format!("it contradicts `{other}`; give one of the two");
                return Err(Wrong::new(&[key], reason));
            }
        }
        Ok(())
    }

    /// The keys of sizes, the largest value first.
    fn sizes(&self) -> Vec<&'static str> {
        let mut sizes = [
            ("batch", self.batch),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("seq", self.seq),
            ("seq_q", self.seq_q),
            ("seq_kv", self.seq_kv),
            ("head_dim", self.head_dim),
            ("head_dim_v", self.head_dim_v),
        ];
        sizes.sort_by_key(|(_, value)| std::cmp::Reverse(*value));
        sizes.map(|(key, _)| key).to_vec()
    }

    fn case(self, dtype: Option<DType>) -> Result<Case, Wrong> {
        self.check_keys()?;
        let sizes = self.sizes();
        let like = self.like.as_deref().map(Problem::named).transpose();
        let like = like.map_err(|error| Wrong::new(&["like"], error.to_string()))?;
        let mut builder = match &like {
            None => Problem::builder().heads(1, 1).seq_len(128).head_dim(64),
            Some(like) => ProblemBuilder::from(like),
        };
        if self.heads.is_some() || self.kv_heads.is_some() {
            let heads = self.heads.or(like.as_ref().map(Problem::num_heads)).unwrap_or(1);
            builder = builder.heads(heads, self.kv_heads.unwrap_or(heads));
        }
        let (of_file, sinks) = (dtype_named("dtype", &self.dtype)?, dtype_named("sinks", &self.sinks)?);
        let layouts: [(&str, Dense); 2] = [("bshd", Layout::bshd), ("bhsd", Layout::bhsd)];
        let directions = [("forward", Direction::Forward), ("backward", Direction::Backward)];
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
            sinks => sinks,
            self.alibi => alibi,
            self.scale => softmax_scale,
            self.q_lengths => q_lengths,
            self.kv_lengths => kv_lengths,
            self.deterministic => deterministic,
            self.batch_invariant => batch_invariant,
            one_of("layout", &self.layout, layouts)? => layout,
            one_of("direction", &self.direction, directions)? => direction,
        }
        let problem = builder.build();
        let problem = problem.map_err(|error| Wrong::of_problem(&error, sizes, self.name.as_deref()))?;
        let mut case = Case::new(self.name.unwrap_or_else(|| problem.to_string()), problem);
        case.sequences = self.sequences.unwrap_or_default();
        case.values = self.values;
        // Values that contradict the problem are read: `check` reports them.
        let (key, checked) = match &case.values {
            Some(values) => ("values", values.lengths(&case.problem).map_err(BenchError::from)),
            None => ("sequences", case.lengths()),
        };
        checked.map_err(|error| Wrong::new(&[key], error.to_string()))?;
        Ok(case)
    }
}

#[cfg(test)]
mod tests;
