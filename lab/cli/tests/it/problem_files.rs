//! Problems from files: every subcommand takes them, and a mistake is named with its key and line.

use std::path::PathBuf;

use crate::common::{command, flashcore, run};

/// Every subcommand that takes a problem, with `FILE` in its place.
const COMMANDS: [&str; 6] = [
    "run FILE --device cpu",
    "check FILE",
    "explain FILE --profile l4",
    "tune FILE --device cpu --trials 1 --skip plan --peers none --folder RUN",
    "bench FILE --device cpu --peers none --store none --budget 0.01",
    "list ladder FILE --profile l4",
];

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("flashcore-{}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("a file");
    path
}

#[test]
fn every_subcommand_takes_a_file() {
    let text = "[[problems]]\nname = \"mine\"\nheads = 4\nkv_heads = 2\nseq = 48\nhead_dim = 32\ncausal = true\n";
    let toml = file("own.toml", text);
    let run = std::env::temp_dir().join(format!("flashcore-{}-run", std::process::id()));
    for command in COMMANDS {
        let command = command
            .replace("FILE", &toml.display().to_string())
            .replace("RUN", &run.display().to_string());
        let ran = flashcore(&command);
        assert_eq!(ran.code, 0, "{command}\n{}{}", ran.stdout, ran.stderr);
        assert!(
            ran.stdout.contains("B1 H4/2 Sq48 Skv48 D32 fp16 causal"),
            "{command}\n{}",
            ran.stdout
        );
    }
    std::fs::remove_dir_all(run).expect("removed");
    std::fs::remove_file(toml).expect("removed");
}

/// The output is compared for lengths that the seed draws, and those of `bench` are timed.
#[test]
fn run_shows_the_lengths_that_it_compares_and_times() {
    let text = "[[problems]]\nname = \"cached\"\nbatch = 2\nheads = 2\nseq_q = 1\nseq_kv = 90\nhead_dim = 32\n\
                kv_lengths = \"cache\"\nsequences = [{ count = 1, keys = 90 }, { count = 1, keys = 30 }]\n";
    let path = file("cached.toml", text);
    let command = format!("run {} --device cpu --seed 3", path.display());
    let shown = flashcore(&command);
    assert_eq!(shown.code, 0, "{}", shown.stdout);
    assert!(
        shown
            .words()
            .contains("timed: 2 sequences of 1 row and 30 to 90 keys, as by `bench`"),
        "{}",
        shown.stdout
    );
    let answer: serde_json::Value =
        serde_json::from_str(&flashcore(&format!("{command} --json")).stdout).expect("JSON");
    let lengths = &answer["lengths"];
    assert_eq!(
        lengths["timed"],
        serde_json::json!({ "rows": [1, 1], "keys": [90, 30] })
    );
    assert_ne!(lengths["judged"], lengths["timed"]);
    // Two products of 2 heads over 120 keys.
    assert_eq!(answer["flops"].as_f64(), Some(4.0 * 2.0 * 120.0 * 32.0));
    let changed = flashcore(&format!("{command} --head-dim 64"));
    let note = "note: flags change the problem, so the file's lengths of sequences are not used";
    assert!(
        changed.words().contains(note) && !shown.words().contains("note: flags"),
        "{}",
        changed.stderr
    );
    std::fs::remove_file(path).expect("removed");
}

/// A search of a problem of a file is found by the file, or by the problem's name.
#[test]
fn the_leaderboard_takes_a_file() {
    let home = tempfile::tempdir().expect("a folder");
    let own = home.path().join("own.toml");
    std::fs::write(
        &own,
        "[[problems]]\nname = \"mine\"\nseq = 32\n\n[[problems]]\nname = \"other\"\n",
    )
    .expect("a file");
    let flashcore = |arguments: &str| {
        let arguments = arguments.replace("FILE", &own.display().to_string());
        run(command(&arguments).env("XDG_DATA_HOME", home.path()))
    };
    let tuned = flashcore("tune FILE:mine --device cpu --trials 1 --skip plan --peers none --json");
    assert_eq!(tuned.code, 0, "{}", tuned.stderr);
    for problem in ["FILE:mine", "mine"] {
        let shown = flashcore(&format!("tune show {problem} --json"));
        let shown: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
        assert_eq!(shown["run"]["case"], "mine", "{problem}");
    }
    let none = flashcore("tune show FILE:other");
    assert!(none.words().contains("there are runs of mine"), "{}", none.stderr);
    let several = flashcore("tune show FILE");
    assert!(several.words().contains("one of mine, other"), "{}", several.stderr);
}

#[test]
fn every_subcommand_names_key_and_line_of_a_mistake() {
    for (name, text, said) in [
        (
            "key.toml",
            "[[problems]]\nheads = 8\nhed_dim = 64\n",
            "key.toml: line 3: unknown key `hed_dim`",
        ),
        (
            "type.json",
            "[{\"heads\": 8,\n  \"seq\": \"long\"}]",
            "type.json: line 2, key `seq`: invalid type",
        ),
        (
            "value.toml",
            "[[problems]]\nheads = 8\ndtype = \"fp17\"\n",
            "value.toml: line 3, key `dtype`: no dtype is named `fp17`; allowed: f32, fp16",
        ),
        (
            "large.toml",
            "[[problems]]\nname = \"huge\"\nbatch = 65536\nheads = 65536\nseq = 66000\n",
            "large.toml: line 5, key `seq`: the number of elements of q is 18141941858304000; at most 2147483648 is supported; \
             it is the product of sizes of problem `huge`",
        ),
        ("empty.toml", "", "empty.toml: line 1: the file is empty"),
    ] {
        let path = file(name, text);
        for command in COMMANDS {
            let ran = flashcore(&command.replace("FILE", &path.display().to_string()));
            let told = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(ran.code, 2, "{command}\n{}{told}", ran.stdout);
            assert!(told.contains(said), "{command}: {told}");
        }
        std::fs::remove_file(path).expect("removed");
    }
}

/// The arrays of a server's step: `check` names what contradicts the problem, and others do not use such values.
#[test]
fn a_files_own_lengths_are_checked() {
    let problem = "[[problems]]\nname = \"step\"\nbatch = 2\nseq_q = 1\nseq_kv = 64\n\
                   kv_lengths = {paged = {page_size = 16, pages = 8, max_pages = 4}}\n";
    let with = |values: &str| format!("{problem}values = {values}\n");
    let right = file(
        "right.toml",
        &with("{seqused_k = [40, 64], block_table = [[5, 7, 2, -1], [0, 1, 6, 3]]}"),
    );
    let wrong = file(
        "wrong.toml",
        &with("{seqused_k = [40, 70], block_table = [[5, 8, 2, -1], [0, 1, 6, 3]]}"),
    );
    let (right, wrong) = (right.display(), wrong.display());
    for command in ["check FILE", "run FILE --device sim"] {
        let ran = flashcore(&command.replace("FILE", &right.to_string()));
        assert_eq!(ran.code, 0, "{command}\n{}{}", ran.stdout, ran.stderr);
        let ran = flashcore(&command.replace("FILE", &wrong.to_string()));
        assert_eq!(ran.code, 1, "{command}\n{}{}", ran.stdout, ran.stderr);
        for named in [
            "error[values]: block_table has 8 in entry 1 of sequence 0; the cache has pages 0 to 7",
            "error[values]: seqused_k has 70 for sequence 1; allowed are 0 to 64",
        ] {
            assert!(ran.words().contains(named), "{command}\n{}", ran.stdout);
        }
    }
    let bench = "bench FILE --device cpu --peers none --store none --budget 0.01";
    let ran = flashcore(&bench.replace("FILE", &right.to_string()));
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let ran = flashcore(&bench.replace("FILE", &wrong.to_string()));
    assert!(
        ran.code == 2 && ran.words().contains("block_table has 8 in entry 1"),
        "{}",
        ran.stderr
    );
    let ran = flashcore(&format!("run {right} --device cpu"));
    assert!(
        ran.code == 2 && ran.words().contains("`run` draws the values"),
        "{}",
        ran.stderr
    );
    for (values, said) in [
        (
            "{seqused_k = [40]}",
            "line 7, key `values`: seqused_k has 1 entries; this problem of 2",
        ),
        (
            "{seqused_k = [40], block_table = [[1, 2, 3, 4], [1]]}",
            "has 1 pages for sequence 1; max_pages is 4",
        ),
        ("{seqused_k = [40, 50]}", "block_table was not given"),
        ("{seqused = [40]}", "unknown key `seqused`"),
        ("{}\nsequences = []", "line 7, key `values`: it contradicts `sequences`"),
    ] {
        let path = file("values.toml", &with(values));
        let ran = flashcore(&format!("check {}", path.display()));
        assert!(ran.code == 2 && ran.words().contains(said), "{values}: {}", ran.stderr);
        std::fs::remove_file(path).expect("removed");
    }
    std::fs::remove_file(right.to_string()).expect("removed");
    std::fs::remove_file(wrong.to_string()).expect("removed");
}

/// A problem is picked and shown by its name, which may have a colon.
#[test]
fn a_run_shows_the_name_of_its_problem() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("own.toml");
    std::fs::write(
        &own,
        "[[problems]]\nname = \"a:b\"\nseq = 32\n\n[[problems]]\nname = \"c\"\n",
    )
    .expect("a file");
    let typed = format!("run {}:a:b --device cpu", own.display());
    let ran = flashcore(&typed);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("a:b: B1 H1/1 Sq32 "), "{}", ran.stdout);
    let name = |typed: &str| {
        let ran = flashcore(&format!("{typed} --json"));
        serde_json::from_str::<serde_json::Value>(&ran.stdout).expect("JSON")["name"].clone()
    };
    assert_eq!(name(&typed), "a:b");
    assert!(name("run tiny --seq 33 --device cpu").is_null());
}
