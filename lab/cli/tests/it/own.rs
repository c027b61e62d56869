//! Kernels of the user's own: declared PTX and Python functions.

use std::path::Path;

use crate::common::json::json;
use crate::common::{Ran, command, flashcore, run, words};

/// A file of the examples in `docs/own-kernel`.
fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/own-kernel")
        .join(name);
    path.canonicalize().expect("an example").display().to_string()
}

#[test]
fn a_declared_kernel_is_checked_and_judged() {
    let check = format!(
        "check --seq 24 --heads 4 --kv-heads 2 --causal --kernel {}",
        example("attention.toml")
    );
    let ran = flashcore(&check);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    for part in [
        "own/attention for sm_89",
        "clean",
        "correct yes: at most",
        "24 blocks of 4 warps",
    ] {
        assert!(words(&ran.stdout).contains(part), "{part}\n{}", ran.stdout);
    }
    let found = json(&format!("{check} --schedules 2 --json"));
    assert_eq!(
        (&found["kernel"], &found["verdict"]),
        (&"own/attention".into(), &"clean".into())
    );
    assert_eq!(found["gate"]["out"]["passed"], true);
    let wrong = flashcore(&format!("check --seq 24 --heads 4 --kernel {}", example("wrong.toml")));
    assert!(wrong.code == 1 && wrong.words().contains("wrong"), "{}", wrong.stdout);
}

#[test]
fn parity_judges_a_kernel_on_problems_that_it_serves() {
    let parity = |file: &str, flags: &str| format!("parity 2 --device sim --kernel {} {flags}", example(file));
    let found = json(&parity("attention.toml", "--json"));
    assert_eq!((&found["kernels"][0]["right"], &found["seed"]), (&2.into(), &1.into()));
    let ran = flashcore(&parity("wrong.toml", "--seed 5"));
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    for part in [
        "2 wrong, 0 right: own/wrong on the simulator for l4, seed 5",
        "parity --only 0 --seed 5 --device sim",
    ] {
        assert!(words(&ran.stdout).contains(part), "{part}\n{}", ran.stdout);
    }
    let refused = flashcore("parity 3 --device sim --kernel mma/m64n64-w4x1-s2-b1-qreg-xor-cond");
    assert!(
        refused.code == 2 && refused.stderr.contains("allowed are FILE.toml"),
        "{}",
        refused.stderr
    );
}

#[test]
fn bad_declarations_and_flags_are_refused() {
    let attention = example("attention.toml");
    for (arguments, code, said) in [
        ("check --kernel none.toml".to_string(), 2, "none.toml: No such file"),
        (
            format!("check --kernel {attention} --tap scores"),
            2,
            "--tap is not for the declaration of a kernel",
        ),
        (
            format!("check --kernel {attention} --plant drop-barrier"),
            2,
            "--plant is not for",
        ),
        (format!("check --kernel {attention} --tap all"), 2, "--tap is not for"),
        (
            format!("check --head-dim 128 --kernel {attention}"),
            1,
            "it does not serve this problem: it requires `head_dim == 64`",
        ),
        (
            format!("check --dtype bf16 --kernel {attention}"),
            1,
            "its dtype is fp16, that of the problem bf16",
        ),
    ] {
        let ran = flashcore(&arguments);
        assert!(
            ran.code == code && ran.words().contains(said),
            "{arguments}\n{}",
            ran.words()
        );
    }
}

/// Runs a command with a cache folder, in which the list of trusted files is.
fn with_cache(folder: &Path, arguments: &str) -> Ran {
    run(command(arguments).env("FLASHCORE_CACHE_DIR", folder))
}

#[test]
fn a_file_runs_when_its_content_is_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["attention.toml", "attention.ptx"] {
        std::fs::copy(example(name), folder.path().join(name)).expect("a copy");
    }
    let declaration = folder.path().join("attention.toml").display().to_string();
    let bench =
        format!("bench tiny --device cpu --peers none --store none --budget 0.01 --kernel cpu/m16n16,{declaration}");
    let cache = folder.path().join("cache");
    let untrusted = with_cache(&cache, &bench);
    assert_eq!(untrusted.code, 2, "{}", untrusted.stdout);
    for part in [
        "own/attention is not trusted: this command launches the kernel `attention` of",
        "read it, then add --trust, once for this content (SHA-256",
    ] {
        assert!(untrusted.words().contains(part), "{part}\n{}", untrusted.words());
    }
    assert!(!cache.join("trusted").exists());
    // The host has no GPU for it; the rest of the table stands.
    for arguments in [format!("{bench} --trust"), bench.clone()] {
        let ran = with_cache(&cache, &arguments);
        assert_eq!(ran.code, 0, "{}", ran.words());
        let said = "own/attention: nothing to measure: own/attention runs on a GPU; ask for a CUDA device";
        assert!(
            ran.words().contains(said) && ran.words().contains("cpu/m16n16"),
            "{}",
            ran.words()
        );
    }
    let list = std::fs::read_to_string(cache.join("trusted")).expect("a list");
    assert_eq!(list.lines().count(), 1);
    // A change of the PTX is another content.
    let ptx = folder.path().join("attention.ptx");
    let text = std::fs::read_to_string(&ptx).expect("PTX");
    std::fs::write(&ptx, format!("{text}// changed\n")).expect("PTX");
    assert!(with_cache(&cache, &bench).words().contains("is not trusted"));
    let report = with_cache(&cache, &format!("{bench} --trust --json"));
    let report: serde_json::Value = serde_json::from_str(&report.stdout).expect("JSON");
    assert_eq!(report["report"]["failed"], serde_json::json!([]));
    assert_eq!(report["report"]["results"][0]["absent"][0][0], "own/attention");
}

#[test]
fn a_profile_without_a_gpu_has_no_prediction_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let attention = example("attention.toml");
    let profile = format!("profile tiny --device predict:h200 --kernel scalar/naive-t128-v16,{attention}");
    // Nothing runs, so that nothing must be trusted.
    let ran = with_cache(folder.path(), &profile);
    assert_eq!(ran.code, 0, "{}", ran.words());
    for part in [
        "own/attention",
        "only FlashCore's kernels are predicted",
        "scalar/naive-t128-v16",
    ] {
        assert!(ran.words().contains(part), "{part}\n{}", ran.words());
    }
}

#[test]
fn bad_names_of_own_kernels_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let of_folder = |name: &str| folder.path().join(name).display().to_string();
    for name in ["mine.py", "other/mine.py"] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, format!("# {name}\ndef f(q, k, v): return q\n")).expect("a file");
    }
    let (mine, other) = (of_folder("mine.py"), of_folder("other/mine.py"));
    for (arguments, code, said) in [
        ("--kernel none.toml".to_string(), 2, "none.toml: No such file"),
        ("--kernel none.py:f".to_string(), 2, "none.py: No such file"),
        (format!("--kernel {mine}"), 2, "names no function; write"),
        (format!("--kernel {mine}:f-g"), 2, "names no function; write"),
        (
            format!("--kernel {mine}:f"),
            2,
            "own/mine:f is not trusted: this command runs",
        ),
        (
            format!("--kernel {mine}:f,{other}:f --trust"),
            2,
            "have one name, own/mine:f",
        ),
        (
            format!("--kernel {mine}:f --trust --deadline 0"),
            2,
            "write a time above 0 as 90s",
        ),
        (
            format!("--kernel {mine}:f --trust --deadline soon"),
            2,
            "invalid value 'soon'",
        ),
        (
            format!("--kernel {mine}:f --trust"),
            3,
            "a Python with the package flashcore is needed",
        ),
    ] {
        let ran = with_cache(
            folder.path(),
            &format!("bench tiny --device cpu --peers none --store none {arguments}"),
        );
        assert!(
            ran.code == code && ran.words().contains(said),
            "{arguments}: {}\n{}",
            ran.code,
            ran.words()
        );
    }
    for (arguments, said) in [
        (
            "--kernel cpu/m16n16,cpu/m32n16".to_string(),
            "--kernel names cpu/m16n16 and cpu/m32n16, and one candidate is the first",
        ),
        (
            format!("--kernel {mine} --trust"),
            "FILE.py:FUNCTION, a function of Triton that has one",
        ),
        (
            format!("--kernel {}", example("attention.toml")),
            "own/attention is not trusted",
        ),
        (
            format!("--device replay:shipped --kernel {} --trust", example("attention.toml")),
            "allowed: none on a replay, which has measured times alone",
        ),
    ] {
        let typed = format!("tune small --device cpu --trials 1 --peers none --skip plan {arguments}");
        let typed = if arguments.starts_with("--device") {
            typed.replace("--device cpu ", "")
        } else {
            typed
        };
        let ran = with_cache(folder.path(), &typed);
        assert!(
            ran.code == 2 && ran.words().contains(said),
            "{arguments}: {}\n{}",
            ran.code,
            ran.words()
        );
    }
    let nowhere = run(command(&format!("bench tiny --device cpu --kernel {mine}:f"))
        .env_remove("FLASHCORE_CACHE_DIR")
        .env_remove("XDG_CACHE_HOME")
        .env_remove("HOME"));
    assert!(
        nowhere.code == 2 && nowhere.words().contains("set FLASHCORE_CACHE_DIR"),
        "{}",
        nowhere.words()
    );
}
