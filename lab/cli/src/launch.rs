//! `--launch`: how a kernel of a file is launched.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcore_check::foreign::{self, Asked, LaunchFile};

use crate::Failure;
use crate::kernel_file::wrong;
use crate::quantity::{axes, fields, size32};

/// The launch of a kernel of a file.
#[derive(Args)]
pub(crate) struct LaunchArgs {
    /// grid=8x4,threads=256,smem=82500,opted-in,entry=NAME; or FILE.toml
    ///
    /// Of the launch, grid is its blocks (1), threads those of a block, also as 32x8 [default: the kernel's
    /// declaration], smem the bytes of dynamic shared memory, opted-in says that the host allows more than 48 KB of it
    /// first (cudaFuncSetAttribute), and entry names the kernel of the file. A FILE.toml has arguments, too
    /// (docs/check-cuda.md); fields count before it.
    #[arg(long, value_name = "FIELDS|FILE", value_parser = launch_of)]
    launch: Vec<LaunchFields>,
}

/// What one `--launch` says.
#[derive(Clone, Debug, Default, PartialEq)]
struct LaunchFields {
    file: Option<PathBuf>,
    grid: Option<[u32; 3]>,
    threads: Option<[u32; 3]>,
    smem: Option<u32>,
    opted_in: bool,
    entry: Option<String>,
}

fn launch_of(text: &str) -> Result<LaunchFields, String> {
    const FIELDS: [&str; 6] = ["grid", "threads", "block", "smem", "opted-in", "entry"];
    let mut said = LaunchFields::default();
    if !text.contains('=') && text != "opted-in" {
        said.file = Some(text.into());
        return Ok(said);
    }
    if let Some(file) = text
        .split(',')
        .find(|part| part.trim().ends_with(".toml") && !part.contains('='))
    {
        return Err(format!(
            "give the file alone, and the fields a --launch of their own: --launch {file} --launch grid=8"
        ));
    }
    for (key, value) in fields(text, &FIELDS)? {
        match key {
            "grid" => said.grid = Some(axes(&value, 1)?),
            // A FILE.toml calls it block, as CUDA does.
            "threads" | "block" => said.threads = Some(axes(&value, 1)?),
            "smem" => said.smem = Some(number(&value)?),
            "opted-in" if value.is_empty() => said.opted_in = true,
            "opted-in" => return Err("opted-in has no value: write it, or leave it out".to_string()),
            _ => said.entry = Some(value),
        }
    }
    Ok(said)
}

fn number(text: &str) -> Result<u32, String> {
    size32(text).map_err(|_| format!("write a whole number from 0 to {}, e.g. 128 or 64k", u32::MAX))
}

impl LaunchArgs {
    /// The launch of the file, if there is one, with what fields say, and the name of the kernel.
    pub(crate) fn read(&self) -> Result<(LaunchFile, Option<String>), Failure> {
        let mut files = self.launch.iter().filter_map(|said| said.file.as_ref());
        let file = files.next();
        if let (Some(one), Some(other)) = (file, files.next()) {
            let why = format!("--launch names two files, {} and {}", one.display(), other.display());
            return Err(Failure::usage(why).help("name one; fields in a --launch of their own count before it"));
        }
        let mut read = match file {
            Some(path) => LaunchFile::read(path).map_err(|error| wrong(path, error))?,
            None => LaunchFile::default(),
        };
        let mut entry = None;
        for said in &self.launch {
            let launch = &mut read.launch;
            launch.grid = said.grid.unwrap_or(launch.grid);
            if let Some(block) = said.threads {
                launch.threads = Some(foreign::threads_in(block));
                launch.block = (block[1..] != [1, 1]).then_some(block);
            }
            launch.dynamic_shared = said.smem.unwrap_or(launch.dynamic_shared);
            read.opted_in |= said.opted_in;
            entry = said.entry.clone().or(entry);
        }
        Ok((read, entry))
    }

    /// Whether a grid was given.
    pub(crate) fn has_grid(&self) -> bool {
        self.launch
            .iter()
            .any(|said| said.grid.is_some() || said.file.is_some())
    }

    /// The launch file of the same name beside a file of kernels, if none was given.
    pub(crate) fn beside(&self, kernels: &Path) -> Option<PathBuf> {
        let file = kernels.with_extension("toml");
        let is_named = self.launch.iter().any(|said| said.file.is_some());
        (!is_named && LaunchFile::read(&file).is_ok()).then_some(file)
    }
}

/// What is judged of a launch.
pub(crate) fn asked(file: &LaunchFile, grid: Option<[u32; 3]>, claims: &[(String, u64)]) -> Asked {
    let launch = &file.launch;
    Asked {
        grid,
        threads: launch.block.map(foreign::threads_in).or(launch.threads),
        dynamic_shared: launch.dynamic_shared,
        opted_in: file.opted_in,
        claims: claims.to_vec(),
    }
}
