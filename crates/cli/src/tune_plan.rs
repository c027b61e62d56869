//! What `flashcore tune` leaves in the user's plan table.

use std::path::PathBuf;

use flashcore::{PlanRow, PlanSetting, Problem, read_table, user_plans_folder};
use flashcore_tune::{Outcome as Found, plans};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::style::{self, CODE};

/// What became of the winner.
pub(crate) enum Kept {
    /// A row in this file, of this number.
    Written(PathBuf, usize, Box<PlanRow>),
    /// None, and why.
    Not(String),
}

/// Puts the winner of a search into the user's table for the device, where it was found on a real one.
pub(crate) fn keep(found: &Found, turned_off: bool) -> Result<Kept, Failure> {
    let not = |why: &str| Ok(Kept::Not(why.to_string()));
    let Some(board) = &found.board else {
        return not("nothing could be timed");
    };
    let row = match plans::of_board(&found.header, board) {
        Ok(row) => row,
        Err(why) => return Ok(Kept::Not(beside(&found.header.problem, found, why))),
    };
    if turned_off {
        return not("--no-plan");
    }
    let Some(folder) = user_plans_folder() else {
        return not("neither XDG_DATA_HOME nor HOME is set, so that there is no place for it");
    };
    let device = plans::device_of(&found.header.devices[0]);
    let class = row.problem.clone();
    let path = plans::keep(&folder, &device, row.clone())?;
    let table = read_table(&path).map_err(Failure::failed)?.table;
    let number = table
        .rows()
        .find(|(_, other)| other.problem == class)
        .map_or(0, |(number, _)| number);
    Ok(Kept::Written(path, number, Box::new(row)))
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
            Kept::Written(file, number, row) => json!({ "file": file, "number": number, "row": row }),
            Kept::Not(why) => json!({ "none": why }),
        }
    }

    pub(crate) fn text(&self) -> String {
        let (file, number) = match self {
            Kept::Not(why) => return style::field("plan", &format!("no row was written: {why}")),
            Kept::Written(file, number, _) => (file.display(), number),
        };
        let mut text = format!(
            "row {number} of {file}: from now on the library uses it for this problem here; \
             {CODE}flashcore plans --drop {file}:{number}{CODE:#} undoes that"
        );
        if !matches!(PlanSetting::from_env(), PlanSetting::Usual | PlanSetting::User) {
            text.push_str("; as long as FLASHCORE_PLANS is set to something else, it does not");
        }
        style::field("plan", &text)
    }
}
