//! Kernels by id: all there are, and those that a command line names.

use std::path::Path;

use flashcore::{Device, KernelId};
use flashcore_bench::KERNEL_WORDS;
use flashcore_check::foreign;
use flashcore_kernels::{Config, ladder};
use flashcore_problem::Problem;

use crate::args::Card;
use crate::failure::Failure;

/// Ids of the GPU families' configs.
fn of_gpus() -> Vec<String> {
    Config::all().iter().map(Config::to_string).collect()
}

/// Ids of some configs of the CPU backend: there are too many for a list.
fn of_the_cpu() -> Vec<String> {
    let tiles = [32, 64, 128];
    let config = |tile_q| flashcore_cpu::CpuConfig { tile_q, tile_kv: 128 }.to_string();
    tiles.map(config).to_vec()
}

/// The GPU config of an id.
pub(crate) fn gpu(id: &str) -> Result<Config, Failure> {
    match id.parse::<KernelId>()? {
        KernelId::Gpu(config) => Ok(config),
        KernelId::Cpu(config) => Err(Failure::usage(format!(
            "{config} runs on the CPU; this is about GPU kernels, such as scalar/tiled-m32n32-w4-v16"
        ))),
    }
}

/// Ids that `flashcore list kernels` shows.
pub(crate) fn all() -> Vec<String> {
    let mut ids = of_gpus();
    ids.extend(of_the_cpu());
    ids
}

/// Ids of kernels that run on a device.
pub(crate) fn all_of(device: &Device) -> Vec<String> {
    match device {
        Device::Cpu => of_the_cpu(),
        Device::Cuda(_) => of_gpus(),
    }
}

/// Ids and names of the ladder's rungs on a card, lowest first.
pub(crate) fn rungs(problem: &Problem, card: Card) -> impl Iterator<Item = (String, &'static str)> {
    let rungs = ladder::rungs(problem, card.chip()).into_iter();
    rungs.map(|rung| (rung.config.to_string(), rung.label))
}

/// The ids of a command line: ids themselves, beginnings that end in `*`, `ladder` for its rungs on the mission problem,
/// [words](KERNEL_WORDS) such
/// as `near`, and files with an id a line (`#` begins a comment, `=` a name). Whether an id is one is said where it is used, so that one of a hundred stops nothing.
pub(crate) fn ids(given: &[String]) -> Result<Vec<String>, Failure> {
    let mut ids = Vec::new();
    for word in given {
        if KERNEL_WORDS.iter().any(|(known, _)| known == word) {
            ids.push(word.clone());
        } else if word == "ladder" {
            let problem = Problem::named("mission")?;
            ids.extend(rungs(&problem, Card::default()).map(|(id, _)| id));
        } else if let Some(beginning) = word.strip_suffix('*') {
            ids.extend(begin_with(beginning)?);
        } else if Path::new(word).is_file() {
            ids.extend(of_file(word)?);
        } else {
            ids.push(word.clone());
        }
    }
    Ok(ids)
}

fn begin_with(beginning: &str) -> Result<Vec<String>, Failure> {
    let ids: Vec<String> = all().into_iter().filter(|id| id.starts_with(beginning)).collect();
    if ids.is_empty() {
        return Err(Failure::usage(format!("no kernel's id begins with `{beginning}`"))
            .help("`flashcore list kernels` shows them all"));
    }
    Ok(ids)
}

fn of_file(path: &str) -> Result<Vec<String>, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::usage(format!("{path}: {error}")))?;
    if foreign::binary_kind(&bytes).is_some() || foreign::read(&bytes).is_ok() {
        let message = format!("{path} holds kernels, not ids: kernels of PTX files and cubins are not timed");
        return Err(Failure::usage(message)
            .help("`flashcore check FILE.ptx` runs them under the simulator, `flashcore explain FILE.ptx` says what they take"));
    }
    let text = String::from_utf8(bytes).map_err(|error| Failure::usage(format!("{path}: {error}")))?;
    let lines = text
        .lines()
        .map(|line| line.split(['#', '=']).next().unwrap_or_default().trim());
    let ids: Vec<String> = lines.filter(|id| !id.is_empty()).map(str::to_string).collect();
    if ids.is_empty() {
        return Err(Failure::usage(format!("{path} lists no kernel")).help("write an id on each line"));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_beginnings_stand_for_ids() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ids.txt");
        std::fs::write(&path, "# tiles\nscalar/a=first\n\n  scalar/b # the second\nnonsense\n").expect("a file");
        let name = path.to_str().expect("a name").to_string();
        let read = ids(&["cpu/m64n64".to_string(), name.clone()]).expect("ids");
        assert_eq!(read, ["cpu/m64n64", "scalar/a", "scalar/b", "nonsense"]);
        std::fs::write(&path, "# nothing\n").expect("a file");
        assert!(ids(&[name]).is_err());
        let ladder = ids(&["ladder".to_string()]).expect("ids");
        assert!(
            ladder.len() == 8 && ladder[3] == "ladder/hybrid-m64n64-w4",
            "{ladder:?}"
        );
        let naive = ids(&["scalar/naive*".to_string()]).expect("ids");
        assert!(naive.len() > 3 && naive.iter().all(|id| id.starts_with("scalar/naive")));
        assert!(ids(&["wgmma/none*".to_string()]).is_err());
    }
}
