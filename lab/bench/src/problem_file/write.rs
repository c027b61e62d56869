//! Writes a problem as a file that reads as the same problem.

use flashcore_problem::{Direction, KvLengths, Layout, Mask, Problem, QLengths};
use serde_json::{Value, json};

use super::{Entry, cases};
use crate::Case;

/// A JSON file with one problem; `None` if the format cannot say all of it, such as strides or a mask that begins at
/// the first key.
pub fn text(case: &Case) -> Option<String> {
    let problem = &case.problem;
    let (mask, default_scale) = (problem.mask(), Problem::default_scale(problem.head_dim()));
    let window = [mask.window_left, mask.window_right];
    let entry = Entry {
        name: Some(case.name.clone()),
        batch: Some(problem.batch()),
        heads: Some(problem.num_heads()),
        kv_heads: Some(problem.num_kv_heads()),
        seq_q: Some(problem.seq_len_q()),
        seq_kv: Some(problem.seq_len_kv()),
        head_dim: Some(problem.head_dim()),
        head_dim_v: Some(problem.head_dim_v()).filter(|columns| *columns != problem.head_dim()),
        dtype: Some(problem.dtype().name().to_string()),
        causal: (mask == Mask::CAUSAL).then_some(true),
        window: Some(window).filter(|_| ![Mask::FULL, Mask::CAUSAL].contains(&mask)),
        softcap: problem.softcap(),
        sinks: problem.sinks().map(|dtype| dtype.name().to_string()),
        alibi: problem.alibi(),
        scale: Some(problem.softmax_scale()).filter(|scale| *scale != default_scale),
        layout: (*problem.q_layout() != Layout::bshd(problem.q_layout().shape)).then(|| "bhsd".to_string()),
        q_lengths: Some(problem.q_lengths()).filter(|lengths| *lengths != QLengths::Equal),
        kv_lengths: Some(problem.kv_lengths()).filter(|lengths| *lengths != KvLengths::Equal),
        sequences: Some(case.sequences.clone()).filter(|sequences| !sequences.is_empty()),
        values: case.values.clone(),
        direction: (problem.direction() == Direction::Backward).then(|| "backward".to_string()),
        deterministic: problem.deterministic().then_some(true),
        batch_invariant: problem.batch_invariant(),
        ..Entry::default()
    };
    let Ok(Value::Object(mut keys)) = serde_json::to_value(entry) else {
        return None;
    };
    keys.retain(|_, value| !value.is_null());
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
