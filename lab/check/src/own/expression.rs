//! Arithmetic in declarations: `ceil(seq_q / 64)`, `batch * heads`, `head_dim == 64`.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Levels of parentheses and signs; more would exhaust the stack.
const DEEPEST: usize = 64;

/// An expression over names: numbers, names, `+ - * / %`, comparisons (1 or 0), parentheses, and the functions `ceil`,
/// `floor`, `min`, `max`. Numbers are f64, which is exact for sizes and strides below 2^53.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Expression {
    text: String,
    root: Node,
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.text == other.text
    }
}

/// As declarations have it: a number or a text.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number or an expression such as \"ceil(seq_q / 64)\""
)]
enum Written {
    Whole(i64),
    Number(f64),
    Text(String),
}

/// A mistake in an expression, or a value that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{text}` {why}")]
pub struct ExpressionError {
    text: String,
    why: String,
}

#[derive(Clone, Debug)]
enum Node {
    Number(f64),
    Name(String),
    Negated(Box<Node>),
    Of(Operation, Box<Node>, Box<Node>),
    Rounded(fn(f64) -> f64, Box<Node>),
}

type Operation = fn(f64, f64) -> f64;

/// Operators by rising precedence. A longer one comes before its beginning.
const OPERATORS: [&[(&str, Operation)]; 3] = [
    &[
        ("==", |a, b| f64::from(a == b)),
        ("!=", |a, b| f64::from(a != b)),
        ("<=", |a, b| f64::from(a <= b)),
        (">=", |a, b| f64::from(a >= b)),
        ("<", |a, b| f64::from(a < b)),
        (">", |a, b| f64::from(a > b)),
    ],
    &[("+", |a, b| a + b), ("-", |a, b| a - b)],
    &[("*", |a, b| a * b), ("/", |a, b| a / b), ("%", |a, b| a % b)],
];

impl Expression {
    /// The names in it, in order; a name may occur twice.
    pub fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.root.add_names(&mut names);
        names
    }

    /// Its value. `value` gives that of a name.
    ///
    /// # Errors
    /// A name without a value.
    pub fn value(&self, value: &dyn Fn(&str) -> Option<f64>) -> Result<f64, ExpressionError> {
        let unknown = |name: &str| self.wrong(format!("cannot be computed: nothing is named `{name}`"));
        self.root.value(value).map_err(unknown)
    }

    /// Its value, if that is a whole number from `least` to `most`.
    ///
    /// # Errors
    /// A name without a value, or a value out of that range.
    pub fn whole(&self, value: &dyn Fn(&str) -> Option<f64>, least: u32, most: u32) -> Result<u32, ExpressionError> {
        let found = self.value(value)?;
        if found.fract() == 0.0 && (f64::from(least)..=f64::from(most)).contains(&found) {
            Ok(found as u32)
        } else {
            let why = format!("is {found} here; needed is a whole number from {least} to {most}");
            Err(self.wrong(why))
        }
    }

    /// Whether a number with a fraction is in it.
    pub(super) fn has_fraction(&self) -> bool {
        self.root.has_fraction()
    }

    pub(super) fn wrong(&self, why: String) -> ExpressionError {
        let text = self.text.clone();
        ExpressionError { text, why }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<u32> for Expression {
    fn from(number: u32) -> Expression {
        Expression {
            text: number.to_string(),
            root: Node::Number(number.into()),
        }
    }
}

impl From<Expression> for String {
    fn from(expression: Expression) -> String {
        expression.text
    }
}

impl TryFrom<Written> for Expression {
    type Error = ExpressionError;

    fn try_from(written: Written) -> Result<Expression, ExpressionError> {
        match written {
            Written::Whole(number) => number.to_string().parse(),
            Written::Number(number) => number.to_string().parse(),
            Written::Text(text) => text.parse(),
        }
    }
}

impl std::str::FromStr for Expression {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Expression, ExpressionError> {
        let mut parser = Parser { rest: text, depth: 0 };
        let root = parser.operation(0).and_then(|root| match parser.rest.trim_start() {
            "" => Ok(root),
            rest => Err(format!("`{rest}` is left over")),
        });
        let text = text.to_string();
        match root {
            Ok(root) => Ok(Expression { text, root }),
            Err(why) => Err(ExpressionError {
                text,
                why: format!("is not an expression: {why}"),
            }),
        }
    }
}

impl Node {
    fn has_fraction(&self) -> bool {
        match self {
            Node::Number(number) => number.fract() != 0.0,
            Node::Name(_) | Node::Rounded(..) => false,
            Node::Negated(of) => of.has_fraction(),
            Node::Of(_, left, right) => left.has_fraction() || right.has_fraction(),
        }
    }

    fn add_names<'n>(&'n self, names: &mut Vec<&'n str>) {
        match self {
            Node::Number(_) => {}
            Node::Name(name) => names.push(name),
            Node::Negated(of) | Node::Rounded(_, of) => of.add_names(names),
            Node::Of(_, a, b) => {
                a.add_names(names);
                b.add_names(names);
            }
        }
    }

    /// The error is the name that has no value.
    fn value<'n>(&'n self, of: &dyn Fn(&str) -> Option<f64>) -> Result<f64, &'n str> {
        Ok(match self {
            Node::Number(number) => *number,
            Node::Name(name) => of(name).ok_or(name.as_str())?,
            Node::Negated(node) => -node.value(of)?,
            Node::Rounded(round, node) => round(node.value(of)?),
            Node::Of(operation, a, b) => operation(a.value(of)?, b.value(of)?),
        })
    }
}

struct Parser<'t> {
    rest: &'t str,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.take(token) {
            Ok(())
        } else {
            Err(format!("`{token}` is needed before `{}`", self.rest.trim_start()))
        }
    }

    /// Operators of one precedence, from left to right.
    fn operation(&mut self, precedence: usize) -> Result<Node, String> {
        let Some(operators) = OPERATORS.get(precedence) else {
            return self.operand();
        };
        let mut node = self.operation(precedence + 1)?;
        while let Some((_, operation)) = operators.iter().find(|(token, _)| self.take(token)) {
            node = Node::Of(*operation, Box::new(node), Box::new(self.operation(precedence + 1)?));
        }
        Ok(node)
    }

    fn operand(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("it is nested more than {DEEPEST} levels deep"));
        }
        let node = match () {
            () if self.take("-") => Node::Negated(Box::new(self.operand()?)),
            () if self.take("(") => {
                let node = self.operation(0)?;
                self.expect(")")?;
                node
            }
            () => self.word()?,
        };
        self.depth -= 1;
        Ok(node)
    }

    fn word(&mut self) -> Result<Node, String> {
        let rest = self.rest.trim_start();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let (word, after) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
        self.rest = after;
        if word.is_empty() {
            let found = match rest.chars().next() {
                None => "the end".to_string(),
                Some(found) => format!("`{found}`"),
            };
            return Err(format!("a number or a name is needed, not {found}"));
        }
        if word.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            let number = word.parse::<f64>().ok().filter(|number| number.is_finite());
            return number.map(Node::Number).ok_or(format!("`{word}` is not a number"));
        }
        if !self.take("(") {
            return Ok(Node::Name(word.to_string()));
        }
        let first = Box::new(self.operation(0)?);
        let node = match word {
            "ceil" => Node::Rounded(f64::ceil, first),
            "floor" => Node::Rounded(f64::floor, first),
            "min" | "max" => {
                self.expect(",")?;
                let operation: Operation = if word == "min" { f64::min } else { f64::max };
                Node::Of(operation, first, Box::new(self.operation(0)?))
            }
            _ => {
                return Err(format!(
                    "no function is named `{word}`; there are ceil, floor, min, max"
                ));
            }
        };
        self.expect(")")?;
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<f64, String> {
        let names = |name: &str| {
            [("seq_q", 130.0), ("heads", 8.0)]
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| *v)
        };
        let parsed: Expression = text.parse().map_err(|error: ExpressionError| error.to_string())?;
        assert_eq!(parsed.to_string(), text);
        parsed.value(&names).map_err(|error| error.to_string())
    }

    #[test]
    fn arithmetic_has_the_usual_precedence() {
        for (text, expected) in [
            ("ceil(seq_q / 64)", 3.0),
            ("floor(seq_q/64) * heads", 16.0),
            ("1 + 2 * 3 - 4 - 5", -2.0),
            ("-(1 + 2) * -2", 6.0),
            ("min(seq_q, 64) + max(1, heads)", 72.0),
            ("seq_q % 64 == 2", 1.0),
            ("seq_q <= 64", 0.0),
            ("heads + 1 >= 9", 1.0),
            ("heads != 8", 0.0),
            (" 0.5 ", 0.5),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let deep = "(".repeat(100);
        for (text, said) in [
            ("", "not the end"),
            ("seq_q /", "a number or a name is needed, not the end"),
            ("seq_q * * 2", "not `*`"),
            ("ceil(seq_q", "`)` is needed"),
            ("min(1)", "`,` is needed before `)`"),
            ("sqrt(4)", "no function is named `sqrt`; there are ceil"),
            ("1 2", "`2` is left over"),
            ("1.2.3", "`1.2.3` is not a number"),
            ("length", "nothing is named `length`"),
            ("héads", "is left over"),
            (&deep, "nested more than 64 levels"),
        ] {
            let error = value(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn whole_numbers_are_held_to_a_range() {
        let whole = |text: &str| text.parse::<Expression>().unwrap().whole(&|_| None, 1, 1024);
        assert_eq!(whole("1024"), Ok(1024));
        for text in ["0", "1025", "0.5", "1 / 0", "0 / 0", "-1"] {
            let error = whole(text).unwrap_err().to_string();
            assert!(error.contains("a whole number from 1 to 1024"), "{error}");
        }
    }

    #[test]
    fn declarations_have_numbers_or_texts() {
        #[derive(Deserialize)]
        struct Has {
            x: Expression,
        }
        let read = |text: &str| toml::from_str::<Has>(text).map(|has| has.x.to_string());
        assert_eq!(read("x = 128").unwrap(), "128");
        assert_eq!(read("x = 0.5").unwrap(), "0.5");
        assert_eq!(read("x = 'heads'").unwrap(), "heads");
        let error = read("x = true").unwrap_err().to_string();
        assert!(error.contains("expected a number or an expression"), "{error}");
        assert!(read("x = '1 +'").unwrap_err().to_string().contains("not an expression"));
    }
}
