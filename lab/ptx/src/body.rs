//! The body of a kernel or a function: its statements, with names resolved. Nothing here calls itself as deep as a text
//! is nested.

use std::ops::Range;

use crate::entries::SharedSymbol;
use crate::error::PtxError;
use crate::words::{Word, Words};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::forms::{self, Missing, Spelled};
use crate::operand::{Operand, Register, suit};

/// Blocks in blocks.
pub(crate) const MOST_NESTED: u64 = 256;
/// Instructions of a text.
pub(crate) const MOST_INSTRUCTIONS: u64 = 1 << 20;
/// Registers that a function declares.
const MOST_REGISTERS: u64 = 1 << 20;

/// A place in a source file, by `.loc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of its file.
    pub file: u32,
    /// Its line.
    pub line: u32,
    /// Its column.
    pub column: u32,
    /// Where this function was inlined: an earlier place.
    pub inlined_at: Option<u32>,
}

/// Registers that are declared together: one, or with a count a prefix and numbers from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Their type, such as `b32`.
    pub ty: String,
    /// Their name, or its begin.
    pub name: String,
    /// How many there are, if they are numbered.
    pub count: Option<u32>,
    /// The first of them.
    pub first: Register,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// The predicate that it waits for, and whether it is to be false.
    pub guard: Option<(Register, bool)>,
    /// Its form: its place in [`Module::forms`](crate::Module::forms).
    pub form: u32,
    /// Its operands.
    pub operands: Vec<Operand>,
    /// Its line in the text.
    pub line: u32,
    /// Its place in [`Function::places`], if `.loc` gave one.
    pub place: Option<u32>,
}

impl Instruction {
    /// The registers that it reads, and those that it writes, by the patterns of its form. Sums of `wgmma` count as
    /// written.
    ///
    /// ```
    /// use flashcore_ptx::{Module, Register};
    /// let module = Module::read(
    ///     ".version 8.0 .target sm_80 .entry k() { .reg .b32 %r<3>; .reg .b64 %rd<1>; .reg .pred %p<1>;
    ///      @%p0 add.u32 %r0, %r1, %r2; st.global.u32 [%rd0], %r0; ret; }",
    /// )?;
    /// let sum = &module.kernels[0].instructions[0];
    /// let [reads, writes] = sum.registers(module.forms()[sum.form as usize].as_ref().unwrap());
    /// assert_eq!((reads, writes), (vec![Register(4), Register(1), Register(2)], vec![Register(0)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn registers(&self, form: &Spelled) -> [Vec<Register>; 2] {
        let mut reads: Vec<Register> = self.guard.iter().map(|(register, _)| *register).collect();
        let mut writes = Vec::new();
        // Results stand first.
        let results = form
            .operands()
            .iter()
            .take_while(|it| matches!(it.letter, 'd' | 'q' | 'D'));
        let results = results.count();
        for (at, operand) in self.operands.iter().enumerate() {
            let into = if at < results { &mut writes } else { &mut reads };
            operand.visit(&mut |register| into.push(register));
        }
        [reads, writes]
    }
}

/// A kernel or a device function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The names of what it gives back; none of a kernel.
    pub results: Vec<String>,
    /// The names of its parameters; none of a kernel.
    pub parameters: Vec<String>,
    /// Its registers.
    pub registers: Vec<Registers>,
    /// Shared memory that it declares.
    pub shared: Vec<SharedSymbol>,
    /// Local memory that it declares.
    pub local: Vec<SharedSymbol>,
    /// Its instructions.
    pub instructions: Vec<Instruction>,
    /// Its labels: the instruction that follows each, or their number at the end.
    pub labels: Vec<u32>,
    /// Places in source files.
    pub places: Vec<Place>,
    /// Variables, parameters and functions that it names.
    pub named: FxHashSet<String>,
}

/// The forms that a text uses, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forms {
    pub(crate) all: Vec<Result<Spelled, Missing>>,
    by_text: FxHashMap<String, u32>,
    misused: FxHashMap<(String, &'static str), u32>,
    /// Instructions that were read.
    pub(crate) instructions: u64,
}

impl Forms {
    pub(crate) fn of(&mut self, opcode: &str) -> u32 {
        if let Some(&known) = self.by_text.get(opcode) {
            return known;
        }
        self.all.push(forms::read(opcode));
        let form = self.all.len() as u32 - 1;
        self.by_text.insert(opcode.to_string(), form);
        form
    }

    /// What is missing in place of a form that the table has.
    fn misused(&mut self, form: String, why: &'static str) -> u32 {
        if let Some(&known) = self.misused.get(&(form.clone(), why)) {
            return known;
        }
        let number = self.all.len() as u32;
        self.misused.insert((form.clone(), why), number);
        self.all.push(Err(Missing { form, why }));
        number
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    Register(Register),
    Numbered(Register, u32),
    Label(u32),
}

pub(crate) struct Reader<'a, 'f> {
    pub(crate) words: Words<'a>,
    forms: &'f mut Forms,
    pub(crate) function: Function,
    /// What names are bound to, by the depth of the scope, the innermost last.
    pub(crate) bound: FxHashMap<&'a str, Vec<(u32, Bound)>>,
    /// The names that each open scope binds.
    scopes: Vec<Vec<&'a str>>,
    /// The labels of each scope by the word that opens it.
    labels: FxHashMap<usize, Vec<(&'a str, u32)>>,
    /// The latest place of each file, line and column.
    at: FxHashMap<(u32, u32, u32), u32>,
    place: Option<u32>,
    registers: u64,
    /// A name with a `%` of the instruction that is being read that stands for nothing.
    pub(crate) unknown: Option<String>,
}

impl<'a, 'f> Reader<'a, 'f> {
    pub(crate) fn read(
        text: &'a str,
        body: &Range<usize>,
        line: u32,
        name: &str,
        forms: &'f mut Forms,
    ) -> Result<Function, PtxError> {
        // With the braces around it.
        let words = Words::of(&text[body.start - 1..=body.end], line)?;
        let mut reader = Reader {
            words,
            forms,
            function: Function {
                name: name.to_string(),
                ..Function::default()
            },
            bound: FxHashMap::default(),
            scopes: Vec::new(),
            labels: FxHashMap::default(),
            at: FxHashMap::default(),
            place: None,
            registers: 0,
            unknown: None,
        };
        reader.find_labels();
        reader.statements()?;
        Ok(reader.function)
    }

    /// Labels are known in all of their scope, before they stand there too.
    fn find_labels(&mut self) {
        let mut open = Vec::new();
        let words = &self.words.tokens;
        for (at, pair) in words.windows(2).enumerate() {
            match pair[0].word {
                Word::Mark('{') => open.push(at),
                Word::Mark('}') => _ = open.pop(),
                Word::Name(name) if pair[1].word == Word::Mark(':') => {
                    if let Some(&scope) = open.last() {
                        self.labels.entry(scope).or_default().push((name, pair[0].line));
                    }
                }
                _ => {}
            }
        }
    }

    fn open(&mut self) -> Result<(), PtxError> {
        let (line, at) = (self.words.line(), self.words.at);
        self.words.mark('{')?;
        PtxError::at_most("blocks in one another", self.scopes.len() as u64, MOST_NESTED, line)?;
        self.scopes.push(Vec::new());
        for (name, line) in self.labels.remove(&at).unwrap_or_default() {
            self.bind("label", name, Bound::Label(self.function.labels.len() as u32), line)?;
            self.function.labels.push(0);
        }
        Ok(())
    }

    fn statements(&mut self) -> Result<(), PtxError> {
        let begin = self.words.line();
        self.open()?;
        while !self.scopes.is_empty() {
            let line = self.words.line();
            match self.words.peek() {
                None => {
                    let (what, line) = ("kernel", begin);
                    return Err(PtxError::Unfinished { what, line });
                }
                Some(Word::Mark('}')) => {
                    self.words.at += 1;
                    for name in self.scopes.pop().unwrap_or_default() {
                        self.bound.get_mut(name).and_then(Vec::pop);
                    }
                }
                Some(Word::Mark('{')) => self.open()?,
                Some(Word::Mark(';')) => self.words.at += 1,
                Some(Word::Mark('@')) => {
                    self.words.at += 1;
                    let negated = self.words.takes('!');
                    let name = self.words.name("a predicate")?;
                    let Operand::Register(predicate) = self.resolve(name)? else {
                        self.words.at -= 1;
                        return self.words.wrong("a predicate");
                    };
                    let opcode = self.words.name("an instruction")?;
                    self.instruction(Some((predicate, negated)), opcode, line)?;
                }
                Some(Word::Name(name)) => {
                    let name = *name;
                    self.words.at += 1;
                    if self.words.takes(':') {
                        if let Operand::Label(label) = self.resolve(name)? {
                            self.function.labels[label as usize] = self.function.instructions.len() as u32;
                        }
                    } else if name.starts_with('.') {
                        self.directive(name, line)?;
                    } else {
                        self.instruction(None, name, line)?;
                    }
                }
                Some(_) => return self.words.wrong("a statement"),
            }
        }
        match self.words.peek() {
            None => Ok(()),
            Some(_) => self.words.wrong("the end of the body"),
        }
    }

    fn directive(&mut self, name: &str, line: u32) -> Result<(), PtxError> {
        match name {
            ".reg" => self.declare_registers(line),
            ".shared" | ".local" => {
                let symbols = self.words.list(';', |it| Ok(it.variable(line)?.0))?;
                let Function { shared, local, .. } = &mut self.function;
                if name == ".shared" { shared } else { local }.extend(symbols);
                Ok(())
            }
            ".loc" => self.location(),
            // Parameters of calls and prototypes are known where they are named.
            _ => self.words.skip("directive"),
        }
    }

    fn declare_registers(&mut self, line: u32) -> Result<(), PtxError> {
        let mut ty = self.words.name("a register's type")?;
        while ty.starts_with(".v") {
            ty = self.words.name("a register's type")?;
        }
        loop {
            let name = self.words.name("a register's name")?;
            let mut count = None;
            if self.words.takes('<') {
                count = Some(self.words.small()?);
                self.words.mark('>')?;
            }
            let first = Register(self.registers as u32);
            self.registers += u64::from(count.unwrap_or(1));
            PtxError::at_most("registers", self.registers, MOST_REGISTERS, line)?;
            let bound = count.map_or(Bound::Register(first), |count| Bound::Numbered(first, count));
            self.bind("register", name, bound, line)?;
            self.function.registers.push(Registers {
                ty: ty[1..].to_string(),
                name: name.to_string(),
                count,
                first,
            });
            if !self.words.takes(',') {
                return self.words.mark(';');
            }
        }
    }

    fn location(&mut self) -> Result<(), PtxError> {
        let three = |it: &mut Words<'a>| Ok::<_, PtxError>((it.small()?, it.small()?, it.small()?));
        let here = three(&mut self.words)?;
        let mut inlined_at = None;
        while self.words.takes(',') {
            match self.words.name("`function_name` or `inlined_at`")? {
                "inlined_at" => {
                    let outer = three(&mut self.words)?;
                    inlined_at = Some(match self.at.get(&outer) {
                        Some(&known) => known,
                        None => self.place(outer, None),
                    });
                }
                _ => {
                    self.words.name("a label")?;
                    if self.words.takes('+') {
                        self.words.number()?;
                    }
                }
            }
        }
        let place = self.place(here, inlined_at);
        self.place = Some(place);
        Ok(())
    }

    fn place(&mut self, (file, line, column): (u32, u32, u32), inlined_at: Option<u32>) -> u32 {
        self.function.places.push(Place {
            file,
            line,
            column,
            inlined_at,
        });
        let place = self.function.places.len() as u32 - 1;
        self.at.insert((file, line, column), place);
        place
    }

    fn instruction(&mut self, guard: Option<(Register, bool)>, opcode: &str, line: u32) -> Result<(), PtxError> {
        let mut operands = Vec::new();
        if !self.words.takes(';') {
            loop {
                operands.push(self.operand(0)?);
                if !self.words.takes(',') {
                    break;
                }
            }
            self.words.mark(';')?;
        }
        let mut form = self.forms.of(opcode);
        if let Ok(spelled) = &self.forms.all[form as usize]
            && !suit(spelled.operands(), &operands)
        {
            let why = match spelled.name() {
                "call" => "indirect calls are not read",
                "bra" => "there is no such label",
                _ => "the table of forms has it with other operands",
            };
            form = self.forms.misused(opcode.to_string(), why);
        }
        if let Some(name) = self.unknown.take() {
            form = self
                .forms
                .misused(name, "it is neither a declared register nor a special one that is read");
        }
        self.forms.instructions += 1;
        PtxError::at_most("instructions", self.forms.instructions, MOST_INSTRUCTIONS, line)?;
        self.function.instructions.push(Instruction {
            guard,
            form,
            operands,
            line,
            place: self.place,
        });
        Ok(())
    }

    fn bind(&mut self, what: &'static str, name: &'a str, bound: Bound, line: u32) -> Result<(), PtxError> {
        let depth = self.scopes.len() as u32;
        let bindings = self.bound.entry(name).or_default();
        if bindings.last().is_some_and(|(known, _)| *known == depth) {
            let name = name.to_string();
            return Err(PtxError::Twice { what, name, line });
        }
        bindings.push((depth, bound));
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(name);
        }
        Ok(())
    }
}
