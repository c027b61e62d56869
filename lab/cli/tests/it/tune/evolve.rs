//! `docs/own-kernel/evolve.py` evaluates what others write: here a script (`evolve_stub.py`), through OpenEvolve
//! where `FLASHCORE_OPENEVOLVE` names a Python that has it, else one after another.

use std::process::Command;

use serde_json::Value;

use super::folder;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Instructions that the first kernel has in its loop, besides its own.
const IDLE: usize = 48;

#[test]
fn the_planted_rewrite_is_found_and_faster_wrong_ones_are_not() {
    let python = std::env::var("FLASHCORE_OPENEVOLVE").unwrap_or_else(|_| {
        println!("NOT CHECKED: OpenEvolve: FLASHCORE_OPENEVOLVE names no Python that has it");
        "python3".to_string()
    });
    if Command::new(&python).arg("--version").output().is_err() {
        println!("NOT CHECKED: the evaluator of OpenEvolve: there is no {python}");
        return;
    }
    let home = folder("evolve");
    std::fs::create_dir_all(home.join("out")).unwrap();
    let own = format!("{REPOSITORY}/docs/own-kernel");
    let fast = std::fs::read_to_string(format!("{own}/attention.ptx")).unwrap();
    let idle = "    mov.f32 %f30, 0f3F800000;\n".repeat(IDLE);
    let slow = fast.replace("LOOP:\n", &format!("LOOP:\n{idle}"));
    for (name, text) in [("fast.ptx", &fast), ("slow.ptx", &slow)] {
        std::fs::write(home.join(name), text).unwrap();
    }
    let output = Command::new(&python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/tune/evolve_stub.py"))
        .args([
            home.join("slow.ptx"),
            format!("{own}/evolve.py").into(),
            home.join("out"),
        ])
        .env("FLASHCORE", env!("CARGO_BIN_EXE_flashcore"))
        .env("FLASHCORE_KERNEL", format!("{own}/attention.toml"))
        .env("FLASHCORE_PROBLEM", "--seq 16 --heads 1")
        .env("SLOW", home.join("slow.ptx"))
        .env("FAST", home.join("fast.ptx"))
        .env("CALLS", home.join("calls"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let found: Value = serde_json::from_str(said.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {said}{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(
        found["code"].as_str().unwrap().trim(),
        fast.trim(),
        "{}",
        found["metrics"]
    );
    let all = found["all"].as_array().unwrap();
    let instructions = |metrics: &Value| metrics["warp_instructions"].as_f64();
    let correct: Vec<f64> = all.iter().filter_map(instructions).collect();
    let slowest = correct.iter().copied().fold(0.0, f64::max);
    assert!(instructions(&found["metrics"]).unwrap() < 0.6 * slowest, "{found}");
    // What is wrong scores nothing, whatever its speed.
    let wrong = all.iter().filter(|metrics| metrics["correct"] == 0.0);
    let wrong: Vec<&Value> = wrong.collect();
    assert!(wrong.len() >= 3 && wrong.len() + correct.len() == all.len(), "{all:?}");
    assert!(
        wrong.iter().all(|metrics| metrics["combined_score"] == 0.0),
        "{wrong:?}"
    );
    std::fs::remove_dir_all(&home).unwrap();
}
