//! The simulator computes what GPUs have computed: every recorded answer to every program.

use std::path::Path;

use flashcore_tools::fuzz::corpus::Corpus;

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
            .filter_map(|entry| entry.check(corpus.sums).err())
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
