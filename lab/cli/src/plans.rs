//! `flashcore plans`: the plan tables there are, and tables made from measurements.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcore::{
    Device, NamedTable, PLANS_VARIABLE, PlanDevice, PlanError, PlanTable, PlanTarget, Plans, read_table,
    shipped_tables, table_files, user_plans_folder,
};
use flashcore_bench::Report;
use flashcore_tune::journal::{board_of, read_header};
use flashcore_tune::plans::{self, Judged};
use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};
use crate::machine;
use crate::style::{self, BAD, DIM, GOOD, HEAD};

/// Show which kernels were measured to be the best for which problems, and where that is kept
///
/// Without arguments: the tables in the user's data folder and those that come with the library, their rows, what is
/// wrong with them, and which of them are used on this machine. With --of: makes a table from what
/// `flashcore bench --json` wrote.
#[derive(Args)]
#[command(after_help = PLANS_HELP)]
pub(crate) struct PlansArgs {
    /// Make a table from these reports of `flashcore bench --json`, or folders of `flashcore tune`
    #[arg(long, value_name = "FILES", num_args = 1.., requires = "out")]
    of: Vec<PathBuf>,
    /// With --of: the file to write
    #[arg(long, value_name = "FILE", requires = "of")]
    out: Option<PathBuf>,
    /// Take a row out of a table: its file and number, as in FILE:3. With a kernel, as in FILE:3:cpu/m64n64, only
    /// if that is still the row's: numbers change as rows come and go
    #[arg(long, value_name = "FILE:ROW[:KERNEL]", conflicts_with = "of", value_parser = dropped)]
    drop: Option<Dropped>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A row to be taken out.
#[derive(Clone, Debug, PartialEq)]
struct Dropped {
    file: PathBuf,
    row: usize,
    kernel: Option<String>,
}

fn dropped(text: &str) -> Result<Dropped, String> {
    let of = |file_and_row: &str, kernel: Option<&str>| {
        let (file, row) = file_and_row.rsplit_once(':')?;
        Some(Dropped {
            file: file.into(),
            row: row.parse().ok()?,
            kernel: kernel.map(str::to_string),
        })
    };
    let with_kernel = || {
        let (before, kernel) = text.rsplit_once(':')?;
        of(before, Some(kernel))
    };
    of(text, None).or_else(with_kernel).ok_or_else(|| {
        "write the file, the number of the row and perhaps its kernel as FILE:3 or FILE:3:cpu/m64n64; \
         `flashcore plans` shows them"
            .to_string()
    })
}

const PLANS_HELP: &str = "\
Environment:
  FLASHCORE_PLANS  shipped, user, none or a file: what kernels are chosen by, in place of the user's
                   tables, then the shipped ones, then heuristics

Tables from measurements:
  flashcore bench canonical --kernel near --sweep=2 --peers none --json > near.json
  flashcore plans --of near.json --out table.json
  A problem has a row where the fastest kernel was at least 1 % faster than what heuristics choose,
  in the same rounds, and the interval at 99 % is clear of none.

Exit codes: 0 done, 1 something is wrong with a table that is used here, 2 usage, 3 environment";

pub(crate) fn run(args: &PlansArgs) -> Result<Outcome, Failure> {
    if let Some(Dropped { file, row, kernel }) = &args.drop {
        let gone = plans::drop_row(file, *row, kernel.as_deref())?;
        match args.json {
            true => style::print_json(&json!({ "dropped": gone })),
            false => style::print(&format!("{gone} is gone\n")),
        }
        return Ok(Outcome::Clean);
    }
    match &args.out {
        Some(out) => make(&args.of, out, args.json),
        None => show(args.json),
    }
}

/// Every table there is to see, or why a file is none.
fn all_tables() -> Result<Vec<Result<NamedTable, PlanError>>, Failure> {
    let folder = user_plans_folder();
    let files = folder.as_deref().map(table_files).unwrap_or_default();
    let mut tables: Vec<_> = files.iter().map(|path| read_table(path)).collect();
    let shipped = shipped_tables().map_err(Failure::failed)?;
    tables.extend(shipped.into_iter().map(Ok));
    Ok(tables)
}

/// The devices of this machine. GPUs are not taken.
fn devices() -> Vec<PlanDevice> {
    let gpus = machine::gpus_or_none();
    let mut devices: Vec<PlanDevice> = gpus.iter().map(PlanDevice::cuda).collect();
    devices.push(PlanDevice::of(&Device::Cpu));
    devices.dedup();
    devices
}

fn show(as_json: bool) -> Result<Outcome, Failure> {
    let devices = devices();
    let used: Vec<(&PlanDevice, Plans)> = devices
        .iter()
        .map(|device| Ok((device, Plans::load(&PlanTarget::Device(device.clone()))?)))
        .collect::<Result<_, PlanError>>()
        .map_err(Failure::usage)?;
    let tables = all_tables()?;
    let setting = std::env::var_os(PLANS_VARIABLE).unwrap_or_default();
    let outcome = match used.iter().any(|(_, plans)| !plans.notes().is_empty()) {
        true => Outcome::Findings,
        false => Outcome::Clean,
    };
    if as_json {
        let used: Vec<Value> = used
            .iter()
            .map(|(device, plans)| {
                let notes: Vec<String> = plans.notes().iter().map(ToString::to_string).collect();
                let names: Vec<&str> = plans.tables().iter().map(|table| table.name.as_str()).collect();
                json!({ "device": device, "tables": names, "notes": notes })
            })
            .collect();
        let tables: Vec<Value> = tables.iter().map(table_json).collect();
        style::print_json(&json!({
            "setting": setting.to_string_lossy(),
            "folder": user_plans_folder(),
            "devices": used,
            "tables": tables,
        }));
        return Ok(outcome);
    }
    for (device, plans) in &used {
        style::print(&format!("{HEAD}{device}{HEAD:#}\n"));
        let names: Vec<&str> = plans.tables().iter().map(|table| table.name.as_str()).collect();
        let asked = match names.is_empty() {
            true => "heuristics; there is no table for it".to_string(),
            false => format!("{}, then heuristics", names.join(", then ")),
        };
        style::print(&style::field("chosen by", &asked));
        for note in plans.notes() {
            style::print(&style::field("note", &note.to_string()));
        }
    }
    if !setting.is_empty() {
        style::print(&style::field(
            "pinned",
            &format!("{PLANS_VARIABLE}={}", setting.to_string_lossy()),
        ));
    }
    if let Some(folder) = user_plans_folder() {
        style::print(&style::field(
            "yours",
            &format!("{} (`flashcore tune` writes there)", folder.display()),
        ));
    }
    for table in &tables {
        style::print(&table_text(table));
    }
    Ok(outcome)
}

fn table_json(table: &Result<NamedTable, PlanError>) -> Value {
    let named = match table {
        Ok(named) => named,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let wrong: Vec<Value> = wrong_rows(&named.table)
        .map(|(number, reason)| json!({ "row": number, "reason": reason }))
        .collect();
    let rows: Vec<_> = named.table.rows().map(|(_, row)| row).collect();
    json!({ "name": named.name, "device": named.table.device, "rows": rows, "unusable": wrong })
}

/// Rows that cannot be used, by number, and why.
fn wrong_rows(table: &PlanTable) -> impl Iterator<Item = (usize, &String)> {
    let numbered = table.entries.iter().enumerate();
    numbered.filter_map(|(place, entry)| Some((place + 1, entry.row.as_ref().err()?)))
}

fn table_text(table: &Result<NamedTable, PlanError>) -> String {
    let named = match table {
        Ok(named) => named,
        Err(error) => return style::wrap(&format!("\n{BAD}unusable{BAD:#} {error}"), 2),
    };
    let count = style::count(named.table.entries.len() as u64, "row");
    let mut text = format!(
        "\n{HEAD}{}{HEAD:#} {DIM}· {count}, measured on {}{DIM:#}\n",
        named.name, named.table.device
    );
    let widest = |of: &dyn Fn(&flashcore::PlanRow) -> String| {
        named
            .table
            .rows()
            .map(|(_, row)| of(row).chars().count())
            .max()
            .unwrap_or(0)
    };
    let (problems, kernels) = (
        widest(&|row| row.problem.to_string()),
        widest(&|row| row.kernel.to_string()),
    );
    for (number, row) in named.table.rows() {
        text.push_str(&format!(
            "  {number:>3}  {:<problems$}  {:<kernels$}  {:>5.1} % [{:.1}, {:.1}] {DIM}{}{DIM:#}\n",
            row.problem,
            row.kernel.to_string(),
            row.gain * 100.0,
            row.interval[0] * 100.0,
            row.interval[1] * 100.0,
            row.date,
        ));
    }
    for (number, reason) in wrong_rows(&named.table) {
        text.push_str(&style::wrap(
            &format!("  {number:>3}  {BAD}unusable{BAD:#}: {reason}"),
            7,
        ));
    }
    text
}

/// Makes a table of reports and runs of one device. Where a problem is in several, the last counts.
fn make(files: &[PathBuf], out: &Path, as_json: bool) -> Result<Outcome, Failure> {
    let mut table: Option<PlanTable> = None;
    let mut all: Vec<Judged> = Vec::new();
    for file in files {
        let (device, judged) = judged(file)?;
        let known = table.get_or_insert_with(|| PlanTable::new(device.clone()));
        if known.device != device {
            return Err(Failure::usage(format!(
                "{} was measured on {device}, the files before it on {}; a table is of one device",
                file.display(),
                known.device
            )));
        }
        for one in judged {
            all.retain(|before| before.problem != one.problem);
            all.push(one);
        }
    }
    let Some(mut table) = table else {
        return Err(Failure::usage("--of names no file"));
    };
    for row in all.iter().filter_map(|one| one.row.clone()) {
        table.put(row);
    }
    plans::write(out, &table)?;
    if as_json {
        style::print_json(&json!({ "device": table.device, "problems": all, "file": out }));
        return Ok(Outcome::Clean);
    }
    for one in &all {
        style::print(&style::wrap(&judged_line(one), 4));
    }
    let rows = style::count(table.entries.len() as u64, "row");
    let problems = style::count(all.len() as u64, "problem");
    style::print(&format!("\n{rows} for {problems}, in {}\n", out.display()));
    Ok(Outcome::Clean)
}

fn judged_line(one: &Judged) -> String {
    let head = format!("  {}: {}", one.problem, one.heuristics);
    let Some((kernel, gain, [low, high])) = &one.best else {
        return format!("{head}; {BAD}{}{BAD:#}", one.why);
    };
    let colour = if one.row.is_some() { GOOD } else { DIM };
    let (gain, low, high) = (gain * 100.0, low * 100.0, high * 100.0);
    format!(
        "{head}; {kernel} {gain:+.1} % [{low:.1}, {high:.1}] {colour}{}{colour:#}",
        one.why
    )
}

/// What a report, or the folder of a run, makes of its problems.
fn judged(file: &Path) -> Result<(PlanDevice, Vec<Judged>), Failure> {
    if file.is_dir() {
        let header = read_header(file)?;
        let board = board_of(file)?
            .ok_or_else(|| Failure::failed(format!("{} has no leaderboard: resume the run", file.display())))?;
        let device = header.devices.first().map(plans::device_of);
        let device = device.ok_or_else(|| Failure::failed(format!("{} names no device", file.display())))?;
        return Ok((device, vec![plans::judge_board(&header, &board)]));
    }
    let bad = |reason: String| Failure::failed(format!("{}: {reason}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
    let mut value: Value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let report: Report = serde_json::from_value(value["report"].take())
        .map_err(|error| bad(format!("{error}; it is to be what `flashcore bench --json` writes")))?;
    Ok((plans::device_of(&report.run.device), plans::of_report(&report)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_named_by_its_file_its_number_and_perhaps_its_kernel() {
        let row = |file: &str, kernel: Option<&str>| Dropped {
            file: file.into(),
            row: 3,
            kernel: kernel.map(str::to_string),
        };
        assert_eq!(dropped("a/b.json:3"), Ok(row("a/b.json", None)));
        assert_eq!(dropped("a:b.json:3"), Ok(row("a:b.json", None)));
        assert_eq!(dropped("a:b.json:3:cpu/m8n8"), Ok(row("a:b.json", Some("cpu/m8n8"))));
        for wrong in ["a.json", "a.json:x", "a.json:x:cpu/m8n8", ""] {
            assert!(dropped(wrong).unwrap_err().contains("FILE:3"), "{wrong}");
        }
    }
}
