//! Stores of earlier builds are refused with what converts them.

use flashcore_bench::store::{Selector, Store};

use super::evidence::folder;

#[test]
fn an_old_store_is_refused_with_the_script_that_converts_it() {
    let folder = folder("old");
    let old = folder.join("host.sqlite");
    std::fs::write(&old, b"SQLite format 3\0").unwrap();
    // The file itself, and the folder in whose place it lies.
    for path in [&old, &folder.join("host")] {
        let read = Store::open(path).and_then(|store| store.runs(&Selector::All));
        let error = read.unwrap_err().to_string();
        assert!(error.contains("scripts/convert_evidence.py | python3 -"), "{error}");
        assert!(error.contains(old.to_str().unwrap()), "{error}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
