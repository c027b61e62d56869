//! PTX text as words, each with its place, and a cursor over them.

use crate::error::PtxError;

/// Bytes of a text. The words and statements of one take some twenty times as many.
pub(crate) const MOST_BYTES: u64 = 1 << 26;

/// A word of PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word<'a> {
    /// A name, directive, opcode or register: `%rd1`, `.shared`, `ld.global.v4.f32`, `$L__BB0_2`.
    Name(&'a str),
    /// A number as it is written, without its sign.
    Number(&'a str),
    /// A text in quotes, without them.
    Text(&'a str),
    /// Anything else, a character each.
    Mark(char),
}

/// A word and its place.
#[derive(Clone, Debug)]
pub(crate) struct Token<'a> {
    /// The word.
    pub(crate) word: Word<'a>,
    /// The line it stands on.
    pub(crate) line: u32,
    /// Bytes of the text before it.
    pub(crate) offset: usize,
}

/// The words of a text, and which is next.
#[derive(Clone, Debug)]
pub(crate) struct Words<'a> {
    /// All words.
    pub(crate) tokens: Vec<Token<'a>>,
    /// Index of the next.
    pub(crate) at: usize,
}

impl<'a> Words<'a> {
    /// The words of a text, of which the first line has a number.
    ///
    /// # Errors
    /// A comment or a text in quotes does not end.
    pub(crate) fn of(text: &'a str, first_line: u32) -> Result<Self, PtxError> {
        let tokens = lex(text, first_line, true)?;
        Ok(Words { tokens, at: 0 })
    }

    /// The same without what is in braces, which need not be PTX.
    ///
    /// # Errors
    /// As [`of`](Self::of), and a brace without its other.
    pub(crate) fn outside_braces(text: &'a str) -> Result<Self, PtxError> {
        let tokens = lex(text, 1, false)?;
        Ok(Words { tokens, at: 0 })
    }

    /// The next word.
    pub(crate) fn peek(&self) -> Option<&Word<'a>> {
        self.tokens.get(self.at).map(|token| &token.word)
    }

    /// The line of the next word, or of the last.
    pub(crate) fn line(&self) -> u32 {
        let last = self.tokens.last().map_or(1, |token| token.line);
        self.tokens.get(self.at).map_or(last, |token| token.line)
    }

    /// The error that something else is next than what is expected.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn wrong<T>(&self, expected: &str) -> Result<T, PtxError> {
        let found = match self.peek() {
            None => "the end of the text".to_string(),
            Some(Word::Name(text) | Word::Number(text)) => format!("`{text}`"),
            Some(Word::Text(text)) => format!("\"{text}\""),
            Some(Word::Mark(mark)) => format!("`{mark}`"),
        };
        let (expected, line) = (expected.to_string(), self.line());
        Err(PtxError::Expected { expected, found, line })
    }

    /// Passes over a mark if it is next, and says whether it was.
    pub(crate) fn takes(&mut self, mark: char) -> bool {
        let there = self.peek() == Some(&Word::Mark(mark));
        self.at += usize::from(there);
        there
    }

    /// Passes over a mark.
    ///
    /// # Errors
    /// Another word is next, as in the methods below.
    pub(crate) fn mark(&mut self, mark: char) -> Result<(), PtxError> {
        if self.takes(mark) {
            return Ok(());
        }
        self.wrong(&format!("`{mark}`"))
    }

    /// Reads items with commas between them, up to `end`, which it takes.
    ///
    /// # Errors
    /// Those of `item`, and another word than a comma or `end` after it.
    pub(crate) fn list<T>(
        &mut self,
        end: char,
        mut item: impl FnMut(&mut Self) -> Result<T, PtxError>,
    ) -> Result<Vec<T>, PtxError> {
        let mut items = vec![item(self)?];
        while self.takes(',') {
            items.push(item(self)?);
        }
        self.mark(end)?;
        Ok(items)
    }

    /// Takes a name; `what` it is for is said if another word is next.
    ///
    /// # Errors
    /// Another word is next.
    pub(crate) fn name(&mut self, what: &str) -> Result<&'a str, PtxError> {
        let Some(Word::Name(name)) = self.peek() else {
            return self.wrong(what);
        };
        let name = *name;
        self.at += 1;
        Ok(name)
    }

    /// Takes a whole number.
    ///
    /// # Errors
    /// Another word is next.
    pub(crate) fn number(&mut self) -> Result<u64, PtxError> {
        let Some(Word::Number(text)) = self.peek() else {
            return self.wrong("a number");
        };
        let Some(number) = integer(text) else {
            return self.wrong("a whole number");
        };
        self.at += 1;
        Ok(number)
    }

    /// Takes a whole number of 32 bits.
    ///
    /// # Errors
    /// Another word is next, or a larger number.
    pub(crate) fn small(&mut self) -> Result<u32, PtxError> {
        let at = self.at;
        let number = self.number()?;
        u32::try_from(number).or_else(|_| {
            self.at = at;
            self.wrong("a number below 2^32")
        })
    }

    /// Passes over everything up to the end of a statement, or of a block in braces.
    ///
    /// # Errors
    /// The text ends before it.
    pub(crate) fn skip(&mut self, what: &'static str) -> Result<(), PtxError> {
        let (line, mut depth) = (self.line(), 0u32);
        while let Some(word) = self.peek() {
            let mark = match word {
                Word::Mark(mark) => *mark,
                _ => ' ',
            };
            self.at += 1;
            match mark {
                '{' => depth += 1,
                '}' if depth <= 1 => return Ok(()),
                '}' => depth -= 1,
                ';' if depth == 0 => return Ok(()),
                _ => {}
            }
        }
        Err(PtxError::Unfinished { what, line })
    }
}

/// The words of a text that begins at a line, or only those outside braces, and the braces. Comments
/// are none.
fn lex(text: &str, first_line: u32, with_bodies: bool) -> Result<Vec<Token<'_>>, PtxError> {
    PtxError::at_most("bytes of PTX", text.len() as u64, MOST_BYTES, first_line)?;
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, first_line);
    while let Some(first) = rest.chars().next() {
        let offset = text.len() - rest.len();
        let mut push = |word, line| tokens.push(Token { word, line, offset });
        let take = if first == '\n' {
            line += 1;
            1
        } else if first.is_whitespace() {
            first.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(comment) = rest.strip_prefix("/*") {
            let end = comment.find("*/");
            let end = end.ok_or(PtxError::Unfinished { what: "comment", line })? + 4;
            line += lines(&rest[..end]);
            end
        } else if first == '"' {
            let end = rest[1..]
                .find('"')
                .ok_or(PtxError::Unfinished { what: "string", line })?
                + 1;
            push(Word::Text(&rest[1..end]), line);
            line += lines(&rest[..end]);
            end + 1
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
            let end = end.unwrap_or(rest.len());
            push(Word::Number(&rest[..end]), line);
            end
        } else if is_name(first) {
            let end = end_of_name(rest).unwrap_or(rest.len());
            push(Word::Name(&rest[..end]), line);
            end
        } else {
            push(Word::Mark(first), line);
            match first {
                '{' if !with_bodies => {
                    let end = end_of_body(rest).ok_or(PtxError::Unfinished { what: "body", line })?;
                    line += lines(&rest[..end]);
                    end
                }
                _ => first.len_utf8(),
            }
        };
        rest = &rest[take..];
    }
    Ok(tokens)
}

/// Where the brace stands that closes the one a text begins with.
fn end_of_body(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0u32);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return Some(at),
            b'}' => depth -= 1,
            b'"' => at += 1 + text[at + 1..].find('"')?,
            b'/' if bytes.get(at + 1) == Some(&b'/') => at += text[at..].find('\n')?,
            b'/' if bytes.get(at + 1) == Some(&b'*') => at += text[at + 2..].find("*/")? + 3,
            _ => {}
        }
        at += 1;
    }
    None
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// Where a name ends; `::` is part of it (`shared::cta`), a single colon is not.
fn end_of_name(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if is_name(byte as char) {
            at += 1;
        } else if byte == b':' && bytes.get(at + 1) == Some(&b':') {
            at += 2;
        } else {
            return Some(at);
        }
    }
    None
}

fn lines(text: &str) -> u32 {
    text.bytes().filter(|&byte| byte == b'\n').count() as u32
}

/// A whole number: decimal, 0x, 0b, octal after a 0, with a U for unsigned.
pub(crate) fn integer(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['U', 'u']);
    if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    if let Some(binary) = digits.strip_prefix("0b").or(digits.strip_prefix("0B")) {
        return u64::from_str_radix(binary, 2).ok();
    }
    match digits.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_lines() {
        let text = "ld.shared::cta.u32 %r1, [a+4]; // x\n/* y\n*/ $L1: \"b\" -0x1F";
        let tokens = lex(text, 1, true).unwrap();
        let words: Vec<(Word<'_>, u32)> = tokens.into_iter().map(|t| (t.word, t.line)).collect();
        use Word::{Mark, Name, Number, Text};
        let expected = [
            (Name("ld.shared::cta.u32"), 1),
            (Name("%r1"), 1),
            (Mark(','), 1),
            (Mark('['), 1),
            (Name("a"), 1),
            (Mark('+'), 1),
            (Number("4"), 1),
            (Mark(']'), 1),
            (Mark(';'), 1),
            (Name("$L1"), 3),
            (Mark(':'), 3),
            (Text("b"), 3),
            (Mark('-'), 3),
            (Number("0x1F"), 3),
        ];
        assert_eq!(words, expected);
        assert!(lex("/* no end", 1, true).is_err() && lex("\"no end", 1, true).is_err());
    }
}
