//! What strangers type without having read anything but `--help`: it works, or the error says what to type.

use crate::common::{Ran, command, run};

/// The command with a folder for what it keeps, and without PyTorch.
fn guessed(arguments: &str) -> (Ran, tempfile::TempDir) {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = command(arguments);
    command
        .env("XDG_DATA_HOME", home.path())
        .env("FLASHCORE_PYTHON", "/no/such/python");
    (run(&mut command), home)
}

/// Arguments, exit code, and part of what is said.
const TYPED: &[(&str, i32, &str)] = &[
    // Cards.
    ("explain tiny --device predict:h100", 0, "on NVIDIA H100"),
    ("explain tiny --profile H100", 0, "on NVIDIA H100"),
    ("check tiny --device predict:h200", 0, "H200"),
    ("bench tiny --device predict:", 2, "a card is missing; allowed: l4"),
    ("bench tiny --device L4", 2, "write `--device predict:l4`"),
    ("tune tiny --device h100", 2, "write `--device predict:h100`"),
    ("tune tiny --profile L4", 2, "write `--device predict:l4`"),
    ("bench tiny --profile=h200", 2, "write `--device predict:h200`"),
    (
        "check tiny --device predict:h200 --profile l4",
        2,
        "--device names a card, and --profile another",
    ),
    // Ids.
    ("explain tiny --kernel naive-t128-v16", 0, "scalar/naive-t128-v16"),
    ("list levers naive-t128-v16", 0, "warps: 4"),
    (
        "list kernels --kernel naive-t128-v16",
        2,
        "`flashcore list levers ID` explains",
    ),
    (
        "explain scalar/naive-t128-v16",
        2,
        "`flashcore explain --kernel scalar/naive-t128-v16`",
    ),
    ("run tiny --kernel m64q", 2, "its family is missing"),
    // Sizes, times, and flags of shapes.
    (
        "explain --seq-len 4k --hdim 128 --batch-size 2",
        0,
        "B2 H8/8 Sq4096 Skv4096 D128",
    ),
    (
        "bench --seq 64 --heads 1 --device predict:l4 --budget 5s --store none",
        0,
        "B1 H1/1 Sq64 Skv64 D64 fp16 full hot (PREDICTED)",
    ),
    (
        "tune tiny --budget 5x",
        2,
        "write trials as 200, or time as 90s, 5m or 1h",
    ),
    (
        "bench varlen --batch 2 --device predict:l4",
        2,
        "flags of a shape do not change",
    ),
    ("tune show --since 7d", 0, "There is no run yet"),
    ("tune show --since 7", 2, "write a time as 7d, 12h or 30m"),
    // Peers by name.
    ("bench tiny --device cpu --peers torch/sdpa", 3, "pip install torch"),
    ("tune tiny --device cpu --peers torch/sdpa", 3, "pip install torch"),
    (
        "bench tiny --device predict:l4 --peers fa3",
        2,
        "fa3 is not predicted: leave --peers out",
    ),
    (
        "tune tiny --device predict:l4 --peers fa3",
        2,
        "fa3 is not predicted: leave --peers out",
    ),
    // Names.
    ("run smoll", 2, "error: did you mean small? no problem is named `smoll`"),
    (
        "bench smoll --device cpu",
        2,
        "error: did you mean small? `smoll` is no problem set",
    ),
    ("tune --resume", 2, "no run was interrupted"),
];

#[test]
fn what_is_guessed_works_or_is_corrected() {
    let mut wrong = Vec::new();
    for (arguments, code, said) in TYPED {
        let (ran, _home) = guessed(arguments);
        let words = ran.words();
        if ran.code != *code || !words.contains(said) {
            wrong.push(format!("{arguments}: {}: {words}", ran.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// clap's tip about `--` helps with values that begin with a hyphen, which no command here takes.
#[test]
fn an_unknown_flag_is_not_said_to_be_a_value() {
    let (ran, _home) = guessed("run --lenght 5");
    assert_eq!(ran.code, 2);
    let words = ran.words();
    assert!(
        words.contains("unexpected argument '--lenght'") && !words.contains("as a value"),
        "{words}"
    );
    assert!(!ran.stderr.contains("\n\n\n"), "{}", ran.stderr);
}

/// Only cards that can run a kernel are compared.
#[test]
fn a_card_that_cannot_run_a_kernel_is_not_among_the_others() {
    let (ran, _home) = guessed("explain small --profile h200");
    let (_, table) = ran.stdout.split_once("Occupancy").expect("a table");
    let (table, _) = table.split_once("Cost").expect("an end");
    assert!(table.contains("h100") && !table.contains("l4 "), "{table}");
}

/// Two ids that differ at their ends alone are two.
#[test]
fn kernels_are_told_apart_by_the_ends_of_their_ids() {
    let [one, other] = ["cond", "spec"].map(|end| format!("mma/m128n64-w4x1-s2-b1-qreg-xor-{end}"));
    let (ran, _home) = guessed(&format!(
        "bench small --device predict:l4 --store none --kernel {one},{other}"
    ));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for id in [one, other] {
        assert!(ran.stdout.contains(&format!("  {id}\n")), "{}", ran.stdout);
    }
}

/// A search that is refused before it began leaves nothing in the user's folder.
#[test]
fn a_search_that_does_not_begin_leaves_no_folder() {
    for arguments in [
        "tune tiny --device cpu --counters",
        "tune tiny --device cpu --workers no-such-program",
    ] {
        let (ran, home) = guessed(arguments);
        assert_eq!(ran.code, 2, "{arguments}: {}", ran.stderr);
        let runs = std::fs::read_dir(home.path().join("flashcore/tune"));
        assert_eq!(runs.map_or(0, |runs| runs.count()), 0, "{arguments}");
    }
}

/// Without peers a report says that nothing was compared, and of a card that is not here that nothing was run.
#[test]
fn reports_compare_with_peers_alone() {
    let home = tempfile::tempdir().expect("a folder");
    for (bench, said) in [
        (
            "--device cpu --kernel cpu/m16n16,cpu/m32n16 --peers none --budget 10ms",
            "1 problem timed, without a peer to compare with.",
        ),
        ("--device predict:l4", "1 problem, predicted; nothing was run."),
    ] {
        let store = home.path().join(said.len().to_string());
        let ran = run(&mut command(&format!("bench tiny {bench} --store {}", store.display())));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let report = run(&mut command(&format!("report --store {}", store.display())));
        let words = report.words();
        assert!(
            words.contains(said) && !words.contains("faster than"),
            "{bench}: {words}"
        );
    }
}
