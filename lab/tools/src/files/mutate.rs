//! Damage to files: what a torn write, an editor, another program or an attacker leaves.

use flashcore_problem::rng::Rng;

/// What numbers, names and structure are replaced by.
const PIECES: [&str; 44] = [
    "0",
    "-1",
    "1e999",
    "-0.0",
    "1e-320",
    "NaN",
    "Infinity",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999999999999999999999",
    "0.1e1",
    "0x10",
    "1_000",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[]]",
    "{\"a\":",
    "[[[[[[[[",
    "\u{202e}",
    "\u{feff}",
    "\u{0}",
    "\u{1b}[2J",
    "\\u0000",
    "\\ud800",
    "\n",
    "\r\n",
    "\t",
    "\"",
    "'''",
    ",",
    "=",
    "#",
    "../../../../etc/passwd",
    "/dev/zero",
    "cpu/m16n16",
    "mma/m64n64-w4x1-s2-b1-qreg-xor-cond",
    "[[problem]]",
    "1979-05-27T07:32:00Z",
];
/// Openings that are repeated: parsers that recurse run out of stack.
const NESTED: [&str; 6] = ["[", "{\"a\":", "a = [", "a.", "[a.", "(("];
/// The longest input, in bytes: what is read costs no more than a small multiple of it.
const LONGEST: usize = 1 << 18;

/// Input `number` of a format with these whole files: a file with one to three changes. The same number gives the same.
pub fn damaged(seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
    let rng = &mut Rng::stream(0x00f1_1e5d, number);
    let mut bytes = rng.pick(seeds).cloned().unwrap_or_default();
    for _ in 0..rng.between(1, 3) {
        change(&mut bytes, seeds, rng);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(bytes.len() + 1);
    let end = bytes.len().min(at + 1 + rng.below(40));
    match rng.below(12) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
        3 if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
        4 => {
            let again = bytes[at..end].repeat(rng.between(1, 50));
            bytes.splice(at..at, again);
        }
        5 => {
            let piece = rng.pick(&NESTED).copied().unwrap_or_default();
            let most = 1 << rng.between(1, 14);
            let again = piece.repeat(rng.between(1, most));
            bytes.splice(at..at, again.into_bytes());
        }
        6 => {
            // From another file, or this one.
            let other = rng.pick(seeds).cloned().unwrap_or_default();
            let from = rng.below(other.len() + 1);
            let piece = &other[from..other.len().min(from + 1 + rng.below(400))];
            bytes.splice(at..end, piece.to_vec());
        }
        7 | 8 => number(bytes, at, rng),
        9 => word(bytes, at, rng),
        _ => {
            let piece = rng.pick(&PIECES).copied().unwrap_or_default();
            bytes.splice(at..if rng.chance(0.5) { end } else { at }, piece.bytes());
        }
    }
}

/// Replaces the next number.
fn number(bytes: &mut Vec<u8>, from: usize, rng: &mut Rng) {
    let is_part = |byte: &u8| byte.is_ascii_digit() || b".-+eE".contains(byte);
    replace(bytes, from, |byte| byte.is_ascii_digit(), is_part, rng);
}

/// Replaces the next quoted word with another, or with a long one.
fn word(bytes: &mut Vec<u8>, from: usize, rng: &mut Rng) {
    if rng.chance(0.2) {
        let most = 1 << rng.between(1, 16);
        let long = "x".repeat(rng.between(1, most));
        bytes.splice(from..from, long.into_bytes());
        return;
    }
    replace(bytes, from, |byte| *byte == b'"', |byte| *byte != b',', rng);
}

fn replace(
    bytes: &mut Vec<u8>,
    from: usize,
    begins: impl Fn(&u8) -> bool,
    goes_on: impl Fn(&u8) -> bool,
    rng: &mut Rng,
) {
    let Some(start) = bytes[from..].iter().position(begins).map(|at| from + at) else {
        return;
    };
    let length = bytes[start..].iter().skip(1).take_while(|byte| goes_on(byte)).count() + 1;
    let piece = rng.pick(&PIECES).copied().unwrap_or_default();
    bytes.splice(start..start + length, piece.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_makes_the_same_input_and_another_one_another() {
        let seeds = [b"{\"a\": [1, 2.5, \"x\"]}".to_vec(), b"a = 1\n".to_vec()];
        let inputs: Vec<Vec<u8>> = (0..500).map(|number| damaged(&seeds, number)).collect();
        assert!((0..500).all(|number| damaged(&seeds, number) == inputs[number as usize]));
        let mut unlike = inputs.clone();
        unlike.sort();
        unlike.dedup();
        assert!(unlike.len() > 400, "{}", unlike.len());
        assert!(inputs.iter().all(|input| input.len() <= LONGEST));
        assert!(inputs.iter().any(|input| input.len() > 10_000));
    }
}
