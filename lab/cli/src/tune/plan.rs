//! The winner of `flashcore tune` in the user's plan table.

use std::path::Path;

use flashcore::Problem;
use flashcore::unstable::plans::{PlanClass, PlanDevice, PlanSetting, user_plans_folder};
use flashcore_check::programs::quoted;
use flashcore_tune::Outcome as Found;
use flashcore_tune::plans;
use serde_json::{Value, json};

use crate::tune::interrupt::resume_command;
use crate::{CODE, style};

pub(crate) enum Kept {
    /// It has a row of the winner.
    Row(Box<plans::Kept>),
    /// It has no row, for this reason.
    Not(String),
    /// The row could not be written, for this reason.
    Failed(String),
}

/// Why the user's table for a device cannot take the winner of a search that is about to begin, if so. It
/// is a note, not an error: the user can correct it during the search.
pub(crate) fn cannot_keep(device: &PlanDevice, problem: &Problem) -> Option<String> {
    // Problems without a class have no rows.
    PlanClass::of(problem)?;
    let why = plans::can_put(&user_plans_folder()?, device).err()?;
    Some(format!(
        "a winner cannot be kept in the plan table: {why}; correct that while the search runs, or give --skip plan"
    ))
}

/// Adds the winner of a search on a real device to the user's table for this device.
pub(crate) fn keep(found: &Found, turned_off: bool) -> Kept {
    let row = match &found.board {
        Some(board) => plans::of_board(&found.header, board),
        None => Err("nothing could be timed".to_string()),
    };
    let row = match row {
        Ok(_) if turned_off => return Kept::Not("--skip plan".to_string()),
        Ok(row) => row,
        Err(why) => return Kept::Not(why),
    };
    let Some(folder) = user_plans_folder() else {
        return Kept::Not("there is no place for it: neither XDG_DATA_HOME nor HOME is set".to_string());
    };
    match plans::keep(&folder, &found.header, row) {
        Ok(kept) => Kept::Row(Box::new(kept)),
        Err(why) => Kept::Failed(why.to_string()),
    }
}

impl Kept {
    pub(crate) fn json(&self) -> Value {
        let (kept, none, error) = match self {
            Kept::Row(kept) => (Some(kept), None, None),
            Kept::Not(why) => (None, Some(why), None),
            Kept::Failed(why) => (None, Some(why), Some(why)),
        };
        json!({
            "file": kept.map(|kept| &kept.place.file),
            "number": kept.map(|kept| kept.place.number),
            "row": kept.map(|kept| &kept.row),
            "used": kept.map(|kept| &kept.used.kernel),
            "none": none,
            "error": error,
        })
    }

    pub(crate) fn remedy(&self, run: &Path) -> Option<String> {
        let Kept::Failed(why) = self else { return None };
        let note = format!(
            "note: the winner is in no plan table, so the library does not use it: {why}. Correct that; then this command \
             adds the row, and searches only if the budget is not spent:"
        );
        // Not wrapped: it is to be copied.
        let typed = format!("  {CODE}{}{CODE:#}\n", resume_command(run, None));
        Some(style::wrap(&note, 2) + &typed)
    }

    /// The command that removes the row again.
    pub(crate) fn undo(&self) -> Option<String> {
        let Kept::Row(kept) = self else { return None };
        let (place, kernel) = (&kept.place, kept.row.kernel);
        let row = format!("{}:{}:{kernel}", place.file.display(), place.number);
        Some(format!("flashcore plans drop {}", quoted(row.as_ref())))
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Kept::Row(kept) => text(kept, &PlanSetting::from_env()),
            Kept::Not(why) => format!("no row was written: {why}"),
            Kept::Failed(why) => format!("the row could not be written: {why}"),
        }
    }
}

/// The place of the winner's row, and whether the library uses it with this setting of its tables.
fn text(kept: &plans::Kept, setting: &PlanSetting) -> String {
    let plans::Kept { place, row, used } = kept;
    let kernel = row.kernel;
    let pinned = match setting {
        PlanSetting::Usual | PlanSetting::User => "",
        _ => "; while FLASHCORE_PLANS is set to something else, this has no effect",
    };
    let still = format!("{place} is written, but the library still uses {} here", used.kernel);
    match &used.row {
        _ if used.kernel == kernel.to_string() => {
            format!("{place}: from now on the library uses it for this problem here{pinned}")
        }
        Some(earlier) => format!(
            "{still}: {earlier} comes first; remove it with {CODE}flashcore plans drop{CODE:#} to use the winner{pinned}"
        ),
        None => format!("{still}; {CODE}flashcore explain{CODE:#} shows why{pinned}"),
    }
}

#[cfg(test)]
mod tests {
    use flashcore_tune::DefaultKernel;
    use flashcore_tune::plans::Place;

    use super::*;

    fn row(used: &str) -> plans::Kept {
        let row = json!({
            "problem": {"dtype": "fp16", "head_dim": 64, "head_dim_v": 64, "mask": "full", "batch": 1, "heads": 1,
                        "kv_heads": 1, "seq_q": 64, "seq_kv": 64},
            "kernel": "cpu/m32n32", "against": "cpu/m48n48", "gain": 0.1, "interval": [0.09, 0.11], "revision": "1a2b",
            "driver": "", "date": "2026-11-22",
        });
        plans::Kept {
            place: Place {
                file: "mine.json".into(),
                number: 1,
                kernel: "cpu/m32n32".to_string(),
            },
            row: serde_json::from_value(row).unwrap(),
            used: DefaultKernel {
                kernel: used.to_string(),
                row: Some("row 3 of 0.json: 5 % faster".to_string()),
                heuristics: used.to_string(),
            },
        }
    }

    #[test]
    fn it_says_what_the_library_uses_and_no_more() {
        let said = |kept: &plans::Kept, setting: &PlanSetting| {
            let text = text(kept, setting);
            anstream::adapter::strip_str(&text).to_string()
        };
        assert_eq!(
            said(&row("cpu/m32n32"), &PlanSetting::Usual),
            "row 1 of mine.json: from now on the library uses it for this problem here"
        );
        let undo = Kept::Row(Box::new(row("cpu/m32n32"))).undo();
        assert_eq!(undo.as_deref(), Some("flashcore plans drop mine.json:1:cpu/m32n32"));
        assert_eq!(
            said(&row("cpu/m48n48"), &PlanSetting::Usual),
            "row 1 of mine.json is written, but the library still uses cpu/m48n48 here: row 3 of 0.json: 5 % faster comes \
             first; remove it with flashcore plans drop to use the winner"
        );
        let pinned = said(&row("cpu/m32n32"), &PlanSetting::Shipped);
        assert!(pinned.contains("this has no effect"), "{pinned}");
    }

    #[test]
    fn json_has_every_key_whatever_happened() {
        let why = || "the disk is full".to_string();
        let all = [
            Kept::Row(Box::new(row("cpu/m48n48"))),
            Kept::Not(why()),
            Kept::Failed(why()),
        ];
        let [kept, not, failed] = all.map(|kept| kept.json());
        assert_eq!((&kept["used"], &kept["none"]), (&"cpu/m48n48".into(), &Value::Null));
        assert_eq!((&not["none"], &not["error"]), (&why().into(), &Value::Null));
        assert_eq!(failed["error"], why());
        for json in [kept, not, failed] {
            let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(keys, ["error", "file", "none", "number", "row", "used"]);
        }
    }
}
