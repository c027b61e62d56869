//! The end of `flashcore tune`: times the winner with the default and peers in one measurement.

use flashcore::Device;
use flashcore_bench::child::DEADLINE;
use flashcore_bench::store::default_path;
use flashcore_bench::{Case, Report, table};
use flashcore_tune::{DeviceLock, Interrupt, Outcome as Found, PeerComparison, device_lock};

use crate::bench::{find_peers, measure, options};
use crate::tune::live::note_wait;
use crate::{Failure, GOOD, HEAD, Page, style};

/// Times the winner of a search with the default and peers, and keeps the result in the run's folder.
/// `None` if the leaderboard says as much. A failure is reported, and the result of the search stands.
pub(crate) fn compare(found: &Found, case: &Case, device: &str, peers: &[String]) -> Option<PeerComparison> {
    let board = found.board.as_ref()?;
    let mut comparison = PeerComparison::of(&found.header, board)?;
    let spinner = style::spinner("timing winner, default and peers");
    let python = find_peers(peers);
    match (&python, comparison.is_covered_by(board)) {
        (Ok(None), true) => return None,
        (Err(missing), true) => comparison.missing = Some(missing.clone()),
        _ => {
            // Searches on one device take turns.
            let locks = device_lock::folder();
            let first = found.header.devices.first();
            let lock = first.map(|device| DeviceLock::on(device, locks.as_deref()));
            let _held = lock.and_then(|lock| lock.wait(&Interrupt::default(), &mut |waits| note_wait(device, waits)));
            let measured = || -> Result<Report, Failure> {
                let device: Device = device.parse()?;
                let request = comparison.request(case, options(&device));
                let (store, limits) = (default_path(), (peers, DEADLINE));
                measure(&python, &device, &request, limits, store.as_deref(), &mut ())
            };
            match measured() {
                Ok(report) => (comparison.report, comparison.missing) = (Some(report), python.err()),
                Err(failure) => comparison.missing = Some(format!("it could not be measured: {}", failure.message)),
            }
        }
    }
    drop(spinner);
    if let Err(why) = comparison.keep(&found.folder) {
        style::note(format_args!("the comparison with peers is printed and not kept: {why}"));
    }
    Some(comparison)
}

pub(crate) fn add(page: &mut Page, comparison: &PeerComparison) {
    if let Some(report) = &comparison.report {
        page.line(format_args!("\n{HEAD}Compared with the default and peers{HEAD:#}"));
        let results = report.results.iter();
        results.for_each(|result| page.add(table::case_text(result)));
    }
    let notes = comparison.report.iter().flat_map(|report| &report.notes);
    page.fields("peers", comparison.missing.iter().chain(notes));
    let ratios = comparison.ratios().into_iter().map(|(label, ratio)| {
        let who = if label == comparison.default {
            "the default "
        } else {
            ""
        };
        let (lo, hi) = (ratio.interval.lo, ratio.interval.hi);
        format!("{:.3} [{lo:.3}, {hi:.3}] times as fast as {who}{label}", ratio.value)
    });
    let ratios = style::list(ratios);
    if !ratios.is_empty() {
        let winner = &comparison.winner;
        page.field("winner", format_args!("{GOOD}{winner}{GOOD:#} is {ratios}"));
    }
}
