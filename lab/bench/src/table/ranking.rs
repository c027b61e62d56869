//! Rankings of sweeps as text.

use super::{absent_lines, clip_to, lines, number, span, times};
use crate::sweep::{Place, RankedRow, Ranking};

/// Columns of a label: config ids are long.
const LABEL: usize = 40;

/// What a sweep found on one problem, the best first.
pub fn ranking_text(ranking: &Ranking) -> String {
    let screened = &ranking.screened;
    let mut out = vec![
        format!("{}  {}", ranking.case, ranking.problem),
        format!(
            "  {} subjects screened in {} rounds of short turns; {} left out",
            screened.subjects,
            screened.rounds,
            ranking.left_out.len()
        ),
    ];
    if let Some(Place {
        subjects, how, rounds, ..
    }) = &ranking.measured
    {
        out.push(format!("  {subjects} measured, {how}, {rounds} rounds"));
    }
    for (measured, place) in [(true, ranking.measured.as_ref()), (false, Some(screened))] {
        let rows: Vec<&RankedRow> = ranking.rows.iter().filter(|row| row.measured == measured).collect();
        let Some(place) = place.filter(|_| measured || !rows.is_empty()) else {
            continue;
        };
        if !measured {
            out.push("  only screened; not to be compared with the times above".to_string());
        }
        let base = place.base.as_deref();
        let base = base.map_or(String::new(), |base| format!("× {}", clip_to(base, 12)));
        out.push(format!(
            "  rank {:<LABEL$} {:>7} {:<15} {:>7} {:>6} {base}",
            "subject", "p50 µs", "interval", "TFLOP/s", "× best"
        ));
        out.extend(rows.into_iter().map(row_text));
    }
    out.extend(absent_lines(&ranking.left_out));
    lines(out)
}

fn row_text(row: &RankedRow) -> String {
    format!(
        "  {:>4} {:<LABEL$} {:>7} {:<15} {:>7} {:>6} {}",
        row.rank.map_or("peer".to_string(), |rank| rank.to_string()),
        clip_to(&row.label, LABEL),
        number(row.median_us),
        span(row.interval, number),
        number(row.tflops),
        row.to_best.map_or(String::new(), times),
        row.to_base.map_or(String::new(), |ratio| times(ratio.value)),
    )
}
