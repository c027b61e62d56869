//! The bodies of a text's kernels, as they are written.

use std::collections::HashMap;

use flashcore_ir::Inst;
use flashcore_ir::ptx::read::{PtxEntry, PtxError, SharedSymbol, Word, Words, integer};

use super::forms::forms;
use super::statement::{Guard, Statement, Written, WrittenInst};

/// A kernel's body.
#[derive(Clone, Debug)]
pub struct Body {
    /// Shared memory declared in it.
    pub shared: Vec<SharedSymbol>,
    /// Functions that it calls, which may use more shared memory.
    pub calls: Vec<String>,
    /// Symbols of the module that it names.
    pub(super) named: Vec<String>,
    pub(super) statements: Vec<Statement>,
    /// For each open scope, registers and labels declared in it and what they are called here.
    scopes: Vec<HashMap<String, String>>,
    scopes_seen: u32,
}

/// Blocks in blocks, each of which is a call of the reader.
const MOST_NESTED: usize = 256;

impl Body {
    pub(super) fn read(text: &str, entry: &PtxEntry) -> Result<Body, PtxError> {
        let mut body = Body {
            shared: Vec::new(),
            calls: Vec::new(),
            named: Vec::new(),
            statements: Vec::new(),
            scopes: vec![HashMap::new()],
            scopes_seen: 0,
        };
        // With the brace that ends it.
        let mut words = Words::of(&text[entry.body.start..=entry.body.end], entry.body_line)?;
        body.scope(&mut words)?;
        Ok(body)
    }

    /// Copies of sizes that no architecture has, by line: `cp.async.cg` copies 16 bytes,
    /// `cp.async.ca` 4, 8 or 16 (PTX ISA, `cp.async`).
    pub fn impossible(&self) -> Vec<(u32, String)> {
        let mut found = Vec::new();
        for statement in &self.statements {
            let Statement::Inst(inst) = statement else { continue };
            let Some(mut copy) = forms(&inst.opcode).first().cloned() else {
                continue;
            };
            if let (Inst::CpAsync { bytes, .. }, Some(&Written::Number(given))) = (&mut copy, inst.operands.get(2)) {
                *bytes = u32::try_from(given).unwrap_or(u32::MAX);
                found.extend(copy.impossible().map(|why| (inst.line, why)));
            }
        }
        found
    }

    /// Statements up to the brace that ends them.
    fn scope(&mut self, words: &mut Words<'_>) -> Result<(), PtxError> {
        let (what, line) = ("kernel", words.line());
        let unfinished = PtxError::Unfinished { what, line };
        loop {
            let line = words.line();
            match words.peek() {
                None => return Err(unfinished),
                Some(Word::Mark('}')) => return Ok(()),
                Some(Word::Mark('{')) if self.scopes.len() > MOST_NESTED => {
                    let why = format!("blocks are nested more than {MOST_NESTED} deep");
                    return Err(PtxError::not_understood("this block", why, line));
                }
                Some(Word::Mark('{')) => {
                    words.at += 1;
                    self.scopes_seen += 1;
                    self.scopes.push(HashMap::new());
                    self.scope(words)?;
                    self.scopes.pop();
                    words.mark('}')?;
                }
                Some(Word::Mark(';')) => words.at += 1,
                Some(Word::Mark('@')) => {
                    words.at += 1;
                    let negated = words.takes('!');
                    let pred = self.resolve(words.name("a predicate")?);
                    let guard = Some(Guard { negated, pred });
                    let opcode = words.name("an instruction")?;
                    self.instruction(words, guard, opcode, line)?;
                }
                Some(Word::Name(name)) => {
                    let name = *name;
                    words.at += 1;
                    if words.takes(':') {
                        let label = self.declare(name);
                        self.statements.push(Statement::Label(label));
                    } else if name.starts_with('.') {
                        self.directive(words, name, line)?;
                    } else {
                        self.instruction(words, None, name, line)?;
                    }
                }
                Some(_) => return words.wrong("a statement"),
            }
        }
    }

    fn directive(&mut self, words: &mut Words<'_>, name: &str, line: u32) -> Result<(), PtxError> {
        match name {
            ".reg" => self.registers(words),
            ".shared" => {
                let symbols = words.list(';', |it| Ok(it.variable(line)?.0))?;
                self.shared.extend(symbols);
                Ok(())
            }
            ".loc" => {
                let (file, line) = (words.small()?, words.small()?);
                let column = words.small()?;
                // `, function_name label, inlined_at file line column` says more than is needed.
                while words.takes(',') {
                    while matches!(words.peek(), Some(Word::Name(_) | Word::Number(_))) && !at_statement(words) {
                        words.at += 1;
                    }
                    if words.takes('+') {
                        words.number()?;
                    }
                }
                self.statements.push(Statement::Loc { file, line, column });
                Ok(())
            }
            _ => words.skip("directive"),
        }
    }

    fn registers(&mut self, words: &mut Words<'_>) -> Result<(), PtxError> {
        let mut ty = words.name("a register's type")?;
        while ty.starts_with(".v") {
            ty = words.name("a register's type")?;
        }
        let registers = words.list(';', |it| {
            let name = it.name("a register's name")?;
            let mut count = None;
            if it.takes('<') {
                count = Some(it.small()?);
                it.mark('>')?;
            }
            let (name, ty) = (self.declare_registers(name, count), ty[1..].to_string());
            Ok(Statement::Registers { ty, name, count })
        })?;
        self.statements.extend(registers);
        Ok(())
    }

    fn instruction(
        &mut self,
        words: &mut Words<'_>,
        guard: Option<Guard>,
        opcode: &str,
        line: u32,
    ) -> Result<(), PtxError> {
        let (opcode, mut operands) = (opcode.to_string(), Vec::new());
        if opcode == "call" || opcode.starts_with("call.") {
            let from = words.at;
            words.skip("call")?;
            let names = words.tokens[from..words.at]
                .iter()
                .filter_map(|token| match token.word {
                    Word::Name(name) => Some(name.to_string()),
                    _ => None,
                });
            self.calls.extend(names);
        } else if !words.takes(';') {
            operands = words.list(';', |it| self.operand(it))?;
        }
        self.statements.push(Statement::Inst(WrittenInst {
            guard,
            opcode,
            operands,
            line,
        }));
        Ok(())
    }

    fn operand(&mut self, words: &mut Words<'_>) -> Result<Written, PtxError> {
        let first = self.simple(words)?;
        if words.takes('|') {
            let second = self.simple(words)?;
            return Ok(Written::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple(&mut self, words: &mut Words<'_>) -> Result<Written, PtxError> {
        if words.takes('!') {
            return Ok(Written::Not(Box::new(self.simple(words)?)));
        }
        if words.takes('-') {
            return Ok(Written::Number(words.number()?.wrapping_neg()));
        }
        if words.takes('{') {
            return Ok(Written::List(words.list('}', |it| self.operand(it))?));
        }
        if words.takes('[') {
            return self.address(words);
        }
        match words.peek() {
            Some(Word::Name(name)) => {
                let name = Written::Name(self.resolve(name));
                words.at += 1;
                // `symbol+4` as an immediate.
                if words.takes('+') {
                    let offset = words.number()? as i64;
                    return Ok(Written::Address(Box::new(name), offset));
                }
                Ok(name)
            }
            Some(Word::Number(text)) => {
                let Some(value) = number(text) else {
                    return words.wrong("a number");
                };
                words.at += 1;
                Ok(value)
            }
            _ => words.wrong("an operand"),
        }
    }

    /// What follows `[`.
    fn address(&mut self, words: &mut Words<'_>) -> Result<Written, PtxError> {
        let base = match words.peek() {
            Some(Word::Name(name)) => {
                let name = self.resolve(name);
                words.at += 1;
                Written::Name(name)
            }
            _ => self.simple(words)?,
        };
        let (is_sum, is_negative) = (words.takes('+'), words.takes('-'));
        let offset = match is_sum || is_negative {
            true => words.number()? as i64,
            false => 0,
        };
        let offset = if is_negative { offset.wrapping_neg() } else { offset };
        let base = Written::Address(Box::new(base), offset);
        if !words.takes(',') {
            words.mark(']')?;
            return Ok(base);
        }
        let mut list = vec![base];
        list.extend(words.list(']', |it| self.operand(it))?);
        Ok(Written::Address(Box::new(Written::List(list)), 0))
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
        if found.is_none() && !name.starts_with('%') && !self.named.iter().any(|known| known == name) {
            self.named.push(name.to_string());
        }
        resolved
    }
}

/// Whether the next word begins a line, as what follows `.loc` without a semicolon does.
fn at_statement(words: &Words<'_>) -> bool {
    let before = words.at.checked_sub(1).and_then(|at| words.tokens.get(at));
    before.is_some_and(|before| before.line != words.line())
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
