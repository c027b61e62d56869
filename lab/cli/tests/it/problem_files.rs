//! Problems from files: every subcommand takes them, and a mistake is named with its key and line.

use std::path::PathBuf;

use crate::common::flashcore;

/// Every subcommand that takes a problem, with `FILE` in its place.
const COMMANDS: [&str; 6] = [
    "run FILE --device cpu",
    "check FILE",
    "explain FILE --profile l4",
    "tune FILE --device cpu --budget 1 --no-plan --peers none --folder RUN",
    "bench FILE --device cpu --peers none --no-store --budget 0.01",
    "list ladder --problem FILE --profile l4",
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
