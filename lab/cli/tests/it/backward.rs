//! The backward pass in every command that takes a problem.

use crate::common::json::json;
use crate::common::{flashcore, shown};

/// A small problem with grouped heads and odd sizes.
const SMALL: &str = "--heads 4 --kv-heads 2 --seq-q 37 --seq-kv 50 --head-dim 40 --causal";

#[test]
fn run_compares_all_gradients_and_times_them() {
    let found = json(&format!("run --backward {SMALL} --dtype bf16 --device cpu --json"));
    assert_eq!(found["problem"], "B1 H4/2 Sq37 Skv50 D40 bf16 causal backward");
    assert_eq!(
        (&found["direction"], &found["verdict"]),
        (&"backward".into(), &"clean".into())
    );
    let gate = &found["gate"];
    assert!(["dq", "dk", "dv"].contains(&gate["gradient"].as_str().expect("which gradient")));
    assert_eq!(
        (gate["rows"].clone(), gate["lse"].is_null()),
        (gate["all_rows"].clone(), true)
    );
    assert_eq!(gate["rows"], 4 * 37 + 2 * 2 * 50);
    assert!(found["time"]["median_us"].as_f64() > Some(0.0));
    let forward = json(&format!("run {SMALL} --dtype bf16 --device cpu --json"));
    assert_eq!(
        (&forward["direction"], forward["gate"]["gradient"].is_null()),
        (&"forward".into(), true)
    );
    assert_eq!(
        found["flops"].as_f64(),
        forward["flops"].as_f64().map(|flops| 2.5 * flops)
    );
    let text = shown("run tiny-backward --device cpu --inputs rising-scores");
    assert!(
        text.contains("yes: dq, dk and dv;") && text.contains("the rounding of P, dS and O"),
        "{text}"
    );
}

#[test]
fn long_problems_are_compared_in_some_rows() {
    let found = json("run --backward --heads 2 --seq 2048 --head-dim 64 --causal --device cpu --json");
    let gate = &found["gate"];
    assert_eq!(
        (&found["verdict"], &gate["all_rows"]),
        (&"clean".into(), &(2048 * 6).into())
    );
    assert!(
        gate["rows"].as_u64() > Some(150) && gate["rows"].as_u64() < Some(2048),
        "{gate}"
    );
}

#[test]
fn the_simulator_checks_and_finds() {
    let found = json(&format!("check --backward {SMALL} --schedules 2 --json"));
    assert_eq!(
        (&found["direction"], &found["verdict"]),
        (&"backward".into(), &"clean".into())
    );
    assert_eq!(found["steps"].as_array().map(Vec::len), Some(3));
    assert_eq!(json("run tiny --backward --device sim --json")["device"], "sim");
    let planted = flashcore("check tiny --backward --plant drop-barrier:2");
    assert_eq!(planted.code, 1, "{}", planted.stdout);
    assert!(planted.stdout.contains("error[race]"), "{}", planted.stdout);
    let taps = flashcore("check tiny --backward --tap scores");
    assert_eq!(taps.code, 1);
    assert!(taps.words().contains("taps of the backward pass"), "{}", taps.stderr);
}

#[test]
fn explain_shows_the_steps() {
    for (profile, main) in [
        ("h200", "wgmma/m128n128-s2-pingpong"),
        ("a100", "mma/m32n128-w2x2-s2-b2-qsh-xor"),
        ("l4", "mma/m64n128-w1x8-s2-b1-qsh-xor"), // no room for two blocks of the other
    ] {
        let text = shown(&format!("explain small --backward --profile {profile}"));
        for step in ["Step 1 of 3", "Step 3 of 3", "backward on", "preprocess", main] {
            assert!(text.contains(step), "{step}\n{text}");
        }
    }
    let found = json("explain small --backward --profile l4 --json");
    assert_eq!(found["direction"], "backward");
    assert_eq!(found["steps"].as_array().map(Vec::len), Some(3));
}

#[test]
fn bench_times_backward_passes() {
    let words = "bench tiny --backward --device cpu --peers none --store none --budget 0.01 --json";
    let result = json(words)["report"]["results"][0].clone();
    assert_eq!(result["case"]["name"], "tiny-backward");
    assert_eq!(result["case"]["problem"]["direction"], "backward");
    let inspections = result["inspections"].as_array().expect("inspections");
    assert!(!inspections.is_empty() && inspections.iter().all(|found| found["rejected"].is_null()));
    assert_eq!(result["flops"].as_f64(), Some(2.5 * 4.0 * 32.0 * 32.0 * 16.0));
    // By name, and with kernels that have no backward pass.
    let named = shown("bench tiny-backward --device cpu --peers none --store none --budget 0.01 --kernel cpu/m16n16");
    assert!(
        named.contains("tiny-backward") && named.contains("cpu/m16n16"),
        "{named}"
    );
    // With lengths, rows that sequences leave unused, and the same bits in every run.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("packed.toml");
    let packed = |total| format!("{{ packed = {{ total = {total}, used = true }} }}");
    let text = format!(
        "[[problems]]\nname = \"packed\"\nbatch = 2\nseq_q = 20\nseq_kv = 30\ncausal = true\nq_lengths = {}\n\
         kv_lengths = {}\nsequences = [{{ count = 1, rows = 20, keys = 30 }}, {{ count = 1, rows = 3, keys = 9 }}]\n",
        packed(25),
        packed(40)
    );
    std::fs::write(&path, text).expect("a file");
    let words = "--backward --deterministic --device cpu --peers none --store none --budget 0.01 --json";
    let result = json(&format!("bench {} {words}", path.display()))["report"]["results"][0].clone();
    assert_eq!(result["case"]["problem"]["deterministic"], true);
    let inspections = result["inspections"].as_array().expect("inspections");
    assert!(!inspections.is_empty() && inspections.iter().all(|found| found["rejected"].is_null()));
    let forward = flashcore("bench tiny --deterministic --device cpu --peers none --store none");
    assert_eq!(forward.code, 2);
    assert!(forward.words().contains("add --backward"), "{}", forward.stderr);
    let refused = flashcore("bench fp8 --backward --device cpu --peers none --store none");
    assert_eq!(refused.code, 2);
    assert!(
        refused.words().contains("the backward pass takes f32, fp16 and bf16"),
        "{}",
        refused.stderr
    );
}

#[test]
fn parity_draws_backward_problems() {
    let report = json("parity 6 --backward --device cpu --peers none --json");
    assert_eq!(
        (&report["passed"], report["mismatches"].as_array().map(Vec::len)),
        (&6.into(), Some(0))
    );
    let wrong = flashcore("parity 2 --backward --device sim --plant drop-barrier --peers none");
    assert_eq!(wrong.code, 1, "{}", wrong.stdout);
    let words = wrong.words();
    assert!(
        words.contains(" backward") && words.contains("--plant drop-barrier --backward"),
        "{words}"
    );
}

#[test]
fn tune_searches_for_backward_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let words = "tune tiny --backward --device cpu --trials 3 --skip plan --peers none --torture --folder";
    let ran = flashcore(&format!("{words} {}", folder.path().display()));
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let text = ran.words();
    assert!(
        text.contains("fp16 full backward") && text.contains("and the rounding of P, dS and O of float64"),
        "{text}"
    );
}

#[test]
fn files_have_a_direction() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("own.toml");
    let text = "[[problems]]\nname = \"step\"\nheads = 4\nkv_heads = 2\nseq = 48\ndirection = \"backward\"\n";
    std::fs::write(&path, text).expect("a file");
    let shown = shown(&format!("run {} --device cpu", path.display()));
    assert!(
        shown.contains("B1 H4/2 Sq48 Skv48 D64 fp16 full backward on cpu"),
        "{shown}"
    );
    std::fs::write(&path, text.replace("backward", "sideways")).expect("a file");
    let wrong = flashcore(&format!("run {} --device cpu", path.display()));
    assert_eq!(wrong.code, 2);
    let why = "line 6, key `direction`: no direction is named `sideways`; allowed: forward, backward";
    assert!(wrong.words().contains(why), "{}", wrong.stderr);
}

#[test]
fn what_has_no_backward_pass_is_refused_by_name() {
    for (command, code, why) in [
        (
            "run --backward --dtype e4m3 --device cpu",
            2,
            "the backward pass takes f32, fp16 and bf16",
        ),
        (
            "bench scores --backward --device cpu",
            2,
            "--backward is not for `bench scores`",
        ),
        (
            "check --backward --head-dim 128 --kernel wgmma/m64n128-s2-free --profile h100",
            1,
            "write wgmma/m64n128-s2-pingpong",
        ),
        (
            "check tiny --backward --kernel mma/m64n64-w4x1-s2-b1-qreg-xor-cond",
            1,
            "q_in_registers is true; allowed: false in the backward pass",
        ),
        (
            "parity 3 --backward --dtype e4m3 --device cpu",
            2,
            "the backward pass takes",
        ),
    ] {
        let ran = flashcore(command);
        assert_eq!(ran.code, code, "{command}\n{}{}", ran.stdout, ran.stderr);
        assert!(ran.words().contains(why), "{command}\n{}", ran.words());
    }
}
