//! What the command prints: help and explanations word by word, JSON by its keys, and manners.

use std::collections::BTreeSet;

use crate::common::json::{json, keys};
use crate::common::{self, assert_fits, command, flashcore, run};
use serde_json::Value;

/// Numbers that change with every improvement of a kernel are no business of a snapshot: its length, and the
/// predicted times of resources, whose order and count change too.
fn steady(text: &str) -> String {
    let mut lines = Vec::new();
    let mut predicted = false;
    let mut skipping = false;
    for line in text.lines() {
        predicted |= line.starts_with("Cost, predicted");
        let labelled = line.starts_with("  ") && !line.starts_with("   ");
        skipping =
            predicted && (line.starts_with("  alone") || line.starts_with("  bound by") || skipping && !labelled);
        if skipping {
            if labelled {
                let label: String = line.chars().take(12).collect();
                lines.push(format!("{label}...").trim_end().to_string());
            }
            continue;
        }
        if predicted && (line.starts_with("  time") || line.starts_with("  assumed")) {
            lines.push(without_numbers(line));
            continue;
        }
        lines.push(match (line.find(" instructions long"), line.rfind("; ")) {
            (Some(end), Some(start)) if start < end => format!("{}; N{}", &line[..start], &line[end..]),
            _ => line.to_string(),
        });
    }
    lines.join("\n")
}

/// Every number as `N`, whatever its unit.
fn without_numbers(line: &str) -> String {
    let words = line.split(' ').map(|word| match word.chars().next() {
        Some(c) if c.is_ascii_digit() => "N",
        _ if ["ms", "ms,", "µs", "µs,", "s", "s,"].contains(&word) => "time",
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

fn shown(arguments: &str) -> String {
    steady(&common::shown(arguments))
}

#[test]
fn help_is_a_manual() {
    insta::assert_snapshot!("help", shown("--help"));
    insta::assert_snapshot!("help_run", shown("run --help"));
    insta::assert_snapshot!("help_check", shown("check -h"));
    insta::assert_snapshot!("help_explain", shown("explain -h"));
    insta::assert_snapshot!("help_list", shown("list -h"));
}

#[test]
fn explanations() {
    // Kernels are named, so that a better default is no change here; the choice has its own snapshots.
    let tiled = "--kernel scalar/tiled-m32n32-w4-v16";
    insta::assert_snapshot!(
        "explain_small_l4",
        shown(&format!("explain small --profile l4 {tiled}"))
    );
    let small = "--kernel scalar/tiled-m32n16-w4-v16";
    insta::assert_snapshot!(
        "explain_gemma_rtx4090",
        shown(&format!("explain gemma2-9b-4k --profile rtx4090 {small}"))
    );
    insta::assert_snapshot!(
        "explain_decode_h200",
        shown(&format!("explain llama8b-decode-8k --profile h200 --lse {tiled}"))
    );
    insta::assert_snapshot!(
        "explain_naive_sm_120",
        shown("explain sd-cross --window 64,inf --kernel scalar/naive-t128-v16 --profile sm_120")
    );
    let chosen = shown("explain small --profile a100");
    assert!(
        chosen.contains("on NVIDIA A100 SXM4 80GB (sm_80)\n  kernel    mma/"),
        "{chosen}"
    );
}

#[test]
fn lists() {
    insta::assert_snapshot!("list_profiles", shown("list profiles"));
    let all = json("list --json").to_string();
    for name in [
        "small",
        "llama8b-decode-8k",
        "scalar/tiled-m64n64-w8-v16",
        "cpu/m128n128",
        "rtx4090",
    ] {
        assert!(all.contains(name), "{name}\n{all}");
    }
}

#[test]
fn the_first_run_is_true_and_quick() {
    let ran = flashcore("");
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    for part in [
        "FlashCore 0.1.0",
        "cpu ",
        "is fused attention correct on this machine, and how fast is it?",
        "Attention on cpu · 8 heads, 512 queries and keys, head_dim 64, fp16",
        "correct yes: at most",
        " median",
        "FLOP/s",
        "The GPU kernel, simulated on the CPU · planned for NVIDIA L4 (sm_89)",
        "on an NVIDIA L4 (sm_89)",
        "clean under 1 schedule",
        " blocks of ",
        " warp instructions: ",
        "flashcore explain small",
    ] {
        assert!(ran.words().contains(part.trim()), "{part}\n{}", ran.stdout);
    }
    // What a user wants to know comes first.
    let order = [
        "\n  correct ",
        "\n  time ",
        "\n  device ",
        "\n  kernel ",
        "simulated on the CPU",
        "\n  predicted ",
        "\nDevices",
    ];
    let places: Vec<_> = order.iter().map(|part| ran.stdout.find(part)).collect();
    assert!(places.is_sorted() && places[0].is_some(), "{places:?}\n{}", ran.stdout);
    let answer: Vec<&str> = ran.stdout.lines().skip(3).take(3).collect();
    let labels: Vec<&str> = answer
        .iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(labels, ["correct", "time", "device"], "{}", ran.stdout);
    assert!(!ran.stdout.contains("reports that"), "{}", ran.stdout);
    // The reason for having no GPU is given once.
    assert_eq!(ran.stdout.matches("none: ").count(), 1, "{}", ran.stdout);
}

#[test]
fn findings_and_answers_of_other_problems() {
    let text = shown("check tiny --schedules 3 --lse --causal --inputs huge-logit");
    assert!(text.contains("clean under 3 schedules"), "{text}");
    let text = shown("run --device sim:a100 tiny --seq-q 5 --window 3,0 --kernel scalar/naive-t64-v16");
    assert!(
        text.contains("scalar/naive-t64-v16 for sm_80") && text.contains("1 block of 2 warps"),
        "{text}"
    );
    let text = shown("run tiny --device cpu --heads 4 --kv-heads 2 --dtype bf16 --layout bhsd --seed 3");
    assert!(
        text.starts_with("B1 H4/2 Sq32 Skv32 D16 bf16 full strided on cpu\n"),
        "{text}"
    );
    assert!(
        text.contains("correct   yes: at most") && text.contains(" median"),
        "{text}"
    );
}

#[test]
fn the_ladder_is_a_file_of_ids_and_names() {
    let text = shown("list ladder --profile l4");
    assert!(
        text.starts_with("# The ladder for B1 H8/8 Sq512 Skv512 D64 fp16 full on NVIDIA L4"),
        "{text}"
    );
    assert!(text.contains("\nladder/hybrid-m64n64-w4=hybrid\n"), "{text}");
    assert_eq!(text.lines().count(), 9, "{text}");
    let ladder = json("list ladder --json --profile h200");
    assert_eq!(ladder["ladder"][4]["name"], "mma");
}

#[test]
fn ptx_alone_is_printed() {
    let ptx = shown("explain tiny --ptx");
    assert!(ptx.starts_with(".version 7.0\n.target sm_80\n"), "{ptx}");
    assert!(!ptx.contains(".loc"));
    let with_lines = shown("explain tiny --ptx=lines");
    assert!(with_lines.contains(".loc") && with_lines.contains("crates/kernels/src/mma/kernel.rs"));
}

#[test]
fn json_parses_and_keeps_its_keys() {
    let answer = json("run tiny --device cpu --json");
    assert_eq!(
        keys(&answer),
        BTreeSet::from([
            "name",
            "problem",
            "direction",
            "device",
            "kernel",
            "why",
            "notes",
            "verdict",
            "gate",
            "time",
            "lengths",
            "flops"
        ])
    );
    assert_eq!(
        keys(&answer["time"]),
        BTreeSet::from(["median_us", "p10_us", "p90_us", "samples", "method"])
    );
    assert_eq!(answer["verdict"], "clean");
    assert!(answer["time"]["median_us"].as_f64().expect("a number") > 0.0);

    let report = json("check tiny --json --schedules 2");
    let report_keys = BTreeSet::from([
        "problem",
        "direction",
        "kernel",
        "target",
        "tap",
        "inputs",
        "seed",
        "schedules",
        "verdict",
        "refusals",
        "values",
        "findings",
        "gate",
        "differs_under",
        "reproducible",
        "steps",
        "counts",
        "traces",
        "memory",
        "only_blocks",
        "seconds",
    ]);
    let of_check = BTreeSet::from(["planted", "profile", "profile_is_assumed"]);
    assert_eq!(keys(&report), &report_keys | &of_check);
    assert_eq!(report["schedules"], serde_json::json!([0, 1]));
    assert!(report["counts"]["fma"]["warps"].as_u64().expect("a count") > 0);
    let simulated = json("run tiny --device sim --json");
    assert_eq!(keys(&simulated), &report_keys | &BTreeSet::from(["device"]));

    let explained = json("explain small --profile l4 --json");
    assert_eq!(
        keys(&explained),
        BTreeSet::from([
            "problem",
            "direction",
            "profile",
            "profile_is_assumed",
            "target",
            "kernel",
            "why",
            "considered",
            "workspace_bytes",
            "steps",
            "plans",
            "cost",
            "configs",
            "ranking",
            "savings",
        ])
    );
    let step = &explained["steps"][0];
    assert_eq!(
        keys(step),
        BTreeSet::from([
            "name",
            "refusals",
            "launch",
            "ledger",
            "shared_bytes",
            "instructions",
            "requires",
            "registers",
            "occupancy",
        ])
    );
    assert_eq!(step["occupancy"][0]["profile"], "l4");
    assert_eq!(step["registers"], Value::Null);
    let cost = &explained["cost"];
    let number = |name: &str| cost[name].as_f64().expect("a number");
    assert!(
        number("low_micros") < number("micros") && number("micros") < number("high_micros"),
        "{cost}"
    );
    assert!(cost["uses"][0]["micros"].as_f64().expect("a number") > 0.0 && cost["binds"] != Value::Null);
    let unknown = json("explain tiny --profile sm_89 --json");
    assert!(
        unknown["cost"]["unknown"]
            .as_str()
            .expect("a reason")
            .contains("not a card"),
        "{unknown}"
    );
    let every = json("explain tiny --all --json");
    assert!(every["configs"].as_array().expect("a list").len() > 50);
    assert_eq!(every["ranking"], Value::Null);

    assert_eq!(
        keys(&json("list --json")),
        BTreeSet::from(["problems", "kernels", "profiles"])
    );
    assert_eq!(
        keys(&json("list devices --json")["devices"]),
        BTreeSet::from(["cuda", "why_no_cuda", "in_trouble", "cpu", "cache"])
    );
}

#[test]
fn a_prediction_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    // A folder that is not there is made.
    let made = folder.path().join("pictures");
    let text = shown(&format!("explain tiny --profile l4 --svg {}", made.display()));
    let file = made.join("roofline-l4.svg");
    assert!(text.contains("roofline-l4.svg"), "{text}");
    let svg = std::fs::read_to_string(&file).expect("the picture is there");
    assert!(
        svg.starts_with("<svg") && svg.contains("B1 H1/1 Sq32 Skv32 D16 fp16 full"),
        "{svg}"
    );
    let ran = flashcore("explain tiny --profile sm_89 --svg somewhere");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("no prediction to draw"), "{}", ran.stderr);
}

#[test]
fn output_is_plain_when_piped_and_fits_100_columns() {
    let commands = [
        "",
        "--help",
        "run --help",
        "check --help",
        "explain --help",
        "list --help",
        "kbench export --help",
        "kbench verify --help",
        "list",
        "list devices",
        "explain small",
        "explain llama8b-prefill-8k --all",
        "check tiny",
        "run tiny --device cpu",
        "run tiny --device sim",
    ];
    for arguments in commands {
        let ran = flashcore(arguments);
        for text in [&ran.stdout, &ran.stderr] {
            assert!(!text.contains('\u{1b}'), "flashcore {arguments}: {text:?}");
            assert_fits(arguments, text);
        }
    }
}

#[test]
fn colours_come_on_request_and_go_with_no_color() {
    let always = flashcore("explain tiny --color always");
    assert!(always.stdout.contains('\u{1b}'));
    let errors = run(command("run --head-dim 7").env("NO_COLOR", "1"));
    assert!(!errors.stderr.contains('\u{1b}'));
    let bad = flashcore("run --head-dim 7 --color always");
    assert!(bad.stderr.contains('\u{1b}'));
}

/// Kernels of files: the museum's, so that the story and the explanation agree.
#[test]
fn foreign_kernels_are_explained() {
    let file = |name: &str| format!("{}/../check/museum/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
    let told = |arguments: &str| flashcore(arguments);
    let refused = told(&format!("explain {} --profile l4", file("static-m64")));
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    for part in [
        "57,376 B static",
        "error[static-shared]",
        "static-m64.ptx:19",
        "cudaFuncSetAttribute",
    ] {
        assert!(refused.stdout.contains(part), "{part}: {}", refused.stdout);
    }
    let opt_in = format!("explain {} --profile l4 --launch smem=76800", file("no-opt-in"));
    assert!(told(&opt_in).stdout.contains("error[opt-in]"));
    assert_eq!(told(&format!("{opt_in} --launch opted-in")).code, 0);
    let json: Value = serde_json::from_str(&told(&format!("{opt_in} --launch threads=256 --json")).stdout).unwrap();
    let kernel = &json["kernels"][0];
    let kinds: Vec<&str> = kernel["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["threads", "opt-in"]);
    assert_eq!(kernel["verdict"], "refused");
    assert_eq!(kernel["shared_bytes"], 76_800);
}

#[test]
fn the_museum_shows_its_pieces() {
    let list = flashcore("list museum").stdout;
    assert!(list.contains("museum/shuffle-as-fence"), "{list}");
    let shown = flashcore("check museum/shuffle-as-fence --schedules 3");
    assert_eq!(shown.code, 1);
    assert!(shown.stdout.contains("error[race]") && shown.stdout.contains("shuffle_as_fence.rs"));
    let json: Value = serde_json::from_str(&flashcore("check museum/no-opt-in --json").stdout).unwrap();
    assert_eq!(json["problems"][0]["kind"], json["piece"]["kind"]);
}

#[test]
fn what_saves_bytes_is_said_with_its_cost() {
    let told = flashcore("explain small --profile l4 --kernel mma/m64n64-w4x1-s2-b1-qreg-xor-cond --saves 8224");
    assert_eq!(told.code, 0, "{}", told.stderr);
    for part in ["What saves 8,224 B", "n64 to n32: ", "times the time"] {
        assert!(told.stdout.contains(part), "{part}: {}", told.stdout);
    }
    let none = flashcore("explain small --profile sm_89 --saves 8224");
    assert_eq!(none.code, 2);
}

/// Without `--profile` the card is the machine's GPU, or the output says that it is assumed.
#[test]
fn an_assumed_card_is_called_so() {
    for arguments in ["check tiny", "explain tiny"] {
        let is_assumed = json(&format!("{arguments} --json"))["profile_is_assumed"] == true;
        let shown = flashcore(arguments).words();
        assert_eq!(shown.contains("card l4 is assumed: no GPU"), is_assumed, "{shown}");
        let named = json(&format!("{arguments} --profile l4 --json"));
        assert_eq!(named["profile_is_assumed"], false);
        assert!(
            !flashcore(&format!("{arguments} --profile l4"))
                .words()
                .contains("is assumed")
        );
    }
}

/// A command that takes long says so where no terminal is, too.
#[test]
fn long_commands_show_their_progress() {
    let wrong = run(command("list profiles").env("FLASHCORE_PROGRESS", "abc"));
    assert_eq!((wrong.code, wrong.stdout.as_str()), (2, ""));
    assert!(
        wrong.stderr.contains("FLASHCORE_PROGRESS is `abc`; allowed: "),
        "{}",
        wrong.stderr
    );
    // A time that it takes on any machine.
    let folder = tempfile::tempdir().expect("a folder");
    let tune = format!(
        "tune tiny --device cpu --budget 3s --skip plan --peers none --folder {}",
        folder.path().join("run").display()
    );
    let ran = run(command(&tune).env("FLASHCORE_PROGRESS", "1"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let of_tune = ran.stderr;
    assert!(
        ["starting", "computing the reference", " trials, ", "head to head"]
            .iter()
            .any(|part| of_tune.contains(part)),
        "{of_tune}"
    );
}

#[test]
fn the_first_run_is_json_too() {
    let first = json("--json");
    assert_eq!(keys(&first), BTreeSet::from(["answer", "simulated"]));
    assert_eq!(first["answer"]["name"], "small");
    let ran = flashcore("--json run tiny");
    assert!(
        ran.code == 2 && ran.words().contains("put it after the subcommand"),
        "{}",
        ran.stderr
    );
}
