//! Grids of shapes in YAML, as the reports wrote them for robust-kbench (`rbk_config.yaml`): a list `shapes`, or lists
//! of sizes of which every combination is meant, at the top or in each entry of `benchmarks`. What else such a file
//! says (iterations, kernels, tolerances) is for another program.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value, json};

use super::{Entry, MOST_PROBLEMS};

/// Levels of a file.
const MOST_LEVELS: usize = 16;
/// Keys of one thing, which are compared with each other.
const MOST_KEYS: usize = 1_000;

/// A key of a shape: ours, and what files call it, alone and in a grid.
const KEYS: [(&str, &[&str]); 8] = [
    ("name", &["name"]),
    ("batch", &["batch_size", "batch", "B", "batch_sizes"]),
    ("heads", &["num_heads", "heads", "H"]),
    ("kv_heads", &["num_kv_heads", "kv_heads"]),
    ("seq", &["seq_len", "seq", "S", "seq_lens"]),
    ("head_dim", &["head_dim", "D", "head_dims"]),
    ("causal", &["causal", "is_causal"]),
    ("dtype", &["dtype", "dtypes"]),
];

/// PyTorch's names of dtypes, and ours.
const DTYPES: [(&str, &str); 4] = [
    ("float16", "fp16"),
    ("half", "fp16"),
    ("bfloat16", "bf16"),
    ("float32", "f32"),
];

/// A value, and its line.
struct Node {
    line: usize,
    value: Yaml,
}

enum Yaml {
    /// A text, and whether it was written without quotes.
    Scalar(String, bool),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The problems of a file, each with its line.
///
/// # Errors
/// A sentence with the line of a mistake.
pub(super) fn entries(text: &str) -> Result<Vec<(usize, Entry)>, String> {
    let root = tree(text)?;
    let Yaml::Map(top) = &root.value else {
        return Err(format!("line {}: keys are expected, such as `shapes:`", root.line));
    };
    let benchmarks = top
        .iter()
        .find(|(key, _)| key == "benchmarks")
        .map(|(_, node)| &node.value);
    let mut places: Vec<&[(String, Node)]> = vec![top];
    if let Some(Yaml::List(benchmarks)) = benchmarks {
        places.extend(benchmarks.iter().filter_map(|one| match &one.value {
            Yaml::Map(map) => Some(map.as_slice()),
            _ => None,
        }));
    }
    let mut found = Vec::new();
    for (key, node) in places.into_iter().flatten() {
        match (key.as_str(), &node.value) {
            ("shapes" | "canonical_shapes", Yaml::List(shapes)) => {
                if shapes.len() > MOST_PROBLEMS {
                    return Err(format!("line {}: more than {MOST_PROBLEMS} problems", node.line));
                }
                for shape in shapes {
                    found.extend(combinations(shape, false)?);
                }
            }
            ("shapes", Yaml::Map(_)) => found.extend(combinations(node, true)?),
            ("shapes" | "canonical_shapes", Yaml::Scalar(..)) => {
                return Err(format!("line {}, key {key}: a list of shapes is expected", node.line));
            }
            _ => {}
        }
        if found.len() > MOST_PROBLEMS {
            return Err(format!("line {}: more than {MOST_PROBLEMS} problems", node.line));
        }
    }
    if found.is_empty() {
        return Err("line 1: it lists no shape: a key `shapes` with a list is expected".to_string());
    }
    Ok(found)
}

/// The problem of a shape, or every combination of the lists of a grid.
fn combinations(shape: &Node, is_grid: bool) -> Result<Vec<(usize, Entry)>, String> {
    let line = shape.line;
    let Yaml::Map(keys) = &shape.value else {
        return Err(format!("line {line}: a shape has keys, such as `seq_len: 512`"));
    };
    // As PyTorch's attention has its tensors.
    let mut all = vec![Map::from_iter([("layout".to_string(), json!("bhsd"))])];
    for (key, node) in keys {
        let Some((ours, _)) = KEYS.iter().find(|(_, theirs)| theirs.contains(&key.as_str())) else {
            let known = KEYS.map(|(_, theirs)| theirs[0]).join(", ");
            return Err(format!(
                "line {}: a shape has no key `{key}`; allowed: {known}",
                node.line
            ));
        };
        let values: Vec<Value> = match &node.value {
            Yaml::List(several) if is_grid => several.iter().map(|one| value(key, one)).collect::<Result<_, _>>()?,
            _ => vec![value(key, node)?],
        };
        if all.len() * values.len() > MOST_PROBLEMS {
            return Err(format!("line {}: more than {MOST_PROBLEMS} problems", node.line));
        }
        let with = |map: &Map<String, Value>, value: &Value| {
            let mut map = map.clone();
            map.insert((*ours).to_string(), value.clone());
            map
        };
        all = all
            .iter()
            .flat_map(|map| values.iter().map(|value| with(map, value)))
            .collect();
    }
    let read = |map| serde_json::from_value(Value::Object(map)).map_err(|error| format!("line {line}: {error}"));
    all.into_iter().map(|map| Ok((line, read(map)?))).collect()
}

/// A value of a shape: a number, a truth value, or a text.
fn value(key: &str, node: &Node) -> Result<Value, String> {
    let Yaml::Scalar(text, is_plain) = &node.value else {
        return Err(format!("line {}, key {key}: one value is expected", node.line));
    };
    if key == "name" {
        return Ok(json!(text));
    }
    if let Some((_, ours)) = DTYPES.iter().find(|(theirs, _)| theirs == text) {
        return Ok(json!(ours));
    }
    // JSON's numbers and truth values are YAML's; what is in quotes is a text.
    let plain = is_plain
        .then(|| serde_json::from_str(&text.to_lowercase()).ok())
        .flatten();
    Ok(plain.unwrap_or_else(|| json!(text)))
}

/// What a file says, without tags; what refers to another place, which could make much of little, is refused.
fn tree(text: &str) -> Result<Node, String> {
    let mut open: Vec<(Node, Option<String>)> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let line = error.marker().line();
            format!("line {line}: it is no YAML: {}", error.info())
        })?;
        let line = span.start.line();
        let node = |value| Node { line, value };
        let done = match event {
            Event::Scalar(text, style, ..) => node(Yaml::Scalar(text.into_owned(), style == ScalarStyle::Plain)),
            Event::Alias(_) => return Err(format!("line {line}: aliases are not read; write the values out")),
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                if open.len() == MOST_LEVELS {
                    return Err(format!("line {line}: more than {MOST_LEVELS} levels"));
                }
                let is_list = matches!(event, Event::SequenceStart(..));
                let empty = if is_list {
                    Yaml::List(Vec::new())
                } else {
                    Yaml::Map(Vec::new())
                };
                open.push((node(empty), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some((done, _)) => done,
                None => continue,
            },
            _ => continue,
        };
        let Some((place, key)) = open.last_mut() else {
            return Ok(done);
        };
        match (&mut place.value, key.take(), done) {
            (Yaml::List(list), _, done) => list.push(done),
            (Yaml::Map(map), Some(name), done) => {
                if map.len() == MOST_KEYS {
                    return Err(format!("line {}: more than {MOST_KEYS} keys of one thing", done.line));
                }
                if map.iter().any(|(known, _)| *known == name) {
                    return Err(format!("line {}: key {name} occurs twice", done.line));
                }
                map.push((name, done));
            }
            (
                Yaml::Map(_),
                None,
                Node {
                    value: Yaml::Scalar(name, _),
                    ..
                },
            ) => *key = Some(name),
            (_, _, done) => return Err(format!("line {}: a key is one word", done.line)),
        }
    }
    Err("line 1: the file is empty; write `shapes:` and a list".to_string())
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{DType, Mask};

    use crate::problem_file::read;

    fn cases(text: &str) -> Result<Vec<crate::Case>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rbk_config.yaml");
        std::fs::write(&file, text).unwrap();
        read(&file.display().to_string(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_of_shapes_is_one_of_problems() {
        let text = "# a grid\nwarmups: 20\nsave_json: true\nshapes:\n  # one\n  - name: \"first\"\n    batch_size: 4\n    \
                    num_heads: 16\n    seq_len: 2048\n    head_dim: 128\n    causal: true\n    dtype: \"float16\"\n\n  - \
                    {name: second, B: 1, H: 8, S: 512, D: 80, causal: false, dtype: bfloat16}\n";
        let cases = cases(text).unwrap();
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["first", "second"]);
        let (first, second) = (&cases[0].problem, &cases[1].problem);
        assert_eq!(first.to_string(), "B4 H16/16 Sq2048 Skv2048 D128 fp16 causal strided");
        assert_eq!((second.head_dim(), second.dtype()), (80, DType::BF16));
        assert_eq!((second.mask(), second.seq_len_q()), (Mask::FULL, 512));
    }

    #[test]
    fn a_grid_is_every_combination() {
        let text = "benchmarks:\n  - name: g\n    shapes:\n      batch_sizes: [1, 4]\n      num_heads: [8]\n      seq_lens: \
                    [128, 512, 1024]\n      head_dims: [64]\n      causal: [true, false]\n      dtypes: [\"float16\"]\n    \
                    canonical_shapes:\n      - {B: 2, H: 8, S: 512, D: 64, causal: false}\n    measurement:\n      \
                    warmup_iters: 20\n";
        let cases = cases(text).unwrap();
        assert_eq!(cases.len(), 13);
        assert_eq!(cases[12].problem.batch(), 2);
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, says) in [
            ("", "line 1: the file is empty"),
            ("warmups: 20\n", "it lists no shape"),
            (
                "shapes:\n  - {B: 1, seqlen: 512}\n",
                "line 2: a shape has no key `seqlen`; allowed: name, batch_size",
            ),
            ("shapes:\n  - seq_len: many\n", "line 2: invalid type: string \"many\""),
            ("shapes:\n  - seq_len: 16\n    head_dim: 0\n", "line 2: "),
            ("shapes:\n  - dtype: fp12\n", "no dtype is named `fp12`"),
            ("a: &x [1]\nshapes: *x\n", "line 2: aliases are not read"),
            (
                "shapes: {seq_lens: [1, 2], B: {a: 1}}\n",
                "key B: one value is expected",
            ),
            ("shapes: [\n", "it is no YAML"),
            ("shapes: 5\n", "key shapes: a list of shapes is expected"),
            ("B: 1\nB: 2\n", "line 2: key B occurs twice"),
        ] {
            let why = cases(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
        let keys: String = (0..1_001).map(|at| format!("k{at}: 1\n")).collect();
        assert!(cases(&keys).unwrap_err().contains("line 1001: more than 1000 keys"));
        let list = format!("shapes: [{}]", "{S: 16}, ".repeat(10_001));
        assert!(cases(&list).unwrap_err().contains("more than 10000 problems"));
        let deep = "[".repeat(100_000);
        assert!(cases(&deep).is_err());
        let many = |count: usize| (1..=count).map(|at| at.to_string()).collect::<Vec<_>>().join(", ");
        let grid = format!("shapes: {{seq_lens: [{0}], batch_sizes: [{0}]}}", many(200));
        assert!(cases(&grid).unwrap_err().contains("more than 10000 problems"));
    }
}
