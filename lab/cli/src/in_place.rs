//! Things given in place of a problem that are not problems: files of kernels, other files, folders,
//! museum exhibits.

use std::io::Read;
use std::path::Path;

use flashcore_bench::{problem_text, problems};
use flashcore_check::foreign;
use flashcore_ir::files;
use flashcore_problem::NAMED_PROBLEMS;

use crate::{Failure, kernels, museum};

/// Explains what a name is if it is not a problem; `None` if nothing has that name.
pub(crate) fn of_name(name: &str) -> Option<Failure> {
    if name.starts_with(museum::PREFIX) {
        return Some(match museum::piece(name) {
            Ok(piece) => {
                let explains = if is_of_kernels(Path::new(piece.file)) {
                    format!("; `flashcore explain {}` explains its file", piece.file)
                } else {
                    String::new()
                };
                Failure::usage(format!("{name} is a museum exhibit, not a problem"))
                    .help(format!("`flashcore check {name}` runs it{explains}"))
            }
            Err(failure) => failure,
        });
    }
    if name == museum::PREFIX.trim_end_matches('/') {
        return Some(
            Failure::usage("`museum` alone is no exhibit; write museum/NAME")
                .help("`flashcore list museum` lists the exhibits"),
        );
    }
    let path = Path::new(name);
    if !path.exists() && kernels::reordered(name).is_some() {
        return Some(kernels::unknown(name, Failure::usage(format!("{name} is no problem"))));
    }
    if !path.exists() && kernels::named(name).is_ok() {
        let help = format!(
            "--kernel {name} names it, as in `flashcore explain --kernel {name}`; `flashcore list levers {name}` \
             says what its parts mean"
        );
        return Some(Failure::usage(format!("{name} is the id of a kernel, not a problem")).help(help));
    }
    if let Some(failure) = of_source(name) {
        return Some(failure);
    }
    if path.is_dir() {
        return Some(
            Failure::usage(format!("{name} is a folder, not a problem"))
                .help("name a file in it: FILE.toml and FILE.json hold problems, FILE.ptx holds kernels"),
        );
    }
    if !path.exists() && !is_of_kernels(path) {
        return None;
    }
    let bytes = match read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Some(Failure::usage(format!("{name}: {error}"))),
    };
    if let Some(what) = foreign::binary_kind(&bytes) {
        return Some(binary(path, what));
    }
    if foreign::read(&bytes).is_err() {
        return Some(
            Failure::usage(format!("{name} is text that holds neither problems nor PTX"))
                .help("FILE.toml and FILE.json hold problems; `flashcore list problems` shows those that have names"),
        );
    }
    let (file, rename) = if is_of_kernels(path) {
        (name.to_string(), "")
    } else {
        (format!("{name}.ptx"), "name it FILE.ptx: ")
    };
    let help = format!(
        "{rename}`flashcore check {file}` simulates its kernels, `flashcore explain {file}` shows what they use"
    );
    Some(Failure::usage(format!("{name} is PTX: it holds kernels, not a problem")).help(help))
}

/// What a file of source is.
fn of_source(name: &str) -> Option<Failure> {
    let lower = name.to_ascii_lowercase();
    let (what, file) = match (lower.ends_with(".cu"), lower.contains(".py:"), lower.ends_with(".py")) {
        (true, ..) => ("CUDA C++", name.to_string()),
        (_, true, _) => ("Python", name.to_string()),
        (.., true) => ("Python", format!("{name}:FUNCTION")),
        _ => return None,
    };
    let help = format!("`flashcore check {file}` simulates a kernel of it; docs/own-kernel.md says how to time one");
    Some(Failure::usage(format!("{name} is {what}: it has kernels, not a problem")).help(help))
}

/// The bytes of a file of kernels.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    files::read_capped(path, files::LARGE)
}

/// Whether a file may hold kernels: by its name, or as a program.
pub(crate) fn holds_kernels(path: &Path) -> bool {
    const OF_PROGRAMS: [&[u8]; 2] = [b"\x7fELF", b"MZ"];
    let is_program = || {
        let mut first = Vec::new();
        let read = files::open_regular(path).and_then(|(file, _)| file.take(4).read_to_end(&mut first));
        read.is_ok() && OF_PROGRAMS.iter().any(|magic| first.starts_with(magic))
    };
    is_of_kernels(path) || is_program()
}

pub(crate) fn is_of_kernels(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    const OF_KERNELS: [&str; 8] = ["cu", "ptx", "cubin", "fatbin", "so", "o", "a", "dll"];
    extension.is_some_and(|extension| OF_KERNELS.contains(&extension.to_ascii_lowercase().as_str()))
}

pub(crate) fn binary(file: &Path, what: &str) -> Failure {
    let help = if what.starts_with("a cubin") {
        "`flashcore explain FILE.cubin` shows what it uses; nvcc -ptx compiles the source to PTX"
    } else {
        "`flashcore check FILE` simulates CUDA C++ (FILE.cu), PTX, and the PTX inside of programs and libraries; this one has \
             none"
    };
    Failure::usage(format!("{} is {what}, neither a problem nor PTX", file.display())).help(help)
}

pub(crate) fn similar_problems(given: &str) -> Vec<&'static str> {
    let close = |name: &str| !given.is_empty() && (name.starts_with(given) || strsim::levenshtein(name, given) <= 2);
    let names = NAMED_PROBLEMS.iter().map(|named| named.name);
    names.chain(problems::set_names()).filter(|name| close(name)).collect()
}

/// What a problem's text is that a shell has split.
pub(crate) const QUOTED: &str = "put the text of a problem in quotes, or write it with commas: b4,h32/8,s3000,d96,bf16";

/// An error about the name of a problem: what was perhaps meant, before the names that there are.
pub(crate) fn unknown_problem(given: &str, error: impl std::fmt::Display) -> Failure {
    match similar_problems(given).as_slice() {
        [] if problem_text::is_field(given) => Failure::usage(error).help(QUOTED),
        [] => Failure::usage(error).help("`flashcore list problems` shows them with their shapes, and the sets"),
        names => Failure::usage(error).help(format!("did you mean {}?", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_problems_are_recognised() {
        assert_eq!(similar_problems("smoll"), ["small"]);
        assert_eq!(similar_problems("llama70b"), ["llama70b-prefill-4k"]);
        assert_eq!(similar_problems("cannonical"), ["canonical"]);
        assert!(similar_problems("whisper").is_empty());
        assert!(similar_problems("").is_empty());
    }
}
