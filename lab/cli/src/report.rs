//! `flashcore report`: what runs, profiles and searches found, as one file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use flashcore_bench::document::{Document, Section, chapters};
use serde_json::json;

use crate::sources::{SourceArgs, Sources};
use crate::{Failure, Outcome, Page, style};

/// Write what was measured as one file, in HTML or Markdown
///
/// For each device: a verdict, a bar with its interval for each problem, and folded below speed against length with
/// peers, the roofline, busy shares of the card's units (counters of `flashcore profile`), errors, the
/// ladder of kernels, searches, and where each number comes from. An HTML file has its pictures in it and needs no
/// network and no script. Each number has an id, which `flashcore reproduce` resolves.
#[derive(Args)]
#[command(after_long_help = include_str!("help/report.txt"))]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    sources: SourceArgs,
    /// The file to write: .html or .md [default: Markdown to standard output]
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// The heading
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "FlashCore: what was measured",
        help_heading = "Output"
    )]
    title: String,
    /// Print one JSON object: what the file has
    #[arg(long, requires = "output", help_heading = "Output")]
    json: bool,
}

pub(crate) fn run(args: &ReportArgs) -> Result<Outcome, Failure> {
    // Before anything is read.
    let output = args.output.as_deref();
    let ending = output.map(|path| style::ending(path, &["html", "md"])).transpose()?;
    if args.sources.keeps_nothing() {
        return Err(Failure::usage("--store none leaves no evidence to write"));
    }
    let sources = args.sources.read()?;
    let document = args.document(&sources);
    let text = match ending {
        Some("html") => document.html(),
        _ => document.markdown(),
    };
    match &args.output {
        None => style::print(&text),
        Some(path) => {
            style::write(path, text)?;
            let gathered = &sources.gathered;
            let times: usize = gathered.timings.iter().map(|timing| timing.ids.len()).sum();
            let counts = [
                ("run", gathered.origins.len()),
                ("time", times),
                ("profile", gathered.profiles.len()),
                ("tuning run", sources.searches.len()),
            ];
            let json = || {
                let keys = counts.map(|(what, count)| (what.replace(' ', "_") + "s", json!(count)));
                json!({ "file": path, "has": keys.into_iter().collect::<BTreeMap<_, _>>() })
            };
            style::show(args.json, json, || {
                let found = style::list(counts.map(|(what, count)| style::count(count, what)));
                let mut page = Page::default();
                page.wrap(2, format_args!("{}: {found}", path.display()));
                page
            });
        }
    }
    Ok(Outcome::Clean)
}

impl ReportArgs {
    fn document(&self, Sources { gathered, searches }: &Sources) -> Document {
        let words = self.sources.words();
        let mut document = Document {
            title: self.title.clone(),
            about: Vec::new(),
            sections: Vec::new(),
        };
        let chapters = chapters(gathered);
        let mut devices: Vec<String> = chapters.iter().map(|chapter| chapter.title()).collect();
        let alone: Vec<Section> = searches
            .iter()
            .filter(|told| !chapters.iter().any(|chapter| chapter.is_of(&told.origin)))
            .flat_map(|told| {
                let title = format!("{} (searches)", told.origin.device.name);
                [Section::chapter(title), told.section()]
            })
            .collect();
        devices.extend(
            alone
                .iter()
                .filter(|section| section.level == 2)
                .map(|section| section.title.clone()),
        );
        if devices.len() > 1 {
            document.about.push(format!(
                "{} devices, or drivers of one, are kept apart, a chapter each: their times are not to be compared.",
                devices.len()
            ));
        }
        document.about.push(format!(
            "Where a number comes from: flashcore reproduce EVIDENCE_ID{words}"
        ));
        document.about.push(format!("Made by: flashcore report{words}"));
        document
            .about
            .extend(gathered.notes.iter().map(|note| format!("Note: {note}.")));
        for chapter in &chapters {
            let of_chapter = searches.iter().filter(|told| chapter.is_of(&told.origin));
            let tuning = of_chapter.map(|told| told.section()).collect();
            document.sections.extend(chapter.sections(tuning));
        }
        document.sections.extend(alone);
        document
    }
}
