//! Names that are none are usage, whatever they are names of: kernels, peers, devices, runs, files.

use crate::common::{command, flashcore, run};

/// Arguments, and part of the message.
const USAGE: &[(&str, &str)] = &[
    (
        "check --kernel scalar/tiled-m32n32-w5-v16",
        "no kernel is named `scalar/tiled-m32n32-w5-v16`: warps is 5; allowed: 2, 4, 8",
    ),
    (
        "run tiny --kernel mma/m100n64-w4x1-s2-b1-qreg-xor-cond",
        "`flashcore list levers` shows the values",
    ),
    ("bench tiny --device cpu --kernel foo", "no kernel is named `foo`"),
    ("bench tiny --device cpu --kernel cpu/m7n3", "tile_q is 7"),
    (
        "bench tiny --device cpu --peers foo",
        "known are all, none, torch/flash, torch/cudnn",
    ),
    ("tune tiny --device cpu --peers foo", "known are all, none"),
    ("profile tiny --device predict:l4 --peers torch", "known are all, none"),
    (
        "bench tiny --device sim",
        "no device is named `sim`; allowed: best, cpu, cuda, cuda:N",
    ),
    ("parity x", "invalid value 'x' for '[N]': write a whole number"),
    ("check museum", "`flashcore list museum` lists the exhibits"),
    ("tune show no-such-run", "`no-such-run` is no folder"),
    ("tune tiny --resume --folder no-such-folder", "there is no run in it"),
    ("plans drop no-such.json:1", "no-such.json: there is no such file"),
];

#[test]
fn names_that_are_none_are_usage() {
    let home = tempfile::tempdir().expect("a folder");
    for (arguments, message) in USAGE {
        let ran = run(command(arguments).env("XDG_DATA_HOME", home.path()));
        let said = ran.words();
        assert_eq!(ran.code, 2, "{arguments}: {said}");
        assert!(
            said.starts_with("error: ") && said.contains(message),
            "{arguments}: {said}"
        );
    }
}

/// A search draws other lengths for each look, so it is refused before it begins.
#[test]
fn a_search_with_lengths_is_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("len.toml");
    let text = "[[problems]]\nheads = 8\nkv_heads = 2\nseq_q = 1\nseq_kv = 64\nkv_lengths = \"cache\"\n";
    std::fs::write(&file, text).expect("a file");
    let tune = format!("tune {} --device cpu", file.display());
    let ran = run(command(&tune).env("XDG_DATA_HOME", folder.path()));
    let said = ran.words();
    assert!(
        ran.code == 2 && said.contains("with lengths are not searched"),
        "{said}"
    );
    assert!(!folder.path().join("flashcore").exists(), "a run was begun");
}

/// A device that a command refuses is not one that it advises.
#[test]
fn what_needs_no_gpu_is_said_only_where_it_is_true() {
    for (arguments, advised) in [
        (
            "run tiny --device cuda",
            "help: `--device cpu` and `--device sim` need no GPU",
        ),
        (
            "parity 1 --device cuda",
            "help: `--device cpu` and `--device sim` need no GPU",
        ),
        (
            "bench tiny --device cuda",
            "help: `--device cpu` and `--device predict:CARD` need no GPU",
        ),
        ("device", ""),
        ("bench scores", ""),
    ] {
        let ran = flashcore(arguments);
        let said = ran.words();
        assert_eq!(ran.code, 3, "{arguments}: {said}");
        assert!(said.contains(advised), "{arguments}: {said}");
        assert_eq!(said.contains("need"), !advised.is_empty(), "{arguments}: {said}");
    }
}

/// A run without a subject is not kept: it would be the latest.
#[test]
fn a_bench_in_which_nothing_ran_keeps_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let bench = format!(
        "bench tiny --device cpu --peers none --kernel scalar/naive-t128-v16 --store {}",
        store.display()
    );
    let ran = flashcore(&bench);
    assert_eq!(ran.code, 1, "{}", ran.words());
    assert!(!ran.stdout.contains("evidence in"), "{}", ran.stdout);
    let kept = std::fs::read_dir(&store).expect("the store").count();
    assert_eq!(kept, 0);
}
