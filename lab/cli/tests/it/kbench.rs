//! `flashcore kbench`: tasks are written, and kernels judged.

use serde_json::Value;

use crate::common::{command, flashcore, run, shown, words};

fn toy() -> String {
    format!("{}/../bench/tests/data/kbench/toy", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_task_is_written_and_nobodys_file_is_overwritten() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("tiny");
    let export = format!("kbench export tiny {} --profile h200", folder.display());
    let said: Value = serde_json::from_str(&shown(&format!("{export} --json"))).unwrap();
    let files = ["func_forward.py", "config_forward.json", "forward.cu"];
    assert_eq!(said["files"], serde_json::json!(files));
    assert_eq!(said["card"], "h200");
    assert!(files.iter().all(|name| folder.join(name).is_file()));
    let text = std::fs::read_to_string(folder.join("forward.cu")).unwrap();
    assert!(text.contains(said["kernel"].as_str().unwrap()) && text.contains("PYBIND11_MODULE(TORCH_EXTENSION_NAME"));
    // Our own files are written anew, others are not.
    assert_eq!(flashcore(&export).code, 0);
    std::fs::write(folder.join("forward.cu"), "// mine\n").unwrap();
    let ran = flashcore(&export);
    assert!(
        ran.code == 2 && ran.words().contains("was not written by this command"),
        "{}",
        ran.stderr
    );
    assert_eq!(std::fs::read_to_string(folder.join("forward.cu")).unwrap(), "// mine\n");
    let alone = home.path().join("alone");
    let said = shown(&format!("kbench export tiny {} --task-only --json", alone.display()));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert!(said["kernel"].is_null() && said["card"].is_null() && !alone.join("forward.cu").exists());
}

/// With a Python, which tests of commands do not find by themselves.
fn verify(kernel: &str, flags: &str) -> crate::common::Ran {
    let toy = toy();
    let mut command = command(&format!("kbench verify {toy} --kernel {toy}/{kernel} {flags}"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    run(command.env("PATH", path).env_remove("FLASHCORE_PYTHON"))
}

#[test]
fn kernels_are_judged_only_when_they_are_trusted() {
    let ran = verify("cached.py", "--device cpu");
    assert!(
        ran.code == 2 && ran.words().contains("read them, then give --trust"),
        "{}",
        ran.stderr
    );
    let home = tempfile::tempdir().unwrap();
    let markdown = home.path().join("report.md");
    let flags = "--trust --device cpu --rounds 1 --calls 1 --seed 3";
    let ran = verify(
        "cached.py",
        &format!("{flags} --json --markdown {}", markdown.display()),
    );
    let said: Value = serde_json::from_str(&ran.stdout).expect(&ran.stderr);
    assert_eq!(ran.code, 1);
    assert_eq!(
        (&said["passes_protocol"], &said["passes"]),
        (&true.into(), &false.into())
    );
    assert_eq!(said["verdict"], "passes the benchmark's protocol and fails: stale");
    assert!(said["report"]["times"]["enqueued_us"].is_null() && said["job"]["atol"].is_null());
    let report = std::fs::read_to_string(&markdown).unwrap();
    assert!(report.contains("| stale | computes anew | **fail** |"), "{report}");
    let ran = verify("honest.py", flags);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.words()
            .contains("it passes the benchmark's protocol and every check"),
        "{}",
        ran.stdout
    );
}

#[test]
fn what_cannot_be_judged_has_its_exit_code() {
    let ran = verify("func_forward.py", "--trust --device cpu");
    assert!(
        ran.code == 1 && ran.words().contains("has no function `forward`"),
        "{}",
        ran.stderr
    );
    let ran = verify("honest.py", "--trust");
    assert!(
        ran.code == 3 && ran.words().contains("runs on the CPU only"),
        "{}",
        ran.stderr
    );
    let ran = verify("config_forward.json", "--trust");
    assert!(
        ran.code == 2 && ran.words().contains("is no kernel: allowed are .cu"),
        "{}",
        ran.stderr
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("func_forward.py"), "import no_such_module\n").unwrap();
    std::fs::write(folder.path().join("config_forward.json"), "{}").unwrap();
    let text = format!(
        "kbench verify {} --kernel {}/honest.py --trust",
        folder.path().display(),
        toy()
    );
    let mut command = command(&text);
    let ran = run(command.env("PATH", std::env::var_os("PATH").unwrap_or_default()));
    assert!(
        ran.code == 3 && words(&ran.stderr).contains("no_such_module"),
        "{}",
        ran.stderr
    );
}
