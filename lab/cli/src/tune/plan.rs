//! What `flashcore tune` leaves in the user's plan table.

use std::path::Path;

use flashcore::{KernelId, PlanClass, PlanDevice, PlanSetting, Problem, read_table, user_plans_folder};
use flashcore_tune::Outcome as Found;
use flashcore_tune::plans::{self, Place, Record, Settled};
use serde_json::{Value, json};

use crate::machine;
use crate::style::{self, CODE};
use crate::tune::interrupt::resume_command;

/// What became of the winner.
pub(crate) enum Kept {
    /// A row, or one less.
    Settled(Settled),
    /// Nothing, and why.
    Not(String),
    /// Nothing, for this run had nothing new to do; and what became of it when its finals were held.
    Before(Record),
    /// It was to be kept, and why that failed.
    Failed(String),
}

/// Why the user's table for a device could not take the winner of a search that is about to begin, if so. It may be mended
/// while the search goes on, which is good for more than a row, and so this is no error.
pub(crate) fn cannot_keep(device: &str, problem: &Problem) -> Option<String> {
    let device = match device.strip_prefix("cuda:") {
        Some(ordinal) => {
            let gpus = machine::gpus().ok()?;
            PlanDevice::cuda(gpus.iter().find(|info| info.ordinal.to_string() == ordinal)?)
        }
        None => (device == "cpu").then(PlanDevice::cpu)?,
    };
    // Of other problems there are no rows.
    PlanClass::of(problem)?;
    let why = plans::can_keep(&user_plans_folder()?, &device).err()?;
    Some(format!(
        "a winner could not be kept in the plan table as it is: {why}; put that right while the search goes on, or leave rows \
         alone with --no-plan"
    ))
}

/// Puts the winner of a search into the user's table for the device, where it was found on a real one. `run` is the run's
/// folder, which says from then on that this was done.
pub(crate) fn keep(found: &Found, run: &Path, turned_off: bool) -> Kept {
    let not = |why: &str| Kept::Not(why.to_string());
    let Some(board) = &found.board else {
        return not("nothing could be timed");
    };
    let row = match plans::of_board(&found.header, board) {
        Ok(row) => row,
        Err(why) => return Kept::Not(beside(&found.header.problem, found, why)),
    };
    if turned_off {
        return not("--no-plan");
    }
    if let Some(record) = Record::read(run).filter(|_| found.nothing_new) {
        return Kept::Before(record);
    }
    let Some(folder) = user_plans_folder() else {
        return not("neither XDG_DATA_HOME nor HOME is set, so that there is no place for it");
    };
    let held_at = plans::held_at(run).unwrap_or(found.header.started_at);
    let kept = match plans::settle(&folder, &found.header, board, row, held_at) {
        Ok(settled) => Kept::Settled(settled),
        Err(why) => return Kept::Failed(why.to_string()),
    };
    if let Err(why) = Record::keep(run, kept.json()) {
        let note = format!("note: the run does not know that this is done, and does it again if it is resumed: {why}");
        style::eprint(&style::wrap(&note, 2));
    }
    kept
}

/// Why there is no row, and whether one from before stays.
fn beside(problem: &Problem, found: &Found, why: String) -> String {
    let before = || {
        // That one is named already.
        let default = found.header.default.as_ref();
        if default.is_some_and(|default| default.row.is_some()) {
            return None;
        }
        let device = plans::device_of(found.header.devices.first()?);
        let path = plans::file_of(&user_plans_folder()?, &device);
        let table = read_table(&path).ok()?.table;
        let class = flashcore::PlanClass::of(problem)?;
        let (number, row) = table.row_for(&class)?;
        Some(format!(
            "; row {number} of {} stays: {}, {}",
            path.display(),
            row.kernel,
            row.evidence()
        ))
    };
    why + &before().unwrap_or_default()
}

impl Kept {
    pub(crate) fn json(&self) -> Value {
        match self {
            Kept::Not(why) => json!({ "none": why }),
            Kept::Settled(Settled::Row {
                file,
                number,
                row,
                over,
                used,
                shadows,
            }) => json!({
                "file": file,
                "number": number,
                "row": row,
                "over": over,
                "used": used.to_string(),
                "shadowed_by": shadows,
            }),
            Kept::Settled(Settled::Heuristics {
                winner,
                dropped,
                used,
                shadows,
            }) => json!({
                "none": format!("heuristics choose {winner} by themselves"),
                "dropped": dropped,
                "used": used.to_string(),
                "shadowed_by": shadows,
            }),
            Kept::Settled(Settled::NotMeasured { winner, stays }) => json!({
                "none": not_measured(winner, stays),
                "stays": stays,
            }),
            Kept::Settled(Settled::Newer { stays, dated, held, .. }) => json!({
                "none": newer(stays, dated, held),
                "stays": stays,
            }),
            Kept::Before(record) => json!({ "none": before(record), "then": record.plan }),
            Kept::Failed(why) => json!({ "none": failed(why), "error": why }),
        }
    }

    /// What to do about a winner that should have been kept and was not.
    pub(crate) fn remedy(&self, run: &Path) -> Option<String> {
        let Kept::Failed(why) = self else { return None };
        let note = format!(
            "note: the winner is in no plan table, and so the library does not use it: {why}. Put that right; then this keeps it, \
             and searches on only where the budget is not spent:"
        );
        // Not wrapped: it is to be copied.
        let typed = format!("  {CODE}{}{CODE:#}\n", resume_command(run));
        Some(style::wrap(&note, 2) + &typed)
    }

    pub(crate) fn text(&self) -> String {
        let text = match self {
            Kept::Not(why) => format!("no row was written: {why}"),
            Kept::Before(record) => before(record),
            Kept::Failed(why) => failed(why),
            Kept::Settled(settled) => text(settled, &PlanSetting::from_env()),
        };
        style::field("plan", &text)
    }
}

/// Why a winner does not replace a row.
fn not_measured(winner: &KernelId, stays: &Place) -> String {
    format!(
        "{stays} stays, for its {} was not in these finals, and {winner} may be the slower one",
        stays.kernel
    )
}

/// Why the winner of finals of long ago does not replace a row.
fn newer(stays: &Place, dated: &str, held: &str) -> String {
    format!(
        "{stays} stays, for its {} was measured on {dated}, and these finals were held on {held}",
        stays.kernel
    )
}

/// What became of the winner when its finals were held.
fn before(record: &Record) -> String {
    let Record { plan, .. } = record;
    let of_row = plan["file"].as_str().zip(plan["row"]["kernel"].as_str());
    let then = match of_row {
        Some((file, kernel)) => format!("a row with {kernel} was written into {file}"),
        None => format!(
            "no row was written: {}",
            plan["none"].as_str().unwrap_or("see plan.json")
        ),
    };
    format!(
        "no table was touched, for this run had nothing new to do; on {} {then}",
        record.date()
    )
}

fn failed(why: &str) -> String {
    format!("no row was written, and one should have been: {why}")
}

/// What became of a winner, in a sentence, where the library's tables are pinned by a setting.
fn text(settled: &Settled, setting: &PlanSetting) -> String {
    let (mut text, winner, used, shadows) = match settled {
        Settled::Row {
            file,
            number,
            row,
            over,
            used,
            shadows,
        } => {
            let file = file.display();
            let needed = over.as_ref().map(|over| {
                format!(
                    " (heuristics choose it, too, but {over} would go before them with {})",
                    over.kernel
                )
            });
            let text = format!("row {number} of {file}{}", needed.unwrap_or_default());
            if *used == row.kernel {
                let from_now_on = format!(
                    ": from now on the library uses it for this problem here; \
                     {CODE}flashcore plans --drop {file}:{number}:{}{CODE:#} undoes that",
                    row.kernel
                );
                (text + &from_now_on, row.kernel, used, shadows)
            } else {
                (text + " is written", row.kernel, used, shadows)
            }
        }
        Settled::Heuristics {
            winner,
            dropped,
            used,
            shadows,
        } => {
            let gone = dropped
                .as_ref()
                .map(|dropped| format!("; {dropped}, which had the slower {}, is gone", dropped.kernel));
            let text = format!(
                "no row was written: heuristics choose {winner} by themselves{}",
                gone.unwrap_or_default()
            );
            (text, *winner, used, shadows)
        }
        Settled::NotMeasured { winner, stays } => {
            return format!(
                "no row was written: {}; a search without FLASHCORE_PLANS begins at it, and \
                 {} takes it out",
                not_measured(winner, stays),
                drop_command(stays)
            );
        }
        Settled::Newer { stays, dated, held, .. } => {
            return format!(
                "no row was written: {}; {} takes it out",
                newer(stays, dated, held),
                drop_command(stays)
            );
        }
    };
    if *used != winner {
        text.push_str(&format!("; but the library still uses {used} here"));
        match shadows.is_empty() {
            true => text.push_str(&format!(", and {CODE}flashcore explain{CODE:#} says why")),
            false => text.push_str(&shadowed(shadows)),
        }
    }
    if !matches!(setting, PlanSetting::Usual | PlanSetting::User) {
        text.push_str("; as long as FLASHCORE_PLANS is set to something else, all this changes nothing");
    }
    text
}

/// What to type to take a row out. It names the kernel, too: by the time that it is typed the number may be another row's.
fn drop_command(place: &Place) -> String {
    let Place { table, number, kernel } = place;
    format!("{CODE}flashcore plans --drop {table}:{number}:{kernel}{CODE:#}")
}

/// Which rows are read earlier, and what to do about it.
fn shadowed(shadows: &[Place]) -> String {
    let rows: Vec<String> = shadows
        .iter()
        .map(|place| format!("{place} ({})", place.kernel))
        .collect();
    let drops: Vec<String> = shadows
        .iter()
        .filter(|place| Path::new(&place.table).exists())
        .map(drop_command)
        .collect();
    let are = if rows.len() == 1 { "is" } else { "are" };
    // A shipped row cannot be dropped, but a row that is written by then goes before it.
    let again = if drops.len() < rows.len() {
        ", and tune again"
    } else {
        ""
    };
    format!(
        ": {} {are} read earlier; to use the winner, {}{again}",
        rows.join(" and "),
        drops.join(" and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(table: &str) -> Place {
        Place {
            table: table.to_string(),
            number: 3,
            kernel: "cpu/m48n48".to_string(),
        }
    }

    fn heuristics(used: &str, dropped: Option<Place>, shadows: Vec<Place>) -> Settled {
        Settled::Heuristics {
            winner: "cpu/m32n32".parse().unwrap(),
            dropped,
            used: used.parse().unwrap(),
            shadows,
        }
    }

    fn row(used: &str, over: Option<Place>, shadows: Vec<Place>) -> Settled {
        let row = json!({
            "problem": {"dtype": "fp16", "head_dim": 64, "head_dim_v": 64, "mask": "full", "batch": 1, "heads": 1,
                        "kv_heads": 1, "seq_q": 64, "seq_kv": 64},
            "kernel": "cpu/m32n32", "against": "cpu/m48n48", "gain": 0.1, "interval": [0.09, 0.11], "revision": "1a2b",
            "driver": "", "date": "2026-11-22",
        });
        Settled::Row {
            file: "mine.json".into(),
            number: 1,
            row: serde_json::from_value(row).unwrap(),
            over,
            used: used.parse().unwrap(),
            shadows,
        }
    }

    #[test]
    fn it_says_what_the_library_uses_and_no_more() {
        let said = |settled: &Settled| {
            let text = text(settled, &PlanSetting::Usual);
            anstream::adapter::strip_str(&text).to_string()
        };
        assert_eq!(
            said(&row("cpu/m32n32", None, Vec::new())),
            "row 1 of mine.json: from now on the library uses it for this problem here; flashcore plans --drop \
             mine.json:1:cpu/m32n32 undoes that"
        );
        // The files of rows that can be dropped are there.
        let earlier = std::env::temp_dir().join(format!("flashcore-earlier-{}.json", std::process::id()));
        std::fs::write(&earlier, "").unwrap();
        let earlier = earlier.display().to_string();
        let shadowed = said(&row("cpu/m48n48", None, vec![place(&earlier)]));
        let still = format!(
            "but the library still uses cpu/m48n48 here: row 3 of {earlier} (cpu/m48n48) is read earlier; to use the \
             winner, flashcore plans --drop {earlier}:3:cpu/m48n48"
        );
        assert_eq!(shadowed, format!("row 1 of mine.json is written; {still}"));
        assert_eq!(
            said(&heuristics("cpu/m48n48", None, vec![place(&earlier)])),
            format!("no row was written: heuristics choose cpu/m32n32 by themselves; {still}")
        );
        std::fs::remove_file(&earlier).unwrap();
        assert_eq!(
            said(&heuristics("cpu/m32n32", Some(place("mine.json")), Vec::new())),
            "no row was written: heuristics choose cpu/m32n32 by themselves; row 3 of mine.json, which had the slower \
             cpu/m48n48, is gone"
        );
        let over = said(&row("cpu/m32n32", Some(place("the shipped table")), Vec::new()));
        assert!(
            over.contains("too, but row 3 of the shipped table would go before them with cpu/m48n48): from now on"),
            "{over}"
        );
        let stays = said(&Settled::NotMeasured {
            winner: "cpu/m32n32".parse().unwrap(),
            stays: place("mine.json"),
        });
        assert_eq!(
            stays,
            "no row was written: row 3 of mine.json stays, for its cpu/m48n48 was not in these finals, and cpu/m32n32 may be \
             the slower one; a search without FLASHCORE_PLANS begins at it, and flashcore plans --drop mine.json:3:cpu/m48n48 takes it out"
        );
        let newer = said(&Settled::Newer {
            winner: "cpu/m32n32".parse().unwrap(),
            stays: place("mine.json"),
            dated: "2026-11-22".to_string(),
            held: "2026-11-20".to_string(),
        });
        assert_eq!(
            newer,
            "no row was written: row 3 of mine.json stays, for its cpu/m48n48 was measured on 2026-11-22, and these finals were \
             held on 2026-11-20; flashcore plans --drop mine.json:3:cpu/m48n48 takes it out"
        );
        let pinned = text(&row("cpu/m32n32", None, Vec::new()), &PlanSetting::Shipped);
        assert!(pinned.contains("as long as FLASHCORE_PLANS"), "{pinned}");
    }

    #[test]
    fn json_has_what_the_text_tells() {
        let over = Some(place("the shipped table"));
        let json = Kept::Settled(row("cpu/m48n48", over, Vec::new())).json();
        assert_eq!(json["used"], "cpu/m48n48");
        assert_eq!(json["over"]["kernel"], "cpu/m48n48");
        let json = Kept::Settled(heuristics("cpu/m64n64", None, Vec::new())).json();
        assert_eq!(json["used"], "cpu/m64n64");
    }
}
