//! Names of a block in braces: registers, one by one or numbered, and labels.

use std::collections::{HashMap, HashSet};

/// A block that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// Of the kernel's blocks in order; 0 is its body.
    number: u32,
    names: HashSet<String>,
    /// Prefixes of numbered registers, and how many there are.
    numbered: HashMap<String, u32>,
    /// The least number of single names by each prefix that they can be read with.
    singles: HashMap<String, u32>,
}

impl Scope {
    pub(super) fn new(number: u32) -> Scope {
        Scope {
            number,
            ..Scope::default()
        }
    }

    /// Declares a name, or with a count as many numbered ones; false if it is known here.
    pub(super) fn declare(&mut self, name: &str, count: Option<u32>) -> bool {
        match count {
            Some(count) => {
                let is_known = self.singles.get(name).is_some_and(|least| *least < count);
                self.numbered.insert(name.to_string(), count).is_none() && !is_known
            }
            None => {
                for (prefix, number) in numbered(name) {
                    let least = self.singles.entry(prefix.to_string()).or_insert(number);
                    *least = number.min(*least);
                }
                !self.has(name) && self.names.insert(name.to_string())
            }
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        let is_numbered = |(prefix, number)| self.numbered.get(prefix).is_some_and(|count| number < *count);
        self.names.contains(name) || numbered(name).any(is_numbered)
    }

    /// A name of this block as no other block has it.
    pub(super) fn renamed(&self, name: &str) -> String {
        match self.number {
            0 => name.to_string(),
            number => format!("{name}@{number}"),
        }
    }
}

/// The ways to read a name as a prefix and a number: `%r1` and 23, `%r12` and 3, `%r` and 123.
pub(super) fn numbered(name: &str) -> impl Iterator<Item = (&str, u32)> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    (1..=digits.min(10)).filter_map(move |digits| {
        let (prefix, number) = name.split_at(name.len() - digits);
        let is_plain = digits == 1 || !number.starts_with('0');
        Some((prefix, number.parse().ok().filter(|_| is_plain)?))
    })
}

/// What follows the name that the text has: nothing or, in an inner block, its number.
pub(super) fn split_renamed(name: &str) -> (&str, &str) {
    name.split_at(name.find('@').unwrap_or(name.len()))
}
