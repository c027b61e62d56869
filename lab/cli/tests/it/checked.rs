//! `flashcore check`: what it finds, and how it shows that.

use std::collections::BTreeSet;

use crate::common::json::{json, keys};
use crate::common::{flashcore, shown};
use serde_json::Value;

/// A cluster's second tile: of a small problem there is one only where there are few SMs.
#[test]
fn few_sms_give_a_block_several_tiles() {
    let words = "check tiny --heads 2 --seq 300 --head-dim 64 --profile h200 --kernel wgmma/m64n64-s2-c2-free-spec";
    assert!(shown(words).contains("simulated 12 blocks"), "{}", shown(words));
    let few = format!("{words} --sms 2");
    assert!(shown(&few).contains("simulated 2 blocks"), "{}", shown(&few));
    // A stage that is not given back is missed by the next tile alone. Those of the first places are missed by both.
    let planted = (13..40).map(|place| format!("{few} --plant drop-arrive:{place}"));
    let mut codes = planted.map(|few| {
        let of_many = few.replace("--sms 2", "--sms 132");
        [flashcore(&few).code, flashcore(&of_many).code]
    });
    assert!(codes.any(|codes| codes == [1, 0]));
}

#[test]
fn conflicts_in_shared_memory_are_shown_by_line() {
    let of = |layout| {
        let kernel = format!("mma/m32n32-w2x1-s2-b1-qreg-{layout}-cond");
        shown(&format!("check tiny --head-dim 64 --memory --kernel {kernel}"))
    };
    let (xor, lin) = (of("xor"), of("lin"));
    assert!(xor.contains("conflicts 0 passes beyond"), "{xor}");
    assert!(
        !lin.contains("conflicts 0 passes") && lin.contains("load shared"),
        "{lin}"
    );
    let report = json("check tiny --json --memory");
    assert!(report["memory"][0]["transactions"].as_u64() > Some(0), "{report}");
}

#[test]
fn large_and_tiny_numbers_are_readable() {
    let report = shown("check tiny --batch 2000 --blocks 3 --profile l4 --kernel scalar/naive-t64-v16");
    assert!(report.contains("clean in 3 of 2,000 blocks"), "{report}");
    let tiny = shown("check tiny --scale 1e-30");
    assert!(
        tiny.starts_with("B1 H1/1 Sq32 Skv32 D16 fp16 full scale1e-30 for "),
        "{tiny}"
    );
}

#[test]
fn taps_are_compared_in_place_of_the_output() {
    for (tap, kernel) in [
        ("scores", "scalar/tiled-m16n16-w4-v16"),
        ("probabilities", "mma/m32n32-w2x1-s2-b1-qreg-xor-cond"),
    ] {
        let text = shown(&format!("check tiny --causal --kernel {kernel} --tap {tap}"));
        assert!(text.contains(&format!("at tap {tap}")), "{text}");
        assert!(text.contains("clean under 1 schedule"), "{text}");
    }
    let report = json("check tiny --json --tap probabilities");
    assert_eq!(report["tap"], "probabilities");
    let unmasked = "check tiny --causal --kernel scalar/tiled-m16n16-w4-v16 --tap probabilities --plant drop-store";
    let ran = flashcore(unmasked);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("error["), "{}", ran.stdout);
}

#[test]
fn a_planted_mistake_is_shown_as_compilers_show_errors() {
    let tiny = "check tiny --kernel scalar/tiled-m16n16-w4-v16 --plant drop-warp-barrier";
    let ran = flashcore(tiny);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    for part in [
        "verdict   1 finding under 1 schedule",
        "error[race]: ",
        "--> crates/kernels/src/scalar/tiled.rs:",
        "|     k.verb(\"O += P·V\"",
        "= by block (0, 0, 0) warp ",
        "help: put a barrier between them",
    ] {
        assert!(ran.stdout.contains(part), "{part}\n{}", ran.stdout);
    }
    let report: Value = serde_json::from_str(&flashcore(&format!("{tiny} --json")).stdout).expect("JSON");
    let finding = &report["findings"][0];
    assert_eq!(
        (report["verdict"].as_str(), finding["kind"].as_str()),
        (Some("findings"), Some("race"))
    );
    let finding_keys = BTreeSet::from([
        "kind",
        "message",
        "lines",
        "actor",
        "other",
        "object",
        "bytes",
        "element",
        "help",
        "count",
        "source",
        "other_source",
        "schedules",
    ]);
    assert_eq!(keys(finding), finding_keys);
}

#[test]
fn a_planted_mistake_that_is_not_found_is_said() {
    let text = shown("check tiny --plant stride-one")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(text.contains("not found: it has no effect on this problem"), "{text}");
    let planted = json("check tiny --plant stride-one --json")["planted"].clone();
    assert_eq!(planted["found"], false, "{planted}");
    assert!(
        planted["what"]
            .as_str()
            .is_some_and(|what| what.starts_with("stride-one of ")),
        "{planted}"
    );
}

/// The only head's sink does not hide what P·V is.
#[test]
fn zeros_do_not_pass_with_sinks() {
    let ran = flashcore("check tiny --sinks f32 --plant drop-product");
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(
        !ran.words().contains("zeros would pass") && !ran.words().contains("not found"),
        "{}",
        ran.stdout
    );
    // Rows that see no key are zeros, and a note says that little was compared.
    let masked = shown("check tiny --causal --q-offset -99");
    assert!(masked.contains("zeros would pass, too"), "{masked}");
}

#[test]
fn values_of_a_line_and_errors_by_tap() {
    let told = flashcore("check tiny --kernel scalar/tiled-m16n16-w4-v16 --profile l4 --tap all");
    assert_eq!(told.code, 0, "{}", told.stderr);
    for label in ["  S ", "  P ", "  O "] {
        assert!(told.stdout.contains(label), "{}", told.stdout);
    }
    let nowhere = flashcore("check tiny --profile l4 --trace nowhere.rs:1");
    assert_eq!(nowhere.code, 2);
    assert!(
        nowhere.stderr.contains("has a value at `nowhere.rs:1`"),
        "{}",
        nowhere.stderr
    );
    let ptx = flashcore("explain tiny --kernel scalar/tiled-m16n16-w4-v16 --profile l4 --ptx=lines").stdout;
    // The line of the first exponential.
    let before: Vec<&str> = ptx.lines().take_while(|line| !line.contains("ex2.approx")).collect();
    let line = before
        .iter()
        .rev()
        .find_map(|line| line.trim().strip_prefix(".loc "))
        .unwrap();
    let line = line.split(' ').nth(1).unwrap();
    let shown = flashcore(&format!(
        "check tiny --kernel scalar/tiled-m16n16-w4-v16 --profile l4 --trace {line}:ex2,warp=1,lane=3,limit=1"
    ));
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(
        shown.stdout.contains("ex2.approx") && shown.stdout.contains("\n    3: "),
        "{}",
        shown.stdout
    );
    // No line ends between a lane and its value.
    let all = flashcore(&format!(
        "check tiny --kernel scalar/tiled-m16n16-w4-v16 --profile l4 --trace {line}:ex2,limit=2"
    ));
    let mut lines = all.stdout.lines().filter(|line| line.starts_with("    "));
    assert!(lines.all(|line| !line.ends_with(':')), "{}", all.stdout);
}

/// The museum's files under the simulator: nothing is wrong with them but what they are shown for.
#[test]
fn foreign_kernels_are_simulated() {
    let check = |name: &str, rest: &str| {
        let file = format!("{}/../check/museum/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
        flashcore(&format!("check {file} --schedules 3 {rest}"))
    };
    for (name, rest) in [
        ("partials", "--arg buf:512"),
        ("no-opt-in", "--arg buf:512 --launch smem=76800,opted-in"),
        (
            "gemm-128x256x64",
            "--arg buf:1024:zero --launch smem=147456,opted-in --profile h200",
        ),
    ] {
        let clean = check(name, rest);
        assert_eq!(clean.code, 0, "{name}: {}{}", clean.stdout, clean.stderr);
        assert!(clean.stdout.contains("clean under 3 schedules"), "{}", clean.stdout);
        // Nothing was judged that needs registers, and the report says so.
        assert!(clean.words().contains("registers not known here"), "{}", clean.stdout);
        let report: Value = serde_json::from_str(&check(name, &format!("{rest} --json")).stdout).unwrap();
        assert_eq!(report["registers"], Value::Null);
        assert!(report["unknown"].as_str().unwrap().contains("not known"), "{report}");
    }
    // A buffer that is too small, shared memory that was not asked for.
    let short = check("partials", "--arg buf:508");
    assert!(
        short.code == 1 && short.stdout.contains("error[out-of-bounds]"),
        "{}",
        short.stdout
    );
    assert!(
        check("no-opt-in", "--arg buf:512")
            .stdout
            .contains("error[out-of-bounds]")
    );
    let unknown = check("eight-byte-cg", "--arg buf:256 --arg buf:256");
    assert_eq!(unknown.code, 1);
    for part in ["error[no-such-instruction]", "cp.async.cg of 8 bytes; it copies 16"] {
        assert!(unknown.stdout.contains(part), "{}{}", unknown.stdout, unknown.stderr);
    }
}

#[test]
fn the_first_blocks_of_a_foreign_kernel_are_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.ptx");
    let text = ".version 7.0 .target sm_80 .entry k() .maxntid 32, 1, 1 { ret; }";
    std::fs::write(&path, text).unwrap();
    let check = |rest: &str| shown(&format!("check {} --launch grid=2000 {rest}", path.display()));
    assert!(!check("").contains("2,000"), "{}", check(""));
    let some = check("--blocks 3");
    assert!(some.contains("under 1 schedule in 3 of 2,000 blocks"), "{some}");
    let report: Value = serde_json::from_str(&check("--blocks 3 --json")).unwrap();
    assert_eq!(report["only_blocks"], 3);
}

/// A launch that is not described, and a file that holds no kernels, are mistakes of usage: nothing was found.
#[test]
fn launches_that_make_no_sense_are_usage() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    };
    let text = b".version 7.0 .target sm_80 .entry k(.param .u64 out) { ret; }";
    let own = file("own.ptx", text);
    file("with.toml", b"grid = [1]\nblock = [32]\nargs = []");
    let partials = concat!(env!("CARGO_MANIFEST_DIR"), "/../check/museum/partials.ptx");
    let cases = [
        (
            format!("{own} --arg buf:4"),
            "give the threads of a block with --launch threads=N",
        ),
        (
            file("with.ptx", text),
            "threads=N; there is a launch file beside it: --launch",
        ),
        (partials.to_string(), "`out` (a pointer)"),
        (format!("{partials} --arg 7"), "argument 1 does not fit `out`"),
        (format!("{own} --launch entry=zz"), "named `zz`; there are k"),
        (file("empty.ptx", b""), "empty.ptx: "),
        (file("zeros.ptx", &[0; 64]), "is a binary file of unknown format"),
    ];
    for (arguments, message) in cases {
        let told = flashcore(&format!("check {arguments}"));
        assert!(
            told.code == 2 && told.words().contains(message),
            "{arguments}: {} {}",
            told.code,
            told.words()
        );
    }
    let threads = flashcore(&format!("check {own} --arg 7 --launch threads=32"));
    assert_eq!(threads.code, 0, "{}", threads.stderr);
    let required = file(
        "exact.ptx",
        b".version 7.0 .target sm_80 .entry k() .reqntid 128 { ret; }",
    );
    let refused = flashcore(&format!("check {required} --launch threads=64"));
    let (code, said) = (refused.code, refused.words());
    let mend = "launch it with 128 threads a block (`--launch threads=128`)";
    assert!(code == 1 && said.contains(mend), "{code} {said}");
}

/// What is there under the name of a problem and is none, by every command that takes a problem.
#[test]
fn files_in_place_of_a_problem_say_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let text = ".version 7.0 .target sm_80 .entry k() { ret; }";
    let ptx = file("own.ptx", text);
    let (bare, renamed) = (file("own", text), file("own.txt", text));
    let notes = file("notes.md", "nothing of use\n");
    let place = folder.path().to_str().unwrap();
    let cases = [
        (format!("run {ptx}"), "is PTX: it holds kernels, not a problem"),
        (
            format!("tune {ptx} --device cpu"),
            "is PTX: it holds kernels, not a problem",
        ),
        (
            format!("bench {ptx} --device cpu --store none"),
            "is PTX: it holds kernels, not a problem",
        ),
        (format!("check {bare}"), "help: name it FILE.ptx: "),
        (format!("explain {renamed}"), "help: name it FILE.ptx: "),
        (format!("check {notes}"), "is text that holds neither problems nor PTX"),
        (format!("check {place}"), "is a folder, not a problem"),
    ];
    for (arguments, message) in cases {
        let told = flashcore(&arguments);
        assert!(
            told.code == 2 && told.words().contains(message) && !told.words().contains("known names"),
            "{arguments}: {} {}",
            told.code,
            told.words()
        );
    }
}

/// Launches that fail on a GPU are refused before the simulator runs them: bytes, limit and remedy are said.
#[test]
fn foreign_kernels_that_cannot_be_launched_are_refused() {
    let cases = [
        (
            "static-m64",
            "--launch grid=1,threads=128 --arg buf:65536",
            "static-shared",
            "57376 B of static shared memory; 49152 B is the limit",
            "declare it dynamic",
        ),
        (
            "gemm-128x256x64",
            "--arg buf:1024 --launch smem=147456",
            "shared",
            "147456 B of dynamic shared memory; sm_89 allows 101376 B a block, with opt-in; 46080 B too much",
            "use smaller tiles or fewer stages",
        ),
        (
            "no-opt-in",
            "--arg buf:512 --launch smem=76800",
            "opt-in",
            "76800 B of dynamic shared memory; without opt-in a block may have 49152 B",
            "cudaFuncSetAttribute",
        ),
        (
            "partials",
            "--arg buf:512 --launch smem=300000",
            "shared",
            "336864 B of shared memory (36864 static + 300000 dynamic)",
            "fewer stages",
        ),
        (
            "partials",
            "--arg buf:512 --launch threads=0",
            "threads",
            "every dimension must be at least 1",
            "launch at least one warp",
        ),
        (
            "partials",
            "--arg buf:512 --launch threads=5000",
            "threads",
            "5000 threads a block; sm_89 allows 1024",
            "use fewer warps",
        ),
        (
            "partials",
            "--arg buf:512 --launch threads=256",
            "threads",
            "256 threads a block; the kernel was compiled for at most 128",
            "launch at most 128 threads",
        ),
        (
            "partials",
            "--arg buf:512 --launch grid=0",
            "grid",
            "its grid is [0, 1, 1]",
            "skip the launch",
        ),
        (
            "partials",
            "--arg buf:512 --launch grid=1x65536",
            "grid",
            "allows at most [2147483647, 65535, 65535]",
            "fold the long axis into x",
        ),
    ];
    for (name, rest, kind, message, help) in cases {
        let file = format!("{}/../check/museum/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
        let told = flashcore(&format!("check {file} --profile l4 --json {rest}"));
        assert_eq!(told.code, 1, "{name} {rest}: {}{}", told.stdout, told.stderr);
        let report: Value = serde_json::from_str(&told.stdout).expect("JSON");
        assert_eq!(report["verdict"], "refused", "{name} {rest}");
        let problem = &report["problems"][0];
        assert_eq!(problem["kind"], kind, "{name} {rest}: {problem}");
        assert!(problem["message"].as_str().unwrap().contains(message), "{problem}");
        assert!(problem["help"].as_str().unwrap().contains(help), "{problem}");
    }
}

#[test]
fn binaries_in_place_of_a_problem_are_named() {
    let folder = std::env::temp_dir().join(format!("flashcore-binary-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cubin = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../check/src/foreign/fixtures/two_buffers-13.0-sm_89.cubin"
    );
    let image = folder.join("picture");
    std::fs::write(&image, b"\x89PNG\r\n\x1a\n\0\0").unwrap();
    for (file, what) in [
        (cubin, "a cubin: machine code"),
        (image.to_str().unwrap(), "a PNG image"),
        (env!("CARGO_BIN_EXE_flashcore"), "an ELF "),
    ] {
        if what == "an ELF " && !cfg!(target_os = "linux") {
            continue;
        }
        for command in ["check", "explain", "run"] {
            let told = flashcore(&format!("{command} {file}"));
            let is_explained = command == "explain" && what.starts_with("a cubin");
            assert!(
                is_explained || told.code == 2 && told.words().contains(&format!("is {what}")),
                "{command} {file}: {}",
                told.words()
            );
        }
    }
    // By any name: `explain` reads what the file holds.
    let program = folder.join("program.ptx");
    std::fs::write(
        &program,
        [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 11], &[62, 0], &[0; 44]].concat(),
    )
    .unwrap();
    let told = flashcore(&format!("explain {}", program.display()));
    assert!(
        told.code == 2
            && told
                .words()
                .contains("is an ELF program, library or object file for x86-64"),
        "{}",
        told.words()
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A large problem is checked in part, and says so.
#[test]
fn a_part_of_the_grid_is_checked() {
    let words = "check tiny --profile l4 --kernel scalar/tiled-m16n16-w4-v16 --seq 512";
    let part = format!("{words} --blocks 3");
    assert!(
        shown(&part).contains("clean in 3 of 32 blocks under 1 schedule; the output was not compared"),
        "{}",
        shown(&part)
    );
    let report = json(&format!("{part} --json"));
    assert_eq!(
        (&report["only_blocks"], &report["gate"]),
        (&Value::from(3), &Value::Null)
    );
    let whole = json(&format!("{words} --blocks 32 --json"));
    assert_eq!(whole["only_blocks"], Value::Null);
    assert!(whole["gate"].is_object(), "{whole}");
    let planted = flashcore(&format!("{part} --plant drop-warp-barrier"));
    assert_eq!(planted.code, 1, "{}", planted.stdout);
}

#[test]
fn files_with_kernels_are_no_lists_of_ids() {
    let file = format!("{}/../check/museum/partials.ptx", env!("CARGO_MANIFEST_DIR"));
    let told = flashcore(&format!(
        "bench tiny --device cpu --peers none --store none --kernel {file}"
    ));
    assert_eq!(told.code, 2, "{}", told.stdout);
    let said: Vec<&str> = told.stderr.split_whitespace().collect();
    let said = said.join(" ");
    for part in ["holds kernels, not ids", "`flashcore check FILE.ptx`"] {
        assert!(said.contains(part), "{said}");
    }
}

/// The numbers of a wrong output are in its finding alone.
#[test]
fn a_wrong_output_is_described_once() {
    let ran = flashcore("check tiny --profile l4 --plant next-columns");
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    let said = ran.words();
    assert!(said.contains("correct NO: at most"), "{said}");
    assert_eq!(said.matches("worst at [").count(), 1, "{said}");
}
