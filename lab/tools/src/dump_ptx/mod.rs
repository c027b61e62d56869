//! Writes the PTX of the kernels that a release is assembled with.

mod everywhere;
mod of_target;
mod random_steps;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use flashcore_ir::{Chip, Target};
use flashcore_kernels::{Config, Plan, Refusal, Step};
use flashcore_problem::{Problem, ProblemBuilder};

use crate::shipped::{one_head, plan_rows};

/// Writes the PTX of the kernels that a release is assembled with, one file each.
///
/// FOLDER has what is assembled for every target and must be clean: of family `scalar` every tile
/// and warp count at the usual head sizes, and every dtype, access width and option on the default
/// tile, and the default kernels of the backward pass; of family `mma` split-KV, with the combine
/// kernels; appends; the ladder; builds with a tap.
///
/// FOLDER/sm_NN has what is assembled for that target and must be clean: the defaults of families
/// `mma` and `wgmma`, the kernels of the shipped plan tables, the backward passes of both, and
/// split-KV of `wgmma`.
///
/// FOLDER/varied/sm_NN has what may need more registers than there are, which only the compiler can tell (the driver
/// layer then refuses to load it, and another config is chosen): the defaults with log-sum-exp, with and without soft
/// cap, with sinks and with ALiBi, and every lever of `mma` at each of its values, one at a time.
///
/// What refuses its problem has a line in refused.txt of its folder, and each launch of a kernel one in launches.txt:
/// in FOLDER also the launches of random problems, whose kernels are not written.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    folder: PathBuf,
    /// Write all. Otherwise of those of a target some are written, in turn, which takes a minute.
    #[arg(long)]
    full: bool,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let Options { folder, full } = options;
    let mut all = Kernels::one_of(1);
    everywhere::scalar_kernels(&mut all);
    everywhere::backward_kernels(&mut all);
    everywhere::append_kernels(&mut all)?;
    everywhere::check_kernels(&mut all)?;
    everywhere::ladder_kernels(&mut all);
    everywhere::split_kernels(&mut all);
    everywhere::tap_kernels(&mut all)?;
    let random = if *full { 400 } else { 40 };
    let [problems, plans] = random_steps::add(&mut all, random)?;
    println!("launches of {plans} plans of {problems} random problems");
    all.write(folder)?;
    let rows = plan_rows()?;
    for target in TARGETS {
        let [mut defaults, mut varied] = [3, 5].map(|some| Kernels::one_of(if *full { 1 } else { some }));
        of_target::mma_kernels(&mut defaults, &mut varied, target);
        of_target::backward_tensor_core_kernels(&mut defaults, target);
        of_target::listed_kernels(&mut defaults, &mut varied, target);
        if target == Target::Sm90a {
            of_target::split_wgmma_kernels(&mut defaults);
            of_target::packed_wgmma_kernels(&mut defaults);
            of_target::backward_of_other_head_dim_v(&mut defaults);
        }
        defaults.one_of = 1;
        if target == Target::Sm90a {
            of_target::backward_tiles_of_64_columns(&mut defaults)?;
        }
        varied.one_of = 1;
        // With log-sum-exp, and with a soft cap too.
        for row in rows.iter().filter(|row| row.target == target) {
            let shape = one_head(row.head_dims).dtype(row.dtype);
            defaults.add_shape(&shape, row.config, row.target);
            let shape = shape.return_lse(true);
            varied.add_shape(&shape, row.config, row.target);
            varied.add_shape(&shape.softcap(30.0), row.config, row.target);
        }
        defaults.write(&folder.join(target.name()))?;
        varied.write(&folder.join("varied").join(target.name()))?;
    }
    crate::verdict(true)
}

const TARGETS: [Target; 4] = [Target::Sm80, Target::Sm89, Target::Sm90a, Target::Sm120];

/// Distinct kernels by name: problems that differ only in lengths and strides share one.
#[derive(Default)]
struct Kernels {
    /// Of about so many that are asked for one is taken.
    one_of: usize,
    asked: usize,
    by_name: BTreeMap<String, String>,
    refused: BTreeSet<String>,
    launches: BTreeSet<String>,
}

impl Kernels {
    fn one_of(one_of: usize) -> Kernels {
        Kernels {
            one_of,
            ..Kernels::default()
        }
    }

    fn add(&mut self, problem: &Problem, config: Config, target: impl Into<Chip>) {
        self.asked += 1;
        // Mixed, since kinds of kernels take turns.
        let mixed = (self.asked as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        if (mixed as usize).is_multiple_of(self.one_of) {
            self.add_plan(problem, &config, Plan::new(problem, &config, target.into()));
        }
    }

    /// The same for a shape, if there is such a problem.
    fn add_shape(&mut self, shape: &ProblemBuilder, config: Config, target: Target) {
        if let Ok(problem) = shape.clone().build() {
            self.add(&problem, config, target);
        }
    }

    /// The kernel with the heads of a query in two warpgroups: of as many queries as a tile holds, on one SM, since
    /// that saves a round of tiles.
    fn add_in_two_warpgroups(&mut self, shape: &ProblemBuilder, config: Config, group: usize) {
        let Config::Wgmma(levers) = config else { return };
        let chip = Chip {
            target: Target::Sm90a,
            sms: 1,
        };
        if let Ok(problem) = shape.clone().seq_len_q(levers.rows as usize / group).build() {
            self.add(&problem, config, chip);
        }
    }

    fn add_plan(&mut self, problem: &Problem, config: &Config, plan: Result<Plan, Refusal>) {
        match plan {
            Ok(plan) => plan.steps().for_each(|step| self.add_step(step)),
            Err(refusal) => self.refuse(problem, config, &refusal),
        }
    }

    fn refuse(&mut self, problem: &Problem, what: &dyn Display, refusal: &Refusal) {
        self.refused.insert(format!("{problem}: {what}: {refusal}\n"));
    }

    fn add_step(&mut self, step: &Step) {
        let name = step.kernel.name().to_string();
        self.by_name.insert(name, step.kernel.to_ptx());
        self.add_launch(step);
    }

    fn add_launch(&mut self, step: &Step) {
        self.launches.insert(random_steps::line(step));
    }

    fn write(&self, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
        std::fs::create_dir_all(folder)?;
        for (name, ptx) in &self.by_name {
            std::fs::write(folder.join(format!("{name}.ptx")), ptx)?;
        }
        for (name, lines) in [("refused.txt", &self.refused), ("launches.txt", &self.launches)] {
            std::fs::write(folder.join(name), lines.iter().cloned().collect::<String>())?;
        }
        println!(
            "{} kernels and {} launches in {} ({} configs refused their problem)",
            self.by_name.len(),
            self.launches.len(),
            folder.display(),
            self.refused.len()
        );
        Ok(())
    }
}
