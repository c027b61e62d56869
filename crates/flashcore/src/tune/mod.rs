//! [`Attention::tune`]: times kernels on this device and keeps the fastest, as `flashcore tune` does, within a program.

mod bed;
mod expected;
mod search;

use std::path::Path;
use std::time::Duration;

use flashcore_problem::Problem;

use crate::attention::Backend;
use crate::files::write_whole;
use crate::plans::{NamedTable, PlanClass, PlanDevice, PlanError, PlanRow, PlanTable, date, read_table};
use crate::{Attention, Error, KernelId};

/// The name of the table with the rows that [`Attention::tune`] added.
const TABLE: &str = "what this program tuned";

/// What [`Attention::tune`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tuned {
    /// A row for each problem that was tuned. Where nothing was faster than the default, its row has
    /// the default.
    pub table: PlanTable,
    /// What was tried, problem by problem.
    pub searches: Vec<TuneSearch>,
    /// Problems that a row of a plan table serves already, and that were not tuned again.
    pub known: Vec<Problem>,
    /// Problems that the budget left no time for. Tuning the same problems again continues there.
    pub left: Vec<Problem>,
}

/// What was tried for a problem.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TuneSearch {
    /// The problem.
    pub problem: Problem,
    /// The kernel that is used for it from now on.
    pub kernel: KernelId,
    /// The one before.
    pub default: KernelId,
    /// How much less time the kernel takes than the default, as a share of the default's, and the
    /// interval of that at 99 %. 0 where the kernel is the default.
    pub gain: f64,
    /// See [`TuneSearch::gain`].
    pub interval: [f64; 2],
    /// How many kernels were timed, with the default.
    pub timed: usize,
    /// Kernels that were not timed: refused, or wrong. Each with the reason.
    pub left_out: Vec<(KernelId, String)>,
}

/// How [`Attention::tune_watched`] goes along.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TuneProgress<'a> {
    /// A problem begins: number `index`, from 0, of `count`.
    Problem {
        /// The problem.
        problem: &'a Problem,
        /// Its number among those that are tuned.
        index: usize,
        /// How many are tuned.
        count: usize,
    },
    /// A kernel was timed: its time relative to the fastest before it.
    Timed(&'a KernelId, f64),
    /// A kernel was left out, with the reason.
    LeftOut(&'a KernelId, &'a str),
    /// A problem is done.
    Done(&'a TuneSearch),
}

impl Tuned {
    /// Adds the rows to the table in a file, in place of rows for the same problems, or begins one.
    /// `flashcore plans` and [`Attention::new`] read it from
    /// [`user_plans_folder`](crate::plans::user_plans_folder), or where `FLASHCORE_PLANS` names it.
    ///
    /// Writers of one file must take turns; readers find the old table or the new one.
    ///
    /// # Errors
    /// [`PlanError`]: a file that is no plan table, or one of another device. It is not changed.
    pub fn save(&self, file: &Path) -> Result<(), Error> {
        let unusable = |reason: &dyn std::fmt::Display| PlanError::Unwritable {
            file: file.display().to_string(),
            reason: reason.to_string(),
        };
        let mut table = if file.exists() {
            read_table(file)?.table
        } else {
            PlanTable::new(self.table.device.clone())
        };
        if table.device != self.table.device {
            return Err(PlanError::Device {
                file: file.display().to_string(),
                of: table.device.to_string(),
                here: self.table.device.to_string(),
            }
            .into());
        }
        self.table.rows().for_each(|(_, row)| table.put(row.clone()));
        let text = table.to_json().map_err(|error| unusable(&error))?;
        Ok(write_whole(file, text.as_bytes()).map_err(|error| unusable(&error))?)
    }
}

impl Attention {
    /// Searches the fastest kernel for each problem on this device, and uses it from now on: what
    /// `flashcore tune` does, for a server at its start.
    ///
    /// The budget is shared equally by the problems. A search begins at the default and tries kernels
    /// near it, then kernels near the fastest. Each is compiled, its output, or its gradients of a
    /// [backward problem](Problem::backward), are compared with float64 on some rows, and only then it
    /// is timed in turns with the fastest so far. At the end the fastest is compared with the default;
    /// it is taken if it is faster by 1 % or more, at 99 % confidence. A search may exceed its share
    /// by the time in which one kernel compiles, and in which those rows are computed in float64: up
    /// to some seconds for long backward problems. Of keys of very long ones, dK and dV are not
    /// compared, only that all of them were written and are numbers.
    ///
    /// A problem that a row of a plan table serves is not tuned again, so a second call with the same
    /// problems does nothing, and one with a [saved](Tuned::save) table continues where the first
    /// ended. Nothing else should run on the device meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    /// use flashcore::unstable::plans::Plans;
    /// use flashcore::{Attention, Device, Problem};
    ///
    /// let problem = Problem::builder().heads(2, 2).seq_len(64).head_dim(64).build()?;
    /// let mut attention = Attention::with(Device::cpu(), Plans::none())?;
    /// let tuned = attention.tune(&[problem.clone()], Duration::from_secs(20))?; // it ends when nothing is left to try
    /// assert_eq!(attention.plan(&problem)?.kernel(), tuned.searches[0].kernel);
    /// println!("{}", tuned.table.to_json()?); // what FLASHCORE_PLANS may name
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::CannotTune`] for an `Attention` of one kernel, and problems that plan tables are not
    /// for; [`Error::WrongOutput`] if the default's output is wrong; problems that no kernel serves;
    /// failures of the device. What was found before the error stays in use.
    pub fn tune(&mut self, problems: &[Problem], budget: Duration) -> Result<Tuned, Error> {
        self.tune_watched(problems, budget, &mut |_| ())
    }

    /// The same, and `watch` is told how it goes along.
    ///
    /// # Errors
    /// As [`Attention::tune`].
    pub fn tune_watched(
        &mut self,
        problems: &[Problem],
        budget: Duration,
        watch: &mut dyn FnMut(TuneProgress<'_>),
    ) -> Result<Tuned, Error> {
        self.may_choose()?;
        let device = PlanDevice::of(&self.device());
        let mut tuned = Tuned {
            table: PlanTable::new(device),
            searches: Vec::new(),
            known: Vec::new(),
            left: Vec::new(),
        };
        let mut wanted: Vec<(Problem, PlanClass)> = Vec::new();
        for problem in problems {
            let class = PlanClass::of(problem).ok_or_else(|| Error::CannotTune {
                what: problem.to_string(),
                remedy: "plan tables are for dense tensors of equal lengths without offsets; leave it out",
            })?;
            if !self.plans().rows(problem).is_empty() {
                tuned.known.push(problem.clone());
            } else if wanted.iter().all(|(_, other)| other.serves(&class).is_none()) {
                wanted.push((problem.clone(), class));
            }
        }
        let began = std::time::Instant::now();
        for (index, (problem, class)) in wanted.iter().enumerate() {
            let now = began.elapsed();
            if now >= budget {
                tuned.left.push(problem.clone());
                continue;
            }
            let count = wanted.len();
            watch(TuneProgress::Problem { problem, index, count });
            let share = (budget - now) / (count - index) as u32;
            let default = self.plan(problem)?.kernel();
            let Some(found) = bed::search(self, problem, default, share, watch)? else {
                tuned.left.push(problem.clone());
                continue;
            };
            let row = PlanRow {
                problem: class.clone(),
                kernel: found.kernel,
                against: found.default.to_string(),
                gain: found.gain,
                interval: found.interval,
                revision: concat!("flashcore ", env!("CARGO_PKG_VERSION")).to_string(),
                driver: bed::driver(&self.device()),
                date: date(std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())),
            };
            tuned.table.put(row.clone());
            self.use_row(row);
            watch(TuneProgress::Done(&found));
            tuned.searches.push(found);
        }
        Ok(tuned)
    }

    /// Whether kernels are chosen by tables and heuristics.
    fn may_choose(&self) -> Result<(), Error> {
        let fixed = match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(config) => config.map(|config| config.to_string()),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.config.map(|config| config.to_string()),
        };
        match fixed {
            None => Ok(()),
            Some(kernel) => Err(Error::CannotTune {
                what: format!("an Attention that was made for the kernel {kernel}"),
                remedy: "make it with Attention::new, which chooses kernels",
            }),
        }
    }

    /// Puts a row before all tables.
    fn use_row(&mut self, row: PlanRow) {
        let table = PlanTable::new(PlanDevice::of(&self.device()));
        let name = TABLE.to_string();
        self.plans.put_first(row, NamedTable { name, table });
        match &mut self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => {}
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.forget_plans(),
        }
    }
}
