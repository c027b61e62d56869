//! `printf` and `assert` on the device.

use flashcore_ir::Operand;

use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::record::Details;
use crate::registers::lanes;
use crate::report::Printed;
use crate::text::cold::{Cold, LOCAL_WINDOW, Memory};
use crate::warp::Warp;

/// Characters of a string that are read.
const MOST_CHARACTERS: usize = 4096;
/// Texts of a launch that are kept.
const MOST_TEXTS: usize = 10_000;

impl Cluster<'_> {
    /// Bytes at a generic address of global or local memory, as many as there are.
    fn peek(&mut self, warp: &Warp, lane: usize, address: u64, out: &mut [u8]) -> usize {
        let frame = self.machine.local as usize;
        for (i, byte) in out.iter_mut().enumerate() {
            let address = address.wrapping_add(i as u64);
            *byte = match Memory::of(address) {
                Memory::Local => match (address & (LOCAL_WINDOW - 1)) as usize {
                    at if at < frame => warp.local[lane * frame + at],
                    _ => return i,
                },
                Memory::Global => {
                    let Some(slot) = self.machine.slot_of(address) else {
                        return i;
                    };
                    let region = self.region(slot);
                    let offset = address.wrapping_sub(region.base);
                    if offset >= region.bytes {
                        return i;
                    }
                    self.global.page(region.slot, offset).data[offset as usize % crate::global::PAGE]
                }
                Memory::Shared | Memory::Generic => return i,
            };
        }
        out.len()
    }

    fn string(&mut self, warp: &Warp, lane: usize, address: u64) -> String {
        let mut bytes = Vec::new();
        let mut byte = [0];
        while bytes.len() < MOST_CHARACTERS && self.peek(warp, lane, address + bytes.len() as u64, &mut byte) == 1 {
            if byte[0] == 0 {
                break;
            }
            bytes.push(byte[0]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// An argument of a call: 8 bytes of local memory.
    fn argument(&mut self, warp: &Warp, lane: usize, cold: &Cold, at: usize) -> u64 {
        let mut raw = [0; 8];
        if let Some(Operand::Imm(place)) = cold.reads.get(at) {
            self.peek(warp, lane, LOCAL_WINDOW + place, &mut raw);
        }
        u64::from_le_bytes(raw)
    }

    pub(crate) fn print(&mut self, warp: &Warp, _pc: u32, cold: &Cold) {
        for lane in lanes(warp.active) {
            let [format, values] = [0, 1].map(|at| self.argument(warp, lane, cold, at));
            let format = self.string(warp, lane, format);
            let text = self.formatted(warp, lane, &format, values);
            if self.out.printed.len() < MOST_TEXTS {
                let actor = self.actor(warp.index, 1 << lane);
                self.out.printed.push(Printed {
                    block: actor.block,
                    thread: 32 * actor.warp + lane as u32,
                    text,
                });
            }
        }
    }

    /// A text by a format of C, with values at an address: doubles and 64-bit numbers are aligned to 8 bytes.
    fn formatted(&mut self, warp: &Warp, lane: usize, format: &str, values: u64) -> String {
        let (mut text, mut at) = (String::new(), 0u64);
        let mut rest = format;
        while let Some(percent) = rest.find('%') {
            text.push_str(&rest[..percent]);
            let spec = &rest[percent + 1..];
            let end = spec.find(|c: char| c.is_ascii_alphabetic() && !"hlzjt".contains(c) || c == '%');
            let Some(end) = end else {
                rest = &rest[percent..];
                break;
            };
            let (flags, kind) = (&spec[..end], spec.as_bytes()[end]);
            rest = &spec[end + 1..];
            if kind == b'%' {
                text.push('%');
                continue;
            }
            let is_long = ["l", "z", "j", "t"].iter().any(|word| flags.contains(word));
            let size = if is_long || b"feEgGaAsp".contains(&kind) { 8 } else { 4 };
            at = at.next_multiple_of(size);
            let mut raw = [0; 8];
            self.peek(warp, lane, values + at, &mut raw[..size as usize]);
            at += size;
            let bits = u64::from_le_bytes(raw);
            let signed = if size == 4 {
                i64::from(bits as u32 as i32)
            } else {
                bits as i64
            };
            let numbers = flags
                .trim_start_matches(['-', '+', ' ', '#', '0'])
                .trim_end_matches(['l', 'h', 'z', 'j', 't']);
            let (width, precision) = numbers.split_once('.').unwrap_or((numbers, ""));
            let places = precision.parse().unwrap_or(6);
            let value = f64::from_bits(bits);
            let shown = match kind {
                b'd' | b'i' => signed.to_string(),
                b'u' => bits.to_string(),
                b'x' => format!("{bits:x}"),
                b'X' => format!("{bits:X}"),
                b'o' => format!("{bits:o}"),
                b'c' => char::from(bits as u8).to_string(),
                b'p' => format!("{bits:#x}"),
                b's' => self.string(warp, lane, bits),
                b'f' | b'F' => format!("{value:.places$}"),
                b'e' | b'E' => exponent(value, places),
                _ => format!("{value}"),
            };
            let width = width.parse::<usize>().unwrap_or(0);
            let zero = flags.trim_start_matches(['+', ' ', '#']).starts_with('0');
            text.push_str(&match (flags.contains('-'), zero) {
                (true, _) => format!("{shown:<width$}"),
                (false, true) => format!("{shown:0>width$}"),
                (false, false) => format!("{shown:>width$}"),
            });
        }
        text + rest
    }

    /// `__assertfail(message, file, line, function, size)`.
    pub(crate) fn assert(&mut self, warp: &Warp, pc: u32, cold: &Cold) {
        let lane = warp.active.trailing_zeros() as usize & 31;
        let message = self.argument(warp, lane, cold, 0);
        let message = self.string(warp, lane, message);
        self.report(FindingKind::Trap, pc, None, |cluster| {
            let message = format!("an assertion fails: {message}");
            Details::new(message, cluster.actor(warp.index, warp.active))
        });
    }
}

/// As C prints it: an exponent of two digits at least.
fn exponent(value: f64, places: usize) -> String {
    let text = format!("{value:.places$e}");
    match text.split_once('e') {
        Some((number, exponent)) => {
            let (sign, digits) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |digits| ('-', digits));
            format!("{number}e{sign}{digits:0>2}")
        }
        None => text,
    }
}
