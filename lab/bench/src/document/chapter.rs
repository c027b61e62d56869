//! A chapter: everything that was measured on one device with one driver. Numbers of different devices are kept apart.

use std::collections::BTreeMap;

use flashcore_ir::Profile;
use flashcore_problem::Direction;

use super::{Section, errors, hardware, origins, speeds, summary};
use crate::gather::{EvidenceId, Gathered, Origin, Profiled, Timing};
use crate::report::add_new;
use crate::{DeviceIdentity, Measured, Mode};

/// Letters of a board's identity that a heading has: `GPU-` and eight digits.
const BOARD: usize = 12;

/// What was measured on a device.
#[derive(Clone, Debug)]
pub struct Chapter<'g> {
    /// The device.
    pub device: &'g DeviceIdentity,
    /// The runs.
    pub origins: Vec<&'g Origin>,
    /// Times of kernels.
    pub timings: Vec<&'g Timing>,
    /// Counters of kernels.
    pub profiles: Vec<&'g Profiled>,
    /// What all chapters are made of.
    gathered: &'g Gathered,
}

/// A chapter for each device and driver, in the order in which they first appear.
pub fn chapters(gathered: &Gathered) -> Vec<Chapter<'_>> {
    let mut chapters: Vec<Chapter<'_>> = Vec::new();
    let mut places = Vec::new();
    for origin in &gathered.origins {
        let here = chapters.iter().position(|chapter| chapter.is_of(origin));
        let place = here.unwrap_or(chapters.len());
        if place == chapters.len() {
            chapters.push(Chapter {
                device: &origin.device,
                origins: Vec::new(),
                timings: Vec::new(),
                profiles: Vec::new(),
                gathered,
            });
        }
        chapters[place].origins.push(origin);
        places.push(place);
    }
    for timing in &gathered.timings {
        chapters[places[timing.origin]].timings.push(timing);
    }
    // Of a kernel that was profiled again, the latest.
    for profiled in &gathered.profiles {
        let key = |other: &Profiled| (other.record.case.name.clone(), other.record.subject.label.clone());
        let shown = &mut chapters[places[profiled.origin]].profiles;
        shown.retain(|other| key(other) != key(profiled));
        shown.push(profiled);
    }
    // Runs of which nothing is shown need no chapter, and those with times come first.
    chapters.retain(|chapter| !(chapter.timings.is_empty() && chapter.profiles.is_empty()));
    chapters.sort_by_key(|chapter| chapter.timings.is_empty());
    chapters
}

impl<'g> Chapter<'g> {
    /// Its sections: the heading with a summary, speeds, the hardware, the ladder, errors, what searches found, and
    /// where numbers come from.
    pub fn sections(&self, tuning: Vec<Section>) -> Vec<Section> {
        let mut sections = vec![summary::section(self)];
        sections.extend(speeds::sections(self));
        sections.extend(hardware::sections(self));
        sections.push(speeds::ladder(self));
        sections.push(errors::section(self));
        sections.extend(tuning);
        sections.push(origins::section(self));
        sections.retain(|section| !section.is_empty());
        sections
    }

    /// Its heading. Two boards of a kind have different ones.
    pub fn title(&self) -> String {
        let driver = match self.device.driver.as_str() {
            "" => String::new(),
            driver => format!(", driver {driver}"),
        };
        let board = Some(&self.device.uuid).filter(|uuid| uuid.starts_with("GPU-"));
        let board = board.and_then(|uuid| Some(format!(", {}", uuid.get(..BOARD)?)));
        format!("{}{driver}{}", self.device.name, board.unwrap_or_default())
    }

    /// Whether a run belongs here.
    pub fn is_of(&self, origin: &Origin) -> bool {
        let (this, other) = (self.device, &origin.device);
        (&this.name, &this.driver, &this.uuid) == (&other.name, &other.driver, &other.uuid)
    }

    /// The card, where its datasheet is known.
    pub fn profile(&self) -> Option<&'static Profile> {
        Profile::of_device(&self.device.name, self.device.units)
    }

    /// What measurements of our kernels have in common (`fp16 hot`), each with them: one for each problem, that with
    /// the most peers, and of equals the latest. Kernels that were asked for by id are apart from those that the
    /// library chose. The mode of screenings is not to be quoted.
    pub(super) fn grids(&self) -> Vec<(String, Vec<&'g Timing>)> {
        let mut grids: BTreeMap<String, Vec<&'g Timing>> = BTreeMap::new();
        for timing in &self.timings {
            if timing.mode() == Mode::Screen || ours(timing).is_none() {
                continue;
            }
            let by_id = if self.origin(timing).names_a_kernel() {
                ", kernels given by id"
            } else {
                ""
            };
            let kept = grids.entry(how(timing) + by_id).or_default();
            let same = |other: &&'g Timing| other.result.case.problem == timing.result.case.problem;
            match kept.iter().position(same) {
                None => kept.push(timing),
                Some(place) if peers(timing) >= peers(kept[place]) => kept[place] = timing,
                Some(_) => {}
            }
        }
        let mut grids: Vec<_> = grids.into_iter().collect();
        for (_, timings) in &mut grids {
            timings.sort_by_key(|timing| place(timing));
        }
        // The largest first.
        grids.sort_by_key(|(_, timings)| std::cmp::Reverse(timings.len()));
        grids
    }

    /// The run of a measurement.
    pub(super) fn origin(&self, timing: &Timing) -> &'g Origin {
        &self.gathered.origins[timing.origin]
    }

    /// The ids of the runs of some measurements.
    pub(super) fn runs_of(&self, timings: &[&Timing]) -> Vec<EvidenceId> {
        let mut ids: Vec<EvidenceId> = Vec::new();
        for timing in timings {
            add_new(&mut ids, self.origin(timing).id.clone());
        }
        ids
    }
}

/// What measurements that are shown together have in common: `fp16 hot`, `bf16 gradients hot`.
pub(super) fn how(timing: &Timing) -> String {
    let (problem, mode) = (&timing.result.case.problem, timing.mode());
    let gradients = match problem.direction() {
        Direction::Forward => "",
        Direction::Backward => "gradients ",
    };
    format!("{} {gradients}{mode}", problem.dtype().name())
}

/// Our quickest kernel in a measurement.
pub(super) fn ours(timing: &Timing) -> Option<&Measured> {
    timing.result.quickest(|subject| subject.info.is_ours())
}

/// The quickest peer.
pub(super) fn peer(timing: &Timing) -> Option<&Measured> {
    timing.result.quickest(|subject| subject.info.is_peer())
}

fn peers(timing: &Timing) -> usize {
    let is_peer = |subject: &&Measured| subject.info.is_peer() && subject.summary.is_some();
    timing.result.measurement.subjects.iter().filter(is_peer).count()
}

/// Problems in tables: by head_dim, then mask, then length, decoding last.
fn place(timing: &Timing) -> (bool, usize, String, usize, usize, String) {
    let problem = &timing.result.case.problem;
    (
        problem.seq_len_q() == 1,
        problem.head_dim(),
        problem.mask().to_string(),
        problem.seq_len_kv(),
        problem.batch(),
        timing.result.case.name.clone(),
    )
}
