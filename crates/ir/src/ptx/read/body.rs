//! The parser of a kernel's body.

use std::collections::HashMap;

use super::PtxError;
use super::declare::PtxEntry;
use super::lex::Word;
use super::parse::Parser;
use super::statement::{Guard, Statement, Written, WrittenInst};

pub(super) struct Body {
    pub(super) entry: PtxEntry,
    /// For each open scope, registers and labels declared in it and what they are called here.
    scopes: Vec<HashMap<String, String>>,
    scopes_seen: u32,
}

impl Parser<'_> {
    /// Statements up to the brace that ends them.
    pub(super) fn body(&mut self, body: &mut Body) -> Result<(), PtxError> {
        let (what, line) = ("kernel", self.line());
        let unfinished = PtxError::Unfinished { what, line };
        loop {
            let line = self.line();
            match self.peek() {
                None => return Err(unfinished),
                Some(Word::Mark('}')) => return Ok(()),
                Some(Word::Mark('{')) => {
                    self.at += 1;
                    body.scopes_seen += 1;
                    body.scopes.push(HashMap::new());
                    self.body(body)?;
                    body.scopes.pop();
                    self.mark('}')?;
                }
                Some(Word::Mark(';')) => self.at += 1,
                Some(Word::Mark('@')) => {
                    self.at += 1;
                    let negated = self.takes('!');
                    let pred = body.resolve(self.name("a predicate")?);
                    let guard = Some(Guard { negated, pred });
                    let opcode = self.name("an instruction")?;
                    self.instruction(body, guard, opcode, line)?;
                }
                Some(Word::Name(name)) => {
                    let name = *name;
                    self.at += 1;
                    if self.takes(':') {
                        let label = body.declare(name);
                        body.entry.body.push(Statement::Label(label));
                    } else if name.starts_with('.') {
                        self.directive(body, name, line)?;
                    } else {
                        self.instruction(body, None, name, line)?;
                    }
                }
                Some(_) => return self.wrong("a statement"),
            }
        }
    }

    fn directive(&mut self, body: &mut Body, name: &str, line: u32) -> Result<(), PtxError> {
        match name {
            ".reg" => self.registers(body),
            ".shared" => {
                let symbols = self.list(';', |it| Ok(it.variable(line)?.0))?;
                body.entry.shared.extend(symbols);
                Ok(())
            }
            ".loc" => {
                let (file, line) = (self.small()?, self.small()?);
                let column = self.small()?;
                // `, function_name label, inlined_at file line column` says more than is needed.
                while self.takes(',') {
                    while matches!(self.peek(), Some(Word::Name(_) | Word::Number(_))) && !self.at_statement() {
                        self.at += 1;
                    }
                    if self.takes('+') {
                        self.number()?;
                    }
                }
                body.entry.body.push(Statement::Loc { file, line, column });
                Ok(())
            }
            _ => self.skip("directive"),
        }
    }

    /// Whether the next word begins a line, as what follows `.loc` without a semicolon does.
    fn at_statement(&self) -> bool {
        let before = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        before.is_some_and(|before| before.line != self.line())
    }

    fn registers(&mut self, body: &mut Body) -> Result<(), PtxError> {
        let mut ty = self.name("a register's type")?;
        while ty.starts_with(".v") {
            ty = self.name("a register's type")?;
        }
        let registers = self.list(';', |it| {
            let name = it.name("a register's name")?;
            let mut count = None;
            if it.takes('<') {
                count = Some(it.small()?);
                it.mark('>')?;
            }
            let (name, ty) = (body.declare_registers(name, count), ty[1..].to_string());
            Ok(Statement::Registers { ty, name, count })
        })?;
        body.entry.body.extend(registers);
        Ok(())
    }

    fn instruction(&mut self, body: &mut Body, guard: Option<Guard>, opcode: &str, line: u32) -> Result<(), PtxError> {
        let (opcode, mut operands) = (opcode.to_string(), Vec::new());
        if opcode == "call" || opcode.starts_with("call.") {
            let from = self.at;
            self.skip("call")?;
            let names = self.tokens[from..self.at].iter().filter_map(|token| match token.word {
                Word::Name(name) => Some(name.to_string()),
                _ => None,
            });
            body.entry.calls.extend(names);
        } else if !self.takes(';') {
            operands = self.list(';', |it| it.operand(body))?;
        }
        body.entry.body.push(Statement::Inst(WrittenInst {
            guard,
            opcode,
            operands,
            line,
        }));
        Ok(())
    }

    fn operand(&mut self, body: &mut Body) -> Result<Written, PtxError> {
        let first = self.simple(body)?;
        if self.takes('|') {
            let second = self.simple(body)?;
            return Ok(Written::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple(&mut self, body: &mut Body) -> Result<Written, PtxError> {
        if self.takes('!') {
            return Ok(Written::Not(Box::new(self.simple(body)?)));
        }
        if self.takes('-') {
            return Ok(Written::Number(self.number()?.wrapping_neg()));
        }
        if self.takes('{') {
            return Ok(Written::List(self.list('}', |it| it.operand(body))?));
        }
        if self.takes('[') {
            return self.address(body);
        }
        match self.peek() {
            Some(Word::Name(name)) => {
                let name = Written::Name(body.resolve(name));
                self.at += 1;
                // `symbol+4` as an immediate.
                if self.takes('+') {
                    let offset = self.number()? as i64;
                    return Ok(Written::Address(Box::new(name), offset));
                }
                Ok(name)
            }
            Some(Word::Number(text)) => {
                let Some(value) = number(text) else {
                    return self.wrong("a number");
                };
                self.at += 1;
                Ok(value)
            }
            _ => self.wrong("an operand"),
        }
    }

    /// What follows `[`.
    fn address(&mut self, body: &mut Body) -> Result<Written, PtxError> {
        let base = match self.peek() {
            Some(Word::Name(name)) => {
                let name = body.resolve(name);
                self.at += 1;
                Written::Name(name)
            }
            _ => self.simple(body)?,
        };
        let (is_sum, is_negative) = (self.takes('+'), self.takes('-'));
        let offset = match is_sum || is_negative {
            true => self.number()? as i64,
            false => 0,
        };
        let offset = if is_negative { offset.wrapping_neg() } else { offset };
        let base = Written::Address(Box::new(base), offset);
        if !self.takes(',') {
            self.mark(']')?;
            return Ok(base);
        }
        let mut list = vec![base];
        list.extend(self.list(']', |it| it.operand(body))?);
        Ok(Written::Address(Box::new(Written::List(list)), 0))
    }
}

impl Body {
    pub(super) fn of(entry: PtxEntry) -> Body {
        Body {
            entry,
            scopes: vec![HashMap::new()],
            scopes_seen: 0,
        }
    }

    /// A name declared here; in an inner scope it gets one that no other scope has.
    fn declare(&mut self, name: &str) -> String {
        let renamed = match self.scopes.len() {
            0 | 1 => name.to_string(),
            _ => format!("{name}@{}", self.scopes_seen),
        };
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_string(), renamed.clone());
        }
        renamed
    }

    fn declare_registers(&mut self, name: &str, count: Option<u32>) -> String {
        let renamed = self.declare(name);
        if self.scopes.len() > 1
            && let (Some(count), Some(scope)) = (count, self.scopes.last_mut())
        {
            for i in 0..count {
                scope.insert(format!("{name}{i}"), format!("{renamed}{i}"));
            }
        }
        renamed
    }

    fn resolve(&mut self, name: &str) -> String {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        let resolved = found.cloned().unwrap_or_else(|| name.to_string());
        if found.is_none() && !name.starts_with('%') && !self.entry.named.iter().any(|known| known == name) {
            self.entry.named.push(name.to_string());
        }
        resolved
    }
}

/// A whole number: decimal, 0x, 0b, octal after a 0, with a U for unsigned.
pub(super) fn integer(text: &str) -> Option<u64> {
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

fn number(text: &str) -> Option<Written> {
    for (prefix, width) in [("0f", 32), ("0F", 32), ("0d", 64), ("0D", 64)] {
        if let Some(bits) = text.strip_prefix(prefix) {
            let bits = u64::from_str_radix(bits, 16).ok()?;
            return Some(Written::Float { bits, width });
        }
    }
    match integer(text) {
        Some(number) => Some(Written::Number(number)),
        // A plain `1.5` is a double; instructions round it to their own type.
        None => text.parse::<f64>().ok().map(|value| Written::Float {
            bits: value.to_bits(),
            width: 64,
        }),
    }
}
