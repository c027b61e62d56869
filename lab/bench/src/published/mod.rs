//! What README and docs say of speed: figures, listed in `evidence/current.toml` and rendered from the bundles next to
//! it. A page has a figure between `<!-- figure ID -->` and `<!-- /figure -->`.

mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use flashcore_check::render::between_words;
use flashcore_ir::files;
use serde::Deserialize;

pub use verify::whole_revision;

use crate::chart::{Speed, name_of};
use crate::identity::short;
use crate::report::add_new;
use crate::standing::{Against, Geomean, Shape};
use crate::store::{BundleHeader, Recorded, Selector};
use crate::table::{bracketed, number, times, worst_text};
use crate::{BenchError, CaseResult, Measured, Mode, Report, Result, Store, date};

/// Where bundles and their list are, in the root of the repository.
pub const FOLDER: &str = "evidence";
/// The list.
const CURRENT: &str = "current.toml";
/// What is wrong with another name.
pub const BUNDLE_NAMES: &str = "is no name of a bundle: letters, digits and - are";
const BEGIN: &str = "<!-- figure ";
const BEGUN: &str = " -->";
const END: &str = "<!-- /figure -->";
/// Of every interval on a page.
const CONFIDENCE: f64 = 0.99;
/// Columns of a page.
const COLUMNS: usize = 100;
/// Problems that [`Form::Slowest`] names.
const SLOWEST: usize = 3;

/// `evidence/current.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Current {
    /// Pages that may not state a speed outside of figures.
    checked: Vec<PathBuf>,
    #[serde(default, rename = "figure")]
    figures: Vec<Figure>,
}

/// A figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    id: String,
    /// Names of bundles.
    bundles: Vec<String>,
    form: Form,
    /// Names of problems, or beginnings of names with `*` behind them; none are all.
    #[serde(default)]
    problems: Vec<String>,
    /// Hot where it is not given.
    mode: Option<Mode>,
    /// Labels of subjects to compare with; none are all peers.
    #[serde(default)]
    peers: Vec<String>,
    /// Of a table: TFLOP/s in place of µs.
    #[serde(default)]
    tflops: bool,
    /// The file of a chart.
    to: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    /// A row for each problem.
    Table,
    /// The geometric mean of speed-ups over the best of the peers, the worst, and how many intervals include 1.
    Geomean,
    /// On how many problems it is faster than all of the peers.
    Count,
    /// The smallest speed-ups over the best of the peers.
    Slowest,
    /// TFLOP/s by length, as an SVG file.
    Chart,
}

/// A bundle that was read: each run's header, and its results with the samples.
pub(crate) struct Bundle {
    pub(crate) runs: Vec<(BundleHeader, Vec<(CaseResult, Recorded)>)>,
}

/// A result, and our quickest kernel there against peers.
type Compared<'b> = (&'b CaseResult, Against<'b>);

impl Bundle {
    pub(crate) fn read(path: &Path) -> Result<Bundle> {
        let store = Store::at(path);
        let (found, unreadable) = store.list(&Selector::All)?;
        if let Some(error) = unreadable.into_iter().next() {
            return Err(error);
        }
        let mut runs = Vec::new();
        for run in found {
            let recorded = store.measurements(&run)?;
            let Some(header) = run.bundle.clone().filter(|_| run.torn_bytes == 0) else {
                let why = "it is a run of a store, or torn; `flashcore evidence publish` makes bundles";
                return Err(given(path, why));
            };
            let results = Report::of_evidence(&run, recorded.clone()).results;
            runs.push((*header, results.into_iter().zip(recorded).collect()));
        }
        Ok(Bundle { runs })
    }
}

impl Current {
    /// Reads the list of a repository.
    ///
    /// # Errors
    /// A file that cannot be read, an unknown key, two figures of one id, a bundle's name that would be a path.
    pub fn read(root: &Path) -> Result<Current> {
        let path = root.join(FOLDER).join(CURRENT);
        let wrong = |why: &dyn std::fmt::Display| BenchError::Given(format!("{}: {why}", path.display()));
        let text = files::read_text_capped(&path, files::SMALL).map_err(|error| wrong(&error))?;
        let current: Current = toml::from_str(&text).map_err(|error| wrong(&error))?;
        let mut ids = BTreeSet::new();
        if let Some(twice) = current.figures.iter().find(|figure| !ids.insert(&figure.id)) {
            return Err(wrong(&format!("figure `{}` is there twice", twice.id)));
        }
        let mut names = current.figures.iter().flat_map(|figure| &figure.bundles);
        match names.find(|name| !is_bundle_name(name)) {
            Some(name) => Err(wrong(&format!("`{name}` {BUNDLE_NAMES}"))),
            None => Ok(current),
        }
    }

    /// The files that differ from what the bundles say, with the text that they should have: pages in the root and in
    /// `docs`, and charts.
    ///
    /// # Errors
    /// A bundle that cannot be read, a figure without numbers, a page with a figure that is not listed or has no end, a
    /// figure that is in no page.
    pub fn render(&self, root: &Path) -> Result<Vec<(PathBuf, String)>> {
        let mut bundles: BTreeMap<&str, Bundle> = BTreeMap::new();
        for name in self.figures.iter().flat_map(|figure| &figure.bundles) {
            bundles.insert(name, Bundle::read(&path_of(root, name))?);
        }
        let (mut texts, mut changed) = (BTreeMap::new(), Vec::new());
        for figure in &self.figures {
            let text = figure.render(&bundles)?;
            match &figure.to {
                None => drop(texts.insert(figure.id.as_str(), text)),
                Some(to) => changed.extend(differing(&root.join(to), text)),
            }
        }
        let mut used = BTreeSet::new();
        for page in [files_in(root, "md")?, files_in(&root.join("docs"), "md")?].concat() {
            let text = read(&page)?;
            let rendered = in_page(&text, &texts, &mut used).map_err(|why| given(&page, &why))?;
            changed.extend((rendered != text).then_some((page, rendered)));
        }
        match texts.keys().find(|id| !used.contains(**id)) {
            Some(id) => Err(BenchError::Given(format!("figure `{id}` of {CURRENT} is in no page"))),
            None => Ok(changed),
        }
    }
}

impl Figure {
    fn takes(&self, result: &CaseResult) -> bool {
        let name = &result.case.name;
        let is_named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        };
        let named = self.problems.is_empty() || self.problems.iter().any(is_named);
        named && result.measurement.mode == self.mode.unwrap_or(Mode::Hot)
    }

    fn render<'b>(&self, bundles: &'b BTreeMap<&str, Bundle>) -> Result<String> {
        let runs = || {
            self.bundles
                .iter()
                .filter_map(|name| bundles.get(name.as_str()))
                .flat_map(|bundle| &bundle.runs)
        };
        let taken = || runs().flat_map(|(header, all)| all.iter().map(move |one| (header, one)));
        let taken = || taken().filter(|(_, (result, _))| self.takes(result));
        let nothing = |what: &str| BenchError::Given(format!("figure `{}` of {CURRENT} has no {what}", self.id));
        let compare = |(header, (result, recorded)): (&BundleHeader, &'b (CaseResult, Recorded))| {
            Against::of(result, &recorded.samples, header.options.confidence, &self.peers).map(|found| (result, found))
        };
        let compared: Vec<Compared<'_>> = taken().filter_map(compare).collect();
        if compared.is_empty() {
            return Err(nothing("problem that one of our kernels and a peer were timed on"));
        }
        // Of a problem that was measured twice the smaller speed-up counts.
        let mut worst: BTreeMap<String, Shape> = BTreeMap::new();
        for (result, against) in &compared {
            let Some(shape) = against.shape(&result.case) else {
                continue;
            };
            let kept = worst
                .entry(format!("{} {}", shape.case, result.case.problem))
                .or_insert(shape.clone());
            if shape.speedup < kept.speedup {
                *kept = shape;
            }
        }
        let geomean = Geomean::of(worst.values()).ok_or_else(|| nothing("speed-up"))?;
        let (all, unsure) = (geomean.shapes, geomean.unsure);
        Ok(match self.form {
            Form::Table => self.table(&compared, taken().map(|(header, _)| header)),
            Form::Geomean => {
                let (value, interval) = (times(geomean.value), bracketed(geomean.interval));
                format!("{value} × {interval} over {all} problems, {}", worst_text(&geomean))
            }
            Form::Count => {
                let faster = worst.values().filter(|shape| shape.speedup > 1.0).count();
                format!("{faster} of {all} (the intervals of {unsure} include 1.00)")
            }
            Form::Slowest => {
                let mut shapes: Vec<&Shape> = worst.values().collect();
                shapes.sort_by(|a, b| a.speedup.total_cmp(&b.speedup));
                let shown = |shape: &&Shape| {
                    let (value, interval) = (times(shape.speedup), bracketed(Some(shape.interval)));
                    format!("{} {value} {interval}", shape.case)
                };
                let shown: Vec<String> = shapes.iter().take(SLOWEST).map(shown).collect();
                shown.join("; ")
            }
            Form::Chart => {
                let results = compared.iter().map(|(result, _)| *result);
                let about = taken().map(|(header, _)| measured_on(header).join(", ")).next();
                Speed::of_results(results)?.on(&about.unwrap_or_default()).draw().svg()
            }
        })
    }

    /// A row for each problem, and below them where they were measured.
    fn table<'h>(&self, compared: &[Compared<'_>], headers: impl Iterator<Item = &'h BundleHeader>) -> String {
        let mut peers: Vec<&str> = Vec::new();
        for (peer, _) in compared.iter().flat_map(|(_, against)| &against.peers) {
            add_new(&mut peers, &peer.info.label);
        }
        let names: String = peers.iter().map(|label| format!(" {} |", name_of(label))).collect();
        let columns = "--:|".repeat(peers.len() + 2);
        let mut text = format!("\n| problem | FlashCore |{names} speed-up over the best other |\n|---|{columns}\n");
        for (result, against) in compared {
            let shown = |us: f64| {
                if self.tflops {
                    format!("{:.0}", result.tflops(us))
                } else {
                    number(us)
                }
            };
            let us = |subject: &Measured| subject.summary.map_or(f64::NAN, |summary| summary.p50);
            let (ours, best) = (us(against.ours), against.shape(&result.case));
            text.push_str(&format!("| {} | {} |", result.case.name, shown(ours)));
            for label in &peers {
                let peer = against.peers.iter().find(|(peer, _)| peer.info.label == *label);
                text.push_str(&match peer {
                    None => " – |".to_string(),
                    Some((peer, ratio)) if ratio.value > 1.0 => format!(" **{}** |", shown(us(peer))),
                    Some((peer, _)) => format!(" {} |", shown(us(peer))),
                });
            }
            let speedup = best.map(|best| format!("{} {}", times(best.speedup), bracketed(Some(best.interval))));
            text.push_str(&format!(" {} |\n", speedup.unwrap_or_default()));
        }
        let unit = if self.tflops { "TFLOP/s" } else { "µs" };
        let mut where_from: Vec<String> = headers.map(where_measured).collect();
        where_from.dedup();
        let bundles: Vec<String> = self.bundles.iter().map(|name| format!("`{name}`")).collect();
        let below = format!(
            "{unit}, medians; {:.0} % intervals. Bundle {}: {}.",
            CONFIDENCE * 100.0,
            bundles.join(", "),
            where_from.join("; ")
        );
        format!("{text}\n{}\n", textwrap::fill(&below, between_words(COLUMNS, "")))
    }
}

/// Device, driver, day and revision.
fn measured_on(header: &BundleHeader) -> Vec<String> {
    let identity = &header.identity;
    let mut parts = vec![identity.device.name.clone()];
    parts.extend((!identity.device.driver.is_empty()).then(|| format!("driver {}", identity.device.driver)));
    parts.push(date(identity.started_at));
    parts.push(format!("revision {}", short(&identity.revision)));
    parts
}

fn where_measured(header: &BundleHeader) -> String {
    let mut parts = measured_on(header);
    let versions: BTreeSet<(&String, &String)> = header.peers.values().flatten().collect();
    parts.extend(versions.into_iter().map(|(name, version)| format!("{name} {version}")));
    parts.join(", ")
}

/// The page with its figures as they should be. Adds the ids that it has to `used`.
fn in_page<'t>(
    text: &str,
    figures: &BTreeMap<&'t str, String>,
    used: &mut BTreeSet<&'t str>,
) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(BEGIN) {
        let (before, after) = rest.split_at(at);
        let (id, body) = after[BEGIN.len()..]
            .split_once(BEGUN)
            .ok_or("a figure's mark has no end")?;
        let (known, figure) = figures
            .get_key_value(id)
            .ok_or(format!("figure `{id}` is not in {CURRENT}"))?;
        let (_, behind) = body.split_once(END).ok_or(format!("figure `{id}` has no `{END}`"))?;
        used.insert(known);
        out.extend([before, BEGIN, id, BEGUN, figure, END]);
        rest = behind;
    }
    Ok(out + rest)
}

/// The files of a folder whose names end so, sorted.
fn files_in(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    crate::store::files_in(folder, extension).map_err(|error| given(folder, &error.to_string()))
}

/// Whether a bundle may be named so: the name is that of a file in [`FOLDER`], without its ending.
pub fn is_bundle_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn path_of(root: &Path, name: &str) -> PathBuf {
    root.join(FOLDER).join(format!("{name}.jsonl"))
}

fn read(path: &Path) -> Result<String> {
    files::read_text_capped(path, files::LARGE).map_err(|error| given(path, &error.to_string()))
}

/// A file with the text that it should have, if it has another.
fn differing(path: &Path, text: String) -> Option<(PathBuf, String)> {
    let same = read(path).is_ok_and(|known| known == text);
    (!same).then(|| (path.to_path_buf(), text))
}

fn given(path: &Path, why: &str) -> BenchError {
    BenchError::Given(format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests;
