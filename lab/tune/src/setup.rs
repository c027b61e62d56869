//! What a search begins with on a device: space, first candidate, timing.

use std::path::Path;

use flashcore::unstable::cuda::DeviceInfo;
use flashcore::unstable::plans::{PlanDevice, PlanTarget, Plans};
use flashcore_bench::DeviceIdentity;
use flashcore_bench::micro::rates;
use flashcore_check::cost::{Forecast, predicted_card};
use flashcore_ir::{Chip, Profile, Target, files};
use flashcore_kernels::{Config, FAMILIES, Family, KernelCache, Plan};
use flashcore_problem::Problem;

use crate::default::DefaultKernel;
use crate::error::TuneError;
use crate::examine::Timing;
use crate::gate::Gatekeeper;
use crate::insight::Advisor;
use crate::own::{OWN, OwnKernels};
use crate::replay::{Measured, Table};
use crate::space::{ALL, Space};
use crate::worker::planted;

/// What a search begins with.
#[derive(Clone)]
pub struct Setup {
    /// The configs that may be proposed.
    pub space: Space,
    /// The device as that of a plan table; `None` for replays and predictions.
    pub device: Option<PlanDevice>,
    /// The architecture; `None` for the host and replays.
    pub chip: Option<Chip>,
    /// The first candidate: the default, or the slowest config of a replay.
    pub start: String,
    /// The kernel that the library runs without tuning; `None` for a replay.
    pub default: Option<DefaultKernel>,
    pub(crate) timing: Timing,
    /// Candidates to propose ahead.
    pub(crate) window: usize,
    /// The source of predictions and claims; `None` on the host and for cards without a profile.
    pub advisor: Option<Advisor>,
    /// Why there are no predictions, or none from measured rates, with the remedy.
    pub rates_note: Option<String>,
    /// How far predicted times may be off; `None` where times are measured.
    pub trust: Option<String>,
    /// Errors of plan tables and rows that were skipped.
    pub plan_notes: Vec<String>,
    /// The user's kernels, which are candidates as all others.
    pub own: OwnKernels,
}

const NEVER_MEASURED: &str = "predicted with the profile's rates: this card was never measured; `flashcore device --measure` \
     does so once, in some seconds";

/// Candidates that are compiled while one is timed on a GPU.
const GPU_WINDOW: usize = 8;

impl Setup {
    /// For a device: `cpu`, `cuda:N`, `replay:FILE` (`replay:shipped` for the space in this crate, or a
    /// search's folder), `predict:CARD` for a card that need not be here.
    /// `families` are names of the families to search, with the user's kernels; empty means those worth searching.
    /// `torture` adds planted candidates.
    pub fn new(
        device: &str,
        problem: &Problem,
        families: &[String],
        torture: bool,
        own: OwnKernels,
    ) -> Result<Setup, TuneError> {
        if problem.has_lengths() {
            let why = "packed sequences and caches with lengths are not searched: a search draws other lengths for each \
                       look; use `bench`, which takes `sequences`";
            return Err(TuneError::Usage(format!("{problem}: {why}")));
        }
        let card = card(device)?;
        let replayed = device.strip_prefix("replay:");
        if torture && (card.is_some() || replayed.is_some()) {
            let allowed = "none on a replay or a prediction, where nothing runs";
            return Err(TuneError::bad("torture", "asked for", allowed));
        }
        if let Some(file) = replayed {
            let fixed = "none on a replay, whose space is fixed";
            if !families.is_empty() {
                return Err(TuneError::bad("family", families.join(","), fixed));
            }
            if !own.is_empty() {
                return Err(TuneError::bad(
                    "kernel",
                    "a kernel of yours",
                    "none on a replay, which has measured times alone",
                ));
            }
            return Setup::replay(file, problem);
        }
        let (mut advisor, mut rates_note) = (None, None);
        let (chip, plan_device) = match (device, card) {
            ("cpu", _) => (None, PlanDevice::cpu()),
            (_, Some(profile)) => {
                advisor = Some(Advisor::new(problem, profile));
                let [name, target] = [profile.title, profile.target.name()].map(str::to_string);
                let units = profile.sms;
                (Some(Chip::from(profile)), PlanDevice { name, target, units })
            }
            (device, None) => {
                let info = gpu(device)?;
                (advisor, rates_note) = advisor_of(problem, &info);
                (Some(info.chip()), PlanDevice::cuda(&info))
            }
        };
        let plans = Plans::load(&PlanTarget::Device(plan_device.clone())).map_err(flashcore::Error::from)?;
        let default = DefaultKernel::of(problem, &plan_device, &plans)?;
        let trust = card
            .map(|profile| trust(problem, &default.kernel, profile))
            .transpose()?;
        let gate = Gatekeeper::new(problem, chip).with_own(&own);
        Ok(Setup {
            space: gate.space(chosen(&gate, families)?, torture),
            chip,
            device: Some(plan_device).filter(|_| card.is_none()),
            start: default.kernel.clone(),
            default: Some(default),
            timing: chip.map_or_else(Timing::for_cpu, |_| Timing::for_gpu()),
            window: chip.filter(|_| card.is_none()).map_or(1, |_| GPU_WINDOW),
            advisor,
            rates_note,
            trust,
            plan_notes: plans.notes().iter().map(ToString::to_string).collect(),
            own,
        })
    }

    /// It begins at the slowest config that works, the hardest start.
    fn replay(file: &str, problem: &Problem) -> Result<Setup, TuneError> {
        let measured = read_measured(file)?;
        let names: Vec<&str> = measured.tables.iter().map(|table| table.case.name.as_str()).collect();
        let known = names.join(", ");
        let is_this = |table: &&Table| table.case.problem == *problem;
        let nothing = || TuneError::nothing(format!("{problem} was not measured there; it has {known}"));
        let table = measured.tables.iter().find(is_this).ok_or_else(nothing)?;
        let start = table.worst().ok_or_else(nothing)?.0.clone();
        let mut space = table.space();
        space.measured = Some(table.digest().into());
        Ok(Setup {
            space,
            chip: None,
            device: None,
            start,
            default: None,
            timing: Timing::for_gpu(),
            window: 1,
            advisor: measured.advisor(problem),
            rates_note: None,
            trust: None,
            plan_notes: Vec::new(),
            own: OwnKernels::default(),
        })
    }
}

/// The card of a device whose times are predicted; `None` of others.
pub(crate) fn card(device: &str) -> Result<Option<&'static Profile>, TuneError> {
    predicted_card(device).transpose().map_err(TuneError::Usage)
}

/// How far predictions for a card may be off, and why.
fn trust(problem: &Problem, default: &str, profile: &'static Profile) -> Result<String, TuneError> {
    let nothing = |why: &dyn std::fmt::Display| TuneError::nothing(format!("{default}: {why}"));
    let config: Config = default.parse().map_err(|why| nothing(&why))?;
    let plan = Plan::new(problem, &config, Chip::from(profile)).map_err(|why| nothing(&why))?;
    let forecast = Forecast::of(&plan, &KernelCache::default(), profile).map_err(|why| nothing(&why))?;
    let trust = forecast.prediction.trust;
    let [low, high] = [trust.low, trust.high].map(|end| (end - 1.0) * 100.0);
    let words = trust.words();
    let words = format!("times are predicted; measured ones may differ by {low:+.0} to {high:+.0} %: {words}");
    Ok(match forecast.assembler {
        None => format!("{words}; registers and spills are estimated: set FLASHCORE_PTXAS to a ptxas"),
        Some(_) => words,
    })
}

/// The advisor for a GPU, and why there is none or why it lacks measured rates.
fn advisor_of(problem: &Problem, info: &DeviceInfo) -> (Option<Advisor>, Option<String>) {
    let Some(profile) = Profile::of_device(&info.name, info.multiprocessors) else {
        let why = format!(
            "there is no profile of {}, so there are no predictions and no claims; \
             `flashcore list profiles` shows the profiles",
            info.name
        );
        return (None, Some(why));
    };
    let by_profile = Advisor::new(problem, profile);
    match rates::kept(&DeviceIdentity::cuda(info)) {
        Ok(Some(rates)) => (Some(by_profile.measured(rates.card())), None),
        Ok(None) => (Some(by_profile), Some(NEVER_MEASURED.to_string())),
        Err(stale) => (
            Some(by_profile),
            Some(format!("predicted with the profile's rates: {stale}")),
        ),
    }
}

/// Reads a file of measured spaces, the shipped one for `shipped`, or what a search has tried, by its folder.
pub(crate) fn read_measured(file: &str) -> Result<Measured, TuneError> {
    if file == "shipped" {
        return Measured::shipped();
    }
    if Path::new(file).is_dir() {
        return Measured::of_run(Path::new(file));
    }
    let text = files::read_text_capped(Path::new(file), 4 * files::SMALL)
        .map_err(|error| TuneError::file(Path::new(file), error))?;
    Measured::read(&text, file)
}

pub(crate) fn gpu(device: &str) -> Result<DeviceInfo, TuneError> {
    let devices: Vec<DeviceInfo> = flashcore_cuda::devices().map_err(flashcore::Error::from)?;
    let ordinal: Option<u32> = device.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
    let info = devices.iter().find(|info| Some(info.ordinal) == ordinal);
    let found = info.and_then(|info| {
        let (major, minor) = info.compute_capability;
        Target::for_capability(major, minor).filter(|target| target.is_supported())?;
        Some(info.clone())
    });
    found.ok_or_else(|| {
        let gpu = |info: &DeviceInfo| format!(", cuda:{} ({})", info.ordinal, info.name);
        let gpus: String = devices.iter().map(gpu).collect();
        TuneError::bad("device", device, format!("cpu, replay:FILE, predict:CARD{gpus}"))
    })
}

/// The families with these names, or those worth searching. Each serves the problem on the device.
fn chosen(gate: &Gatekeeper, names: &[String]) -> Result<Vec<Family>, TuneError> {
    if names.is_empty() {
        return Ok(gate.families());
    }
    let family = |name: &String| {
        if name == planted::NAME {
            return Ok(planted::FAMILY);
        }
        let family = ALL.into_iter().find(|family| family.name == name.as_str());
        let family = family.ok_or_else(|| {
            let of_gpus = FAMILIES.map(|family| family.name).join(", ");
            TuneError::bad("family", name, format!("{of_gpus} on a GPU; cpu on the host"))
        })?;
        let family = family.of_problem(&gate.problem);
        // A search without candidates would report that none is faster.
        match gate.why_not(&family) {
            None => Ok(family),
            Some(why) => {
                let allowed = format!("families with a kernel for this problem here; of {name}: {why}");
                Err(TuneError::bad("family", name, allowed))
            }
        }
    };
    // The user's kernels are searched in any case: alone, if no other family is named.
    names
        .iter()
        .filter(|name| name.as_str() != OWN || gate.has_none())
        .map(family)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_problem::Direction;

    #[test]
    fn the_host_begins_at_its_default() {
        let problem = Problem::named("small").unwrap();
        let setup = Setup::new("cpu", &problem, &[], false, OwnKernels::default()).unwrap();
        assert_eq!(setup.space.admits(&setup.start), Ok(()));
        assert_eq!((setup.chip, setup.window), (None, 1));
        assert!(setup.advisor.is_none());
        let tortured = Setup::new("cpu", &problem, &[], true, OwnKernels::default()).unwrap();
        assert!(tortured.space.admits("planted/hangs").is_ok());
        assert!(setup.space.admits("planted/hangs").is_err());
    }

    #[test]
    fn problems_with_lengths_are_refused() {
        let cache = Problem::builder().heads(8, 2).seq_len_q(1).seq_len_kv(64).head_dim(64);
        let cache = cache.kv_lengths(flashcore_problem::KvLengths::Cache).build().unwrap();
        for device in ["cpu", "replay:shipped"] {
            let why = Setup::new(device, &cache, &[], false, OwnKernels::default())
                .err()
                .unwrap();
            assert!(matches!(why, TuneError::Usage(_)), "{why}");
            assert!(why.to_string().contains("with lengths are not searched"), "{why}");
        }
    }

    #[test]
    fn unknown_devices_and_families_are_refused() {
        let problem = Problem::named("small").unwrap();
        let family = Setup::new("cpu", &problem, &["tensor".to_string()], false, OwnKernels::default())
            .err()
            .unwrap();
        assert!(family.to_string().contains("mma, wgmma"), "{family}");
        let of_gpus = Setup::new("cpu", &problem, &["mma".to_string()], false, OwnKernels::default())
            .err()
            .unwrap();
        assert!(of_gpus.to_string().contains("the device is the host"), "{of_gpus}");
        let replay = Setup::new(
            "replay:shipped",
            &problem,
            &["mma".to_string()],
            false,
            OwnKernels::default(),
        )
        .err()
        .unwrap();
        assert!(replay.to_string().contains("none on a replay"), "{replay}");
        let card = Setup::new("predict:l5", &problem, &[], false, OwnKernels::default())
            .err()
            .unwrap();
        assert!(card.to_string().contains("card is l5; allowed: "), "{card}");
        let file = Setup::new("replay:/nowhere", &problem, &[], false, OwnKernels::default())
            .err()
            .unwrap();
        assert!(file.to_string().contains("/nowhere"), "{file}");
    }

    #[test]
    fn named_families_have_the_levers_of_the_direction() {
        let problem = Problem::builder().heads(4, 4).seq_len(256).head_dim(64);
        let problem = problem.direction(Direction::Backward).build().unwrap();
        let gate = Gatekeeper::new(&problem, Some(Target::Sm90a.into()));
        let families = chosen(&gate, &["mma".to_string(), "wgmma".to_string()]).unwrap();
        assert_eq!(families.len(), 2);
    }
}
