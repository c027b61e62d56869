//! Damage to files: what a torn write, an editor, another program or an attacker leaves.

use flashcore_problem::rng::Rng;

/// What other numbers are replaced by.
#[rustfmt::skip]
const NUMBERS: [&str; 38] = [
    "0", "1", "2", "3", "4", "7", "8", "15", "16", "31", "32", "33", "48", "64", "255", "256", "1024", "65536",
    "0x7fffffff", "2147483648", "4294967295", "4294967296", "9223372036854775807", "-9223372036854775808",
    "18446744073709551615", "18446744073709551616", "99999999999999999999999999999999999999",
    "-1", "1e999", "-0.0", "1e-320", "0.1e1", "0x10", "1_000", "NaN", "Infinity", "1979-05-27T07:32:00Z", "null",
];
/// What else parts are replaced by.
#[rustfmt::skip]
const PIECES: [&str; 48] = [
    "{", "}", "[", "]", "(", ")", ",", ";", ":", "@", "!", "-", "+", "|", "<", ">", "/*", "*/", "\"", "é", "=", "#",
    "true", "\"\"", "[]", "{}", "[[]]", "{\"a\":", "[[[[[[[[", "\u{202e}", "\u{feff}", "\u{0}", "\u{1b}[2J", "\\u0000",
    "\\ud800", "\n", "\r\n", "\t", "'''", "../../../../etc/passwd", "/dev/zero", "cpu/m16n16", "[[problem]]",
    "mma/m64n64-w4x1-s2-b1-qreg-xor-cond", "\\", "$", "%", "_",
];
/// Openings that are repeated: parsers that recurse run out of stack.
const NESTED: [&str; 6] = ["[", "{\"a\":", "a = [", "a.", "[a.", "(("];
/// The longest input, in bytes: what is read costs no more than a small multiple of it.
const LONGEST: usize = 1 << 18;
/// Lines of a text, at most; of longer code a window is taken.
const MOST_LINES: usize = 120;
/// One change of so many repeats something often.
const LONG: usize = 150;

/// Whole files of a format, and the words and lines of them all.
pub struct Corpus<'s> {
    /// The short ones first.
    seeds: Vec<&'s [u8]>,
    short: usize,
    words: Vec<&'s [u8]>,
    lines: Vec<&'s [u8]>,
}

impl<'s> Corpus<'s> {
    /// Of these files.
    pub fn new(seeds: &'s [Vec<u8>]) -> Corpus<'s> {
        let mut seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
        seeds.sort_by_key(|seed| seed.len());
        let mut words: Vec<&[u8]> = seeds.iter().flat_map(|seed| words(seed)).collect();
        words.sort_unstable();
        words.dedup();
        Corpus {
            short: seeds.partition_point(|seed| lines(seed).count() <= MOST_LINES),
            lines: seeds.iter().flat_map(|seed| lines(seed)).collect(),
            words,
            seeds,
        }
    }

    /// Input `number`: a file with one to three changes. The same number gives the same.
    pub fn damaged(&self, number: u64) -> Vec<u8> {
        let rng = &mut Rng::stream(0x00f1_1e5d, number);
        // The short ones of a long list come far more often into what runs.
        let short = rng.pick(&self.seeds[..self.short]).filter(|_| rng.below(4) > 0);
        let mut bytes = window(short.or(rng.pick(&self.seeds)).copied().unwrap_or_default(), rng);
        for _ in 0..rng.between(1, 3) {
            bytes = self.changed(&bytes, rng);
            bytes.truncate(LONGEST);
        }
        bytes
    }

    /// One change: of single bytes, of words, or of lines.
    fn changed(&self, bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
        let (mut parts, known): (Vec<&[u8]>, _) = match rng.below(10) {
            0 => (bytes.chunks(1).collect(), &self.words),
            1..7 => (words(bytes).collect(), &self.words),
            _ => (lines(bytes).collect(), &self.lines),
        };
        let (at, other) = (rng.below(parts.len()), rng.below(parts.len()));
        let Some(old) = parts.get(at).copied() else {
            return rng.pick(&PIECES).map_or(Vec::new(), |piece| piece.as_bytes().to_vec());
        };
        let end = parts.len().min(at + 1 + rng.below(8));
        let piece = |rng: &mut Rng, all: &[&'static str]| rng.pick(all).map_or(old, |piece| piece.as_bytes());
        let one_of_known = |rng: &mut Rng| rng.pick(known).copied().unwrap_or(old);
        let flipped;
        match rng.below(20) {
            _ if rng.below(LONG) == 0 => {
                let times = 1 << rng.below(16);
                let again = if rng.chance(0.5) { old } else { piece(rng, &NESTED) };
                parts.splice(at..at, std::iter::repeat_n(again, times)).for_each(drop);
            }
            0 => drop(parts.remove(at)),
            1 => parts.insert(other, old),
            2 => parts.swap(at, other),
            3 => parts[at] = parts[other],
            4 => parts[at] = one_of_known(rng),
            5 => parts.insert(at, one_of_known(rng)),
            6 => parts[at] = piece(rng, &PIECES),
            7 => parts.insert(at, piece(rng, &PIECES)),
            8 => drop(parts.drain(at..end)),
            9 if rng.chance(0.25) => parts.truncate(at),
            10 => {
                let place = rng.below(old.len());
                flipped = [&old[..place], &[old[place] ^ 1 << rng.below(8)], &old[place + 1..]].concat();
                parts[at] = &flipped;
            }
            11 => {
                // A part of another file, or of this one.
                let from = rng.below(known.len());
                let taken = known[from..].iter().take(1 + rng.below(8)).copied();
                parts.splice(at..end, taken).for_each(drop);
            }
            _ if old[0].is_ascii_digit() => parts[at] = piece(rng, &NUMBERS),
            // A part of the same kind, so that what is said is another thing.
            _ => {
                let same: Vec<&[u8]> = parts
                    .iter()
                    .copied()
                    .filter(|part| begins(part) == begins(old))
                    .collect();
                parts[at] = rng.pick(&same).copied().unwrap_or(old);
            }
        }
        parts.concat()
    }
}

/// Names and numbers 1, space 2, marks 0.
fn kind(byte: u8) -> u8 {
    match byte {
        _ if byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte) || byte >= 0x80 => 1,
        _ if byte.is_ascii_whitespace() => 2,
        _ => 0,
    }
}

/// What a part is by its first byte.
fn begins(part: &[u8]) -> Option<(u8, bool, bool)> {
    part.first().map(|&byte| (kind(byte), byte == b'%', byte == b'.'))
}

/// Names, numbers, runs of space and single marks: together the file.
fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunk_by(|a, b| kind(*a) != 0 && kind(*a) == kind(*b))
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n')
}

/// Of long PTX the declarations, some lines of the body in a row, and the end; of others all.
fn window(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let lines: Vec<&[u8]> = lines(bytes).collect();
    let is_code = |line: &&[u8]| line.trim_ascii_end().ends_with(b";") && !line.trim_ascii_start().starts_with(b".");
    match (lines.len().checked_sub(MOST_LINES), lines.iter().position(is_code)) {
        (Some(body), Some(first)) => {
            let from = first + rng.below(body.saturating_sub(first));
            let taken = [&lines[..first], &lines[from..from + MOST_LINES / 2], &[b"ret;\n}\n"]];
            taken.concat().concat()
        }
        _ => bytes.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_makes_the_same_input_and_another_one_another() {
        let seeds = [b"{\"a\": [1, 2.5, \"x\"]}".to_vec(), b"a = 1\n".to_vec()];
        let corpus = Corpus::new(&seeds);
        let inputs: Vec<Vec<u8>> = (0..1000).map(|number| corpus.damaged(number)).collect();
        assert!((0..1000).all(|number| corpus.damaged(number) == inputs[number as usize]));
        let mut unlike = inputs.clone();
        unlike.sort();
        unlike.dedup();
        assert!(unlike.len() > 600, "{}", unlike.len());
        assert!(inputs.iter().all(|input| input.len() <= LONGEST));
        assert!(inputs.iter().any(|input| input.len() > 10_000));
        // Of no file at all, too.
        assert!((0..100).all(|number| Corpus::new(&[Vec::new()]).damaged(number).len() <= LONGEST));
    }
}
