//! Writes a problem as a file that reads as the same problem.

use flashcore_problem::{Direction, Layout, Mask, Problem};
use serde_json::{Map, Value, json};

use super::cases;
use crate::Case;

/// A JSON file with one problem; `None` if the format cannot say all of it, such as strides or a mask that begins at
/// the first key.
pub fn text(case: &Case) -> Option<String> {
    let problem = &case.problem;
    let mut keys = Map::new();
    let mut set = |key: &str, value: Value| keys.insert(key.to_string(), value);
    set("name", json!(case.name));
    set("batch", json!(problem.batch()));
    set("heads", json!(problem.num_heads()));
    set("kv_heads", json!(problem.num_kv_heads()));
    set("seq_q", json!(problem.seq_len_q()));
    set("seq_kv", json!(problem.seq_len_kv()));
    set("head_dim", json!(problem.head_dim()));
    if problem.head_dim_v() != problem.head_dim() {
        set("head_dim_v", json!(problem.head_dim_v()));
    }
    set("dtype", json!(problem.dtype().name()));
    match problem.mask() {
        Mask::FULL => None,
        Mask::CAUSAL => set("causal", json!(true)),
        mask => set("window", json!([mask.window_left, mask.window_right])),
    };
    if let Some(cap) = problem.softcap() {
        set("softcap", json!(cap));
    }
    if let Some(dtype) = problem.sinks() {
        set("sinks", json!(dtype.name()));
    }
    if let Some(slopes) = problem.alibi() {
        set("alibi", json!(slopes));
    }
    if problem.softmax_scale() != Problem::default_scale(problem.head_dim()) {
        set("scale", json!(problem.softmax_scale()));
    }
    if *problem.q_layout() != Layout::bshd(problem.q_layout().shape) {
        set("layout", json!("bhsd"));
    }
    if problem.direction() == Direction::Backward {
        set("direction", json!("backward"));
    }
    if problem.deterministic() {
        set("deterministic", json!(true));
    }
    if let Some(keys) = problem.batch_invariant() {
        set("batch_invariant", json!(keys));
    }
    set("q_lengths", json!(problem.q_lengths()));
    set("kv_lengths", json!(problem.kv_lengths()));
    for key in ["q_lengths", "kv_lengths"] {
        keys.retain(|known, value| known != key || *value != json!("equal"));
    }
    if !case.sequences.is_empty() {
        keys.insert("sequences".to_string(), json!(case.sequences));
    }
    if let Some(values) = &case.values {
        keys.insert("values".to_string(), json!(values));
    }
    let text = format!("{}\n", json!([keys]));
    let read = cases(&text, false, None).ok()?;
    (read == [case.clone()]).then_some(text)
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{NAMED_PROBLEMS, ProblemBuilder};

    use super::*;

    #[test]
    fn every_named_problem_is_read_as_it_was() {
        for named in NAMED_PROBLEMS {
            let problem = named.builder().build().unwrap();
            let name = named.name.to_string();
            let case = Case::new(name, problem);
            for case in [Some(case.clone()), case.backward().ok()].into_iter().flatten() {
                let text = text(&case).unwrap_or_else(|| panic!("{case:?}"));
                assert_eq!(cases(&text, false, None).unwrap(), [case], "{text}");
            }
        }
    }

    #[test]
    fn what_a_file_cannot_say_is_not_written() {
        let tiny = Problem::named("tiny").unwrap();
        let written = |builder: ProblemBuilder| {
            let problem = builder.build().unwrap();
            let name = problem.to_string();
            text(&Case::new(name, problem))
        };
        let windowed = ProblemBuilder::from(&tiny)
            .mask(Mask::window(Some(8), None))
            .softcap(30.0);
        assert!(written(windowed.layout(Layout::bhsd)).is_some_and(|text| text.contains("[8,null]")));
        assert_eq!(written(ProblemBuilder::from(&tiny).mask(Mask::CAUSAL.top_left())), None);
    }
}
