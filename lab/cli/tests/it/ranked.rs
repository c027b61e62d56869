//! What `explain` tells of the candidates.

use serde_json::Value;

use crate::common::json::json;
use crate::common::shown;

/// What decides for forward passes of both families, decoding, short problems, gradients, and where no row is for a
/// family. An architecture has no predictions, so that this is quick.
#[test]
fn candidates_are_ranked_and_what_decided_is_said() {
    let decided = [
        (
            "small --profile sm_89",
            "mma/",
            "table mma: rows are in the order of measured times",
        ),
        (
            "llama8b-prefill-8k --profile sm_90a",
            "wgmma/",
            "table wgmma: of rows of measured costs",
        ),
        (
            "llama8b-chunk-8k --profile sm_90a",
            "wgmma/",
            "table times: a model fitted to measured times decides up to 240 µs",
        ),
        (
            "--heads 4 --seq-q 256 --seq-kv 16k --head-dim 128 --profile sm_90a",
            "wgmma/",
            "where it splits keys",
        ),
        (
            "llama8b-decode-8k --profile sm_90a",
            "mma/",
            "table mma: rows are in the order",
        ),
        (
            "small --backward --profile sm_90a",
            "wgmma/",
            "Family wgmma has no other candidate",
        ),
        (
            "small --backward --profile sm_89",
            "mma/",
            "Rows are of an NVIDIA H200, not of such a card",
        ),
        (
            "small --dtype f32 --profile sm_90a",
            "scalar/",
            "by the code of family scalar",
        ),
    ];
    for (problem, family, said) in decided {
        let ranking = json(&format!("explain {problem} --why --json"))["ranking"].clone();
        let candidates = ranking["candidates"].as_array().expect("a list");
        assert!(
            ranking["decided"].as_str().expect("a sentence").contains(said),
            "{ranking:#}"
        );
        let tried = candidates.iter().filter(|one| !one["place"].is_null());
        let chosen = tried.clone().find(|one| one["refusal"].is_null()).expect("a choice");
        assert!(
            chosen["kernel"].as_str().is_some_and(|id| id.starts_with(family)),
            "{chosen}"
        );
        let places: Vec<_> = tried.map(|one| one["place"].as_u64().expect("a number")).collect();
        assert!(places.iter().copied().eq(1..=places.len() as u64), "{places:?}");
    }
    // Tiles that the model timed alone are told, too.
    let ranking = json("explain llama8b-chunk-8k --seq-kv 1k --profile sm_90a --why --json")["ranking"].clone();
    let last = ranking["candidates"]
        .as_array()
        .and_then(|all| all.last())
        .expect("a candidate");
    assert!(
        last["place"].is_null() && last["score"]["picoseconds"].is_u64(),
        "{last}"
    );
    // Where times are predicted, the model may disagree.
    let ranking = json("explain tiny --profile l4 --why --json")["ranking"].clone();
    let first = &ranking["candidates"][0]["predicted"];
    assert!(
        first["low_micros"].as_f64() < first["high_micros"].as_f64(),
        "{ranking:#}"
    );
    let agrees = ranking["cost_model_agrees"].as_bool().expect("it has a say");
    let said = if agrees {
        "both"
    } else {
        "flashcore bench PROBLEM --kernel"
    };
    assert!(
        ranking["believed"].as_str().is_some_and(|text| text.contains(said)),
        "{ranking:#}"
    );
    // A row of a plan table goes first.
    let ranking = json("explain small --profile h200 --why --json")["ranking"].clone();
    assert_eq!(ranking["candidates"][0]["score"], Value::Null);
    assert!(
        ranking["decided"]
            .as_str()
            .is_some_and(|text| text.starts_with("by row ")),
        "{ranking:#}"
    );
}

/// The layout of what is told of others, where every row of the card's file is refused.
#[test]
fn others_are_told_in_columns() {
    let text = shown("explain small --dtype f32 --profile sm_89 --why");
    let digits = |c: char| c.is_ascii_digit();
    let lines = text.lines().map(|line| match line.split_once("h200.json:") {
        Some((before, after)) => format!("{before}h200.json:N{}", after.trim_start_matches(digits)),
        None => line.to_string(),
    });
    insta::assert_snapshot!("why_f32", lines.collect::<Vec<_>>().join("\n"));
    let text = shown("explain small --dtype f32 --profile sm_89 --all");
    let columns = "  scalar/naive-t64-v16        scalar/naive-t128-v16       scalar/tiled-m16n16-w4-v16\n";
    assert!(text.contains(" serve, ") && text.contains(columns), "{text}");
    let reasons: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("does not serve f32 tensors"))
        .collect();
    let counts = reasons
        .iter()
        .filter_map(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    let counts: Vec<usize> = counts.collect();
    assert!(counts.len() == 3 && counts.is_sorted_by(|a, b| a >= b), "{text}");
}
