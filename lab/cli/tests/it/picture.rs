//! Pictures in the README and docs: of what is found in CUDA kernels, of help and a mistake, and those of
//! `explain --svg`. Each is what the command prints or draws.
//!
//! `INSTA_UPDATE=always` writes them again, as it does snapshots. `FLASHCORE_PYTHON` has nvcc from PyPI.

use std::fmt::Write;
use std::path::Path;

use crate::common::{Ran, command, run};

/// Of kernels in `docs/cuda`: the name of the source and of the picture, the kind of what is found, and a title.
const PICTURES: [(&str, &str, &str); 3] = [
    (
        "race",
        "race",
        "A missing barrier in a CUDA kernel, found as a race on a machine without a GPU",
    ),
    (
        "missing_wait",
        "missing-wait",
        "A CUDA kernel that reads a tile before its copy has ended",
    ),
    (
        "out_of_bounds",
        "out-of-bounds",
        "A CUDA kernel that writes past the end of an array in shared memory",
    ),
];
/// Lines of the report's head that are drawn, by label; the others are about the machine.
const HEAD: [&str; 1] = ["verdict"];
/// Width of a character and height of a line, pixels.
const CELL: [f64; 2] = [7.83, 19.0];
const MARGIN: f64 = 20.0;
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// A picture in docs is what was drawn, or becomes it.
fn expect_in_docs(name: &str, drawn: &str) {
    let path = Path::new(DOCS).join(name);
    if std::env::var_os("INSTA_UPDATE").is_some_and(|how| how == "always") {
        std::fs::write(&path, drawn).expect("docs is there");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let again = "INSTA_UPDATE=always cargo test -p flashcore-cli --test it picture:: -- --include-ignored";
    assert!(drawn == committed, "docs/{name} is another; draw it again: {again}");
}

/// Text in runs of one style: the codes that set it, and the text.
fn runs(line: &str) -> Vec<(Vec<u8>, String)> {
    let mut runs = vec![(Vec::new(), String::new())];
    for (index, part) in line.split("\u{1b}[").enumerate() {
        let (codes, text) = match index {
            0 => ("", part),
            _ => part.split_once('m').expect("only styles"),
        };
        for code in codes.split(';').filter(|code| !code.is_empty()) {
            let mut style = runs.last().expect("a run").0.clone();
            match code.parse().expect("a number") {
                0 => style.clear(),
                code => style.push(code),
            }
            runs.push((style, String::new()));
        }
        runs.last_mut().expect("a run").1.push_str(text);
    }
    runs.retain(|(_, text)| !text.is_empty());
    runs
}

fn plain(line: &str) -> String {
    runs(line).into_iter().map(|(_, text)| text).collect()
}

/// The line of a command at a prompt.
fn typed(command: &str) -> String {
    format!("\u{1b}[2m$\u{1b}[0m \u{1b}[1mflashcore {command}\u{1b}[0m")
}

/// The lines that are drawn: the command, what the report's head says, and the finding.
fn shown(command: &str, kind: &str, output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().collect();
    let label = |line: &str| plain(line).split_whitespace().next().unwrap_or_default().to_string();
    let mut shown = vec![typed(command)];
    let head = lines.iter().take_while(|line| !line.is_empty());
    shown.extend(
        head.filter(|line| HEAD.contains(&label(line).as_str()))
            .map(ToString::to_string),
    );
    assert_eq!(shown.len(), 1 + HEAD.len(), "{output}");
    shown.push(String::new());
    let title = format!("error[{kind}]");
    let finding = lines.iter().skip_while(|line| !plain(line).starts_with(&title));
    shown.extend(finding.take_while(|line| !line.is_empty()).map(ToString::to_string));
    assert!(shown.len() > 10, "no {kind} in\n{output}");
    shown
}

fn svg(title: &str, lines: &[String]) -> String {
    let columns = lines.iter().map(|line| plain(line).chars().count()).max().unwrap_or(0);
    let width = (2.0 * MARGIN + CELL[0] * columns as f64).ceil();
    let height = 2.0 * MARGIN + CELL[1] * lines.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\" \
         aria-label=\"{title}\">\n<title>{title}</title>\n<style>\n\
         text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}}\n\
         .paper{{fill:#f6f8fa;stroke:#d1d9e0}}text{{fill:#1f2328}}.s1{{font-weight:700}}.s2{{fill:#59636e}}\
         .s31{{fill:#d1242f}}.s32{{fill:#1a7f37}}.s34{{fill:#0969da}}.s36{{fill:#1b7c83}}\n\
         @media(prefers-color-scheme:dark){{.paper{{fill:#151b23;stroke:#3d444d}}text{{fill:#f0f6fc}}\
         .s2{{fill:#9198a1}}.s31{{fill:#ff7b72}}.s32{{fill:#3fb950}}.s34{{fill:#79c0ff}}.s36{{fill:#76e3ea}}}}\n\
         </style>\n<rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n",
        width - 1.0,
        height - 1.0
    );
    for (row, line) in lines.iter().enumerate() {
        let mut column = 0;
        for (style, text) in runs(line) {
            let at = column;
            column += text.chars().count();
            if text.trim().is_empty() {
                continue;
            }
            let (x, y) = (MARGIN + CELL[0] * at as f64, MARGIN + CELL[1] * row as f64 + 14.0);
            // Other fonts are wider or narrower: columns stay where they are.
            let length = CELL[0] * (column - at) as f64;
            let classes: Vec<String> = style.iter().map(|code| format!("s{code}")).collect();
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let class = classes.join(" ");
            let _ = writeln!(
                svg,
                "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" textLength=\"{length:.1}\" xml:space=\"preserve\">{text}</text>"
            );
        }
    }
    svg + "</svg>\n"
}

/// Runs the command in a folder, where nvcc finds the compiler of the host.
fn in_folder(folder: &Path, arguments: &str) -> Ran {
    let path = std::env::var_os("PATH").unwrap_or_default();
    run(command(arguments).current_dir(folder).env("PATH", path))
}

#[test]
fn pictures_of_explain_are_what_it_draws() {
    let folder = tempfile::tempdir().unwrap();
    let lin = "--kernel mma/m128n64-w4x1-s2-b1-qreg-lin-spec";
    for (flags, pictures) in [
        ("", &[("roofline-l4.svg", "roofline.svg")][..]),
        (lin, &[("schedule.svg", "schedule.svg"), ("banks.svg", "banks.svg")]),
    ] {
        let explain = format!("explain small --profile l4 --svg {} {flags}", folder.path().display());
        // No ptxas: what it says differs by version.
        let ran = run(command(&explain).env("PATH", "").env_remove("FLASHCORE_PTXAS"));
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        for (drawn, name) in pictures {
            let drawn = std::fs::read_to_string(folder.path().join(drawn)).expect("it is drawn");
            expect_in_docs(name, &drawn);
        }
    }
}

#[test]
fn screens_are_what_the_command_prints() {
    for (name, arguments, title) in [
        ("help", "-h", "The commands of flashcore, on one screen"),
        ("help-bench", "bench -h", "The flags of flashcore bench, on one screen"),
        (
            "mistake",
            "bench llama8b-prefil-2k",
            "A misspelled problem, and what was meant",
        ),
    ] {
        let ran = run(&mut command(&format!("{arguments} --color always")));
        let mut lines = vec![typed(arguments)];
        lines.extend(format!("{}{}", ran.stdout, ran.stderr).lines().map(String::from));
        expect_in_docs(&format!("{name}.svg"), &svg(title, &lines));
    }
}

mod with_nvcc {
    use super::*;

    #[test]
    #[ignore = "needs nvcc"]
    fn pictures_are_what_the_command_prints() {
        let docs = Path::new(DOCS);
        for (name, kind, title) in PICTURES {
            let arguments = format!("check {name}.cu --launch {name}.toml");
            let ran = in_folder(&docs.join("cuda"), &format!("{arguments} --color always"));
            assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
            let drawn = svg(title, &shown(&arguments, kind, &ran.stdout));
            expect_in_docs(&format!("{kind}.svg"), &drawn);
        }
    }

    #[test]
    #[ignore = "needs nvcc"]
    fn options_reach_the_compiler_and_its_errors_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let source = "#include \"width.h\"\ntemplate <int N> __global__ void shift(float* x) {\n\
                      __shared__ float tile[N];\n    tile[threadIdx.x] = x[threadIdx.x];\n#if FIXED\n    \
                      __syncthreads();\n#endif\n    x[threadIdx.x] = tile[(threadIdx.x + 1) % N];\n}\n\
                      template __global__ void shift<WIDTH>(float*);\n";
        std::fs::create_dir(folder.path().join("include")).unwrap();
        std::fs::write(folder.path().join("include/width.h"), "#define WIDTH 64\n").unwrap();
        std::fs::write(folder.path().join("shift.cu"), source).unwrap();
        let check = |options: &str| {
            in_folder(
                folder.path(),
                &format!("check shift.cu --launch threads=64 --arg buf:256 {options}"),
            )
        };
        let ran = check("");
        assert_eq!(ran.code, 2, "{}", ran.stdout);
        assert!(ran.stderr.contains("width.h"), "{}", ran.stderr);
        let ran = check("-- -I include");
        assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
        for part in [
            "shift<64>(float*) of shift.cu",
            "error[race]",
            "shared buffer `tile`",
            "--> shift.cu:8:",
        ] {
            assert!(ran.stdout.contains(part), "{part}\n{}", ran.stdout);
        }
        let ran = check(
            "--launch entry=shift -- -Iinclude -DFIXED=1 -std=c++17 --maxrregcount 16 -Xcudafe --diag_suppress=177",
        );
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("a thread, no spills (ptxas"), "{}", ran.stdout);
        std::fs::write(folder.path().join("shift.cu"), "__global__ void f() { y = 1; }\n").unwrap();
        let ran = check("");
        assert_eq!(ran.code, 2);
        assert!(
            ran.stderr.contains("shift.cu(1): error: identifier \"y\" is undefined"),
            "{}",
            ran.stderr
        );
    }
}
