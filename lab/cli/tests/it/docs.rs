//! The commands of README and docs, as a reader would type them.
//!
//! A block tagged `sh` is run, line by line, in a folder of its page; a comment such as `# exit 1` says with which code
//! a line ends. Blocks tagged `sh slow`, `sh gpu` or `sh files` (they need files of the reader) are only parsed: each
//! flag must exist. So are those of `sh nvcc`, which another test runs where nvcc is, next to the page. A block
//! tagged with a file's name, such as `toml own.toml`, is that file, and the folder next to a
//! page that has its name (`own-kernel`) is there, too. Commands in the text are
//! run, too, unless they measure or have a placeholder such as NAME.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::command;

/// Tags of blocks whose commands are only parsed.
const PARSED: [&str; 4] = ["slow", "gpu", "files", "nvcc"];
/// Subcommands that measure for as long as they are given.
const MEASURING: [&str; 4] = ["tune", "bench", "device", "worker"];

/// A command of a page.
#[derive(Debug, PartialEq)]
struct Typed {
    line: usize,
    text: String,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// Run it; it ends with this code.
    Run(i32),
    /// See that its flags exist.
    Parse,
    /// The same; and run it where nvcc is.
    ParseOrRun(i32),
}

/// What a page has: commands in order, files by name, and what is wrong with its tags.
#[derive(Debug, Default)]
struct Page {
    commands: Vec<Typed>,
    files: Vec<(String, String)>,
    wrong: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README, the pages of `docs`, and others in the root.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in [root(), root().join("docs"), root().join("evidence")] {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            // Old entries of a changelog stay as they were.
            let is_changelog = path.ends_with("CHANGELOG.md");
            if path.extension().is_some_and(|extension| extension == "md") && !is_changelog {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// A line as a command of this program, without the comment; `None` of anything else.
fn of_line(line: &str) -> Option<String> {
    let mut line = line.split("  #").next().unwrap_or(line).trim();
    // `FLASHCORE_PLANS=draft.json flashcore bench …`
    while let Some((_, rest)) = line.split_once(' ').filter(|(word, _)| word.contains('=')) {
        line = rest;
    }
    if line == "flashcore" || line.starts_with("flashcore ") {
        return Some(line.to_string());
    }
    let (cargo, rest) = line.split_once(" -- ")?;
    // With `-p` it is another program.
    let is_this = cargo.starts_with("cargo run") && !cargo.contains("-p ");
    is_this.then(|| format!("flashcore {rest}"))
}

/// The exit code that a line's comment names.
fn expected(line: &str) -> i32 {
    let code = line.split_once("# exit ").map(|(_, rest)| rest);
    let digits = code.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Whether a word stands for something else: NAME, FILE.ptx, LINE[:VALUE].
fn is_placeholder(word: &str) -> bool {
    let parts = word.split(|c: char| !c.is_ascii_alphanumeric());
    let mut named = parts.filter(|part| part.chars().any(|c| c.is_ascii_alphabetic()));
    word.contains(['…', '[', '<']) || named.any(|part| !part.chars().any(|c| c.is_ascii_lowercase()))
}

/// How a command in the text is tested.
fn in_text(text: &str) -> How {
    let words: Vec<&str> = text.split_whitespace().collect();
    let measures = words.get(1).is_some_and(|word| MEASURING.contains(word));
    let is_name = words.len() <= 2;
    if measures || is_name || words.iter().any(|word| is_placeholder(word)) {
        How::Parse
    } else {
        How::Run(0)
    }
}

fn read(text: &str) -> Page {
    let mut page = Page::default();
    let mut prose = String::new();
    let mut fence: Option<(Vec<String>, String)> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut fence) {
            (Some(tags), None) => {
                let tags: Vec<String> = tags.split_whitespace().map(str::to_string).collect();
                let unknown = tags.iter().skip(1).find(|tag| !PARSED.contains(&tag.as_str()));
                if let (Some("sh"), Some(tag)) = (tags.first().map(String::as_str), unknown) {
                    page.wrong.push(format!(
                        "{}: `sh {tag}` is no tag; allowed: {}",
                        index + 1,
                        PARSED.join(", ")
                    ));
                }
                fence = Some((tags, String::new()));
            }
            (Some(_), Some((tags, block))) => {
                if let [language, name] = tags.as_slice()
                    && language != "sh"
                {
                    page.files.push((name.clone(), std::mem::take(block)));
                }
                fence = None;
            }
            (None, Some((tags, block))) => {
                let _ = writeln!(block, "{line}");
                let is_shell = tags.first().is_some_and(|tag| tag == "sh");
                if let Some(text) = of_line(line).filter(|_| is_shell) {
                    let how = match tags.get(1).map(String::as_str) {
                        None => How::Run(expected(line)),
                        Some("nvcc") => How::ParseOrRun(expected(line)),
                        Some(_) => How::Parse,
                    };
                    let line = index + 1;
                    page.commands.push(Typed { line, text, how });
                }
                // Lines keep their numbers.
                prose.push('\n');
            }
            (None, None) => {
                let _ = writeln!(prose, "{line}");
            }
        }
    }
    let mut line = 1;
    for (place, span) in prose.split('`').enumerate() {
        let text = span.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(text) = of_line(&text).filter(|_| place % 2 == 1) {
            let how = in_text(&text);
            page.commands.push(Typed { line, text, how });
        }
        line += span.matches('\n').count();
    }
    page
}

/// Why a command is not what the page says, if it is not.
fn fault(typed: &Typed, folder: &Path, home: &Path) -> Option<String> {
    let (output, code) = match typed.how {
        How::Parse | How::ParseOrRun(_) => {
            let alone = typed.text.split(['|', '>', ';']).next().unwrap_or_default();
            let alone = alone.replace(['\'', '"'], "");
            // A number in place of a placeholder for one.
            let words: Vec<&str> = alone.split_whitespace().skip(1).collect();
            // What stands after `--` is the compiler's.
            let is_ours = |word: &&&str| **word != "--" && !word.contains(['…', '[', '<']);
            let words = words.iter().take_while(is_ours);
            let words: Vec<&str> = words
                .map(|word| if ["N", "BYTES"].contains(word) { "1" } else { word })
                .collect();
            (command(&words.join(" ")).arg("--help").output(), 0)
        }
        How::Run(code) => {
            let program = Path::new(env!("CARGO_BIN_EXE_flashcore"));
            let path = format!("{}:/usr/bin:/bin", program.parent().expect("a folder").display());
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &typed.text])
                .current_dir(folder)
                .env("PATH", path)
                .env("HOME", home)
                .env("XDG_DATA_HOME", home.join("data"))
                .env("CUDA_VISIBLE_DEVICES", "")
                .env("FLASHCORE_PLANS", "shipped")
                .env_remove("FLASHCORE_PTXAS")
                .env_remove("CARGO");
            (shell.output(), code)
        }
    };
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    (output.status.code() != Some(code)).then(|| {
        format!(
            "`{}` ({:?}) ends with {:?}, not {code}: {said}",
            typed.text,
            typed.how,
            output.status.code()
        )
    })
}

#[test]
fn every_command_of_the_docs_works() {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    let (mut ran, mut parsed) = (0, 0);
    for path in pages() {
        let page = read(&std::fs::read_to_string(&path).expect("a page"));
        let name = path.file_name().expect("a name").to_string_lossy().to_string();
        let folder = std::env::temp_dir().join(format!("flashcore-docs-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for (file, text) in &page.files {
            std::fs::write(folder.join(file), text).expect("a file");
        }
        #[cfg(unix)]
        if let (of_page, Some(stem)) = (path.with_extension(""), path.file_stem())
            && of_page.is_dir()
        {
            std::os::unix::fs::symlink(&of_page, folder.join(stem)).expect("a link");
        }
        faults.extend(page.wrong.iter().map(|wrong| format!("{name}:{wrong}")));
        for typed in &page.commands {
            // Once each, but for those that need what the page's other lines left in the folder.
            let is_new = seen.insert((typed.text.clone(), matches!(typed.how, How::Run(_))));
            if !is_new && page.files.is_empty() {
                continue;
            }
            match typed.how {
                How::Run(_) => ran += 1,
                How::Parse | How::ParseOrRun(_) => parsed += 1,
            }
            if let Some(fault) = fault(typed, &folder, &folder) {
                faults.push(format!("{name}:{}: {fault}", typed.line));
            }
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(
        ran > 20 && parsed > 20,
        "{ran} commands were run and {parsed} parsed: are they still found?"
    );
}

#[test]
fn commands_are_found_and_faults_are_seen() {
    let text = "Type `flashcore list\nproblems`, or `flashcore check museum/NAME`.\n\n```sh\nls\nflashcore nonsense  # no\n\
        flashcore check tiny --plant drop-barrier  # exit 1\n```\n```sh slow\ncargo run --release -- tune --budgit 5\n\
        cargo run -p other -- x\n```\n```sh quick\n```\n```toml own.toml\nheads = 1\n```\n";
    let page = read(text);
    assert_eq!(
        page.wrong,
        ["13: `sh quick` is no tag; allowed: slow, gpu, files, nvcc"]
    );
    assert_eq!(page.files, [("own.toml".to_string(), "heads = 1\n".to_string())]);
    let found: Vec<(usize, &str, How)> = page
        .commands
        .iter()
        .map(|typed| (typed.line, typed.text.as_str(), typed.how))
        .collect();
    let expected = [
        (6, "flashcore nonsense", How::Run(0)),
        (7, "flashcore check tiny --plant drop-barrier", How::Run(1)),
        (10, "flashcore tune --budgit 5", How::Parse),
        (1, "flashcore list problems", How::Run(0)),
        (2, "flashcore check museum/NAME", How::Parse),
    ];
    assert_eq!(found, expected);
    let faults: Vec<bool> = page
        .commands
        .iter()
        .map(|typed| fault(typed, &std::env::temp_dir(), &std::env::temp_dir()).is_some())
        .collect();
    assert_eq!(faults, [true, false, true, false, false]);
}

mod with_nvcc {
    use super::*;

    #[test]
    #[ignore = "needs nvcc"]
    fn commands_of_the_docs_that_need_it_work() {
        let (mut ran, mut faults) = (0, Vec::new());
        // They run next to the pages, and leave nothing there.
        let home = tempfile::tempdir().expect("a folder");
        for path in pages() {
            let page = read(&std::fs::read_to_string(&path).expect("a page"));
            for typed in page.commands {
                if let How::ParseOrRun(code) = typed.how {
                    let how = How::Run(code);
                    ran += 1;
                    let folder = path.parent().expect("a folder");
                    faults.extend(fault(&Typed { how, ..typed }, folder, home.path()));
                }
            }
        }
        assert!(faults.is_empty() && ran > 3, "{ran} were run: {}", faults.join("\n"));
    }
}
