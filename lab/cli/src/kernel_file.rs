//! Files of kernels: PTX and cubins as they are, CUDA C++ compiled first, and the PTX inside of programs and libraries.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use flashcore_check::foreign::{self, CodeForm, CompileError, Embedded, ForeignError, ForeignKernel, Source};
use flashcore_check::registers::Assembler;
use flashcore_check::sandbox::Confinement;
use serde_json::Value;

use crate::quantity::deadline;
use crate::{Card, Failure, in_place, style};

/// How a FILE.cu is compiled.
#[derive(Args, Clone)]
pub(crate) struct CompileArgs {
    /// Time after which the compiler is ended
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = deadline)]
    deadline: Duration,
    /// Let FILE.py run, and remember its content
    ///
    /// It has the Triton function to check. With =unsandboxed the compiler runs with your rights, where it cannot be
    /// confined (SECURITY.md).
    #[arg(long, value_name = "unsandboxed", num_args = 0..=1, require_equals = true, default_missing_value = "file",
          value_parser = trusted)]
    trust: Option<Trusted>,
    /// Options of the compiler: `-- -Iinclude -DN=64 -std=c++17 --maxrregcount=64`
    ///
    /// To a Triton function -D gives constants, and options such as num_warps: `-- -DBLOCK=64 -Dnum_warps=8`.
    #[arg(last = true, value_name = "OPTION", help_heading = clap::builder::Resettable::Reset)]
    options: Vec<String>,
}

/// What the user trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trusted {
    File,
    Unsandboxed,
}

pub(crate) fn trusted(text: &str) -> Result<Trusted, String> {
    match text {
        "file" => Ok(Trusted::File),
        "unsandboxed" => Ok(Trusted::Unsandboxed),
        _ => Err("write --trust, or --trust=unsandboxed".to_string()),
    }
}

/// The flags of a file that is compiled.
pub(crate) const OF_SOURCES: &[&str] = &["CompileArgs"];

impl CompileArgs {
    /// Whether the program that has the kernel may run.
    pub(crate) fn trusts_file(&self) -> bool {
        self.trust == Some(Trusted::File)
    }

    /// For an architecture, unless the options name one.
    pub(crate) fn for_arch(&self, arch: Option<String>) -> CompileArgs {
        let mut args = self.clone();
        let names_one = args.options.iter().any(|option| foreign::names_arch(option));
        if !names_one {
            args.options.extend(arch.map(|arch| format!("-arch={arch}")));
        }
        args
    }

    /// The macros as constants of a Triton function.
    pub(crate) fn constants(&self) -> Result<serde_json::Map<String, Value>, Failure> {
        let constant = |option: &String| {
            let why = || {
                Failure::usage(format!(
                    "{option}: a Triton function takes constants, written -DNAME=VALUE"
                ))
            };
            let text = option
                .strip_prefix("-D")
                .filter(|text| !text.is_empty())
                .ok_or_else(why)?;
            let (name, value) = text.split_once('=').unwrap_or((text, "true"));
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            Ok((name.to_string(), value))
        };
        joined(&self.options).iter().map(constant).collect()
    }
}

/// Options with their values in one word: `-I DIR` as `-IDIR`, `--maxrregcount 64` as `--maxrregcount=64`.
fn joined(options: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for option in options {
        match all.last_mut() {
            Some(before) if ["-I", "-D"].contains(&before.as_str()) => before.push_str(option),
            Some(before) if ["-maxrregcount", "--maxrregcount", "-std", "--std"].contains(&before.as_str()) => {
                before.push_str(&format!("={option}"));
            }
            _ => all.push(option.clone()),
        }
    }
    all
}

/// PTX or a cubin, and where it is from.
pub(crate) struct KernelFile {
    pub(crate) bytes: Vec<u8>,
    /// What made it PTX, in words.
    pub(crate) made_by: Option<String>,
    /// How its PTX is assembled.
    pub(crate) assembler: Assembler,
}

/// A file, or a name or an argument for it, that is not valid.
pub(crate) fn wrong(file: &Path, error: impl Display) -> Failure {
    Failure::usage(format!("{}: {error}", file.display()))
}

impl KernelFile {
    /// Reads a file. Of what is embedded in a program it takes one text, and says which others it passed over.
    pub(crate) fn read(
        file: &Path,
        args: &CompileArgs,
        entry: Option<&str>,
        card: Card,
    ) -> Result<KernelFile, Failure> {
        if is_source(file) {
            return compiled(file, args, card);
        }
        let bytes = in_place::read(file).map_err(|error| wrong(file, error))?;
        let Some(what) = foreign::binary_kind(&bytes).filter(|what| !what.starts_with("a cubin")) else {
            return Ok(KernelFile {
                bytes,
                made_by: None,
                assembler: Assembler::default(),
            });
        };
        let (found, mut failed) = foreign::embedded(&bytes);
        let mut texts = Vec::new();
        for text in found {
            match foreign::read(text.ptx.as_bytes()) {
                Ok(kernels) => texts.push((text, kernels)),
                // Device functions alone.
                Err(ForeignError::NoKernels) => {}
                Err(error) => failed.push(format!("PTX for sm_{}: {error}", text.arch)),
            }
        }
        if let (true, Some(why)) = (texts.is_empty(), failed.first()) {
            return Err(wrong(file, format_args!("{what} whose PTX cannot be read: {why}")));
        }
        if texts.is_empty() {
            return Err(in_place::binary(file, what));
        }
        for why in failed {
            style::note(format_args!("passed over in {}: {why}", file.display()));
        }
        let text = picked(file, &texts, entry, card)?;
        Ok(KernelFile {
            bytes: text.ptx.clone().into_bytes(),
            made_by: Some(format!("PTX for sm_{} in {what}", text.arch)),
            assembler: Assembler::default(),
        })
    }

    /// Its kernels, or those that are called `entry`.
    pub(crate) fn kernels(&self, file: &Path, entry: Option<&str>) -> Result<Vec<ForeignKernel>, Failure> {
        let kernels = foreign::read(&self.bytes).map_err(|error| wrong(file, error))?;
        let picked = foreign::pick(&kernels, entry).map_err(|error| wrong(file, error))?;
        Ok(picked.into_iter().cloned().collect())
    }

    /// Its text, if its kernels are PTX.
    pub(crate) fn ptx(&self, form: CodeForm) -> Option<&str> {
        let text = std::str::from_utf8(&self.bytes).ok();
        text.filter(|_| form == CodeForm::Ptx)
    }
}

/// Whether a file is compiled before it is read.
pub(crate) fn is_source(file: &Path) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("cu"))
}

fn compiled(file: &Path, args: &CompileArgs, card: Card) -> Result<KernelFile, Failure> {
    if let Err(error) = std::fs::metadata(file) {
        return Err(wrong(file, error));
    }
    let options = joined(&args.options);
    let source = Source {
        file,
        target: card.chip.target,
        options: &options,
        reads: &foreign::named(&options),
        limit: args.deadline,
        confinement: match args.trust {
            Some(Trusted::Unsandboxed) => Confinement::Unsandboxed,
            Some(Trusted::File) | None => Confinement::Sandboxed,
        },
    };
    let compiled = foreign::compile(&source).map_err(|error| match &error {
        CompileError::NoCompiler => Failure::environment(wrong(file, &error).message).help(format!(
            "`pip install {}` has one, without a toolkit and a GPU",
            foreign::PACKAGES
        )),
        CompileError::Broken(..) => {
            Failure::environment(wrong(file, &error).message).help("FLASHCORE_NVCC names the nvcc or clang++ to use")
        }
        CompileError::Sandbox(_) => Failure::environment(wrong(file, &error).message),
        _ => wrong(file, &error),
    })?;
    if !compiled.messages.is_empty() {
        style::note(&compiled.messages);
    }
    Ok(KernelFile {
        bytes: compiled.ptx.into_bytes(),
        made_by: Some(compiled.compiler),
        assembler: Assembler {
            path: compiled.ptxas,
            max_registers: foreign::most_registers(&options),
        },
    })
}

/// The number of an architecture such as `sm_90a`.
fn number_of(target: &str) -> u32 {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// The text with the kernel `entry`, for the best architecture that the card has.
fn picked<'a>(
    file: &Path,
    texts: &'a [(Embedded, Vec<ForeignKernel>)],
    entry: Option<&str>,
    card: Card,
) -> Result<&'a Embedded, Failure> {
    let target = card.chip.target.name();
    let names = |texts: &[&(Embedded, Vec<ForeignKernel>)]| {
        let kernels = texts.iter().flat_map(|(_, kernels)| kernels);
        let mut names: Vec<String> = kernels.map(|kernel| foreign::readable(&kernel.name)).collect();
        names.sort();
        names.dedup();
        style::list(names)
    };
    let has = |(_, kernels): &&(Embedded, Vec<ForeignKernel>)| foreign::pick(kernels, entry).is_ok();
    let mut found: Vec<_> = texts.iter().filter(has).collect();
    if let (true, Some(entry)) = (found.is_empty(), entry) {
        let all = names(&texts.iter().collect::<Vec<_>>());
        return Err(wrong(
            file,
            format_args!("no kernel is named `{entry}`; there are {all}"),
        ));
    }
    found.retain(|(text, _)| text.arch <= number_of(target));
    let Some(best) = found.iter().map(|(text, _)| text.arch).max() else {
        let archs = style::list(texts.iter().map(|(text, _)| format!("sm_{}", text.arch)));
        return Err(
            wrong(file, format_args!("its PTX is for {archs} and later, not for {target}"))
                .help("name another card with --profile"),
        );
    };
    found.retain(|(text, _)| text.arch == best);
    match found[..] {
        [(text, _)] => Ok(text),
        // A kernel of a header is in each object file that includes it.
        [(text, _), ..] if entry.is_some() => Ok(text),
        _ => Err(wrong(
            file,
            format_args!("it has {}; name one with --launch entry=NAME", names(&found)),
        )),
    }
}

/// Writes what a kernel left in its buffers to a folder.
pub(crate) fn write_buffers(folder: &Path, buffers: &[Vec<u8>]) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("--output {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    (0..).zip(buffers).try_for_each(|(n, bytes)| {
        let file = folder.join(format!("{n}.bin"));
        std::fs::write(file, bytes).map_err(failed)
    })
}
