//! Documents of fixed evidence: word by word in Markdown, and what must hold of any.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::*;
use crate::defences::{Inspection, Reason};
use crate::gather::{Gathered, Origin, Profiled, Timing};
use crate::problems::cases;
use crate::profile::{KernelProfile, LineProfile, Predicted, ProfileRecord};
use crate::report::tests::report_on;
use crate::{DeviceIdentity, LaunchMode, SubjectInfo};

fn origin(key: &str, device: [&str; 3], units: u32) -> Origin {
    Origin {
        id: EvidenceId::of(&["run", key]),
        key: key.to_string(),
        path: PathBuf::from("somewhere").join(format!("{key}.jsonl")),
        device: DeviceIdentity {
            name: device[0].to_string(),
            driver: device[1].to_string(),
            uuid: device[2].to_string(),
            units,
            ..DeviceIdentity::default()
        },
        revision: "0123456789ab".to_string(),
        date: "2026-11-23".to_string(),
        ..Origin::default()
    }
}

fn add(gathered: &mut Gathered, origin: Origin, sets: &str, times: &[&[(&str, f64)]]) {
    let (place, key) = (gathered.origins.len(), origin.key.clone());
    gathered.origins.push(origin);
    let report = report_on(cases(sets, None).unwrap(), times);
    // What `report_on` makes of each time.
    let rounds = |us: &f64| (0..12).map(|i| us * (1.0 + 0.001 * f64::from(i % 3))).collect();
    for (number, result) in report.results.into_iter().enumerate() {
        let subjects = result.measurement.subjects.len();
        let id = |subject: usize| EvidenceId::of(&["stored", &key, &number.to_string(), &subject.to_string()]);
        gathered.timings.push(Timing {
            origin: place,
            ids: (0..subjects).map(id).collect(),
            rounds: times[number].iter().map(|(_, us)| rounds(us)).collect(),
            result,
            best: None,
        });
    }
}

/// A kernel that an L4 has shared memory for.
const L4: &str = "mma/m32n128-w2x2-s2-b1-qreg-xor-cond";

/// Two GPUs, one of them with a run that does not say which board it was, and a host.
fn gathered() -> Gathered {
    let mut all = Gathered::default();
    let h200 = ["NVIDIA H200", "580.1/13000", "GPU-1"];
    let tuned = "mma/m32n128-w2x2-s5-b1-qreg-xor-cond";
    add(
        &mut all,
        origin("run-1", h200, 132),
        "small-set",
        &[
            &[
                ("torch/cudnn", 9.0),
                (tuned, 4.6),
                ("scalar/naive-t128-v16", 700.0),
                ("ladder/mma-m64n64-w4", 26.0),
            ],
            &[("torch/cudnn", 8.0), (tuned, 9.0)],
        ],
    );
    all.timings[0].result.inspections[1] = Some(Inspection {
        max_abs: 2.5e-4,
        frobenius: 1.5e-4,
        ..Inspection::default()
    });
    all.timings[1].result.inspections[1] = Some(Inspection {
        rejected: Some(Reason::Wrong),
        detail: "row 3 is <wrong> & large".to_string(),
        ..Inspection::default()
    });
    add(
        &mut all,
        origin("run-2", ["NVIDIA L4", "550.2/12040", "GPU-2"], 58),
        "small-set",
        &[&[("torch/flash", 30.0), (L4, 15.0)]],
    );
    add(
        &mut all,
        origin("run-3", ["A processor", "", "host"], 8),
        "tiny",
        &[&[("cpu/m16n16", 40.0)]],
    );
    // Its board is not known.
    add(
        &mut all,
        Origin {
            command: Some("ncu | things".to_string()),
            ..origin("run-x", ["NVIDIA H200", "580.1/13000", ""], 132)
        },
        "tiny",
        &[&[("torch/cudnn", 9.0), ("scalar/naive-t128-v16", 8.0)]],
    );
    let shares = |share: f64| BTreeMap::from([("tensor".to_string(), share), ("dram".to_string(), 3.0)]);
    all.profiles.push(Profiled {
        origin: 0,
        id: EvidenceId::of(&["profile", "run-1", "0"]),
        record: ProfileRecord {
            case: cases("small-set", None).unwrap().remove(0),
            subject: SubjectInfo::new(tuned, LaunchMode::Plain),
            tool: "ncu 2025.3.1.0".to_string(),
            launches: vec![KernelProfile {
                counters: shares(21.5),
                stalls: BTreeMap::from([("long_scoreboard".to_string(), 61.0), ("selected".to_string(), 39.0)]),
                lines: vec![LineProfile {
                    file: "crates/kernels/src/mma/warp.rs".to_string(),
                    line: 10,
                    source: "let a = <b>;".to_string(),
                    samples: 7.0,
                    instructions: 1.0,
                    wavefronts: 64.0,
                    wavefronts_excess: 2.0,
                    waits_for: Some("long_sb".to_string()),
                }],
                ..KernelProfile::default()
            }],
            predicted: Some(Predicted {
                shares: shares(19.0),
                ..Predicted::default()
            }),
        },
    });
    all
}

fn document(gathered: &Gathered) -> Document {
    let sections = chapters(gathered)
        .iter()
        .flat_map(|chapter| chapter.sections(Vec::new()))
        .collect();
    Document {
        title: "What & <how>".to_string(),
        about: vec!["two | three".to_string()],
        sections,
    }
}

/// The ids in a document.
fn evidence(document: &Document) -> BTreeSet<&EvidenceId> {
    let mut ids = BTreeSet::new();
    for block in document.sections.iter().flat_map(|section| &section.blocks) {
        match block {
            Block::Sentences(all) => ids.extend(all.iter().flat_map(|(_, from)| from)),
            Block::Table(table) => ids.extend(table.rows.iter().flatten().filter_map(|cell| match cell {
                Cell::Evidence(id) => Some(id),
                _ => None,
            })),
            Block::Prose(_) | Block::Picture(_) => {}
        }
    }
    ids
}

#[test]
fn a_report_in_markdown() {
    insta::assert_snapshot!("report_markdown", document(&gathered()).markdown());
}

#[test]
fn devices_and_boards_are_kept_apart() {
    let gathered = gathered();
    let named = |gathered: &Gathered| -> Vec<(String, usize)> {
        let chapters = chapters(gathered).into_iter();
        chapters
            .map(|chapter| (chapter.title(), chapter.origins.len()))
            .collect()
    };
    let one = |title: &str, runs: usize| (title.to_string(), runs);
    let rest = [one("NVIDIA L4, driver 550.2/12040", 1), one("A processor", 1)];
    let [l4, cpu] = rest;
    let h200 = "NVIDIA H200, driver 580.1/13000";
    assert_eq!(named(&gathered), [one(h200, 1), l4, cpu, one(h200, 1)]);
}

#[test]
fn every_number_has_an_id_that_names_one_thing() {
    let gathered = gathered();
    let document = document(&gathered);
    let ids = evidence(&document);
    assert!(ids.len() > 10);
    for id in ids {
        assert_eq!(gathered.find(&id.to_string()).len(), 1, "{id}");
    }
    for block in document.sections.iter().flat_map(|section| &section.blocks) {
        if let Block::Table(table) = block {
            for row in &table.rows {
                assert_eq!(row.len(), table.columns.len(), "{}: {row:?}", table.caption);
                assert!(
                    matches!(row.last(), Some(Cell::Evidence(_))),
                    "{}: {row:?}",
                    table.caption
                );
            }
        }
    }
    // What the check above would miss if `find` found anything.
    assert!(gathered.find("0000000000").is_empty() && gathered.find("").is_empty());
}

#[test]
fn of_a_kernel_that_was_profiled_again_the_latest_is_shown() {
    let mut gathered = gathered();
    let mut again = gathered.profiles[0].clone();
    again.id = EvidenceId::of(&["profile", "run-1", "1"]);
    gathered.profiles.push(again);
    let shown: Vec<&EvidenceId> = chapters(&gathered)
        .iter()
        .flat_map(|chapter| chapter.profiles.iter().map(|profiled| &profiled.id))
        .collect();
    assert_eq!(shown, [&gathered.profiles[1].id]);
}

/// What is wrong with a page: tags that do not match, text or attributes with characters of markup, ids given twice,
/// things that are not in the file, scripts.
fn faults(page: &str) -> Vec<String> {
    // Of rows and cells HTML takes the end from what follows.
    const VOID: [&str; 4] = ["meta", "!DOCTYPE", "tr", "td"];
    let (mut faults, mut open, mut ids) = (Vec::new(), Vec::<String>::new(), Vec::new());
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        if rest[..start].contains('>') && open.last().is_none_or(|tag| tag != "style") {
            faults.push(format!("a loose > in {:?}", &rest[..start]));
        }
        let Some(end) = rest[start..].find('>').map(|end| start + end) else {
            faults.push("a tag without an end".to_string());
            break;
        };
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_end_matches('/').split_whitespace().next().unwrap_or_default();
        if !tag.matches('"').count().is_multiple_of(2) {
            faults.push(format!("an attribute without an end in <{tag}>"));
        }
        if name == "script" || name == "link" || tag.contains(" src=") || tag.contains(" href=\"http") {
            faults.push(format!("<{tag}> is not allowed"));
        }
        ids.extend(
            tag.split(" id=\"")
                .nth(1)
                .and_then(|id| id.split('"').next())
                .map(str::to_string),
        );
        match name.strip_prefix('/') {
            Some(closed) if open.last().is_some_and(|tag| tag == closed) => drop(open.pop()),
            Some(closed) => faults.push(format!("</{closed}> closes {:?}", open.last())),
            None if VOID.contains(&name) || tag.ends_with('/') => {}
            None => open.push(name.to_string()),
        }
    }
    faults.extend(open.iter().map(|tag| format!("<{tag}> is not closed")));
    let count = ids.len();
    ids.sort();
    ids.dedup();
    faults.extend((ids.len() != count).then(|| "an id is given twice".to_string()));
    faults
}

#[test]
fn the_page_is_well_formed_and_stands_alone() {
    let mut gathered = gathered();
    let hostile = "<script>alert(\"1\")</script> & 'x'";
    gathered.timings[0].result.case.name = hostile.to_string();
    gathered.timings[0].result.measurement.subjects[0].info.label = hostile.to_string();
    gathered.origins[0].notes.push(hostile.to_string());
    let mut document = document(&gathered);
    document.title = hostile.to_string();
    document.about.push(hostile.to_string());
    let page = document.html();
    assert_eq!(faults(&page), Vec::<String>::new());
    assert!(page.contains("&lt;script&gt;") && page.contains("<svg") && page.contains("@media print"));
    // Each picture has a title and a description.
    let count = |what: &str| page.matches(what).count();
    let pictures = count("role=\"img\"");
    assert!(pictures >= 4);
    assert_eq!([count("<svg viewBox"), count("<figcaption>")], [pictures, pictures]);
    // A strip for each time, and what its lines look like.
    let strips = gathered.timings.iter().map(|timing| timing.rounds.len()).sum::<usize>();
    assert!(count("<svg><path") >= strips && count("id=\"dot\"") == 1);
    let markdown = document.markdown();
    // In code nothing needs to be escaped.
    let loose = markdown.replace("`<script>", "").contains("<script");
    assert!(markdown.starts_with("# &lt;script>") && !loose, "{markdown}");
}

#[test]
fn the_check_of_pages_finds_what_is_wrong() {
    assert_eq!(faults("<p>a <b>b</b></p>"), Vec::<String>::new());
    for wrong in [
        "<p><b></p></b>",
        "<p>",
        "</p>",
        "<p id=\"a\"></p><p id=\"a\"></p>",
        "<p a=\"></p>",
        "<p>1 > 2</p>",
        "<script></script>",
        "<a href=\"http://x\"></a>",
    ] {
        assert!(!faults(wrong).is_empty(), "{wrong}");
    }
}
