//! Draws the run of a block: shared memory over time, the banks of its worst access, and the time
//! slices of its warps.
//!
//! Time is counted in operations of the simulator under one schedule. It shows order, not duration.

use flashcore_ir::Ledger;
use flashcore_sim::{Access, Class, Log};

use crate::svg::Svg;

/// Width of the images, and the range right of the names.
const WIDTH: f64 = 960.0;
const FROM: f64 = 150.0;
const TO: f64 = 940.0;
const TOP: f64 = 56.0;
/// Time steps of the map of shared memory.
const STEPS: usize = 158;
/// Bands per buffer in the map.
const BANDS: usize = 8;
/// Height of a line of names.
const NAME_HEIGHT: f64 = 14.0;

fn begin(height: f64, title: &str, about: &str) -> Svg {
    let classes = [
        ["free", "fill: #8c959f; opacity: 0.18;", "fill: #8c959f; opacity: 0.18;"],
        ["read", "fill: #0969da; opacity: 0.7;", "fill: #58a6ff; opacity: 0.7;"],
        ["write", "fill: #bc4c00; opacity: 0.7;", "fill: #f0883e; opacity: 0.7;"],
        ["both", "fill: #8250df;", "fill: #bc8cff;"],
    ];
    Svg::new([WIDTH, height], title, about, &classes)
}

fn end_of(log: &Log) -> u64 {
    let turns = log.turns.last().map_or(0, |turn| turn.span.1);
    turns.max(1)
}

/// Shared memory over time. The height of a buffer is its size; orange is written, blue is read,
/// purple is both.
pub fn memory_map(ledger: &Ledger, log: &Log, title: &str) -> String {
    const HEIGHT: f64 = 420.0;
    let total = f64::from(ledger.total_bytes().max(1));
    let about = "shared memory (down) over time (across): orange written, blue read, purple both";
    let mut svg = begin(TOP + HEIGHT + 48.0, title, about);
    let end = end_of(log) as f64;
    // Small buffers, such as barriers, have no room for a name.
    let (mut named_to, mut unnamed) = (f64::NEG_INFINITY, Vec::new());
    for (id, buffer) in (0u32..).zip(&ledger.buffers) {
        let y = TOP + HEIGHT * f64::from(buffer.offset) / total;
        let height = HEIGHT * f64::from(buffer.bytes) / total;
        svg.rect("free", [FROM, y, TO - FROM, (height - 1.0).max(0.5)]);
        let name = format!("{} {} B", buffer.name, buffer.bytes);
        let at = y + (height / 2.0).min(16.0);
        if at - named_to >= NAME_HEIGHT {
            svg.text([12.0, at], "", name);
            named_to = at;
        } else {
            unnamed.push(name)
        }
        // By step and band: bit 0 for read, bit 1 for written.
        let mut cells = vec![[0u8; BANDS]; STEPS];
        for access in log.accesses.iter().filter(|access| access.buffer == id) {
            let step = ((access.time as f64 / end * STEPS as f64) as usize).min(STEPS - 1);
            for lane in (0..32).filter(|lane| access.lanes >> lane & 1 != 0) {
                let band = access.offsets[lane] as usize * BANDS / buffer.bytes.max(1) as usize;
                cells[step][band.min(BANDS - 1)] |= 1 << u8::from(access.class != Class::LoadShared);
            }
        }
        let (width, band_height) = ((TO - FROM) / STEPS as f64, height / BANDS as f64);
        for (step, bands) in cells.iter().enumerate() {
            for (band, &bits) in bands.iter().enumerate().filter(|(_, bits)| **bits != 0) {
                let class = ["read", "write", "both"][usize::from(bits) - 1];
                let (x, y) = (FROM + width * step as f64, y + band_height * band as f64);
                svg.rect(class, [x, y, width, (band_height - 0.3).max(0.3)]);
            }
        }
    }
    if !unnamed.is_empty() {
        let rest = format!("also, too small for a name: {}", unnamed.join(", "));
        svg.text([12.0, TOP + HEIGHT + 36.0], " font-size=\"11\"", rest);
    }
    finish(svg, log, TOP + HEIGHT + 18.0)
}

/// The banks of the access with most extra passes: lanes down, banks across. Each word has its
/// number among the words of its bank, and is orange if it causes an extra pass. `None` if no
/// access was logged.
pub fn banks(ledger: &Ledger, log: &Log, title: &str) -> Option<String> {
    const CELL: f64 = 20.0;
    let beyond = |access: &&Access| {
        let (took, fewest) = access.passes_at(&access.offsets);
        // The first of equal ones.
        (took - fewest, std::cmp::Reverse(access.time))
    };
    let worst = log.accesses.iter().max_by_key(beyond)?;
    let (took, fewest) = worst.passes_at(&worst.offsets);
    let buffer = ledger.buffers.get(worst.buffer as usize)?;
    let file = worst.line.file.rsplit('/').next().unwrap_or(worst.line.file);
    let about = format!(
        "{} B per lane of {} at {file}:{}: {took} passes, {fewest} needed; lanes down, banks across, words by number",
        worst.bytes, buffer.name, worst.line.line
    );
    let mut svg = begin(TOP + CELL * 33.0 + 20.0, title, &about);
    let x = |bank: usize| FROM + CELL * bank as f64;
    for bank in 0..32 {
        svg.text([x(bank) + 3.0, TOP], " font-size=\"9\"", bank);
    }
    // The different words of each bank.
    let mut words: Vec<Vec<u32>> = vec![Vec::new(); 32];
    for lane in 0..32usize {
        let y = TOP + 6.0 + CELL * lane as f64;
        svg.text([110.0, y + 14.0], " font-size=\"10\"", format_args!("lane {lane}"));
        if worst.lanes >> lane & 1 == 0 {
            continue;
        }
        for word in 0..(worst.bytes / 4).max(1) {
            let word = (buffer.offset + worst.offsets[lane]) / 4 + word;
            let bank = (word % 32) as usize;
            let place = words[bank].iter().position(|known| *known == word);
            let nth = place.unwrap_or(words[bank].len());
            if place.is_none() {
                words[bank].push(word);
            }
            // Wide accesses take several passes without conflicts.
            let class = if nth > 0 && took > fewest { "write" } else { "read" };
            svg.rect(class, [x(bank), y, CELL - 2.0, CELL - 2.0]);
            svg.text([x(bank) + 4.0, y + 13.0], " font-size=\"10\"", nth + 1);
        }
    }
    Some(svg.finish())
}

/// The time slices of the warps: a row per warp, a bar for each slice, a mark at each barrier.
pub fn schedule(log: &Log, title: &str) -> String {
    const ROW: f64 = 22.0;
    let warps = log.turns.iter().map(|turn| turn.warp + 1).max().unwrap_or(0);
    let height = TOP + ROW * f64::from(warps);
    let about = "warps (down) over time (across): blue while running, orange at a barrier";
    let mut svg = begin(height + 30.0, title, about);
    let end = end_of(log) as f64;
    let x = |time: u64| FROM + (TO - FROM) * time as f64 / end;
    let y = |warp: u32| TOP + ROW * f64::from(warp);
    for warp in 0..warps {
        svg.text([12.0, y(warp) + 14.0], "", format_args!("warp {warp}"));
        svg.rect("free", [FROM, y(warp), TO - FROM, ROW - 4.0]);
    }
    for turn in log.turns.iter().filter(|turn| turn.span.1 > turn.span.0) {
        let (from, to) = (x(turn.span.0), x(turn.span.1));
        svg.rect("read", [from, y(turn.warp), (to - from).max(0.1), ROW - 4.0]);
        if turn.at_barrier {
            svg.rect("write", [to, y(turn.warp), 1.0, ROW - 4.0]);
        }
    }
    finish(svg, log, height + 18.0)
}

fn finish(mut svg: Svg, log: &Log, y: f64) -> String {
    let cut = if log.is_cut {
        "; accesses after the end of the log are missing"
    } else {
        ""
    };
    let text = format!("{} operations of one cluster under one schedule{cut}", end_of(log));
    svg.text([FROM, y], "", text);
    svg.finish()
}
