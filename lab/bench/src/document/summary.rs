//! The first section of a chapter: what was found, in words.

use flashcore_check::render;

use super::chapter::{Chapter, ours, peer};
use super::speeds::standing_of;
use super::{Block, Section, count};
use crate::gather::{EvidenceId, Gathered, Timing};
use crate::standing::Geomean;
use crate::table::times;

/// Problems named in a sentence.
const NAMES: usize = 6;

pub(super) fn section(chapter: &Chapter<'_>, gathered: &Gathered) -> Section {
    let mut section = Section::chapter(chapter.title());
    let mut dates: Vec<&str> = chapter.origins.iter().map(|origin| origin.date.as_str()).collect();
    dates.sort_unstable();
    let (first, last) = (
        dates.first().copied().unwrap_or_default(),
        dates.last().copied().unwrap_or_default(),
    );
    let when = if first == last {
        first.to_string()
    } else {
        format!("{first} to {last}")
    };
    let board = chapter.uuid.map_or(String::new(), |uuid| format!(" ({uuid})"));
    let card = match chapter.profile() {
        Some(profile) => format!(" Its limits are those of profile {} ({}).", profile.name, profile.title),
        None => String::new(),
    };
    let runs = count(chapter.origins.len(), "run");
    section.say(format!("{}{board}: {runs}, {when}.{card}", chapter.device));
    let mut sentences: Vec<(String, Vec<EvidenceId>)> = Vec::new();
    for (dtype, mode, timings) in chapter.grids() {
        let how = format!("{} {mode}", dtype.name());
        let runs = chapter.runs_of(gathered, &timings);
        if let Some(standing) = standing_of(&timings, mode).filter(|standing| standing.shapes.len() > 1) {
            let Geomean {
                value, shapes, worst, ..
            } = &standing.all;
            let text = format!(
                "{how}: FlashCore is {} times as fast as {} on the geometric mean of {shapes} problems, paired by round; \
                 the least is {} ({}).",
                times(*value),
                standing.base,
                times(worst.speedup),
                worst.case,
            );
            sentences.push((text, runs.clone()));
        }
        let compared = timings.iter().any(|timing| peer(timing).is_some());
        if !compared {
            let problems = count(timings.len(), "problem");
            sentences.push((
                format!("{how}: {problems} timed, without a peer to compare with."),
                runs.clone(),
            ));
        }
        sentences.extend(against_best(&how, &timings).map(|text| (text, runs)));
        sentences.extend(timings.iter().filter_map(|timing| mission(&how, timing)));
    }
    sentences.extend(super::errors::largest(chapter));
    match sentences.is_empty() {
        true => section.say("No kernel was timed on a problem here."),
        false => section.blocks.push(Block::Sentences(sentences)),
    }
    section
}

/// Our quickest kernel against the quickest peer of each problem, by medians.
fn against_best(how: &str, timings: &[&Timing]) -> Option<String> {
    let gain = |timing: &&Timing| {
        let [ours, peer] = [ours(timing)?.summary?.p50, peer(timing)?.summary?.p50];
        Some((timing.result.case.name.clone(), peer / ours))
    };
    let gains: Vec<(String, f64)> = timings.iter().filter_map(gain).collect();
    if gains.len() < 2 {
        return None;
    }
    let mean = (gains.iter().map(|(_, gain)| gain.ln()).sum::<f64>() / gains.len() as f64).exp();
    let slower: Vec<String> = (gains.iter().filter(|(_, gain)| *gain < 1.0))
        .map(|(name, gain)| format!("{name} ({})", times(*gain)))
        .collect();
    let also = match slower.len() {
        0 => "it is the fastest on each of them".to_string(),
        many if many <= NAMES => format!("a peer is faster on {many}: {}", slower.join(", ")),
        many => format!("a peer is faster on {many}, such as {}", slower[..NAMES].join(", ")),
    };
    Some(format!(
        "{how}: against the quickest peer of each of {} problems FlashCore is {} times as fast (geometric mean of medians); \
         {also}.",
        gains.len(),
        times(mean),
    ))
}

/// The time on the problem that the project began with.
fn mission(how: &str, timing: &Timing) -> Option<(String, Vec<EvidenceId>)> {
    let mission = flashcore_problem::Problem::named("mission").ok()?;
    if timing.result.case.problem != mission {
        return None;
    }
    let mine = ours(timing)?;
    let mut from = vec![timing.id_of(&mine.info.label)?.clone()];
    let mut text = format!(
        "{how}: the mission ({mission}) takes {} with {}",
        render::time(mine.summary?.p50, 4),
        mine.info.label
    );
    if let Some(peer) = peer(timing) {
        text.push_str(&format!(
            "; the quickest peer, {}, {}",
            peer.info.label,
            render::time(peer.summary?.p50, 4)
        ));
        from.extend(timing.id_of(&peer.info.label).cloned());
    }
    Some((text + ".", from))
}
