//! The time of a kernel of a PTX text on a card, by the cost model, and the lines that it goes to.

use flashcore_ir::Profile;
use flashcore_ptx::Module;
use flashcore_sim::{Class, Line, PtxKernel};
use serde::Serialize;

use super::run::{ForeignLaunch, RunError, prepare};
use crate::check::CheckError;
use crate::cost::{Accesses, Observation, Prediction};

/// Lines of each kind that are named.
const MOST: usize = 3;
/// Of a warp's time: a shorter wait is not named.
const SHORTEST: f64 = 0.05;
/// Accesses that cost less more than they must are not named.
const EXCESS: f64 = 1.25;

/// A line of the source at which time goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spent {
    /// The file.
    pub file: String,
    /// The line.
    pub line: u32,
    /// At what.
    #[serde(flatten)]
    pub at: Spending,
}

/// What takes time at a line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Spending {
    /// A warp waits: the share of its time.
    Wait {
        /// From 0 to 1.
        share: f64,
    },
    /// Bank conflicts: passes over shared memory by an access of a warp, and how many would do.
    Conflicts {
        /// As it is.
        passes: f64,
        /// Without conflicts.
        ideal: f64,
    },
    /// Accesses of a warp to global memory that are apart: sectors of 32 bytes, and how many would do.
    Uncoalesced {
        /// As it is.
        sectors: f64,
        /// Side by side.
        ideal: f64,
    },
}

/// The time of a kernel on a card.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Time {
    /// The prediction.
    #[serde(flatten)]
    pub prediction: Prediction,
    /// Where it goes: waits first, then conflicts, then accesses that are apart.
    pub lines: Vec<Spent>,
}

/// Predicts the time of a launch on a card, with the registers of a thread if they are known.
///
/// # Errors
/// The launch does not fit the kernel, or the model does not cover it.
pub fn time(
    text: &str,
    kernel: &str,
    file: &str,
    asked: &ForeignLaunch,
    profile: &'static Profile,
    registers: Option<u32>,
) -> Result<Time, CheckError> {
    let refused = |error| match error {
        RunError::Ptx(error) => CheckError::Simulator(error.into()),
        RunError::Simulator(error) => CheckError::Simulator(error),
        error => CheckError::Launch(error.to_string()),
    };
    let module = Module::read(text).map_err(|error| CheckError::Simulator(error.into()))?;
    let prepared = prepare(&module, kernel, file, asked).map_err(refused)?;
    let read = PtxKernel::read(&module, kernel, &prepared.launch)?;
    let observed = Observation::of_text(&module, &read, &prepared.contents, &asked.sim)?;
    let waits = observed.waits(profile).into_iter();
    let waits = waits
        .filter(|line| line.share >= SHORTEST)
        .take(MOST)
        .map(|line| Spent {
            file: line.line.file.to_string(),
            line: line.line.line,
            at: Spending::Wait { share: line.share },
        });
    let mut lines: Vec<Spent> = waits.collect();
    let mut accesses = observed.accesses();
    accesses.retain(|of| of.transactions > EXCESS * of.ideal && of.requests > 0.0);
    accesses.sort_by(|a, b| (b.transactions - b.ideal).total_cmp(&(a.transactions - a.ideal)));
    let (shared, global): (Vec<&Accesses>, Vec<&Accesses>) = accesses.iter().partition(|of| of.is_shared());
    let each = |of: &Accesses| [of.transactions / of.requests, of.ideal / of.requests];
    let at = |Line { file, line, .. }: Line, at| Spent {
        file: file.to_string(),
        line,
        at,
    };
    lines.extend(shared.into_iter().take(MOST).map(|of| {
        let [passes, ideal] = each(of);
        at(of.line, Spending::Conflicts { passes, ideal })
    }));
    let is_global = |of: &&Accesses| matches!(of.class, Class::LoadGlobal | Class::StoreGlobal | Class::CopyAsync);
    lines.extend(global.into_iter().filter(is_global).take(MOST).map(|of| {
        let [sectors, ideal] = each(of);
        at(of.line, Spending::Uncoalesced { sectors, ideal })
    }));
    Ok(Time {
        prediction: observed.predict(profile, &[registers]),
        lines,
    })
}
