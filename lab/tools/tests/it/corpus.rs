//! The simulator computes what GPUs have computed: every recorded answer to every program.

use std::path::Path;

use flashcore_sim::TensorSums;
use flashcore_tools::fuzz::Program;
use flashcore_tools::fuzz::corpus::{Corpus, Entry, is_kept};
use flashcore_tools::fuzz::run::{Prepared, Word};

/// Compares the simulator with a record.
fn check(entry: &Entry, sums: TensorSums) -> Result<(), String> {
    let failed = |what: &dyn std::fmt::Display| format!("seed {}: {what}", entry.seed);
    let prepared = Prepared::new(Program::random(entry.seed), sums).map_err(|error| failed(&error))?;
    if Entry::of(&prepared, &[]).program != entry.program {
        return Err(failed(
            &"it makes another program than when the corpus was recorded; record it anew on a GPU",
        ));
    }
    let simulated = prepared.simulate(0).map_err(|error| failed(&error))?;
    let ours = Entry::of(&prepared, &simulated);
    if ours.exact != entry.exact {
        return Err(failed(&"the simulator computes other bits than the GPU"));
    }
    let (ours, theirs) = (ours.near.len(), entry.near.len());
    if ours != theirs {
        return Err(failed(&format!("{ours} words to compare, {theirs} recorded")));
    }
    // Words that were not kept count as equal.
    let mut measured = simulated.clone();
    let kept: Vec<&mut Word> = measured.iter_mut().filter(|word| is_kept(word)).collect();
    kept.into_iter()
        .zip(&entry.near)
        .for_each(|(word, &value)| word.value = value);
    match prepared.compare(&simulated, &measured).mismatch {
        Some(mismatch) => Err(failed(&mismatch)),
        None => Ok(()),
    }
}

#[test]
fn the_simulator_computes_what_gpus_have_computed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/corpus");
    let mut checked = 0;
    for file in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = file.unwrap().path();
        let corpus: Corpus = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let wrong: Vec<String> = corpus
            .entries
            .iter()
            .filter_map(|entry| check(entry, corpus.sums).err())
            .collect();
        assert!(
            wrong.is_empty(),
            "{} ({}):\n{}",
            path.display(),
            corpus.device,
            wrong.join("\n")
        );
        checked += corpus.entries.len();
    }
    assert!(checked >= 400, "{checked} recorded answers; 400 at least belong here");
}

#[test]
fn an_answer_that_changes_is_noticed() {
    let has_bounds = |prepared: &Prepared| prepared.slots.iter().any(|slot| !slot.is_exact());
    let mut all = (0..).map(|seed| Prepared::new(Program::random(seed), TensorSums::Exact).unwrap());
    let prepared = all.find(has_bounds).unwrap();
    let entry = Entry::of(&prepared, &prepared.simulate(3).unwrap());
    assert_eq!(check(&entry, TensorSums::Exact), Ok(()));
    let mut other = entry.clone();
    other.exact = "another".to_string();
    assert!(check(&other, TensorSums::Exact).unwrap_err().contains("other bits"));
    let mut other = entry.clone();
    other.near[0] ^= 1 << 30;
    assert!(check(&other, TensorSums::Exact).unwrap_err().contains("GPU"));
    let mut other = entry;
    other.program = "another".to_string();
    assert!(check(&other, TensorSums::Exact).unwrap_err().contains("record it anew"));
}
