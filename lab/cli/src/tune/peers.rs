//! The end of `flashcore tune`: its winner beside the default and peers, in one measurement.

use std::path::Path;

use flashcore::Device;
use flashcore_bench::store::default_path;
use flashcore_bench::{Case, Options, Report, table};
use flashcore_tune::{DeviceLock, Interrupt, Outcome as Found, PeerComparison, device_lock};

use crate::bench::{bench_here, bench_in, find_peers};
use crate::failure::Failure;
use crate::style::{self, GOOD, HEAD};
use crate::tune::live::say_waits;

/// Measures the winner of a search beside the default and peers, and keeps that in the run's folder. `None` where there is
/// nothing that the leaderboard does not say. Where measuring or keeping fails, that is said: the search is over, and what it
/// found stands.
pub(crate) fn compare(
    found: &Found,
    case: &Case,
    device: &str,
    peers: &[String],
    folder: &Path,
) -> Option<PeerComparison> {
    let board = found.board.as_ref()?;
    let mut beside = PeerComparison::of(&found.header, board)?;
    let spinner = style::spinner("winner, default and peers, side by side");
    let python = find_peers(peers);
    let is_said = beside.is_covered_by(board);
    match (python, is_said) {
        (Ok(None), true) => return None,
        (Err(missing), true) => beside.missing = Some(missing),
        (python, _) => {
            // Other searches wait meanwhile, or this one for them.
            let folder = device_lock::folder();
            let first = found.header.devices.first();
            let lock = first.map(|device| DeviceLock::on(device, folder.as_deref()));
            let told = &mut |waits| say_waits(device, waits);
            let _held = lock.and_then(|lock| lock.wait(&Interrupt::default(), told));
            let measure = || -> Result<Report, Failure> {
                let device: Device = device.parse()?;
                let options = match device {
                    Device::Cpu => Options::for_cpu(),
                    Device::Cuda(_) => Options::default(),
                };
                let request = beside.request(case, options);
                let store = default_path();
                match &python {
                    Ok(Some(python)) => bench_in(python, &device, &request, peers, store.as_deref(), &mut ()),
                    Ok(None) | Err(_) => bench_here(&device, &request, store.as_deref(), &mut ()),
                }
            };
            let measured = measure();
            beside.missing = python.err();
            match measured {
                Ok(report) => beside.report = Some(report),
                Err(failure) => {
                    let why = format!("it could not be measured: {}", failure.message());
                    beside.missing = Some(why);
                }
            }
        }
    }
    drop(spinner);
    if let Err(why) = beside.keep(folder) {
        let note = format!("note: what stood beside the winner is printed and not kept: {why}");
        style::eprint(&style::wrap(&note, 2));
    }
    Some(beside)
}

/// What was measured, as in any bench, and what it comes to.
pub(crate) fn text(beside: &PeerComparison) -> String {
    let report = beside.report.as_ref();
    let mut text = match report {
        Some(_) => format!("\n{HEAD}Beside the default and peers{HEAD:#}\n"),
        None => String::new(),
    };
    for result in report.iter().flat_map(|report| &report.results) {
        text.push_str(&table::case_text(result));
    }
    let notes = report.iter().flat_map(|report| &report.notes);
    for note in beside.missing.iter().chain(notes) {
        text.push_str(&style::field("peers", note));
    }
    let others: Vec<String> = beside
        .ratios()
        .iter()
        .map(|(label, ratio)| {
            let who = match *label == beside.default {
                true => format!("the default {label}"),
                false => (*label).to_string(),
            };
            let (lo, hi) = (ratio.interval.lo, ratio.interval.hi);
            format!("{:.3} [{lo:.3}, {hi:.3}] times as fast as {who}", ratio.value)
        })
        .collect();
    if !others.is_empty() {
        let sum = format!("{GOOD}{}{GOOD:#} is {}", beside.winner, others.join(", "));
        text.push_str(&style::field("winner", &sum));
    }
    text
}
