//! Every piece gives its finding, at its line, under every schedule, and nothing once mended.

use std::path::Path;

use flashcore_check::museum::{PIECES, Piece, piece};

/// The line, from 1, that carries a mark.
fn marked(piece: &Piece, mark: &str) -> Option<u32> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(piece.file)).unwrap();
    let mut lines = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| line.ends_with(&format!("// {mark}")));
    let first = lines.next().map(|(_, number)| number);
    assert_eq!(lines.next(), None, "{} has two lines marked {mark}", piece.name);
    first
}

#[test]
fn every_piece_gives_its_finding_at_its_line() {
    assert_eq!(PIECES.len(), 10);
    for piece in PIECES.iter() {
        let mistake = marked(piece, "MISTAKE");
        assert!(mistake.is_some(), "{}", piece.name);
        for schedule in 0..10 {
            let shown = piece.show(schedule, false).unwrap();
            // What follows from the mistake may be found too, but after it.
            let first = shown
                .findings
                .first()
                .map(|found| found.finding.kind.name().to_string());
            let first = first.or(shown.problems.first().map(|problem| problem.kind.to_string()));
            assert_eq!(
                first.as_deref(),
                Some(piece.kind),
                "{} under schedule {schedule}",
                piece.name
            );
            for found in shown
                .findings
                .iter()
                .filter(|found| found.finding.kind.name() == piece.kind)
            {
                let (finding, name) = (&found.finding, piece.name);
                let mut lines = [finding.line(), finding.other_line()].map(|line| line.map(|line| line.line));
                assert_eq!(finding.line().map(|line| line.file), Some(piece.file), "{name}");
                // Which side of a race comes second is the schedule's choice.
                if lines[0] != mistake {
                    lines.swap(0, 1);
                }
                assert_eq!(lines[0], mistake, "{name}: {finding}");
                if let Some(and) = marked(piece, "AND") {
                    assert_eq!(lines[1], Some(and), "{name}: {finding}");
                }
            }
            for problem in &shown.problems {
                assert_eq!(problem.kind.to_string(), piece.kind, "{}: {problem:?}", piece.name);
                assert_eq!(problem.line, mistake, "{}: {problem:?}", piece.name);
            }
        }
    }
}

#[test]
fn mended_pieces_give_nothing() {
    assert_eq!(piece("museum/no-opt-in").map(|piece| piece.kind), Some("opt-in"));
    assert!(piece("mona-lisa").is_none());
    for piece in PIECES.iter() {
        for schedule in 0..10 {
            let shown = piece.show(schedule, true).unwrap();
            assert!(
                shown.findings.is_empty() && shown.problems.is_empty(),
                "{}: {shown:#?}",
                piece.name
            );
        }
    }
}

#[test]
fn numbers_are_those_of_the_reports() {
    for (name, parts) in [
        ("static-m64", ["57376 B", "8224 B too much"]),
        ("partials", ["16384 B", "8192 B more"]),
        ("gemm-default-tile", ["147456 B", "101376"]),
        ("no-opt-in", ["76800 B", "49152"]),
        ("eight-byte-cg", ["8 bytes", "copies 16"]),
    ] {
        let shown = piece(name).unwrap().show(0, false).unwrap();
        for part in parts {
            assert!(shown.problems[0].message.contains(part), "{name}: {:?}", shown.problems);
        }
    }
}

/// The page tells of each piece, under its name.
#[test]
fn the_page_tells_of_every_piece() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/museum.md");
    let page = std::fs::read_to_string(page).unwrap();
    for piece in PIECES.iter() {
        assert!(page.contains(&format!("`{}`", piece.name)), "{}", piece.name);
        assert!(page.contains(piece.kind), "{}: {}", piece.name, piece.kind);
    }
}
