//! Edits of texts by characters, words and lines.

use flashcore_problem::rng::Rng;

/// Texts to mutate, and the words of them all.
pub struct Corpus {
    /// The short ones first.
    texts: Vec<String>,
    short: usize,
    words: Vec<String>,
    lines: Vec<String>,
}

/// Numbers at which something ends.
const NUMBERS: [&str; 24] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "7",
    "8",
    "15",
    "16",
    "31",
    "32",
    "33",
    "48",
    "64",
    "255",
    "256",
    "1024",
    "65536",
    "0x7fffffff",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
];
/// Marks, and words that end or open something.
const MARKS: [&str; 20] = [
    "{", "}", "[", "]", "(", ")", ",", ";", ":", "@", "!", "-", "+", "|", "<", ">", "/*", "*/", "\"", "é",
];
/// Lines of a text, at most; of longer ones a window is taken.
const MOST_LINES: usize = 120;
const MOST_EDITS: usize = 3;
/// One edit of so many repeats something often.
const LONG: usize = 200;

impl Corpus {
    /// Of these texts.
    pub fn new(mut texts: Vec<String>) -> Corpus {
        texts.sort_by_key(String::len);
        let short = texts.partition_point(|text| text.lines().count() <= MOST_LINES);
        let mut words: Vec<String> = texts.iter().flat_map(|text| words(text)).map(str::to_string).collect();
        words.sort();
        words.dedup();
        let lines = texts.iter().flat_map(|text| text.lines()).map(str::to_string);
        let lines = lines.collect();
        Corpus {
            texts,
            short,
            words,
            lines,
        }
    }

    /// Mutant `number` of a seed.
    pub fn mutant(&self, seed: u64, number: u64) -> String {
        let mut rng = Rng::stream(seed, number);
        // The short ones can be simulated.
        let (short, all) = (self.texts.split_at(self.short).0, &self.texts[..]);
        let texts = if rng.below(4) == 0 { all } else { short };
        let Some(text) = rng.pick(texts) else {
            return String::new();
        };
        let mut text = window(text, &mut rng);
        for _ in 0..=rng.below(MOST_EDITS) {
            text = match rng.below(10) {
                0 => by_characters(&text, &mut rng),
                1..=6 => self.by_words(&text, &mut rng),
                _ => self.by_lines(&text, &mut rng),
            };
        }
        text
    }

    fn by_words(&self, text: &str, rng: &mut Rng) -> String {
        let mut all: Vec<&str> = words(text).collect();
        let at = rng.below(all.len());
        let Some(old) = all.get(at).copied() else {
            return text.to_string();
        };
        let other = rng.below(all.len());
        let is_number = old.starts_with(|c: char| c.is_ascii_digit());
        match rng.below(16) {
            0 => _ = all.remove(at),
            1 => all.insert(at, old),
            2 => all.swap(at, other),
            3 => all[at] = all[other],
            4 => all[at] = rng.pick(&self.words).map_or(old, String::as_str),
            5 => all[at] = rng.pick(&MARKS).copied().unwrap_or(old),
            6 => all.insert(at, rng.pick(&MARKS).copied().unwrap_or(old)),
            _ if is_number => all[at] = rng.pick(&NUMBERS).copied().unwrap_or(old),
            // A word of the same kind, so that what is said is another thing.
            _ => {
                let kind = |word: &str| {
                    word.chars()
                        .next()
                        .map(|c| (c.is_ascii_alphanumeric(), c == '%', c == '.'))
                };
                let same: Vec<&str> = all.iter().copied().filter(|word| kind(word) == kind(old)).collect();
                all[at] = rng.pick(&same).copied().unwrap_or(old);
            }
        }
        if rng.below(LONG) == 0 {
            let times = 1 << rng.below(16);
            let long = rng.pick(&MARKS).copied().unwrap_or(old).repeat(times);
            return [
                all[..at.min(all.len())].concat(),
                long,
                all[at.min(all.len())..].concat(),
            ]
            .concat();
        }
        all.concat()
    }

    fn by_lines(&self, text: &str, rng: &mut Rng) -> String {
        let mut all: Vec<&str> = text.lines().collect();
        let (at, other) = (rng.below(all.len()), rng.below(all.len()));
        let Some(old) = all.get(at).copied() else {
            return text.to_string();
        };
        match rng.below(7) {
            0 => _ = all.remove(at),
            1 => all.insert(other, old),
            2 => all.swap(at, other),
            3 => all.insert(at, rng.pick(&self.lines).map_or(old, String::as_str)),
            4 => all[at] = rng.pick(&self.lines).map_or(old, String::as_str),
            5 => all
                .drain(at.min(other)..at.max(other).min(at.min(other) + 8))
                .for_each(drop),
            _ if rng.below(LONG / 8) == 0 => {
                let times = 1 << rng.below(11);
                all.splice(at..at, std::iter::repeat_n(old, times)).for_each(drop);
            }
            _ if rng.below(4) == 0 => all.truncate(at),
            _ => all.insert(at, old),
        }
        all.join("\n")
    }
}

fn by_characters(text: &str, rng: &mut Rng) -> String {
    let mut all: Vec<char> = text.chars().collect();
    let at = rng.below(all.len());
    if all.is_empty() {
        return text.to_string();
    }
    let byte = char::from(rng.below(256) as u8);
    match rng.below(4) {
        0 => _ = all.remove(at),
        1 => all.insert(at, byte),
        2 => all[at] = byte,
        _ => all[at] = char::from_u32(all[at] as u32 ^ 1 << rng.below(7)).unwrap_or(byte),
    }
    all.into_iter().collect()
}

/// The declarations, some lines of the body in a row, and the end.
fn window(text: &str, rng: &mut Rng) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let Some(body) = lines.len().checked_sub(MOST_LINES) else {
        return text.to_string();
    };
    let is_code = |line: &&str| line.trim_end().ends_with(';') && !line.trim_start().starts_with('.');
    let first = lines.iter().position(is_code).unwrap_or(0);
    let from = first + rng.below(body.saturating_sub(first));
    let parts = [
        &lines[..first.min(from)],
        &lines[from..from + MOST_LINES / 2],
        &["ret;", "}"],
    ];
    parts.concat().join("\n")
}

/// Names, numbers, runs of space and single marks: together the text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let kind = |c: char| match c {
        _ if c.is_alphanumeric() || matches!(c, '_' | '$' | '%' | '.') => 1,
        _ if c.is_whitespace() => 2,
        _ => 0,
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = match kind(first) {
            0 => first.len_utf8(),
            this => rest.find(|c| kind(c) != this).unwrap_or(rest.len()),
        };
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}
