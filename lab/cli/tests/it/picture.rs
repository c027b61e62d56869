//! The README's picture of a race that was found: `docs/race.svg` is what the command prints.
//!
//! `INSTA_UPDATE=always` writes it again, as it does snapshots.

use std::fmt::Write;
use std::path::Path;

use crate::common::flashcore;

const COMMAND: &str = "check tiny --plant drop-barrier";
/// Lines of the report's head that are drawn, by label; the others are about the machine and the kernel's size.
const HEAD: [&str; 3] = ["planted", "verdict", "correct"];
/// Width of a character and height of a line, pixels.
const CELL: [f64; 2] = [7.83, 19.0];
const MARGIN: f64 = 20.0;

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

/// The lines that are drawn: the command, what the report's head says, and the race.
fn shown(output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().collect();
    let label = |line: &str| plain(line).split_whitespace().next().unwrap_or_default().to_string();
    let mut shown = vec![format!("\u{1b}[2m$\u{1b}[0m \u{1b}[1mflashcore {COMMAND}\u{1b}[0m")];
    let head = lines.iter().take_while(|line| !line.is_empty());
    shown.extend(
        head.filter(|line| HEAD.contains(&label(line).as_str()))
            .map(ToString::to_string),
    );
    assert_eq!(shown.len(), 1 + HEAD.len(), "{output}");
    shown.push(String::new());
    let race = lines.iter().skip_while(|line| !plain(line).starts_with("error[race]"));
    shown.extend(race.take_while(|line| !line.is_empty()).map(ToString::to_string));
    assert!(shown.len() > 10, "no race in\n{output}");
    shown
}

fn svg(lines: &[String]) -> String {
    let columns = lines.iter().map(|line| plain(line).chars().count()).max().unwrap_or(0);
    let width = (2.0 * MARGIN + CELL[0] * columns as f64).ceil();
    let height = 2.0 * MARGIN + CELL[1] * lines.len() as f64;
    let title = "A missing barrier in a GPU kernel, found as a race on a machine without a GPU";
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

#[test]
fn the_picture_of_a_race_is_what_the_command_prints() {
    let ran = flashcore(&format!("{COMMAND} --color always"));
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    let drawn = svg(&shown(&ran.stdout));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/race.svg");
    if std::env::var_os("INSTA_UPDATE").is_some_and(|how| how == "always") {
        std::fs::write(&path, &drawn).expect("docs is there");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let again = "INSTA_UPDATE=always cargo test -p flashcore-cli --test it picture::";
    assert!(
        drawn == committed,
        "docs/race.svg is another; draw it again: {again}\n{}",
        ran.stdout
    );
}
