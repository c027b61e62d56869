//! What is wrong with a plan table.

use thiserror::Error;

/// Why a plan table, or a row of one, is not used. Each message names the file, what is wrong, and
/// what to do.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// The file cannot be read.
    #[error("the plan table {file} cannot be read: {reason}; FLASHCORE_PLANS is shipped, user, none, or a file")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system says.
        reason: String,
    },
    /// The file cannot be written.
    #[error("the plan table {file} cannot be written: {reason}; save it where this user may write")]
    Unwritable {
        /// The file.
        file: String,
        /// What the system says.
        reason: String,
    },
    /// There is no place where the user's tables would lie.
    #[error("FLASHCORE_PLANS is `user`, and neither XDG_DATA_HOME nor HOME is set: set one, or name a file")]
    NoFolder,
    /// The file is something else.
    #[error("{file} is no plan table: {reason}; mend it, or move it away and let `flashcore tune` write a new one")]
    NotATable {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The table has a form that this build does not know.
    #[error(
        "the plan table {file} has format {given}; this build reads {known}: use the build that wrote it, or move it away"
    )]
    Format {
        /// The file.
        file: String,
        /// Its format.
        given: u64,
        /// The format there is.
        known: u64,
    },
    /// A row that cannot be used.
    #[error(
        "row {row} of the plan table {file} cannot be used: {reason}; tune its problem again, or take it out: `flashcore plans drop {file}:{row}`"
    )]
    Row {
        /// The file.
        file: String,
        /// Which row, from 1.
        row: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The table that was asked for was measured on another device.
    #[error(
        "the plan table {file} was measured on {of}, and this is {here}; name a table of this device, or unset FLASHCORE_PLANS"
    )]
    Device {
        /// The file.
        file: String,
        /// Where it was measured.
        of: String,
        /// The device at hand.
        here: String,
    },
}

flashcore_problem::debug_as_message!(PlanError);
