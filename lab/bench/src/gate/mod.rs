//! The gate: whether a build, or a user's kernel, may be merged. It examines problems, by default the [acceptance
//! set](ACCEPTANCE), and judges what it finds against a [`Baseline`] that was written before.
//!
//! [`examine`] chooses the kernel of each problem on each card, assembles it where there is a `ptxas`, simulates it,
//! and computes the problems on a device, or predicts times and work on a card that need not be here;
//! [`Evidence::read`] reads measured times from the evidence store. [`judge`] touches nothing: it says of each
//! [`Check`] whether it passed, failed, or could not be judged, and why.

mod baseline;
mod evidence;
mod judge;
mod kernels;
mod predicted;
#[cfg(test)]
mod tests;

use flashcore::Device;
use flashcore_check::mutate::Operator;
use flashcore_ir::{Chip, Profile};
use flashcore_kernels::Config;
use flashcore_problem::{Comparison, InputKind};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::parity::{Engine, Wrong};
use crate::problems::stored_name;
use crate::{Case, Result};

pub use baseline::Baseline;
pub use evidence::Evidence;
pub use judge::{Allowed, Check, CheckName, Judged, Outcome, judge};
pub use kernels::Built;
pub use predicted::Row;

/// The problem set that is examined unless others are named.
pub const ACCEPTANCE: &str = "acceptance";
/// Seed of the inputs: errors of two builds are of the same numbers.
const SEED: u64 = 1;

/// A card that kernels are chosen for.
#[derive(Clone, Debug)]
pub struct Card {
    /// Its name on the command line: `l4`, `sm_120`.
    pub name: String,
    /// What kernels are planned for.
    pub chip: Chip,
    /// The card, whose shipped plan table counts; `None` for an architecture.
    pub profile: Option<&'static Profile>,
}

/// What to examine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The problems.
    pub cases: Vec<Case>,
    /// Cards whose kernels are built and simulated.
    pub cards: Vec<Card>,
    /// The device that computes the problems; `None`: the simulator alone.
    pub device: Option<Device>,
    /// Whether times and work are predicted, on cards that have a profile.
    pub predicts: bool,
    /// The kernel, in place of the library's choice.
    pub kernel: Option<Named>,
    /// A mistake to plant into each simulated kernel, at the first place that it has.
    pub plant: Option<Operator>,
}

/// A kernel that was named.
#[derive(Clone, Debug)]
pub enum Named {
    /// One of this project.
    Config(Config),
    /// A user's: `mine.toml`, `mine.toml:M64-WARPS4`. It is judged where no device computes.
    Own(String),
}

/// What a build was found to be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct State {
    /// The commit of the build.
    pub revision: String,
    /// The kernels of the set, once each.
    pub built: Vec<Built>,
    /// Why spills are unknown, where there is no assembler.
    pub unassembled: Option<String>,
    /// One simulation for each kernel and kind of mask.
    pub simulated: Vec<Computed>,
    /// The set on the device.
    pub computed: Vec<Computed>,
    /// The device; `None` if there was none.
    pub device: Option<String>,
    /// What is predicted of each problem; `None` if nothing was to be.
    pub predicted: Option<Vec<Row>>,
    /// The first problem that the user's kernel does not serve, and why; such problems are left out.
    pub left_out: Option<String>,
}

/// A kernel that computed a problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Computed {
    /// Where: `sim l4`, `cpu`, `sm_90`.
    pub on: String,
    /// Name of the problem. The simulator computed one sequence of it, with two heads.
    pub case: String,
    /// The kernel; `None` if there is none.
    pub kernel: Option<String>,
    /// Its error, if it is right.
    pub error: Option<Error>,
    /// Findings, refusals, or a wrong output.
    pub wrong: Option<String>,
}

impl Computed {
    fn new(on: String, case: &Case, kernel: Option<String>, found: std::result::Result<Comparison, Wrong>) -> Computed {
        let case = case.name.clone();
        Computed {
            error: found.as_ref().ok().map(|found| Error {
                on: on.clone(),
                case: case.clone(),
                kernel: kernel.clone().unwrap_or_default(),
                frobenius: found.frobenius,
                max_abs: found.max_abs,
            }),
            wrong: found.err().map(|wrong| wrong.to_string()),
            on,
            case,
            kernel,
        }
    }
}

/// An error against float64. Two builds are compared by the relative one: the largest is one element's, and varies
/// more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Error {
    /// Where it was computed: `sim l4`, `cpu`, `sm_90`.
    pub on: String,
    /// Name of the problem.
    #[serde(deserialize_with = "stored_name")]
    pub case: String,
    /// The kernel.
    pub kernel: String,
    /// `‖got − want‖ / ‖want‖`.
    pub frobenius: f64,
    /// Largest `|got − want|`.
    pub max_abs: f64,
}

impl State {
    /// Every error that was found.
    pub fn errors(&self) -> impl Iterator<Item = &Error> {
        let all = self.simulated.iter().chain(&self.computed);
        all.filter_map(|computed| computed.error.as_ref())
    }
}

/// Examines this build. `at` is told what is being done.
///
/// # Errors
/// Plan tables that cannot be read. What is wrong with a kernel is part of the [`State`].
pub fn examine(options: &Options, at: &(dyn Fn(&str) + Sync)) -> Result<State> {
    at("choosing kernels");
    let (chosen, left_out) = kernels::choose(options)?;
    at("assembling kernels");
    let (built, unassembled) = kernels::build(&chosen);
    let simulated = kernels::simulate(options, &chosen, at);
    let predicted = options.predicts.then(|| predicted::predict(&chosen, at));
    at("computing on the device");
    let kernel = match options.kernel {
        Some(Named::Config(config)) => Some(config),
        _ => None,
    };
    let devices = options.device.iter();
    let computed = devices.flat_map(|device| compute(device, kernel, &options.cases));
    Ok(State {
        revision: crate::revision().to_string(),
        built,
        unassembled,
        simulated,
        computed: computed.collect(),
        device: options.device.as_ref().map(Device::to_string),
        predicted,
        left_out,
    })
}

/// Computes the problems on a device. A kernel that was named runs on GPUs only.
fn compute(device: &Device, kernel: Option<Config>, cases: &[Case]) -> Vec<Computed> {
    let engine = Engine::Device(device.clone());
    let on = device.target().map_or("cpu".to_string(), |target| target.to_string());
    let one = |case: &Case| {
        let given = kernel.and_then(|config| engine.given(&case.problem, config));
        let drawn = given.unwrap_or_else(|| engine.choice(&case.problem));
        let (kernel, found) = match drawn {
            Ok(drawn) => {
                let found = engine.compute(&drawn, &case.problem, (InputKind::Normal, SEED), None);
                (Some(drawn.kernel.to_string()), found.map(|found| found.out))
            }
            Err(why) => (None, Err(why)),
        };
        Computed::new(on.clone(), case, kernel, found)
    };
    cases.par_iter().map(one).collect()
}
