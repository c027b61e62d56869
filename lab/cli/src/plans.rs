//! `flashcore plans`: shows the plan tables, and makes tables from measurements.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flashcore::Device;
use flashcore::unstable::plans::{
    NamedTable, PLANS_VARIABLE, PlanDevice, PlanError, PlanRow, PlanTable, PlanTarget, Plans, read_table,
    shipped_tables, table_files, user_plans_folder,
};
use flashcore_tune::journal::{board_of, read_header};
use flashcore_tune::plans::{self, Judged};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{BAD, DIM, Failure, GOOD, HEAD, Outcome, Page, bench, machine, simulated, style};

/// Show or make plan tables: the best measured kernels by problem
///
/// Without arguments: shows the tables in the user's data folder and those of the library, their rows
/// and errors, and which of them are used on this machine.
#[derive(Args)]
#[command(after_long_help = include_str!("help/plans.txt"))]
pub(crate) struct PlansArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Make a table from reports of `flashcore bench --json` or folders of `flashcore tune`
    Make {
        /// The reports and folders
        #[arg(value_name = "FILES", required = true)]
        of: Vec<PathBuf>,
        /// The file to write
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove a row of a table by its file and number, as in FILE:3
    ///
    /// With a kernel, as in FILE:3:cpu/m64n64, only if the row has this kernel: numbers change with other rows.
    Drop {
        /// The row
        #[arg(value_name = "FILE:ROW[:KERNEL]", value_parser = dropped)]
        row: Dropped,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

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
    let with_kernel = || text.rsplit_once(':').and_then(|(row, kernel)| of(row, Some(kernel)));
    let wrong = "write the file, the number of the row and optionally its kernel, as FILE:3 or FILE:3:cpu/m64n64; \
                 `flashcore plans` shows them";
    of(text, None).or_else(with_kernel).ok_or_else(|| wrong.to_string())
}

pub(crate) fn run(args: &PlansArgs) -> Result<Outcome, Failure> {
    match &args.what {
        Some(_) if args.json => {
            Err(Failure::usage("--json before a subcommand is of the list alone").help("put it at the end"))
        }
        None => show(args.json),
        Some(What::Make { of, output, json }) => make(of, output, *json),
        Some(What::Drop { row, json }) => {
            let gone = plans::drop_row(&row.file, row.row, row.kernel.as_deref())?;
            let page = || Page::new(format_args!("{gone} was removed"));
            style::show(*json, || json!({ "dropped": gone }), page);
            Ok(Outcome::Clean)
        }
    }
}

fn all_tables() -> Result<Vec<Result<NamedTable, PlanError>>, Failure> {
    let folder = user_plans_folder();
    let files = folder.as_deref().map(table_files).unwrap_or_default();
    let shipped = shipped_tables().map_err(Failure::failed)?;
    let read = files.iter().map(|path| read_table(path));
    Ok(read.chain(shipped.into_iter().map(Ok)).collect())
}

#[derive(Serialize)]
struct Used {
    device: PlanDevice,
    tables: Vec<String>,
    notes: Vec<String>,
}

/// The devices of this machine. GPUs are not initialised.
fn used() -> Result<Vec<Used>, PlanError> {
    let gpus = machine::gpus_or_none();
    let mut devices: Vec<PlanDevice> = gpus.iter().map(PlanDevice::cuda).collect();
    devices.push(PlanDevice::of(&Device::Cpu));
    devices.dedup();
    let used = |device: PlanDevice| {
        let plans = Plans::load(&PlanTarget::Device(device.clone()))?;
        Ok(Used {
            device,
            tables: simulated::names(&plans).into_iter().map(str::to_string).collect(),
            notes: plans.notes().iter().map(ToString::to_string).collect(),
        })
    };
    devices.into_iter().map(used).collect()
}

fn show(as_json: bool) -> Result<Outcome, Failure> {
    let used = used().map_err(Failure::usage)?;
    let tables = all_tables()?;
    let setting = std::env::var_os(PLANS_VARIABLE).unwrap_or_default();
    let (setting, folder) = (setting.to_string_lossy(), user_plans_folder());
    let json = || {
        let tables: Vec<Value> = tables.iter().map(table_json).collect();
        json!({ "setting": setting, "folder": folder, "devices": used, "tables": tables })
    };
    style::show(as_json, json, || {
        let mut page = Page::default();
        for used in &used {
            page.line(format_args!("{HEAD}{}{HEAD:#}", used.device));
            let tables = used.tables.join(", then ");
            match tables.as_str() {
                "" => page.field("chosen by", "heuristics; there is no table for it"),
                tables => page.field("chosen by", format_args!("{tables}, then heuristics")),
            }
            page.fields("note", &used.notes);
        }
        if !setting.is_empty() {
            page.field("pinned", format_args!("{PLANS_VARIABLE}={setting}"));
        }
        if let Some(folder) = &folder {
            let text = format!("{} (`flashcore tune` writes there)", folder.display());
            page.field("yours", text);
        }
        for table in &tables {
            add_table(&mut page, table);
        }
        page
    });
    Ok(Outcome::of(used.iter().all(|used| used.notes.is_empty())))
}

fn table_json(table: &Result<NamedTable, PlanError>) -> Value {
    let named = match table {
        Ok(named) => named,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let wrong = wrong_rows(&named.table).map(|(number, reason)| json!({ "row": number, "reason": reason }));
    let rows: Vec<_> = named.table.rows().map(|(_, row)| row).collect();
    let wrong: Vec<Value> = wrong.collect();
    json!({ "name": named.name, "device": named.table.device, "rows": rows, "unusable": wrong })
}

fn wrong_rows(table: &PlanTable) -> impl Iterator<Item = (usize, &String)> {
    let numbered = table.entries.iter().enumerate();
    numbered.filter_map(|(place, entry)| Some((place + 1, entry.row.as_ref().err()?)))
}

fn add_table(page: &mut Page, table: &Result<NamedTable, PlanError>) {
    let NamedTable { name, table } = match table {
        Ok(named) => named,
        Err(error) => return page.wrap(2, format_args!("\n{BAD}unusable{BAD:#} {error}")),
    };
    let count = style::count(table.entries.len(), "row");
    page.heading(name, format_args!("{count}, measured on {}", table.device));
    let widest = |of: fn(&PlanRow) -> String| table.rows().map(|(_, row)| of(row).chars().count()).max().unwrap_or(0);
    /// Columns of gain, interval and date.
    const EVIDENCE: usize = 34;
    let problems = widest(|row| row.problem.to_string());
    let kernels = widest(|row| row.kernel.to_string());
    for (number, row) in table.rows() {
        let (kernel, date) = (row.kernel.to_string(), &row.date);
        let [gain, low, high] = [row.gain, row.interval[0], row.interval[1]].map(|share| share * 100.0);
        let what = format!("  {number:>3}  {:<problems$}  {kernel:<kernels$}", row.problem);
        let gain = format!("{gain:>5.1} % [{low:.1}, {high:.1}]");
        // In a line where there is room for it.
        let what = if what.chars().count() + EVIDENCE > style::width() {
            format!("{}\n       ", what.trim_end())
        } else {
            what + "  "
        };
        page.line(format_args!("{what}{gain} {DIM}{date}{DIM:#}"));
    }
    for (number, reason) in wrong_rows(table) {
        page.wrap(7, format_args!("  {number:>3}  {BAD}unusable{BAD:#}: {reason}"));
    }
}

/// Makes a table of reports and runs of one device. The last result of a problem counts.
fn make(files: &[PathBuf], out: &Path, as_json: bool) -> Result<Outcome, Failure> {
    let mut table: Option<PlanTable> = None;
    let mut all: Vec<Judged> = Vec::new();
    for file in files {
        let (device, judged) = judged(file)?;
        let known = table.get_or_insert_with(|| PlanTable::new(device.clone()));
        if known.device != device {
            let (file, known) = (file.display(), &known.device);
            let why = format!("{file} was measured on {device}, the files before it on {known}");
            return Err(Failure::usage(why + "; a table is for one device"));
        }
        for one in judged {
            all.retain(|before| before.problem != one.problem);
            all.push(one);
        }
    }
    let mut table = table.ok_or_else(|| Failure::usage("no file is named"))?;
    for row in all.iter().filter_map(|one| one.row.clone()) {
        table.put(row);
    }
    plans::write(out, &table)?;
    let json = || json!({ "device": table.device, "problems": all, "file": out });
    style::show(as_json, json, || {
        let mut page = Page::default();
        for one in &all {
            page.wrap(4, judged_line(one));
        }
        let rows = style::count(table.entries.len(), "row");
        let problems = style::count(all.len(), "problem");
        page.line(format_args!("\n{rows} for {problems}, in {}", out.display()));
        page
    });
    Ok(Outcome::Clean)
}

fn judged_line(one: &Judged) -> String {
    let head = format!("  {}: {}", one.problem, one.heuristics);
    let Some((kernel, gain, [low, high])) = &one.best else {
        return format!("{head}; {BAD}{}{BAD:#}", one.why);
    };
    let (why, colour) = (&one.why, if one.row.is_some() { GOOD } else { DIM });
    let [gain, low, high] = [gain, low, high].map(|share| share * 100.0);
    format!("{head}; {kernel} {gain:+.1} % [{low:.1}, {high:.1}] {colour}{why}{colour:#}")
}

fn judged(file: &Path) -> Result<(PlanDevice, Vec<Judged>), Failure> {
    let bad = |reason: String| Failure::usage(format!("{}: {reason}", file.display()));
    if file.is_dir() {
        let header = read_header(file)?;
        let board = board_of(file)?.ok_or_else(|| bad("there is no leaderboard: resume the run".to_string()))?;
        let device = header.devices.first().map(plans::device_of);
        let device = device.ok_or_else(|| bad("the run names no device".to_string()))?;
        return Ok((device, vec![plans::judge_board(&header, &board)]));
    }
    let report = bench::printed(file)?;
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
