//! The cost model against measured times.

use std::path::PathBuf;

use flashcore_bench::micro::DeviceRates;
use flashcore_bench::{Agreement, Timed, problem_text};
use flashcore_check::cost::card;
use flashcore_ir::{Profile, files};
use flashcore_kernels::KernelCache;
use flashcore_problem::Problem;

/// Compares the cost model with measured times.
///
/// A file is the CSV of `flashcore bench` (columns `problem`, `mode`, `subject`, `p50_us`, `shape`); hot rows of our
/// own kernels are taken. Registers come from `FLASHCORE_PTXAS`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The card that the times are of, or a file of `flashcore device calibrate`.
    #[arg(long, default_value = "h200")]
    profile: String,
    /// Predict with the rates that were measured on it (`flashcore device --output FILE`).
    #[arg(long)]
    rates: Option<PathBuf>,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let name = &options.profile;
    let profile = card(name).ok_or_else(|| format!("no card is named `{name}`; there are {}", Profile::names()))??;
    let rates = options.rates.as_deref().map(DeviceRates::read).transpose()?;
    let rates = rates.map(|rates| rates.card());
    let mut measured = Vec::new();
    for file in &options.files {
        let text =
            files::read_text_capped(file, files::LARGE).map_err(|error| format!("{}: {error}", file.display()))?;
        measured.extend(read(&text));
    }
    let cache = KernelCache::default();
    let predict = |case: &Timed| case.predictions(profile, &[rates.as_ref()], &cache);
    let predictions = measured.iter().map(predict).collect::<Result<Vec<_>, _>>()?;
    let predictions = predictions.concat();
    let rows: Vec<_> = measured.iter().zip(&predictions).collect();
    println!("{}", Agreement::head(profile.name));
    // Of one problem, or of all.
    let print = |name: &str, problem: Option<&str>| {
        let rows = rows
            .iter()
            .filter(|(case, _)| problem.is_none_or(|problem| case.problem == problem));
        let pairs: Vec<(f64, f64)> = rows.map(|(case, p)| (p.micros, case.micros)).collect();
        if let Some(a) = Agreement::of(&pairs).filter(|a| a.count > 1) {
            println!("{}", a.row(name));
        }
    };
    let mut names: Vec<&str> = measured.iter().map(|case| case.problem.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().for_each(|name| print(name, Some(name)));
    print("all", None);
    crate::verdict(!rows.is_empty())
}

/// The measured times in a file; other lines are skipped.
fn read(text: &str) -> Vec<Timed> {
    let header: Vec<&str> = text.lines().next().unwrap_or_default().split(',').collect();
    let from_csv = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |name: &str| fields.get(header.iter().position(|column| *column == name)?).copied();
        // "hot (short turns)", and not "hot (PREDICTED)".
        let how = field("mode")?;
        (how == "hot" || how.starts_with("hot (") && how.ends_with(" turns)")).then_some(())?;
        Some(Timed {
            problem: field("problem")?.to_string(),
            shape: problem(field("problem")?, field("shape")?)?,
            config: field("subject")?.parse().ok()?,
            micros: field("p50_us")?.parse().ok()?,
        })
    };
    text.lines().skip(1).filter_map(from_csv).collect()
}

/// The problem of a name or of a text, if this is what it prints.
fn problem(name: &str, text: &str) -> Option<Problem> {
    let prints = |problem: &Problem| problem.to_string() == text;
    let read = || problem_text::read(text)?.ok().filter(prints);
    Problem::named(name).ok().filter(prints).or_else(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_that_is_kept_is_read() {
        let tensor = include_str!("../../check/data/tensor-times.csv");
        let e4m3 = include_str!("../../check/data/e4m3-times.csv");
        let scalar = include_str!("../../check/data/scalar-times.csv");
        for text in [tensor, e4m3, scalar] {
            let of_family = |line: &&str| {
                ["mma", "wgmma", "scalar"]
                    .iter()
                    .any(|name| line.contains(&format!(",hot,{name}/")))
            };
            assert_eq!(read(text).len(), text.lines().filter(of_family).count());
        }
        let [turns, predicted] =
            ["hot (short turns)", "hot (PREDICTED)"].map(|how| tensor.replace(",hot,", &format!(",{how},")));
        assert_eq!((read(&turns).len(), read(&predicted).len()), (read(tensor).len(), 0));
    }
}
