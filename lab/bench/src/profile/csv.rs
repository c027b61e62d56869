//! Reads what `ncu --csv` prints: the raw page, a row for each launch, or the details page, a row for each metric (also
//! without `--page`); and the source page with the lines of each file.

use std::collections::BTreeSet;

use flashcore_check::render::few;
use flashcore_check::source::quote;

use super::metrics::Metric;
use super::{KernelProfile, LineProfile};

/// What a raw or a details page holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The launches, in the order they were profiled.
    pub launches: Vec<KernelProfile>,
    /// Metrics that are read as no counter, by name.
    pub ignored: Vec<String>,
}

/// The launches in a page, as [`page`].
///
/// # Errors
/// As [`page`].
pub fn read(text: &str) -> Result<Vec<KernelProfile>, String> {
    Ok(page(text)?.launches)
}

/// A raw or a details page. Lines before the table (ncu's own, the program's) are passed over.
///
/// # Errors
/// One sentence that says what is missing, for a text without a table, a row that does not fit it, and a table of which
/// no metric is known.
pub fn page(text: &str) -> Result<Page, String> {
    let mut rows = table(text).into_iter();
    let Some(names) = rows.next() else {
        let make = "make one with `ncu --csv --page raw --set full PROGRAM`, or `ncu --import FILE.ncu-rep --csv --page \
                    raw`; `ncu --csv --metrics NAMES PROGRAM` is read, too";
        return Err(format!("there is no table in it: {make}"));
    };
    let is_details = names.iter().any(|name| name == "Metric Name");
    let units = if is_details {
        Vec::new()
    } else {
        rows.next().unwrap_or_default()
    };
    let rows: Vec<Vec<String>> = rows.collect();
    for (row, values) in rows.iter().enumerate() {
        if values.len() != names.len() {
            let (row, has, head) = (row + 1, values.len(), names.len());
            return Err(format!("row {row} has {has} columns, the head {head}"));
        }
    }
    let mut ignored = BTreeSet::new();
    let mut launches = Vec::new();
    let mut seen = 0;
    let text_of = |values: &[String], name: &str| {
        let at = names.iter().position(|known| known == name);
        at.map_or(String::new(), |at| values[at].clone())
    };
    // The metrics of each launch, after a row that is about it: names, units and values.
    let listed: Vec<(&Vec<String>, Vec<[String; 3]>)> = if is_details {
        let id = |values: &Vec<String>| (text_of(values, "ID"), text_of(values, "Kernel Name"));
        let of_row = |row: &Vec<String>| ["Metric Name", "Metric Unit", "Metric Value"].map(|name| text_of(row, name));
        // Rows of rules have no metric.
        let of_launch = |rows: &[Vec<String>]| rows.iter().map(of_row).filter(|[name, ..]| !name.is_empty()).collect();
        let launches = rows.chunk_by(|a, b| id(a) == id(b));
        launches.map(|rows| (&rows[0], of_launch(rows))).collect()
    } else {
        let of_launch = |values: &Vec<String>| {
            let units = units.iter().chain(std::iter::repeat(&EMPTY));
            let columns = names.iter().zip(units).zip(values);
            let metrics = columns.filter(|((name, _), _)| name.contains("__"));
            metrics
                .map(|((name, unit), value)| [name, unit, value].map(String::clone))
                .collect()
        };
        rows.iter().map(|values| (values, of_launch(values))).collect()
    };
    for (values, metrics) in &listed {
        let about = ["Kernel Name", "Grid Size", "Block Size"].map(|name| text_of(values, name));
        let metrics: Vec<Metric<'_>> = metrics
            .iter()
            .map(|[name, unit, value]| metric(name, unit, value))
            .collect();
        seen += metrics.len();
        let about = about.each_ref().map(String::as_str);
        launches.push(KernelProfile::from_metrics(about, &metrics, &mut ignored));
    }
    let ignored: Vec<String> = ignored.into_iter().collect();
    if launches
        .iter()
        .all(|launch| launch.counters.is_empty() && launch.stalls.is_empty())
    {
        let asked = super::counters()
            .map(|(_, metric)| metric)
            .collect::<Vec<_>>()
            .join(",");
        return Err(match (launches.len(), seen) {
            (0, _) => "its table has no launch".to_string(),
            (_, 0) => format!("its table has no metric: ask for some with `ncu --csv --metrics {asked} PROGRAM`"),
            _ => format!(
                "none of its metrics is known ({}): ask for others with `ncu --csv --metrics {asked} PROGRAM`",
                few(&ignored)
            ),
        });
    }
    Ok(Page { launches, ignored })
}

fn metric<'t>(name: &'t str, unit: &'t str, value: &str) -> Metric<'t> {
    (name, unit, number(value).map(|value| value * scale(unit)))
}

static EMPTY: String = String::new();

/// The rows of the table in a text, its head first; none if there is none. A quoted field may go over several lines.
fn table(text: &str) -> Vec<Vec<String>> {
    let mut lines = text
        .trim_start_matches('\u{feff}')
        .lines()
        .skip_while(|line| !is_head(line));
    let mut rows = Vec::new();
    let mut is_quoted = true;
    while let Some(line) = lines.next() {
        if rows.is_empty() {
            is_quoted = line.starts_with('"');
        } else if line.starts_with('"') != is_quoted || line.starts_with("==") || line.trim().is_empty() {
            continue;
        }
        let mut record = line.to_string();
        let is_odd = |text: &str| text.matches('"').count() % 2 == 1;
        let mut is_open = is_odd(line);
        while is_open && let Some(more) = lines.next() {
            record.extend(["\n", more]);
            is_open ^= is_odd(more);
        }
        rows.push(fields(&record));
    }
    rows
}

/// Whether a line is the head of a table: spreadsheets leave the quotes out.
fn is_head(line: &str) -> bool {
    let of = |id: &str, name: &str| line.starts_with(id) && line.contains(name);
    of("\"ID\"", "\"Kernel Name\"") || of("ID,", ",Kernel Name,")
}

/// The lines in a source page (`--page source --print-source cuda,sass`), most sampled first; none
/// where the code has no line information.
pub fn lines(text: &str) -> Vec<LineProfile> {
    let mut lines = Vec::new();
    let mut file = String::new();
    let mut names = Vec::new();
    for row in text.lines().filter(|line| line.starts_with('"')).map(fields) {
        match row[0].as_str() {
            "File Path" | "File Name" => file = row.get(1).cloned().unwrap_or_default(),
            "Line No" => names = row,
            first => {
                let Ok(line) = first.parse() else { continue };
                let of = |name: &str| {
                    let at = names.iter().position(|known| known == name);
                    at.and_then(|at| number(row.get(at)?)).unwrap_or(0.0)
                };
                // `<Unable to open source file>` where ncu ran in another folder than the source.
                let text = row.get(1).filter(|text| !text.starts_with('<')).cloned();
                lines.push(LineProfile {
                    source: text.or_else(|| quote(&file, line)).unwrap_or_default(),
                    file: file.clone(),
                    line,
                    samples: of("# Samples"),
                    instructions: of("Instructions Executed"),
                    wavefronts: of("L1 Wavefronts Shared"),
                    wavefronts_excess: of("L1 Wavefronts Shared Excessive"),
                    waits_for: waits_for(&names, &row),
                });
            }
        }
    }
    lines.sort_by(|a, b| b.samples.total_cmp(&a.samples).then(a.line.cmp(&b.line)));
    lines
}

/// The reason with most samples in a row of the source page, by its column: `stall_long_sb`. Columns of warps that did
/// not issue count the same warps again, and selected warps issue.
fn waits_for(names: &[String], row: &[String]) -> Option<String> {
    let reasons = names.iter().zip(row).filter_map(|(name, value)| {
        let reason = name.strip_prefix("stall_")?;
        let counts = !reason.contains("not_issued") && !reason.contains("Not Issued") && reason != "selected";
        let samples = number(value).filter(|samples| *samples > 0.0 && counts)?;
        Some((samples, reason.split(' ').next().unwrap_or(reason).to_string()))
    });
    reasons.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, reason)| reason)
}

/// A number with thousands separators; `None` for anything else.
fn number(text: &str) -> Option<f64> {
    text.replace(',', "")
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
}

/// Factor from a unit as ncu chooses it to the base unit: ns, bytes, per cent.
fn scale(unit: &str) -> f64 {
    let (prefix, base) = match unit {
        "ns" | "nsecond" => return 1.0,
        "us" | "usecond" => return 1e3,
        "ms" | "msecond" => return 1e6,
        "s" | "second" => return 1e9,
        _ => unit.split_at(unit.chars().next().map_or(0, char::len_utf8)),
    };
    match (prefix, base.starts_with("byte")) {
        ("K", true) => 1e3,
        ("M", true) => 1e6,
        ("G", true) => 1e9,
        ("T", true) => 1e12,
        _ => 1.0,
    }
}

/// Fields of a line in which each is quoted, with `""` for a quote.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let field = fields.last_mut().expect("there is always one");
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => field.push(character),
        }
    }
    fields
}

#[cfg(test)]
#[path = "csv_tests.rs"]
mod tests;
