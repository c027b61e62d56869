//! Runs of the store.

use super::{EvidenceId, Gathered, Origin, Profiled, Timing};
use crate::store::{Selector, Store};
use crate::{Report, Result, date};

pub(super) fn add(gathered: &mut Gathered, store: &Store, selector: &Selector) -> Result<()> {
    let (runs, unreadable) = store.list(selector)?;
    match unreadable.into_iter().next() {
        Some(error) if runs.is_empty() => return Err(error),
        Some(error) => gathered.notes.push(format!("not read: {error}")),
        None => {}
    }
    for run in &runs {
        let id = EvidenceId::of(&["run", &run.key]);
        // Given twice, as a run of the store and in an export.
        if gathered.origins.iter().any(|known| known.id == id) {
            continue;
        }
        let report = Report::of_evidence(run, store.measurements(run)?);
        let origin = gathered.origins.len();
        let device = &run.identity.device;
        gathered.origins.push(Origin {
            id,
            key: run.key.clone(),
            path: run.path().to_path_buf(),
            device: device.name.clone(),
            driver: device.driver.clone(),
            uuid: Some(device.uuid.clone()),
            units: Some(device.units),
            revision: Some(run.identity.revision.clone()),
            date: date(run.identity.started_at),
            command: None,
            options: Some(run.options.clone()),
            notes: report.notes,
        });
        for (place, result) in report.results.into_iter().enumerate() {
            let id = |subject: usize| {
                let [place, subject] = [place, subject].map(|number| number.to_string());
                EvidenceId::of(&["stored", &run.key, &place, &subject])
            };
            gathered.timings.push(Timing {
                origin,
                ids: (0..result.measurement.subjects.len()).map(id).collect(),
                result,
            });
        }
        for (place, record) in store.profiles(run)?.into_iter().enumerate() {
            let id = EvidenceId::of(&["profile", &run.key, &place.to_string()]);
            gathered.profiles.push(Profiled { origin, id, record });
        }
    }
    Ok(())
}
