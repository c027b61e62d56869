//! `flashcore check FILE.ptx` of kernels that need what the simulator does not execute, or what their host must do.

use serde_json::Value;

use super::common::flashcore;

/// All that a kernel needs and the simulator lacks is said at once, with the user's lines; the launch is judged.
#[test]
fn missing_forms_are_listed_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.ptx");
    let text = |reqntid: u32, body: &str| {
        format!(
            ".version 8.0 .target sm_80\n.file 1 \"user.cu\"\n.entry k(.param .u64 p) .reqntid {reqntid}\n{{ .reg .f32 \
             %f<4>; .reg .b64 %rd<2>; .reg .b32 %r<4>;\n{body}\nret; }}"
        )
    };
    let body = ".loc 1 8 3\nmapa.u32 %r1, %r2, 1;\n.loc 1 9 3\ntex.2d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [im, \
                {%r0, %r1}];\nmapa.u32 %r1, %r2, 1;";
    let check = |rest: &str| flashcore(&format!("check {} --profile l4 {rest}", path.display()));
    std::fs::write(&path, text(32, body)).unwrap();
    let told = check("");
    assert_eq!(told.code, 4, "{}{}", told.stdout, told.stderr);
    for part in [
        "25.0 % of 4 instructions are understood; 2 forms are missing",
        "not judged: NVIDIA L4 (sm_89) can launch it",
        "missing: the simulator does not execute it yet\n 2 mapa.u32 user.cu:8, 9",
        "missing: textures and surfaces are not read\n 1 tex.2d.v4.f32.s32 user.cu:9",
    ] {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&told.stdout).contains(&words(part)), "{part}: {}", told.stdout);
    }
    let report: Value = serde_json::from_str(&check("--json").stdout).unwrap();
    assert_eq!(
        (&report["verdict"], &report["understood"]),
        (&"not_judged".into(), &1.into())
    );
    assert_eq!(
        report["missing"][0],
        serde_json::json!({
            "form": "mapa.u32",
            "count": 2,
            "lines": [{"file": "user.cu", "line": 8}, {"file": "user.cu", "line": 9}],
            "why": "the simulator does not execute it yet",
        })
    );
    // A launch that the card refuses is refused all the same.
    std::fs::write(&path, text(2048, body)).unwrap();
    assert_eq!(check("").code, 1);
    // A known form with an operand that the simulator does not take is missing, too.
    std::fs::write(&path, text(32, "mov.u64 %rd1, table;")).unwrap();
    let told = check("--arg buf:4");
    assert_eq!(told.code, 4, "{}", told.stdout);
    assert!(told.stdout.contains("own.ptx:5"), "{}", told.stdout);
    std::fs::write(&path, text(32, "mov.f32 %f1, 0f40000000;")).unwrap();
    let told = check("--arg 4");
    assert_eq!(told.code, 0, "{}{}", told.stdout, told.stderr);
    let report: Value = serde_json::from_str(&check("--arg 4 --json").stdout).unwrap();
    assert_eq!(
        (&report["verdict"], &report["missing"]),
        (&"clean".into(), &serde_json::json!([]))
    );
}

/// A launch file says whether the host opts in to more than 48 KB of shared memory. The card's limit holds anyway.
#[test]
fn a_launch_file_opts_in_to_more_shared_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launch.toml");
    let launched = |rest: &str| {
        let args = r#"args = [{ name = "out", type = "f32", count = 128 }]"#;
        std::fs::write(&path, format!("grid = [1]\nblock = [128]\n{rest}\n{args}\n")).unwrap();
        let file = format!("{}/../check/museum/no-opt-in.ptx", env!("CARGO_MANIFEST_DIR"));
        flashcore(&format!("check {file} --profile l4 --launch {}", path.display()))
    };
    let clean = launched("shared = 76800\nopted_in = true");
    assert_eq!(clean.code, 0, "{}{}", clean.stdout, clean.stderr);
    let forgotten = launched("shared = 76800");
    assert_eq!(forgotten.code, 1, "{}", forgotten.stdout);
    for part in ["error[opt-in]", "`invalid argument`", "`opted_in = true`"] {
        assert!(forgotten.words().contains(part), "{part}: {}", forgotten.stdout);
    }
    let large = launched("shared = 147456\nopted_in = true");
    assert!(
        large.code == 1 && large.words().contains("error[shared]"),
        "{}",
        large.stdout
    );
}
