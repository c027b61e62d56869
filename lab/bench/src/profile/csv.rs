//! Reads what `ncu --csv` prints: the raw page, and the source page with the lines of each file.

use std::collections::BTreeMap;

use flashcore_check::source::quote;

use super::{KernelProfile, LineProfile};

const HEAD: &str = "\"ID\"";

/// The launches in a raw page, in the order they were profiled. Lines before the table (ncu's own,
/// the program's) are passed over.
///
/// # Errors
/// One sentence that says what is missing, for a text without a table or a row that does not fit
/// it.
pub fn read(text: &str) -> Result<Vec<KernelProfile>, String> {
    let table = text.lines().skip_while(|line| !line.starts_with(HEAD));
    let mut lines = table.filter(|line| line.starts_with('"'));
    let Some(names) = lines.next().map(fields) else {
        let make =
            "make one with `ncu --csv --page raw --set full PROGRAM`, or `ncu --import FILE.ncu-rep --csv --page raw`";
        return Err(format!("there is no table in it: {make}"));
    };
    let units = fields(lines.next().unwrap_or_default());
    let mut profiles = Vec::new();
    for (row, line) in lines.enumerate() {
        let values = fields(line);
        if values.len() != names.len() {
            let (row, has, head) = (row + 1, values.len(), names.len());
            return Err(format!("row {row} has {has} columns, the head {head}"));
        }
        let text_of = |name: &str| {
            let at = names.iter().position(|known| known == name);
            at.map_or("", |at| values[at].as_str())
        };
        let metrics: BTreeMap<&str, f64> = (names.iter().zip(&units).zip(&values))
            .filter_map(|((name, unit), value)| Some((name.as_str(), number(value)? * scale(unit))))
            .collect();
        let about = ["Kernel Name", "Grid Size", "Block Size"].map(text_of);
        profiles.push(KernelProfile::from_metrics(about, &metrics));
    }
    Ok(profiles)
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
        "us" => return 1e3,
        "ms" => return 1e6,
        "s" | "second" => return 1e9,
        _ => unit.split_at(unit.len().min(1)),
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
