//! Problems that are larger than the host's memory.
#![cfg(target_os = "linux")]

use std::process::Command;

use crate::common::run;

/// Tensors that the process cannot have are refused before any is allocated.
#[test]
fn problems_beyond_the_host_memory_are_refused() {
    for command in ["run --device cpu", "check"] {
        let flashcore = env!("CARGO_BIN_EXE_flashcore");
        let limited = format!("ulimit -v 8000000 && exec {flashcore} {command} --seq 100000 --heads 64 --head-dim 256");
        let ran = run(Command::new("sh").args(["-c", &limited]));
        assert_eq!(ran.code, 1, "{command}: {}{}", ran.stdout, ran.stderr);
        let words = ran.words();
        assert!(words.contains("of the host's memory; "), "{command}: {words}");
        assert!(words.contains("take fewer sequences or heads"), "{command}: {words}");
        assert!(
            !words.contains("backtrace") && !words.contains("panicked"),
            "{command}: {words}"
        );
    }
}
