//! What of a kernel of others the simulator does not execute.

use flashcore_ptx::Understood;

use crate::{DIM, HEAD, Page, style, whole};

/// How much of a kernel is understood.
pub(crate) fn add_share(page: &mut Page, understood: &Understood) {
    let (all, known) = (understood.instructions, understood.understood);
    // Rounded down: what is not all is below 100 %.
    let permille = known * 1000 / all.max(1);
    let missing = match understood.missing.len() {
        1 => "1 form is missing".to_string(),
        n => format!("{n} forms are missing"),
    };
    let (percent, tenth, all) = (permille / 10, permille % 10, whole(all));
    page.field(
        "forms",
        format_args!("{percent}.{tenth} % of {all} instructions are understood; {missing}"),
    );
}

/// The forms that are missing, each with its count and lines, by the reason; JSON has all lines.
pub(crate) fn add_missing(page: &mut Page, understood: &Understood, ptx: &str) {
    let mut whys: Vec<&str> = Vec::new();
    for missing in &understood.missing {
        if !whys.contains(&missing.why.as_str()) {
            whys.push(&missing.why);
        }
    }
    for why in whys {
        page.line(format_args!("\n{HEAD}missing{HEAD:#}: {why}"));
        for missing in understood.missing.iter().filter(|missing| missing.why == why) {
            let mut lines = String::new();
            let mut file = None;
            for line in missing.lines.iter().take(MOST_LINES) {
                let of = line.file.as_deref().unwrap_or(ptx);
                let separator = if lines.is_empty() { "" } else { ", " };
                lines.push_str(&if file == Some(of) {
                    format!("{separator}{}", line.line)
                } else {
                    format!("{separator}{of}:{}", line.line)
                });
                file = Some(of);
            }
            if let Some(more) = missing.lines.len().checked_sub(MOST_LINES).filter(|more| *more > 0) {
                lines.push_str(&format!(" and {} more", style::count(more, "line")));
            }
            let (count, form) = (whole(missing.count), &missing.form);
            page.wrap(10, format_args!("  {count:>6}  {form}  {DIM}{lines}{DIM:#}"));
        }
    }
}

/// Lines of a missing form that are printed.
const MOST_LINES: usize = 12;
