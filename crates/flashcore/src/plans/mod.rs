//! How a problem would be computed ([`PlanSummary`]), and tables of measured kernels ([`Plans`]).
//!
//! A kernel is looked up in the user's tables for the device, then in the table shipped for it. If
//! no row serves the problem, or its kernel is refused, heuristics choose. `FLASHCORE_PLANS` pins
//! one of the three, or a file.

mod error;
mod here;
mod summary;
mod table;

use std::path::{Path, PathBuf};

use flashcore_ir::{Profile, files};
use flashcore_problem::Problem;

pub use error::PlanError;
#[cfg(feature = "cpu")]
pub use flashcore_cpu::CpuConfig;
pub use flashcore_kernels::wgmma::gathers_keys;
pub use flashcore_kernels::{Choice, Config, Considered, NoPlan, Plan, Refusal, Step, Suggestion, UnknownConfig};
pub use here::{CPU_NAME_VARIABLE, cpu_name, user_plans_folder};
#[cfg(feature = "cpu")]
pub use summary::CpuChoice;
pub use summary::PlanSummary;
pub use table::{PLAN_FORMAT, PlanClass, PlanDevice, PlanEntry, PlanRow, PlanTable};

use crate::KernelId;

/// The environment variable that pins the tables ([`PlanSetting`]).
pub const PLANS_VARIABLE: &str = "FLASHCORE_PLANS";

/// Tables that come with the library: name and number of SMs of the GPU, the name of the table, its
/// text. Tables of other GPUs are not parsed.
const SHIPPED: [(&str, u32, &str, &str); 1] = [(
    "NVIDIA H200",
    132,
    "the shipped table of the NVIDIA H200",
    include_str!("../../data/plans/h200.json"),
)];

/// Which tables choose kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanSetting {
    /// The user's tables, then the shipped ones, then heuristics.
    #[default]
    Usual,
    /// Shipped tables, then heuristics: the same on every machine of a kind.
    Shipped,
    /// The user's tables, then heuristics.
    User,
    /// Heuristics alone.
    Heuristics,
    /// This file, then heuristics.
    File(PathBuf),
}

impl PlanSetting {
    /// Parses a value of `FLASHCORE_PLANS`: `shipped`, `user`, `none`, or a file. Empty is `Usual`.
    ///
    /// ```
    /// use flashcore::unstable::plans::PlanSetting;
    /// assert_eq!(PlanSetting::of_value("none"), PlanSetting::Heuristics);
    /// assert_eq!(PlanSetting::of_value("mine.json"), PlanSetting::File("mine.json".into()));
    /// ```
    pub fn of_value(value: &str) -> PlanSetting {
        match value {
            "" => PlanSetting::Usual,
            "shipped" => PlanSetting::Shipped,
            "user" => PlanSetting::User,
            "none" => PlanSetting::Heuristics,
            file => PlanSetting::File(file.into()),
        }
    }

    /// The setting of the environment.
    pub fn from_env() -> PlanSetting {
        let value = std::env::var_os(PLANS_VARIABLE).unwrap_or_default();
        match value.to_str() {
            Some(value) => PlanSetting::of_value(value),
            None => PlanSetting::File(value.into()),
        }
    }
}

/// The device whose tables are used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PlanTarget {
    /// A device of this machine: a table is for it if name, architecture and units are equal.
    Device(PlanDevice),
    /// A card, which this machine need not have: a table is for it if it was measured on such a
    /// card.
    Card(&'static Profile),
}

impl PlanTarget {
    fn name(&self) -> String {
        match self {
            PlanTarget::Device(device) => device.to_string(),
            PlanTarget::Card(profile) => profile.title.to_string(),
        }
    }

    fn is(&self, name: &str, units: u32) -> bool {
        match self {
            PlanTarget::Device(device) => device.name == name && device.units == units,
            // A calibrated card has other values and the same title.
            PlanTarget::Card(profile) => Profile::of_device(name, units).is_some_and(|of| of.title == profile.title),
        }
    }

    fn is_device(&self, of: &PlanDevice) -> bool {
        let same_target = match self {
            PlanTarget::Device(device) => device.target == of.target,
            PlanTarget::Card(profile) => profile.target.name() == of.target,
        };
        same_target && self.is(&of.name, of.units)
    }
}

/// A table and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTable {
    /// The file, or what the shipped table is called.
    pub name: String,
    /// The table.
    pub table: PlanTable,
}

/// A row that serves a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundRow<'a> {
    /// The file, or what the shipped table is called.
    pub table: &'a str,
    /// The device it was measured on.
    pub device: &'a PlanDevice,
    /// The row's number, from 1.
    pub number: usize,
    /// The row.
    pub row: &'a PlanRow,
}

impl FoundRow<'_> {
    /// Table, row number and evidence, in one clause.
    pub fn why(&self) -> String {
        format!("row {} of {}: {}", self.number, self.table, self.row.evidence())
    }
}

/// The tables that a device uses, in order of precedence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plans {
    tables: Vec<NamedTable>,
    notes: Vec<PlanError>,
}

impl Plans {
    /// No tables: heuristics choose.
    pub fn none() -> Plans {
        Plans::default()
    }

    /// These tables in this order, for any device.
    pub fn of_tables(tables: Vec<NamedTable>) -> Plans {
        let mut plans = Plans::none();
        tables.into_iter().for_each(|table| plans.add(table));
        plans
    }

    /// The tables for a device: of [`PlanSetting::from_env`], with the user's tables in
    /// [`user_plans_folder`].
    ///
    /// # Errors
    /// As [`Plans::find`].
    pub fn load(target: &PlanTarget) -> Result<Plans, PlanError> {
        Plans::find(&PlanSetting::from_env(), user_plans_folder().as_deref(), target)
    }

    /// The tables for a device under a setting, with the user's tables in `folder`.
    ///
    /// Tables and rows in the user's folder that cannot be used are skipped and
    /// [noted](Plans::notes); tables of other devices are skipped.
    ///
    /// # Errors
    /// A file that the setting names is invalid, also in a single row; `user` without a folder.
    pub fn find(setting: &PlanSetting, folder: Option<&Path>, target: &PlanTarget) -> Result<Plans, PlanError> {
        let mut plans = Plans::none();
        match setting {
            PlanSetting::Heuristics => {}
            PlanSetting::Shipped => plans.add_shipped(target),
            PlanSetting::User => plans.add_folder(folder.ok_or(PlanError::NoFolder)?, target),
            PlanSetting::Usual => {
                if let Some(folder) = folder {
                    plans.add_folder(folder, target);
                }
                plans.add_shipped(target);
            }
            PlanSetting::File(path) => {
                let table = read_table(path)?;
                if !target.is_device(&table.table.device) {
                    return Err(PlanError::Device {
                        file: table.name,
                        of: table.table.device.to_string(),
                        here: target.name(),
                    });
                }
                plans.add(table);
                if let Some(wrong) = plans.notes.first() {
                    return Err(wrong.clone());
                }
            }
        }
        Ok(plans)
    }

    fn add(&mut self, named: NamedTable) {
        let wrong = named.table.entries.iter().enumerate().filter_map(|(place, entry)| {
            Some(PlanError::Row {
                file: named.name.clone(),
                row: place + 1,
                reason: entry.row.as_ref().err()?.clone(),
            })
        });
        self.notes.extend(wrong);
        self.tables.push(named);
    }

    /// Puts a row into the first table if `new` makes one of its name, else into that new table, before all others.
    pub(crate) fn put_first(&mut self, row: PlanRow, new: NamedTable) {
        if self.tables.first().is_none_or(|first| first.name != new.name) {
            self.tables.insert(0, new);
        }
        self.tables[0].table.put(row);
    }

    fn add_folder(&mut self, folder: &Path, target: &PlanTarget) {
        for path in table_files(folder) {
            self.add_if_for(target, read_table(&path));
        }
    }

    fn add_shipped(&mut self, target: &PlanTarget) {
        for read in parse_shipped(|name, units| target.is(name, units)) {
            self.add_if_for(target, read);
        }
    }

    fn add_if_for(&mut self, target: &PlanTarget, read: Result<NamedTable, PlanError>) {
        match read {
            Ok(named) if target.is_device(&named.table.device) => self.add(named),
            Ok(_) => {}
            Err(error) => self.notes.push(error),
        }
    }

    /// The tables, in order of precedence.
    pub fn tables(&self) -> &[NamedTable] {
        &self.tables
    }

    /// Why tables and rows were skipped.
    pub fn notes(&self) -> &[PlanError] {
        &self.notes
    }

    /// The rows that serve a problem, in order of precedence: at most one per table.
    pub fn rows(&self, problem: &Problem) -> Vec<FoundRow<'_>> {
        // The usual case, without the cost of a class.
        if self.tables.iter().all(|named| named.table.entries.is_empty()) {
            return Vec::new();
        }
        let Some(class) = PlanClass::of(problem) else {
            return Vec::new();
        };
        let rows = self.tables.iter().filter_map(|NamedTable { name, table }| {
            let (number, row) = table.row_for(&class)?;
            Some(FoundRow {
                table: name,
                device: &table.device,
                number,
                row,
            })
        });
        rows.collect()
    }

    /// The same as suggestions to [`select_among`](flashcore_kernels::select_among), in the same
    /// order.
    pub fn suggestions(&self, problem: &Problem) -> Vec<Suggestion> {
        let suggest = |found: FoundRow<'_>| match found.row.kernel {
            KernelId::Gpu(config) => Some(Suggestion {
                config,
                why: found.why(),
            }),
            // Tables of GPUs have none.
            #[cfg(feature = "cpu")]
            KernelId::Cpu(_) => None,
        };
        self.rows(problem).into_iter().filter_map(suggest).collect()
    }
}

/// The UTC day, `2026-11-21`, of a time in seconds since 1970, as rows have it.
///
/// ```
/// assert_eq!(flashcore::unstable::plans::date(1_795_219_200), "2026-11-21");
/// assert_eq!(flashcore::unstable::plans::date(951_782_400), "2000-02-29");
/// ```
pub fn date(seconds: u64) -> String {
    // Days since 0000-03-01, in eras of 400 years (Howard Hinnant, "chrono-compatible low-level date algorithms").
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{:02}", of_year - (153 * march + 2) / 5 + 1)
}

/// The files in a folder of tables, sorted by name; none if there is no such folder.
pub fn table_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    paths
}

/// The table of a file.
///
/// # Errors
/// [`PlanError::Unreadable`], [`PlanError::NotATable`], [`PlanError::Format`].
pub fn read_table(path: &Path) -> Result<NamedTable, PlanError> {
    let name = path.display().to_string();
    let text = files::read_text_capped(path, files::SMALL).map_err(|error| PlanError::Unreadable {
        file: name.clone(),
        reason: error.to_string(),
    })?;
    let table = PlanTable::parse(&text, &name)?;
    Ok(NamedTable { name, table })
}

/// All tables that come with the library.
///
/// # Errors
/// As [`PlanTable::parse`]; tests parse them.
pub fn shipped_tables() -> Result<Vec<NamedTable>, PlanError> {
    parse_shipped(|_, _| true).collect()
}

fn parse_shipped(wanted: impl Fn(&str, u32) -> bool) -> impl Iterator<Item = Result<NamedTable, PlanError>> {
    let tables = SHIPPED.into_iter().filter(move |(gpu, sms, ..)| wanted(gpu, *sms));
    tables.map(|(_, _, title, text)| {
        let (name, table) = (title.to_string(), PlanTable::parse(text, title)?);
        Ok(NamedTable { name, table })
    })
}
