//! `flashcore profile`: hardware counters of kernels, and what the cost model predicts of the same
//! launches.

use std::path::{Path, PathBuf};

use clap::Args;
use flashcore::testing::{InputKind, Inputs};
use flashcore::{Device, KernelId, Problem};
use flashcore_bench::gpu::{PreparedPlan, TensorSet};
use flashcore_bench::profile::{self, Goals, KernelProfile, LineProfile, Ncu, NcuError, Row, Verdict};
use flashcore_bench::{DeviceIdentity, RunIdentity};
use flashcore_check::cost::Prediction;
use flashcore_cuda::{Function, ModuleOptions, Stream};
use flashcore_kernels::Plan;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{BAD, Card, Failure, GOOD, HEAD, Outcome, Page, ProblemArgs, cost, kernels, machine, simulated, style};

/// Read a kernel's hardware counters with Nsight Compute, or predict them
///
/// Runs each kernel once under `ncu`, with clocks and caches as they are: busy shares of the tensor
/// cores, the exponential, FMA and ALU pipes, issue slots, shared memory, L2 and device memory,
/// occupancy, registers, bank conflicts, and what warps wait for. The second column is the cost
/// model's prediction of the same launch. Where there is no GPU or no ncu the predictions stand
/// alone and the output says so. --from reads counters that were taken on another machine: `ncu
/// --csv --page raw --set full PROGRAM > FILE.csv`.
#[derive(Args)]
#[command(after_help = "\
Goals: SM >= 70 %, tensor cores >= 30 %; where device memory is busier than the SM, device memory >= 65 %

Environment:
  FLASHCORE_NCU   the ncu to use, in place of the one on PATH

Exit codes: 0 profiled or predicted, 1 failed, 2 usage, 3 no such device or no permission")]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    problem: ProblemArgs,
    /// Kernels by id (`list levers` explains ids), in place of the one that would be chosen
    #[arg(long, value_name = "IDS", value_delimiter = ',', help_heading = "How")]
    kernel: Vec<String>,
    /// best, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "How")]
    device: String,
    /// Card that the predictions are for (`list profiles`) [default: this machine's, else l4]
    #[arg(long, value_name = "CARD", value_parser = Card::parse, help_heading = "How")]
    profile: Option<Card>,
    /// Counters that ncu printed as CSV elsewhere, in place of profiling here
    #[arg(long, value_name = "FILE.csv", help_heading = "How", conflicts_with_all = ["kernel", "device"])]
    from: Option<PathBuf>,
    /// Least busy share of the SM, per cent
    #[arg(long, value_name = "PERCENT", default_value_t = Goals::default().sm, help_heading = "Goals")]
    goal_sm: f64,
    /// Least busy share of device memory where it binds, per cent
    #[arg(long, value_name = "PERCENT", default_value_t = Goals::default().dram, help_heading = "Goals")]
    goal_dram: f64,
    /// Least busy share of the tensor cores, per cent
    #[arg(long, value_name = "PERCENT", default_value_t = Goals::default().tensor, help_heading = "Goals")]
    goal_tensor: f64,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// A `Launch` as JSON, to be launched and nothing else: what runs under ncu
    #[arg(long, hide = true)]
    launch: Option<String>,
}

const SEED: u64 = 1;

const LINES: usize = 5;

#[derive(Serialize, Deserialize)]
struct Launch {
    problem: Problem,
    kernel: String,
    device: String,
}

/// Launches before the one that is profiled: the first loads code, the others warm caches.
const WARM_UP: usize = 3;

struct Profiled {
    /// The config's id, or the kernel's name in a foreign profile.
    label: String,
    counters: Option<KernelProfile>,
    /// Or why there is none; `None` where nothing is predicted of it.
    prediction: Option<cost::Outcome>,
}

pub(crate) fn run(args: &ProfileArgs) -> Result<Outcome, Failure> {
    let goals = Goals {
        sm: args.goal_sm,
        dram: args.goal_dram,
        tensor: args.goal_tensor,
    };
    for (name, goal) in [("sm", goals.sm), ("dram", goals.dram), ("tensor", goals.tensor)] {
        if !(0.0..=100.0).contains(&goal) {
            let why = format!("--goal-{name} {goal} is not a share: give per cent from 0 to 100");
            return Err(Failure::usage(why));
        }
    }
    if let Some(file) = &args.from {
        let title = format!("counters of {}", file.display());
        show(args, &read(file)?, &goals, &title, None);
        return Ok(Outcome::Clean);
    }
    if let Some(text) = &args.launch {
        return launch(&serde_json::from_str(text)?);
    }
    let problem = args.problem.problem()?;
    let device = machine::device(&args.device)?;
    let (card, chosen) = plans(args, &problem, &device)?;
    let mut profiled = Vec::new();
    let ncu = match device.context() {
        None => Err("the device is the CPU".to_string()),
        Some(_) => Ncu::find().map_err(|error| error.to_string()),
    };
    for plan in &chosen {
        let registers: Vec<Option<u32>> = plan.steps().map(|_| None).collect();
        let prediction = Some(cost::predict(plan, card, &registers, cost::kept_rates(card).as_ref()));
        let label = plan.config.to_string();
        let launches = match &ncu {
            Err(_) => Vec::new(),
            Ok(ncu) => {
                let _spinner = style::spinner(&format!("ncu profiles {label}"));
                let (problem, kernel, device) = (problem.clone(), label.clone(), args.device.clone());
                counters(
                    ncu,
                    &Launch {
                        problem,
                        kernel,
                        device,
                    },
                    plan.steps().count(),
                )?
            }
        };
        let mut launches = launches.into_iter();
        // The prediction is of the whole plan; of several kernels the first does the work.
        profiled.push(Profiled {
            label: label.clone(),
            counters: launches.next(),
            prediction,
        });
        profiled.extend(launches.map(|counters| Profiled {
            label: format!("{label}: {}", counters.kernel),
            counters: Some(counters),
            prediction: None,
        }));
    }
    let source = match &ncu {
        Ok(ncu) => format!("counters by ncu {}, one launch, caches warm", ncu.version),
        Err(why) => format!("predicted only ({why})"),
    };
    let identity = device.context().map(|context| DeviceIdentity::cuda(context.info()));
    let identity = identity.map(RunIdentity::now);
    let title = format!("{problem} on {}\n{source}", card.title());
    show(args, &profiled, &goals, &title, identity);
    Ok(Outcome::Clean)
}

/// The card to predict for and the plans to profile on it.
fn plans(args: &ProfileArgs, problem: &Problem, device: &Device) -> Result<(Card, Vec<Plan>), Failure> {
    if let (Device::Cuda(_), Some(card)) = (device, args.profile) {
        let why = "is for predictions without a GPU; counters are of the card that is here";
        return Err(Failure::usage(format!("--profile {} {why}", card.name())));
    }
    let card = args.profile.unwrap_or_else(Card::default);
    let ids: Vec<Option<String>> = match kernels::ids(&args.kernel)? {
        ids if ids.is_empty() => vec![None],
        ids => ids.into_iter().map(Some).collect(),
    };
    let plan = |id: &Option<String>| {
        let config = id.as_deref().map(kernels::gpu).transpose()?;
        Ok(simulated::plan(problem, card, config)?.plan)
    };
    Ok((card, ids.iter().map(plan).collect::<Result<_, Failure>>()?))
}

fn counters(ncu: &Ncu, launch: &Launch, steps: usize) -> Result<Vec<KernelProfile>, Failure> {
    let myself = std::env::current_exe().map_err(Failure::failed)?;
    let text = serde_json::to_string(launch)?;
    let program = [
        myself.as_os_str(),
        "profile".as_ref(),
        "--launch".as_ref(),
        text.as_ref(),
    ];
    ncu.profile(WARM_UP * steps, steps, &program).map_err(|error| {
        let failure = match &error {
            NcuError::Failed(_) => Failure::failed(&error),
            _ => Failure::environment(&error),
        };
        failure.help("without counters: `flashcore explain` predicts, --from FILE.csv reads a profile made elsewhere")
    })
}

fn launch(launch: &Launch) -> Result<Outcome, Failure> {
    let (Device::Cuda(context), KernelId::Gpu(config)) = (&machine::device(&launch.device)?, launch.kernel.parse()?)
    else {
        return Err(Failure::usage("--launch takes a GPU kernel and a CUDA device"));
    };
    let stream = Stream::new(context)?;
    let plan = Plan::new(&launch.problem, &config, context.info().chip()).map_err(Failure::failed)?;
    let tensors = TensorSet::new(&stream, &launch.problem, plan.workspace_bytes()).map_err(Failure::failed)?;
    tensors.upload(&stream, &Inputs::generate(&launch.problem, InputKind::Normal, SEED))?;
    let options = ModuleOptions {
        line_info: true,
        ..ModuleOptions::default()
    };
    let load = |step: &flashcore_kernels::Step| Function::load(context, &step.kernel, &options);
    let functions = plan.steps().map(load).collect::<Result<Vec<_>, _>>()?;
    let prepared = PreparedPlan::new(&plan, &functions, &tensors.tensors()).map_err(Failure::failed)?;
    for _ in 0..=WARM_UP {
        prepared.enqueue(&stream)?;
    }
    stream.synchronize()?;
    Ok(Outcome::Clean)
}

fn read(file: &Path) -> Result<Vec<Profiled>, Failure> {
    let failed = |reason: &dyn std::fmt::Display| Failure::usage(format!("{}: {reason}", file.display()));
    let bytes = std::fs::read(file).map_err(|error| failed(&error))?;
    let profiles = profile::csv::read(&String::from_utf8_lossy(&bytes)).map_err(|reason| failed(&reason))?;
    let profiled = |counters: KernelProfile| Profiled {
        label: counters.kernel.clone(),
        counters: Some(counters),
        prediction: None,
    };
    Ok(profiles.into_iter().map(profiled).collect())
}

fn show(args: &ProfileArgs, profiled: &[Profiled], goals: &Goals, title: &str, identity: Option<RunIdentity>) {
    let json = || {
        let kernels: Vec<Value> = profiled.iter().map(|kernel| kernel.json(goals)).collect();
        json!({ "title": title, "run": identity, "goals": goals, "kernels": kernels })
    };
    style::show(args.json, json, || {
        let mut page = Page::new(format_args!("{HEAD}{title}{HEAD:#}"));
        for kernel in profiled {
            kernel.add(&mut page, goals);
        }
        page
    });
}

impl Profiled {
    fn rows(&self) -> Vec<Row> {
        profile::rows(self.counters.as_ref(), self.predicted())
    }

    fn predicted(&self) -> Option<&Prediction> {
        self.prediction.as_ref()?.as_ref().ok()
    }

    fn why_unpredicted(&self) -> Option<&String> {
        self.prediction.as_ref()?.as_ref().err()
    }

    fn verdicts(&self, goals: &Goals) -> Vec<Verdict> {
        let counters = self.counters.as_ref();
        counters.map_or_else(Vec::new, |counters| profile::verdicts(counters, goals))
    }

    fn json(&self, goals: &Goals) -> Value {
        json!({
            "kernel": self.label,
            "rows": self.rows(),
            "verdicts": self.verdicts(goals),
            "counters": self.counters,
            "prediction": self.predicted(),
            "unpredicted": self.why_unpredicted(),
        })
    }

    fn add(&self, page: &mut Page, goals: &Goals) {
        page.line(format_args!("\n{HEAD}{}{HEAD:#}", self.label));
        let time = |us: Option<f64>| us.map_or("-".to_string(), style::micros);
        let counters = self.counters.as_ref();
        let measured = counters.and_then(|counters| counters.get("time_ns")).map(|ns| ns / 1e3);
        let predicted = self.predicted().map(|prediction| prediction.micros);
        page.dim(format_args!(
            "{:<24}{:>12}{:>12}",
            "busy, % of the time", "measured", "predicted"
        ));
        for row in self.rows() {
            let share = |share: Option<f64>| share.map_or("-".to_string(), |share| format!("{share:.1}"));
            let verdict = self.verdicts(goals).into_iter().find(|verdict| verdict.key == row.key);
            let goal = match verdict.and_then(|verdict| Some((verdict.goal, verdict.reached?))) {
                None => String::new(),
                Some((goal, true)) => format!("   {GOOD}goal {goal:.0} reached{GOOD:#}"),
                Some((goal, false)) => format!("   {BAD}below the goal of {goal:.0}{BAD:#}"),
            };
            let (title, measured, predicted) = (row.title, share(row.measured), share(row.predicted));
            page.line(format_args!("  {title:<24}{measured:>12}{predicted:>12}{goal}"));
        }
        let (measured, predicted) = (time(measured), time(predicted));
        page.line(format_args!("  {:<24}{measured:>12}{predicted:>12}", "time"));
        page.fields("predicted", self.why_unpredicted().map(|why| format!("not: {why}")));
        let Some(counters) = counters else { return };
        let whole = |key: &str| match counters.get(key) {
            Some(value) => style::whole(value as u64),
            None => "-".to_string(),
        };
        let (grid, block) = (&counters.grid, &counters.block);
        let (registers, shared) = (whole("registers"), whole("shared_bytes"));
        let text = format!(
            "grid {grid}, block {block}, {registers} registers a thread, {shared} B of dynamic shared memory a block"
        );
        page.field("launch", text);
        let (excess, all) = (whole("wavefronts_excess"), whole("wavefronts"));
        page.field("conflicts", format_args!("{excess} of {all} shared-memory wavefronts"));
        let waits = counters.waits();
        let waits = waits.iter().take(5);
        let waits = waits.map(|(reason, share)| format!("{} {share:.0} %", reason.replace('_', " ")));
        page.field("waits", style::list(waits));
        add_lines(page, &counters.lines);
    }
}

/// Adds the lines at which warps were sampled most.
fn add_lines(page: &mut Page, lines: &[LineProfile]) {
    let samples: f64 = lines.iter().map(|line| line.samples).sum();
    if samples > 0.0 {
        page.dim(format_args!("{:>9}{:>15}  line", "samples", "instructions"));
    }
    for line in lines.iter().take(LINES).filter(|line| line.samples > 0.0) {
        let conflicts = match line.wavefronts_excess {
            0.0 => String::new(),
            excess => format!(" ({} wavefronts by bank conflicts)", style::whole(excess as u64)),
        };
        let row = format!(
            "  {:>7.0} %{:>15}  {}:{}{conflicts}  {}",
            100.0 * line.samples / samples,
            style::whole(line.instructions as u64),
            line.file,
            line.line,
            line.source.trim()
        );
        page.line(row.chars().take(style::width()).collect::<String>());
    }
}
