//! PTX text as words, each with its line.

use super::PtxError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// A name, directive, opcode or register: `%rd1`, `.shared`, `ld.global.v4.f32`, `$L__BB0_2`.
    Name(&'a str),
    /// A number as it is written, without its sign.
    Number(&'a str),
    Text(&'a str),
    Mark(char),
}

/// A word and the line it stands on, from 1.
#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    pub(super) word: Word<'a>,
    pub(super) line: u32,
}

/// The words of a text, or only those outside braces, and the braces. Comments are none.
pub(super) fn lex(text: &str, with_bodies: bool) -> Result<Vec<Token<'_>>, PtxError> {
    let mut tokens = Vec::new();
    let mut push = |word, line| tokens.push(Token { word, line });
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let take = if first == '\n' {
            line += 1;
            1
        } else if first.is_whitespace() {
            first.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").ok_or(PtxError::Unfinished { what: "comment", line })? + 2;
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
            b'/' if bytes.get(at + 1) == Some(&b'*') => at += text[at..].find("*/")? + 1,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_lines() {
        let text = "ld.shared::cta.u32 %r1, [a+4]; // x\n/* y\n*/ $L1: \"b\" -0x1F";
        let tokens = lex(text, true).unwrap();
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
        assert!(lex("/* no end", true).is_err() && lex("\"no end", true).is_err());
    }
}
