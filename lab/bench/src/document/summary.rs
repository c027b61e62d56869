//! The first section of a chapter: what was found, in words.

use flashcore_check::render::few;

use super::chapter::{Chapter, ours};
use super::{Block, Section, count};
use crate::Stop;
use crate::chart::{problems, speedups};
use crate::gather::{EvidenceId, Timing};
use crate::standing::{Geomean, Group, Shape};
use crate::table::{bracketed, times, worst_text};

/// What bars of the first section say.
const SPEEDUPS: &str = "How many times as fast FlashCore is on each problem.";
const TIMES: &str = "The median time of our quickest kernel on each problem, on a logarithmic scale.";
const PREDICTED: &str = "The predicted time of our quickest kernel on each problem, on a logarithmic scale.";

pub(super) fn section(chapter: &Chapter<'_>) -> Section {
    let mut section = Section::chapter(chapter.title());
    let mut dates: Vec<&str> = chapter.origins.iter().map(|origin| origin.date.as_str()).collect();
    dates.sort_unstable();
    let [first, last] = [dates.first(), dates.last()].map(|date| date.copied().unwrap_or_default());
    let when = if first == last {
        first.to_string()
    } else {
        format!("{first} to {last}")
    };
    let board = match chapter.device.uuid.as_str() {
        "" => String::new(),
        uuid => format!(" ({uuid})"),
    };
    let card = match chapter.profile() {
        Some(profile) => format!(" Its limits are those of profile {} ({}).", profile.name, profile.title),
        None => String::new(),
    };
    let runs = count(chapter.origins.len(), "run");
    section.say(format!("{}{board}: {runs}, {when}.{card}", chapter.device.name));
    let mut sentences: Vec<(String, Vec<EvidenceId>)> = Vec::new();
    let mut bars = Vec::new();
    for (how, timings) in chapter.grids() {
        let runs = chapter.runs_of(&timings);
        let shapes: Vec<Shape> = timings.iter().filter_map(|timing| against_peer(timing)).collect();
        let is_predicted = timings
            .iter()
            .all(|timing| timing.result.measurement.stop == Stop::Predicted);
        match verdict(&how, &shapes) {
            Some(verdict) => {
                sentences.push((verdict, runs));
                bars.push((speedups(&how, "the best peer", &shapes), SPEEDUPS));
            }
            None => {
                let number = count(timings.len(), "problem");
                let found = if is_predicted {
                    format!("{how}: {number}, predicted; nothing was run.")
                } else {
                    format!("{how}: {number} timed, without a peer to compare with.")
                };
                sentences.push((found, runs));
                let timed = timings
                    .iter()
                    .filter_map(|timing| Some((&timing.result, ours(timing)?)));
                let what = if is_predicted { PREDICTED } else { TIMES };
                bars.push((problems(&how, &timed.collect::<Vec<_>>()), what));
            }
        }
    }
    sentences.extend(super::errors::largest(chapter));
    if sentences.is_empty() {
        section.say("No kernel was timed on a problem here.")
    } else {
        section.blocks.push(Block::Sentences(sentences))
    }
    bars.into_iter()
        .for_each(|(drawing, description)| section.draw(drawing, description));
    section
}

/// Our quickest kernel compared with the best peer: by rounds, or where these are not at hand with the baseline if that
/// is a peer.
fn against_peer(timing: &Timing) -> Option<Shape> {
    let with_baseline = || {
        let (case, ours) = (&timing.result.case, ours(timing)?);
        timing.result.baseline().filter(|base| base.info.is_peer())?;
        let group = Group::of(&case.problem);
        Some(Shape::new(&case.name, group, &ours.info.label, &ours.ratio?))
    };
    timing.best.clone().or_else(with_baseline)
}

/// Whether it is faster than the best peer, on how many problems, and how sure that is. `None` without a peer.
fn verdict(how: &str, shapes: &[Shape]) -> Option<String> {
    let mean = Geomean::of(shapes)?;
    let all = shapes.len();
    let faster = shapes.iter().filter(|shape| shape.interval.lo > 1.0).count();
    let slower = shapes.iter().filter(|shape| shape.interval.hi < 1.0);
    let slower: Vec<&str> = slower.map(|shape| shape.case.as_str()).collect();
    let slower = if slower.is_empty() { "none" } else { &few(&slower) };
    let (value, interval) = (times(mean.value), bracketed(mean.interval));
    Some(format!(
        "{how}: FlashCore is faster than the best peer on {faster} of {all}. Geometric mean {value} {interval}, {}. \
         Slower: {slower}.",
        worst_text(&mean),
    ))
}
