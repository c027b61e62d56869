//! Operands that stand in a text, and what their names stand for.

use flashcore_ir::ptx::read::{PtxError, Word, integer};

use crate::body::{Bound, Reader};
use crate::forms::is_one_of;
use crate::operand::{Operand, Register};

/// Braces and brackets in one another in an operand. PTX has two: `[map, {x, y}]`.
const MOST_IN_OPERANDS: u64 = 8;

impl<'a> Reader<'a, '_> {
    /// An operand within `depth` braces and brackets.
    pub(crate) fn operand(&mut self, depth: u64) -> Result<Operand, PtxError> {
        let first = self.simple(depth)?;
        if self.words.takes('|') {
            let second = self.simple(depth)?;
            return Ok(Operand::Pair(Box::new([first, second])));
        }
        Ok(first)
    }

    fn simple(&mut self, depth: u64) -> Result<Operand, PtxError> {
        let line = self.words.line();
        PtxError::at_most("braces and brackets in one another", depth, MOST_IN_OPERANDS, line)?;
        if self.words.takes('!') {
            let name = self.words.name("a predicate")?;
            return match self.resolve(name)? {
                Operand::Register(register) => Ok(Operand::Not(register)),
                _ => {
                    self.words.at -= 1;
                    self.words.wrong("a predicate")
                }
            };
        }
        if self.words.takes('-') {
            return match self.simple(depth)? {
                Operand::Integer(number) => Ok(Operand::Integer(number.wrapping_neg())),
                Operand::Float { bits, width } => Ok(Operand::Float {
                    bits: bits ^ 1 << (width - 1),
                    width,
                }),
                _ => {
                    self.words.at -= 1;
                    self.words.wrong("a number")
                }
            };
        }
        for (begin, end) in [('{', '}'), ('(', ')')] {
            if self.words.takes(begin) {
                if self.words.takes(end) {
                    return Ok(Operand::List(Vec::new()));
                }
                return self.list(end, depth).map(Operand::List);
            }
        }
        if self.words.takes('[') {
            return self.memory(depth + 1);
        }
        match self.words.peek() {
            Some(Word::Name(name)) => {
                let name = *name;
                self.words.at += 1;
                let named = self.resolve(name)?;
                Ok(match named {
                    // As an immediate.
                    Operand::Symbol(name, _) => Operand::Symbol(name, self.offset()?),
                    other => other,
                })
            }
            Some(Word::Number(text)) => {
                let Some(value) = number(text) else {
                    return self.words.wrong("a number");
                };
                self.words.at += 1;
                Ok(value)
            }
            _ => self.words.wrong("an operand"),
        }
    }

    fn list(&mut self, end: char, depth: u64) -> Result<Vec<Operand>, PtxError> {
        let mut all = vec![self.operand(depth + 1)?];
        while self.words.takes(',') {
            all.push(self.operand(depth + 1)?);
        }
        self.words.mark(end)?;
        Ok(all)
    }

    /// Signed bytes that are added, if any.
    fn offset(&mut self) -> Result<i64, PtxError> {
        let (is_sum, is_negative) = (self.words.takes('+'), self.words.takes('-'));
        if !is_sum && !is_negative {
            return Ok(0);
        }
        let offset = self.words.number()? as i64;
        Ok(if is_negative { offset.wrapping_neg() } else { offset })
    }

    /// What follows `[`.
    fn memory(&mut self, depth: u64) -> Result<Operand, PtxError> {
        let base = self.simple(depth)?;
        let (base, offset) = match base {
            Operand::Symbol(name, offset) => (Operand::Symbol(name, 0), offset),
            base => (base, self.offset()?),
        };
        let memory = Operand::Memory(Box::new(base), offset);
        if !self.words.takes(',') {
            self.words.mark(']')?;
            return Ok(memory);
        }
        let mut all = vec![memory];
        all.extend(self.list(']', depth)?);
        Ok(Operand::Tensor(all))
    }

    /// What a name stands for in the innermost scope that has it.
    pub(crate) fn resolve(&mut self, name: &'a str) -> Result<Operand, PtxError> {
        let mut found = None;
        let mut consider = |depth: u32, operand| {
            if found.as_ref().is_none_or(|(known, _)| *known < depth) {
                found = Some((depth, operand));
            }
        };
        if let Some(bindings) = self.bound.get(name) {
            match bindings.last() {
                Some((depth, Bound::Register(register))) => consider(*depth, Operand::Register(*register)),
                Some((depth, Bound::Label(label))) => consider(*depth, Operand::Label(*label)),
                _ => {}
            }
        }
        for (prefix, number) in numbered(name) {
            for (depth, bound) in self.bound.get(prefix).into_iter().flatten().rev() {
                match bound {
                    Bound::Numbered(first, count) if number < *count => {
                        consider(*depth, Operand::Register(Register(first.0 + number)));
                        break;
                    }
                    _ => {}
                }
            }
        }
        if let Some((_, operand)) = found {
            return Ok(operand);
        }
        if name == "_" {
            return Ok(Operand::Sink);
        }
        if name.starts_with('%') {
            self.unknown = (!is_special(name)).then(|| name.to_string()).or(self.unknown.take());
            return Ok(Operand::Special(name.to_string()));
        }
        if name != "WARP_SZ" && !self.function.named.contains(name) {
            self.function.named.insert(name.to_string());
        }
        match name {
            "WARP_SZ" => Ok(Operand::Integer(32)),
            _ => Ok(Operand::Symbol(name.to_string(), 0)),
        }
    }
}

/// The ways to read a name as a prefix and a number: `%r1` and 23, `%r12` and 3, `%r` and 123.
fn numbered(name: &str) -> impl Iterator<Item = (&str, u32)> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    (1..=digits.min(10)).filter_map(move |digits| {
        let (prefix, number) = name.split_at(name.len() - digits);
        let is_plain = digits == 1 || !number.starts_with('0');
        Some((prefix, number.parse().ok().filter(|_| is_plain)?))
    })
}

/// Special registers, those of a position with its axis (PTX ISA, "Special Registers").
pub(crate) fn is_special(name: &str) -> bool {
    let name = name.trim_start_matches('%');
    match name.split_once('.') {
        Some((name, axis)) => is_one_of("POSITION", name) && is_one_of("AXIS", axis),
        None => is_one_of("SPECIAL", name),
    }
}

pub(crate) fn number(text: &str) -> Option<Operand> {
    for (prefix, width) in [("0f", 32), ("0F", 32), ("0d", 64), ("0D", 64)] {
        if let Some(bits) = text.strip_prefix(prefix) {
            let bits = u64::from_str_radix(bits, 16).ok()?;
            return Some(Operand::Float { bits, width });
        }
    }
    match integer(text) {
        Some(number) => Some(Operand::Integer(number)),
        // A plain `1.5` is a double; instructions round it to their own type.
        None => text.parse::<f64>().ok().map(|value| Operand::Float {
            bits: value.to_bits(),
            width: 64,
        }),
    }
}
