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
    ("list kernels naive-t128-v16", 2, "`flashcore list levers ID` explains"),
    ("list kernels wgmma", 0, "wgmma/m64n64-s2-free-spec"),
    ("list levers mma", 0, "query rows per block"),
    ("tune show --since 1w", 0, "no run yet"),
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
    ("tune tiny --budget 5x", 2, "write a time above 0 as 90s, 5m or 500ms"),
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
    // A kernel that was named, and is not timed.
    (
        "bench tiny --device cpu --peers none --kernel cpu/m16n16,scalar/naive-t128-v16 --budget 10ms",
        1,
        "it runs on a GPU; ask for a CUDA device",
    ),
    // Names.
    (
        "run smoll",
        2,
        "`smoll` is no problem, no set of problems and no readable file help: did you mean small?",
    ),
    ("bench smoll --device cpu", 2, "help: did you mean small?"),
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

/// Spellings of earlier versions, and what is said.
const GONE: &[(&str, &str)] = &[
    (
        "bench --kv-heads 4",
        "write the heads of K and V in the problem: `b2,h16/4,s1k,d96`",
    ),
    (
        "gate --kv-heads 4",
        "write the heads of K and V in the problem: `b2,h16/4,s1k,d96`",
    ),
    (
        "bench --sweep",
        "`tune --strategy exhaustive` tries a space, and `bench` takes any number of kernels",
    ),
    (
        "tune --predicted",
        "`tune --predicted --profile CARD` is `tune --device predict:CARD`",
    ),
    (
        "profile --simulate",
        "`profile` predicts shares and keeps them; `explain --svg` draws shared memory",
    ),
    ("report --markdown 1", "write `report -o FILE.md`"),
    ("check --smem 1", "write `--launch smem=BYTES`"),
    ("explain --smem 1", "write `--launch smem=BYTES`"),
    ("check --threads 1", "write `--launch threads=N`, along axes as 32x8"),
    ("explain --threads 1", "write `--launch threads=N`, along axes as 32x8"),
    ("check --grid 1", "write `--launch grid=8x4`"),
    ("explain --grid 1", "write `--launch grid=8x4`"),
    ("check --opted-in", "write `--launch opted-in`"),
    ("explain --opted-in", "write `--launch opted-in`"),
    ("check --entry 1", "write `--launch entry=NAME`"),
    ("explain --entry 1", "write `--launch entry=NAME`"),
    ("check --std 1", "write it at the end, after `--`: `-- -std=c++17`"),
    ("explain --std 1", "write it at the end, after `--`: `-- -std=c++17`"),
    ("check -std=c++17", "write it at the end, after `--`: `-- -std=c++17`"),
    ("explain -std=c++17", "write it at the end, after `--`: `-- -std=c++17`"),
    ("check -I include", "write it at the end, after `--`: `-- -IDIR`"),
    ("explain -I include", "write it at the end, after `--`: `-- -IDIR`"),
    ("check -D N=1", "write it at the end, after `--`: `-- -DNAME=VALUE`"),
    ("explain -D N=1", "write it at the end, after `--`: `-- -DNAME=VALUE`"),
    (
        "check --maxrregcount 1",
        "write it at the end, after `--`: `-- --maxrregcount=N`",
    ),
    (
        "explain --maxrregcount 1",
        "write it at the end, after `--`: `-- --maxrregcount=N`",
    ),
    ("check --compiler-limit 1", "write `--deadline TIME`"),
    ("explain --compiler-limit 1", "write `--deadline TIME`"),
    ("check --outputs 1", "write `--output DIR`"),
    ("check --schedule 1", "write `--schedules 1@SEED`"),
    ("check --numerics", "write `--tap all`"),
    ("check --block 1", "of a trace `--trace LINE,block=1x0x0`"),
    ("tune tiny --budget 200", "--trials N counts"),
    ("tune --continue", "write `--resume`"),
    ("search small", "write `flashcore tune`"),
    ("check --warp 1", "write `--trace LINE,warp=N`"),
    ("check --lane 1", "write `--trace LINE,lane=N`"),
    ("check --limit 1", "write `--trace LINE,limit=N`"),
    ("explain --lines", "write `--ptx=lines`"),
    ("explain --step 1", "write `--ptx=N`"),
    ("list --kernel 1", "write `list levers ID`"),
    ("list --problem 1", "write `list ladder PROBLEM`"),
    ("bench --config 1", "write `--kernel IDS`"),
    ("bench --csv 1", "write `--output FILE.csv`"),
    ("bench --plain", "write `--mode plain`, or `--mode hot,plain`"),
    ("bench --steady-lead 1", "write `--lead 40ms`"),
    ("bench --sustained-rounds 1", "write `--rounds N`"),
    ("gate --write x --markdown 1", "write `--output FILE.md`"),
    ("kbench verify x --kernel x.cu --markdown 1", "write `--output FILE.md`"),
    ("gate --write x --baseline 1", "write `--against FILE`"),
    ("gate --write x --slower 1", "write `--allow slower=3%`"),
    ("gate --write x --error 1", "write `--allow error=10%`"),
    ("gate --write x --store 1", "`--evidence FOLDER` reads another store"),
    ("evidence compare a b --gate 1", "write `--slower SHARE`"),
    (
        "evidence export --format 1",
        "write `--output FILE.csv`, or `--output csv` to print it",
    ),
    ("evidence chart ladder --rung 1", "write `--kernel ID=NAME`"),
    ("evidence chart ladder --rungs 1", "write `--kernel FILE`"),
    ("bench --no-store", "write `--store none`"),
    ("parity --no-sdpa", "write `--peers none`"),
    ("parity --lengths", "write `--with lengths`"),
    ("parity --sinks-alibi", "write `--with sinks-alibi`"),
    ("tune --start 1", "write `--kernel ID`"),
    ("tune --no-plan", "write `--skip plan`"),
    ("tune --no-measure", "write `--skip measure`"),
    ("plans --of 1", "write `plans make FILES --output FILE`"),
    ("plans --drop 1", "write `plans drop FILE:ROW`"),
    ("plans --out 1", "write `--output FILE`"),
    ("device --out 1", "write `--output FILE`"),
    ("profile --goal-sm 1", "write `--goal sm=PERCENT`"),
    ("profile --goal-dram 1", "write `--goal dram=PERCENT`"),
    ("profile --goal-tensor 1", "write `--goal tensor=PERCENT`"),
    ("device --rates 1", "write `device FILE.json`"),
    ("device --only 1", "write `--measure=NAMES`"),
    ("kbench export --task-only", "write `--kernel none`"),
    ("kbench verify x --kernel x.cu --atol 1", "write `--tolerance abs=X`"),
    ("kbench verify x --kernel x.cu --rtol 1", "write `--tolerance rel=X`"),
    ("kbench verify x --kernel x.cu --calls 1", "write `--rounds 10xCALLS`"),
    ("compare a b", "write `flashcore evidence compare A B`"),
    ("leaderboard", "write `flashcore tune show`"),
    ("run tiny --profile l4", "write `--device sim:l4`"),
    ("profile tiny --profile h200", "write `--device predict:h200`"),
];

#[test]
fn old_spellings_name_the_new_ones() {
    let mut wrong = Vec::new();
    for (arguments, now) in GONE {
        let (ran, _home) = guessed(arguments);
        let words = ran.words();
        if ran.code != 2 || !words.contains(now) || words.contains("similar") {
            wrong.push(format!("{arguments}: {}: {words}", ran.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// A problem in each way that it can be written, and what is none.
const PROBLEMS: &[(&str, i32, &str)] = &[
    ("b1,h2/1,s64,d64,bf16,causal", 0, "B1 H2/1 Sq64 Skv64 D64 bf16 causal"),
    ("tiny,s48", 0, "B1 H1/1 Sq48 Skv48 D16 fp16 full"),
    (
        "B1 H2/1 Sq64 Skv64 D64 bf16 window(9,0)",
        0,
        "B1 H2/1 Sq64 Skv64 D64 bf16 window(9,0)",
    ),
    ("h32,d64", 2, "a length is missing: `s4k`, or `q1,k8k`"),
    ("h2,s64,d64,fp17", 2, "`fp17` is no field"),
    ("B4", 2, "put the text of a problem in quotes"),
    ("none.py", 2, "none.py is Python: it has kernels, not a problem"),
    ("none.cu", 2, "none.cu is CUDA C++: it has kernels, not a problem"),
];

/// Of what takes one problem or several. `check` and `explain` take files of kernels, too.
#[test]
fn every_command_takes_a_problem_in_every_way() {
    let mut wrong = Vec::new();
    for command_of in [
        "run WHAT --device cpu",
        "check WHAT --profile l4",
        "explain WHAT --profile l4",
        "profile WHAT --device predict:l4",
        "tune WHAT --device predict:l4 --trials 1",
        "kbench export WHAT TASK",
        "list ladder WHAT",
        "bench WHAT --device predict:l4 --store none",
        "gate WHAT --device sim:l4 --write OUT",
    ] {
        let takes_kernels = ["check", "explain", "tune"]
            .iter()
            .any(|name| command_of.starts_with(name));
        let of_problems = PROBLEMS
            .iter()
            .filter(|(problem, ..)| !takes_kernels || !problem.starts_with("none"));
        let is_set = ["bench", "gate"].iter().any(|name| command_of.starts_with(name));
        let one = ("small-set", 2, "small-set is a set of 4 problems, and one is needed");
        for (problem, code, said) in of_problems.chain((!is_set).then_some(&one)) {
            let home = tempfile::tempdir().expect("a folder");
            let mut command = command("");
            let place = |word: &str| match word {
                "WHAT" => problem.to_string(),
                "TASK" | "OUT" => home.path().join("task").display().to_string(),
                word => word.to_string(),
            };
            command
                .args(command_of.split(' ').map(place))
                .env("XDG_DATA_HOME", home.path());
            let ran = run(&mut command);
            // What was given, if not the problem, is printed by all but `gate`.
            let is_said = ran.words().contains(said) || (*code == 0 && command_of.starts_with("gate"));
            if ran.code != *code || !is_said {
                wrong.push(format!("{command_of}: {problem}: {}: {}", ran.code, ran.words()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// An id whose parts are in another order, wherever one is given.
#[test]
fn parts_of_ids_are_put_in_order() {
    let (given, meant) = (
        "mma/n64m128-w4x1-s2-b1-qreg-xor-cond",
        "mma/m128n64-w4x1-s2-b1-qreg-xor-cond",
    );
    for arguments in [
        "run tiny --kernel ID",
        "check tiny --kernel ID",
        "explain tiny --kernel ID",
        "explain ID",
        "list levers ID",
        "bench tiny --device predict:l4 --store none --kernel ID",
        "gate tiny --device predict:l4 --write x --kernel ID",
        "profile tiny --device predict:l4 --kernel ID",
        "tune tiny --device predict:l4 --kernel ID",
        "kbench export tiny task --kernel ID",
    ] {
        let (ran, _home) = guessed(&arguments.replace("ID", given));
        let words = ran.words();
        assert!(
            ran.code == 2 && words.contains(&format!("did you mean {meant}?")),
            "{arguments}: {words}"
        );
    }
}

/// What commands print by themselves is a screen.
#[test]
fn output_is_a_screen() {
    let home = tempfile::tempdir().expect("a folder");
    for arguments in [
        "",
        "run",
        "check tiny",
        "explain",
        "list",
        "list profiles",
        "list problems",
        "list kernels",
        "list levers",
        "parity 2 --device cpu --peers none",
        "evidence",
        "tune show",
        "plans",
        "profile tiny --device predict:l4",
        "bench --device predict:l4 --store none",
        "tune tiny --device predict:l4 --trials 5",
    ] {
        let ran = run(command(arguments).env("XDG_DATA_HOME", home.path()));
        assert_eq!(ran.code, 0, "{arguments}: {}", ran.stderr);
        assert!(ran.stdout.lines().count() <= 40, "{arguments}\n{}", ran.stdout);
    }
}

#[test]
fn shells_can_complete_commands() {
    let (ran, _home) = guessed("completions bash");
    assert!(ran.code == 0 && ran.stdout.contains("--kernel"), "{}", ran.stderr);
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
