//! Runs of the store.

use super::{EvidenceId, Gathered, Origin, Profiled, Timing};
use crate::measure::times_of;
use crate::standing::Against;
use crate::store::{Selector, Store};
use crate::{Report, Result, date};

pub(super) fn add(gathered: &mut Gathered, store: &Store, selector: &Selector) -> Result<()> {
    let (runs, mut unreadable) = store.list(selector)?;
    let mut readable = 0;
    for run in &runs {
        let id = EvidenceId::of(&["run", &run.key]);
        // Given twice, as a run of the store and in an export.
        if gathered.origins.iter().any(|known| known.id == id) {
            continue;
        }
        // A damaged run takes no other one away.
        let read = store
            .measurements(run)
            .and_then(|found| Ok((found, store.profiles(run)?)));
        let (measurements, profiles) = match read {
            Ok(read) => read,
            Err(error) => {
                unreadable.push(error);
                continue;
            }
        };
        readable += 1;
        let samples: Vec<_> = measurements.iter().map(|recorded| recorded.samples.clone()).collect();
        let report = Report::of_evidence(run, measurements);
        let origin = gathered.origins.len();
        gathered.origins.push(Origin {
            id,
            key: run.key.clone(),
            path: run.path().to_path_buf(),
            device: run.identity.device.clone(),
            revision: run.identity.revision.clone(),
            date: date(run.identity.started_at),
            command: Some(run.identity.command.join(" ")).filter(|words| !words.is_empty()),
            options: Some(run.options.clone()),
            notes: report.notes,
        });
        for (place, (result, samples)) in report.results.into_iter().zip(samples).enumerate() {
            let id = |subject: usize| {
                let [place, subject] = [place, subject].map(|number| number.to_string());
                EvidenceId::of(&["stored", &run.key, &place, &subject])
            };
            let rounds = |subject: usize| times_of(&samples, subject).map(|(_, us)| us).collect();
            let best = Against::of(&result, &samples, run.options.confidence, &[]);
            gathered.timings.push(Timing {
                origin,
                best: best.and_then(|against| against.shape(&result.case)),
                ids: (0..result.measurement.subjects.len()).map(id).collect(),
                rounds: (0..result.measurement.subjects.len()).map(rounds).collect(),
                result,
            });
        }
        for (place, record) in profiles.into_iter().enumerate() {
            let id = EvidenceId::of(&["profile", &run.key, &place.to_string()]);
            gathered.profiles.push(Profiled { origin, id, record });
        }
    }
    if readable == 0 && !unreadable.is_empty() {
        return Err(unreadable.swap_remove(0));
    }
    let notes = unreadable.iter().map(|error| format!("{}{error}", super::NOT_READ));
    gathered.notes.extend(notes);
    Ok(())
}
