//! `flashcore device`: what a GPU gives, measured once by small kernels.

use std::path::PathBuf;

use clap::Args;
use flashcore::{Device, DeviceInfo};
use flashcore_bench::DeviceIdentity;
use flashcore_bench::micro::{DeviceRates, device, rates};
use flashcore_ir::Profile;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::machine;
use crate::style::{self, CODE, DIM, HEAD};

/// Measure what a GPU gives: bandwidths, tensor cores, exponentials, latencies
///
/// Small kernels ask for one thing each, their results are checked, and the rates are kept for the
/// device: `explain` and `tune --strategy ranked` predict with them from then on. Where they are
/// already kept they are shown; they are measured anew where driver or kernels have changed.
#[derive(Args)]
#[command(after_help = DEVICE_HELP)]
pub(crate) struct DeviceArgs {
    /// best or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "best")]
    device: String,
    /// Measure even if rates are kept
    #[arg(long)]
    measure: bool,
    /// Only these, by name; they are shown and not kept
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Show a file of rates, of whatever device; no GPU is needed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "measure", "only"])]
    rates: Option<PathBuf>,
    /// Keep the rates in this file, in place of the one in the XDG data folder
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "only"])]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const DEVICE_HELP: &str = "\
Examples:
  flashcore device                           measured the first time, shown from then on
  flashcore device --measure                 measured anew
  flashcore device --rates lab/check/data/h200-rates.json

Exit codes: 0 done, 1 a kernel's result was wrong, 2 usage, 3 environment";

pub(crate) fn run(args: &DeviceArgs) -> Result<Outcome, Failure> {
    if let Some(path) = &args.rates {
        return show(&DeviceRates::read(path)?, &path.display().to_string(), args.json);
    }
    let info = chosen(&args.device)?;
    let identity = DeviceIdentity::cuda(&info);
    let path = args.out.clone().or_else(|| rates::path(&identity)).ok_or_else(|| {
        Failure::usage("there is no place for the rates: neither XDG_DATA_HOME nor HOME is set")
            .help("name a file with --out")
    })?;
    if !args.measure && args.only.is_empty() && path.exists() {
        let kept = DeviceRates::read(&path).and_then(|kept| kept.holds_on(&identity, &path).map(|()| kept));
        match kept {
            Ok(kept) => return show(&kept, &path.display().to_string(), args.json),
            // Said, and mended: it is measured anew.
            Err(error) if !args.json => style::print(&style::wrap(&format!("{DIM}{error}{DIM:#}"), 2)),
            Err(_) => {}
        }
    }
    let Device::Cuda(context) = Device::cuda(info.ordinal)? else {
        return Err(Failure::environment("the device is no GPU"));
    };
    let spinner = style::spinner("measuring");
    let measured = device::measured(&context, &args.only);
    drop(spinner);
    let measured = measured?;
    if !args.only.is_empty() {
        return show(&measured, "not kept", args.json);
    }
    measured.write(&path)?;
    show(&measured, &path.display().to_string(), args.json)
}

/// The GPU of a name.
fn chosen(name: &str) -> Result<DeviceInfo, Failure> {
    let ordinal = match name {
        "best" | "cuda" => 0,
        name => name
            .strip_prefix("cuda:")
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| Failure::usage(format!("`{name}`: only GPUs are measured, as in cuda:0")))?,
    };
    let gpus = machine::gpus()?;
    let known: Vec<String> = gpus.iter().map(|info| format!("cuda:{}", info.ordinal)).collect();
    gpus.into_iter()
        .find(|info| info.ordinal == ordinal)
        .ok_or_else(|| Failure::environment(format!("there is no cuda:{ordinal}; there are {}", known.join(", "))))
}

fn show(measured: &DeviceRates, place: &str, as_json: bool) -> Result<Outcome, Failure> {
    let device = &measured.run.device;
    let profile = Profile::of_device(&device.name, device.units);
    if as_json {
        let of_peak = |name: &str, value: f64| profile.and_then(|p| Some(value / rates::expected(name, p)?));
        let parts = measured
            .rates
            .iter()
            .map(|rate| (rate.name.clone(), of_peak(&rate.name, rate.value)));
        style::print_json(&json!({
            "rates": measured,
            "card": measured.card(),
            "profile": profile.map(|profile| profile.name),
            "of_profile": parts.collect::<std::collections::BTreeMap<_, _>>(),
            "file": place,
        }));
        return Ok(Outcome::Clean);
    }
    style::print(&text(measured, profile));
    style::print(&style::field("kept", place));
    style::print(&format!(
        "  {DIM}{:<10}{DIM:#}{CODE}flashcore explain{CODE:#} {DIM}predicts with them{DIM:#}\n",
        ""
    ));
    Ok(Outcome::Clean)
}

/// The table, beside what the profile says.
fn text(measured: &DeviceRates, profile: Option<&Profile>) -> String {
    let device = &measured.run.device;
    let mut text = format!(
        "{HEAD}{}{HEAD:#} {DIM}· {} · {} SMs · driver {}{DIM:#}\n",
        device.name, device.architecture, device.units, device.driver
    );
    let clock = match measured.nvml_mhz {
        None => "NVML is not there".to_string(),
        Some([low, high]) if low == high => format!("NVML says {low}"),
        Some([low, high]) => format!("NVML says {low} to {high}"),
    };
    text.push_str(&style::field(
        "clock",
        &format!("{} MHz ({clock})", style::whole(measured.mhz.round() as u64)),
    ));
    if !measured.throttle.is_empty() {
        text.push_str(&style::field("throttled", &measured.throttle.join(", ")));
    }
    let beside = profile.map_or("", |profile| profile.name);
    text.push_str(&format!(
        "\n  {HEAD}{:<16} {:>9} {:<13}{:>7} {:>9} {:>5}{HEAD:#}  {DIM}of what{DIM:#}\n",
        "kernel", "measured", "", "±", beside, "%"
    ));
    for rate in &measured.rates {
        let spread = 100.0 * (rate.interval[1] - rate.interval[0]) / (2.0 * rate.value);
        let (expected, percent) = match profile.and_then(|profile| rates::expected(&rate.name, profile)) {
            Some(expected) => (
                style::digits3(expected),
                format!("{:.0}", 100.0 * rate.value / expected),
            ),
            None => (String::new(), String::new()),
        };
        let line = format!(
            "  {:<16} {:>9} {:<13}{:>6.1}% {:>9} {:>5}  {DIM}{}{DIM:#}",
            rate.name,
            style::digits3(rate.value),
            rate.unit.title(),
            spread,
            expected,
            percent,
            rate.about
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str(&style::wrap(
        &format!(
            "\n  {DIM}The profile's figures are the datasheet's; rates of an SM, latencies and launch are those that the \
             cost model assumes. {} s in all, {}.{DIM:#}",
            style::digits3(measured.seconds),
            measured.run.revision
        ),
        2,
    ));
    text
}
