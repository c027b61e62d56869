//! The bodies of a text's kernels, as they are written.

use std::collections::{HashMap, HashSet};

use flashcore_ir::ptx::read::{MOST_DECLARED, PtxEntry, PtxError, SharedSymbol, Word, Words, integer};

use super::scope::Scope;
use super::statement::{Guard, Statement, Written, WrittenInst};

/// A kernel's body.
#[derive(Clone, Debug)]
pub struct Body {
    /// Shared memory declared in it.
    pub shared: Vec<SharedSymbol>,
    /// Functions that it calls, which may use more shared memory.
    pub calls: Vec<String>,
    /// Symbols of the module that it names.
    pub(super) named: HashSet<String>,
    pub(super) statements: Vec<Statement>,
    /// The open scopes.
    scopes: Vec<Scope>,
    scopes_seen: u32,
    /// Labels and their lines, by the brace that opens their scope.
    labels: HashMap<usize, Vec<(String, u32)>>,
    registers: u64,
}

/// Blocks in blocks, and structures in structures, each of which is a call of the reader.
pub(super) const MOST_NESTED: u64 = 256;
/// Braces and brackets in one another in an operand, likewise. PTX has two: `[map, {x, y}]`.
const MOST_IN_OPERANDS: u64 = 8;
/// Statements of a kernel.
const MOST_STATEMENTS: u64 = 1 << 20;
/// Registers that a kernel declares. The simulator keeps the place of each.
const MOST_REGISTERS: u64 = 1 << 20;

impl Body {
    pub(super) fn read(text: &str, entry: &PtxEntry) -> Result<Body, PtxError> {
        let mut body = Body {
            shared: Vec::new(),
            calls: Vec::new(),
            named: HashSet::new(),
            statements: Vec::new(),
            scopes: Vec::new(),
            scopes_seen: 0,
            labels: HashMap::new(),
            registers: 0,
        };
        // With the braces around it.
        let mut words = Words::of(&text[entry.body.start - 1..=entry.body.end], entry.body_line)?;
        body.find_labels(&words);
        words.mark('{')?;
        body.scope(&mut words)?;
        Ok(body)
    }

    /// Labels are known in all of their scope, before they stand there too.
    fn find_labels(&mut self, words: &Words<'_>) {
        let mut open = Vec::new();
        let words = &words.tokens;
        for (at, token) in words.iter().enumerate() {
            match token.word {
                Word::Mark('{') => open.push(at),
                Word::Mark('}') => _ = open.pop(),
                Word::Name(name) if words.get(at + 1).is_some_and(|next| next.word == Word::Mark(':')) => {
                    if let Some(&scope) = open.last() {
                        let labels = self.labels.entry(scope).or_default();
                        labels.push((name.to_string(), token.line));
                    }
                }
                _ => {}
            }
        }
    }

    /// Statements after the brace that begins them, up to the one that ends them.
    fn scope(&mut self, words: &mut Words<'_>) -> Result<(), PtxError> {
        let (what, line) = ("kernel", words.line());
        let unfinished = PtxError::Unfinished { what, line };
        PtxError::at_most("blocks in one another", self.scopes.len() as u64, MOST_NESTED, line)?;
        self.scopes.push(Scope::new(self.scopes_seen));
        self.scopes_seen += 1;
        for (label, line) in self.labels.remove(&(words.at - 1)).unwrap_or_default() {
            self.declare("label", &label, None, line)?;
        }
        loop {
            let line = words.line();
            match words.peek() {
                None => return Err(unfinished),
                Some(Word::Mark('}')) => {
                    self.scopes.pop();
                    return Ok(());
                }
                Some(Word::Mark('{')) => {
                    words.at += 1;
                    self.scope(words)?;
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
                        let label = self.resolve(name);
                        self.push(Statement::Label(label), line)?;
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
            ".reg" => self.registers(words, line),
            ".shared" => {
                let symbols = words.list(';', |it| Ok(it.variable(line)?.0))?;
                self.shared.extend(symbols);
                PtxError::at_most("shared symbols", self.shared.len() as u64, MOST_DECLARED as u64, line)
            }
            ".loc" => {
                let at = line;
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
                self.push(Statement::Loc { file, line, column }, at)
            }
            _ => words.skip("directive"),
        }
    }

    fn push(&mut self, statement: Statement, line: u32) -> Result<(), PtxError> {
        self.statements.push(statement);
        PtxError::at_most("statements", self.statements.len() as u64, MOST_STATEMENTS, line)
    }

    fn registers(&mut self, words: &mut Words<'_>, line: u32) -> Result<(), PtxError> {
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
            self.registers += u64::from(count.unwrap_or(1));
            PtxError::at_most("registers", self.registers, MOST_REGISTERS, line)?;
            self.declare("register", name, count, line)?;
            let (name, ty) = (self.resolve_declared(name), ty[1..].to_string());
            Ok(Statement::Registers { ty, name, count })
        })?;
        registers
            .into_iter()
            .try_for_each(|statement| self.push(statement, line))
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
            operands = words.list(';', |it| self.operand(it, 0))?;
        }
        let inst = WrittenInst {
            guard,
            opcode,
            operands,
            line,
        };
        self.push(Statement::Inst(inst), line)
    }

    fn operand(&mut self, words: &mut Words<'_>, depth: u64) -> Result<Written, PtxError> {
        let first = self.simple(words, depth)?;
        if words.takes('|') {
            let second = self.simple(words, depth)?;
            return Ok(Written::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    /// An operand within `depth` braces and brackets.
    fn simple(&mut self, words: &mut Words<'_>, depth: u64) -> Result<Written, PtxError> {
        let line = words.line();
        PtxError::at_most("braces and brackets in one another", depth, MOST_IN_OPERANDS, line)?;
        if words.takes('!') {
            let pred = self.resolve(words.name("a predicate")?);
            return Ok(Written::Not(pred));
        }
        if words.takes('-') {
            return Ok(Written::Number(words.number()?.wrapping_neg()));
        }
        if words.takes('{') {
            return Ok(Written::List(words.list('}', |it| self.operand(it, depth + 1))?));
        }
        if words.takes('[') {
            return self.address(words, depth + 1);
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
    fn address(&mut self, words: &mut Words<'_>, depth: u64) -> Result<Written, PtxError> {
        let base = match words.peek() {
            Some(Word::Name(name)) => {
                let name = self.resolve(name);
                words.at += 1;
                Written::Name(name)
            }
            _ => self.simple(words, depth)?,
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
        list.extend(words.list(']', |it| self.operand(it, depth))?);
        Ok(Written::Address(Box::new(Written::List(list)), 0))
    }

    /// Declares a name in the innermost scope, or with a count so many of them.
    fn declare(&mut self, what: &'static str, name: &str, count: Option<u32>, line: u32) -> Result<(), PtxError> {
        if self.scopes.last_mut().is_none_or(|scope| scope.declare(name, count)) {
            return Ok(());
        }
        let name = name.to_string();
        Err(PtxError::Twice { what, name, line })
    }

    /// What a name of the innermost scope is called here.
    fn resolve_declared(&self, name: &str) -> String {
        self.scopes.last().map_or(name.to_string(), |scope| scope.renamed(name))
    }

    fn resolve(&mut self, name: &str) -> String {
        if let Some(scope) = self.scopes.iter().rev().find(|scope| scope.has(name)) {
            return scope.renamed(name);
        }
        if !name.starts_with('%') {
            self.named.insert(name.to_string());
        }
        name.to_string()
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
