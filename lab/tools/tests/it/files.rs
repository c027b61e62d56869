//! Damaged files of every format are read or refused.

use flashcore_tools::files::formats::Bench;
use flashcore_tools::files::run;

/// Inputs of each format; `flashcore-tools fuzz-files` takes a hundred thousand.
const INPUTS: u64 = 60;

#[test]
fn damaged_files_are_read_or_refused() {
    let bench = Bench::new(None).unwrap();
    for format in bench.formats().unwrap() {
        let tally = run(&bench, &format, 0..INPUTS).unwrap();
        assert_eq!(tally.panics, [0u64; 0], "{}", format.name);
        assert_eq!(
            tally.fates.iter().sum::<u64>() + tally.refused,
            INPUTS,
            "{}",
            format.name
        );
    }
}
