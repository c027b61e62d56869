//! `flashcore device`: the rates of a GPU, measured once by small kernels, and how far predictions with them are off.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use flashcore::Device;
use flashcore::unstable::cuda::DeviceInfo;
use flashcore_bench::calibrate::calibrate;
use flashcore_bench::micro::{DeviceRates, device, rates};
use flashcore_bench::{Agreement, DeviceIdentity, json_file};
use flashcore_ir::Profile;
use serde_json::json;

use crate::{CODE, DIM, Failure, Given, HEAD, Outcome, Page, machine, progress, style};

/// Measure a GPU's rates: bandwidths, tensor cores, exponentials, latencies
///
/// Small kernels measure one rate each and check their results. The rates are kept for the device:
/// `explain` and `tune --strategy ranked` predict with them. Rates that are already kept are shown; they
/// are measured again after a change of driver or kernels.
///
/// `calibrate` also times some fifty kernels, which takes a few minutes, and compares them with what is
/// predicted. It writes a file that stands for the card elsewhere: its predictions have the error seen here.
#[derive(Args)]
#[command(after_long_help = include_str!("help/device.txt"))]
pub(crate) struct DeviceArgs {
    /// `calibrate` makes a file that stands for the card; FILE.json of rates of any device is shown
    ///
    /// The file of `calibrate` is for `--device predict:FILE.json` and `--profile FILE.json`. Showing a file needs no
    /// GPU.
    #[arg(value_name = "calibrate|FILE.json")]
    what: Option<PathBuf>,
    /// best or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "best")]
    device: String,
    /// Measure again; only =NAMES, which are then shown and not kept
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0.., require_equals = true,
          default_missing_value = "all")]
    measure: Vec<String>,
    /// The file to write [default: in the XDG data folder; of `calibrate` by the card's name, here]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DeviceArgs, given: &Given) -> Result<Outcome, Failure> {
    let calibrates = args.what.as_deref() == Some(Path::new("calibrate"));
    let only: &[String] = match args.measure.as_slice() {
        [all] if all == "all" => &[],
        names => names,
    };
    if calibrates {
        given.forbid(&["measure"], "`device calibrate`, which measures all")?;
    }
    if !only.is_empty() {
        given.forbid(&["output"], "rates that are not kept")?;
    }
    if let Some(path) = args.what.as_ref().filter(|_| !calibrates) {
        given.forbid(&["device", "measure", "output"], "a file of rates, which is shown")?;
        if path.extension().is_none_or(|end| end != "json") {
            let why = format!("`{}` is neither `calibrate` nor FILE.json", path.display());
            return Err(Failure::usage(why));
        }
        return show(
            &DeviceRates::read(path).map_err(Failure::usage)?,
            &path.display().to_string(),
            args.json,
        );
    }
    let context = machine::gpu(match args.device.as_str() {
        "best" => "cuda",
        name => name,
    })?;
    let identity = DeviceIdentity::cuda(context.info());
    if calibrates {
        return calibrated(context.info(), &identity, args);
    }
    let nowhere = || {
        Failure::usage("there is no place for the rates: neither XDG_DATA_HOME nor HOME is set")
            .help("name a file with --output")
    };
    let path = args
        .output
        .clone()
        .or_else(|| rates::path(&identity))
        .ok_or_else(nowhere)?;
    let place = path.display().to_string();
    if args.measure.is_empty() && path.exists() {
        match DeviceRates::read(&path).and_then(|kept| kept.holds_on(&identity, &path).map(|()| kept)) {
            Ok(kept) => return show(&kept, &place, args.json),
            // The message is printed, and the rates are measured again.
            Err(error) if !args.json => style::print(&style::wrap(&format!("{DIM}{error}{DIM:#}"), 2)),
            Err(_) => {}
        }
    }
    let spinner = style::spinner("measuring");
    let measured = device::measured(&context, only);
    drop(spinner);
    let measured = measured?;
    if !only.is_empty() {
        return show(&measured, "not kept", args.json);
    }
    measured.write(&path)?;
    show(&measured, &place, args.json)
}

fn calibrated(info: &DeviceInfo, identity: &DeviceIdentity, args: &DeviceArgs) -> Result<Outcome, Failure> {
    let words = info.name.to_ascii_lowercase();
    let words = words.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let usual = || PathBuf::from(format!("{words}.json"));
    let path = args.output.clone().unwrap_or_else(usual);
    // Before minutes of measuring.
    style::check_files([&path])?;
    if path.extension().is_none_or(|end| !end.eq_ignore_ascii_case("json")) {
        return Err(Failure::usage("the name of a card's file ends in .json").help("--output mine.json"));
    }
    let doing = Arc::new(Mutex::new("calibrating".to_string()));
    let said = Arc::clone(&doing);
    let shown = progress::watch("calibrating", move |_| {
        said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    });
    let found = calibrate(&Device::cuda(info.ordinal)?, &|what| {
        *doing.lock().unwrap_or_else(PoisonError::into_inner) = what.to_string();
    });
    drop(shown);
    let found = found?;
    json_file::write(&path, &found).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    if let Some(kept) = rates::path(identity) {
        found.microbenchmarks.write(&kept)?;
    }
    let place = path.display().to_string();
    style::show(
        args.json,
        || json!({ "calibrated": found, "file": place }),
        || {
            let mut page = Page::new(format_args!("{HEAD}{}{HEAD:#}", info.name));
            page.line(Agreement::head("kernels, predicted by"));
            for (name, agreement) in &found.agreement {
                page.line(agreement.row(name));
            }
            page.fields("assumed", &found.assumed);
            page.field("kept", &place);
            page.field("", format_args!("{CODE}flashcore explain --profile {place}{CODE:#}"));
            page
        },
    );
    Ok(Outcome::Clean)
}

fn show(measured: &DeviceRates, place: &str, as_json: bool) -> Result<Outcome, Failure> {
    let device = &measured.run.device;
    let profile = Profile::of_device(&device.name, device.units);
    let json = || {
        let of_peak = |name: &str, value: f64| profile.and_then(|p| Some(value / rates::expected(name, p)?));
        let parts = measured.rates.iter();
        let parts = parts.map(|rate| (rate.name.clone(), of_peak(&rate.name, rate.value)));
        json!({
            "rates": measured,
            "card": measured.card(),
            "profile": profile.map(|profile| profile.name),
            "of_profile": parts.collect::<BTreeMap<_, _>>(),
            "file": place,
        })
    };
    style::show(as_json, json, || {
        let mut page = text(measured, profile);
        page.field("kept", place);
        let text = format!("{CODE}flashcore explain{CODE:#} {DIM}predicts with them{DIM:#}");
        page.field("", text);
        page
    });
    Ok(Outcome::Clean)
}

/// Where the column begins that says what a rate is of.
const ABOUT: usize = 67;

fn text(measured: &DeviceRates, profile: Option<&Profile>) -> Page {
    let device = &measured.run.device;
    let (name, architecture) = (&device.name, &device.architecture);
    let (units, driver) = (device.units, &device.driver);
    let mut page = Page::new(format_args!(
        "{HEAD}{name}{HEAD:#} {DIM}· {architecture} · {units} SMs · driver {driver}{DIM:#}"
    ));
    let clock = match measured.nvml_mhz {
        None => "NVML is not available".to_string(),
        Some([low, high]) if low == high => format!("NVML reports {low}"),
        Some([low, high]) => format!("NVML reports {low} to {high}"),
    };
    let text = format!("{} MHz ({clock})", style::whole(measured.mhz.round() as u64));
    page.field("clock", text);
    if !measured.throttle.is_empty() {
        page.field("throttled", measured.throttle.join(", "));
    }
    let of = profile.map_or("", |profile| profile.name);
    page.line(format_args!(
        "\n  {HEAD}{:<16} {:>9} {:<13}{:>7} {of:>9} {:>5}{HEAD:#}  {DIM}of{DIM:#}",
        "kernel", "measured", "", "±", "%"
    ));
    for rate in &measured.rates {
        let spread = 100.0 * (rate.interval[1] - rate.interval[0]) / (2.0 * rate.value);
        let expected = profile.and_then(|profile| rates::expected(&rate.name, profile));
        let percent = expected.map(|expected| format!("{:.0}", 100.0 * rate.value / expected));
        let percent = percent.unwrap_or_default();
        let line = format!(
            "  {:<16} {:>9} {:<13}{spread:>6.1}% {:>9} {percent:>5}  {DIM}{}{DIM:#}",
            rate.name,
            style::digits3(rate.value),
            rate.unit,
            expected.map_or(String::new(), style::digits3),
            rate.about
        );
        // What is measured, in the last column, is wrapped there if it is wide enough.
        let column = if style::width() >= ABOUT + 30 { ABOUT } else { 4 };
        page.wrap(column, line.trim_end());
    }
    let (seconds, revision) = (style::digits3(measured.seconds), &measured.run.revision);
    let text = format!(
        "\n  {DIM}The profile's figures are those of the datasheet; for rates of an SM, latencies and launch, those \
         that the cost model assumes. {seconds} s in all, {revision}.{DIM:#}"
    );
    page.wrap(2, text);
    page
}
