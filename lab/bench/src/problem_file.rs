//! Problems from files: TOML or JSON, with errors that name the key and its line.

use std::path::Path;

use flashcore_problem::{DType, Layout, Mask, NAMED_PROBLEMS, Problem};
use serde::Deserialize;

use crate::error::BenchError;
use crate::problems::Case;

/// What to write into an empty file.
const EXAMPLE: &str = "`[[problems]]`, then `heads = 8` and `seq = 4096` on lines of their own";

/// The file's only table: `problems`, one entry each. JSON may be the list alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keyed {
    problems: Vec<Entry>,
}

/// One problem of a file. A field that is left out is as in the problem that `like` names, or as
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

/// Whether a name is that of a problem file: it ends in `.toml` or `.json`, perhaps with `:NAME` after it.
pub fn is_file(name: &str) -> bool {
    let (path, _) = apart(name);
    Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "toml" || extension == "json")
}

/// `own.toml:mine` as the file and the problem's name in it.
fn apart(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once(':') {
        Some((path, problem)) if path.ends_with(".toml") || path.ends_with(".json") => (path, Some(problem)),
        _ => (name, None),
    }
}

/// The problems of `FILE`, or the one of `FILE:NAME`. `dtype` replaces what the file says.
///
/// # Errors
/// [`BenchError::ProblemFile`]: what is wrong, with key and line.
pub fn read(name: &str, dtype: Option<DType>) -> Result<Vec<Case>, BenchError> {
    let (path, wanted) = apart(name);
    let bad = |reason: String| BenchError::ProblemFile {
        path: path.to_string(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let entries = parse(&text, path.ends_with(".toml")).map_err(bad)?;
    let case = |(index, entry): (usize, Entry)| {
        let name = entry.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let built = entry.case(dtype);
        built.map_err(|reason| bad(format!("problem {}{name}: {reason}", index + 1)))
    };
    let cases: Vec<Case> = entries.into_iter().enumerate().map(case).collect::<Result<_, _>>()?;
    match wanted {
        None => Ok(cases),
        Some(wanted) => match cases.iter().find(|case| case.name == wanted) {
            Some(case) => Ok(vec![case.clone()]),
            None => Err(bad(format!(
                "no problem is named `{wanted}`; there are {}",
                names(&cases)
            ))),
        },
    }
}

/// The problem of a file that has one, or of `FILE:NAME`: for commands that take a single problem.
///
/// # Errors
/// As [`read`]; and where the file has several and none is named.
pub fn read_one(name: &str) -> Result<Case, BenchError> {
    let mut cases = read(name, None)?;
    match cases.len() {
        1 => Ok(cases.remove(0)),
        several => Err(BenchError::ProblemFile {
            path: name.to_string(),
            reason: format!(
                "it lists {several} problems and one is needed; write {name}:NAME with one of {}",
                names(&cases)
            ),
        }),
    }
}

fn names(cases: &[Case]) -> String {
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    names.join(", ")
}

/// The entries of a file's text, or the first mistake with its line.
fn parse(text: &str, is_toml: bool) -> Result<Vec<Entry>, String> {
    if text.trim().is_empty() {
        return Err(format!("line 1: the file is empty; write {EXAMPLE}"));
    }
    let problems = match is_toml {
        true => toml::from_str::<Keyed>(text)
            .map(|keyed| keyed.problems)
            .map_err(|error| of_toml(text, &error))?,
        false if text.trim_start().starts_with('[') => {
            serde_json::from_str(text).map_err(|error| of_json(text, &error))?
        }
        false => {
            serde_json::from_str::<Keyed>(text)
                .map_err(|error| of_json(text, &error))?
                .problems
        }
    };
    match problems.is_empty() {
        true => Err("line 1: `problems` lists no problem".to_string()),
        false => Ok(problems),
    }
}

fn of_toml(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    // The key stands before the last `=` up to the end of this line.
    let end = text
        .get(at..)
        .and_then(|rest| rest.find('\n'))
        .map_or(text.len(), |length| at + length);
    let keys = text.get(..end).unwrap_or_default().lines().rev();
    let key = keys
        .filter_map(|line| line.split_once('='))
        .map(|(key, _)| key.trim())
        .next();
    located(line, key, error.message())
}

fn of_json(text: &str, error: &serde_json::Error) -> String {
    let line_start: usize = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    let before = text.get(..line_start + error.column()).unwrap_or(text);
    let message = error.to_string();
    let message = message
        .rsplit_once(" at line ")
        .map_or(message.as_str(), |(message, _)| message);
    located(error.line().max(1), last_key(before), message)
}

/// `line 3, key heads: …`. A message that names the key already, as that of an unknown key, is left as it is.
fn located(line: usize, key: Option<&str>, message: &str) -> String {
    let message = message
        .trim_end()
        .replace('\n', " ")
        .replace("unknown field", "unknown key");
    match key.filter(|_| !message.contains("unknown key") && !message.contains("missing field")) {
        Some(key) => format!("line {line}, key `{key}`: {message}"),
        None => format!("line {line}: {message}"),
    }
}

/// The last key in a beginning of a JSON text: the last string that a colon follows.
fn last_key(text: &str) -> Option<&str> {
    let (mut key, mut rest) = (None, text);
    while let Some(open) = rest.find('"') {
        let string = &rest[open + 1..];
        let mut escaped = false;
        let close = string.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        rest = &string[close + 1..];
        if rest.trim_start().starts_with(':') {
            key = Some(&string[..close]);
        }
    }
    key
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a file's text.
    fn wrong(text: &str, is_toml: bool) -> String {
        match parse(text, is_toml) {
            Err(why) => why,
            Ok(entries) => {
                let why = entries.into_iter().find_map(|entry| entry.case(None).err());
                why.expect("a mistake")
            }
        }
    }

    fn cases(text: &str, is_toml: bool) -> Vec<Case> {
        let entries = parse(text, is_toml).unwrap();
        entries.into_iter().map(|entry| entry.case(None).unwrap()).collect()
    }

    #[test]
    fn files_of_both_kinds_are_read() {
        let json = r#"[{"like": "llama8b-prefill-2k", "seq": 1000, "head_dim_v": 64},
                       {"heads": 4, "seq": 77, "causal": true, "window": null}]"#;
        let read = cases(json, false);
        assert_eq!(
            read[0].problem.to_string(),
            "B1 H32/8 Sq1000 Skv1000 D128 bf16 causal Dv64"
        );
        assert_eq!(read[1].name, "B1 H4/4 Sq77 Skv77 D64 fp16 causal");
        let toml =
            "[[problems]]\nname = \"mine\"\nheads = 8\nkv_heads = 2\nseq = 64\ndtype = \"f32\"\nlayout = \"bhsd\"\n";
        let read = cases(toml, true);
        assert_eq!((read[0].name.as_str(), read[0].problem.dtype()), ("mine", DType::F32));
    }

    #[test]
    fn mistakes_are_named_with_key_and_line() {
        for (text, expected) in [
            ("", "line 1: the file is empty"),
            (" \n", "line 1: the file is empty"),
            ("problems = []", "line 1: `problems` lists no problem"),
            (
                "[[problem]]\nheads = 1\n",
                "line 1: unknown key `problem`, expected `problems`",
            ),
            (
                "[[problems]]\nheads = 8\nhed_dim = 64\n",
                "line 3: unknown key `hed_dim`, expected one of",
            ),
            (
                "[[problems]]\nheads = 8\nseq = \"long\"\n",
                "line 3, key `seq`: invalid type: string \"long\"",
            ),
            (
                "[[problems]]\nwindow = [\n  1,\n  \"x\",\n]\n",
                "line 4, key `window`: invalid type",
            ),
            (
                "[[problems]]\nheads = -1\n",
                "line 2, key `heads`: invalid value: integer `-1`",
            ),
            ("[[problems]]\nheads 8\n", "line 2"),
        ] {
            let why = wrong(text, true);
            assert!(why.starts_with(expected), "{text:?}: {why}");
        }
        for (text, expected) in [
            ("", "line 1: the file is empty"),
            ("[]", "line 1: `problems` lists no problem"),
            (
                "{\"problem\": []}",
                "line 1: unknown key `problem`, expected `problems`",
            ),
            (
                "[\n  {\"heads\": 8,\n   \"hed_dim\": 64}\n]",
                "line 3: unknown key `hed_dim`, expected one of",
            ),
            (
                "[\n  {\"heads\": 8,\n   \"seq\": \"long\"}\n]",
                "line 3, key `seq`: invalid type: string \"long\"",
            ),
            ("{\"problems\": [{\"na\\\"me\": 1}]}", "line 1: unknown key"),
            ("[{\"heads\": 8", "line 1, key `heads`: EOF"),
        ] {
            let why = wrong(text, false);
            assert!(why.starts_with(expected), "{text:?}: {why}");
        }
        assert!(wrong(r#"[{"name": "x", "dtype": "int8"}]"#, false).contains("no dtype is named `int8`"));
    }

    #[test]
    fn one_problem_of_several_is_named_after_the_file() {
        let path = std::env::temp_dir().join(format!("flashcore-problems-{}.toml", std::process::id()));
        let name = path.to_str().unwrap();
        std::fs::write(
            &path,
            "[[problems]]\nname = \"a\"\n[[problems]]\nname = \"b\"\nseq = 7\n",
        )
        .unwrap();
        assert!(is_file(name) && is_file("x.json:y") && !is_file("mission"));
        assert_eq!(read(name, Some(DType::BF16)).unwrap()[1].problem.dtype(), DType::BF16);
        assert_eq!(read_one(&format!("{name}:b")).unwrap().problem.seq_len_q(), 7);
        let several = read_one(name).unwrap_err().to_string();
        assert!(
            several.contains("lists 2 problems") && several.contains(":NAME with one of a, b"),
            "{several}"
        );
        let unknown = read_one(&format!("{name}:c")).unwrap_err().to_string();
        assert!(unknown.contains("no problem is named `c`; there are a, b"), "{unknown}");
        std::fs::remove_file(&path).unwrap();
        assert!(read_one(name).unwrap_err().to_string().contains("No such file"));
    }
}
