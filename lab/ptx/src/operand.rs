//! Operands as they are written, with names resolved, and the patterns that rows have for them.

/// A register: its place among those that its function declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(pub u32);

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register.
    Register(Register),
    /// `!p`.
    Not(Register),
    /// A special register, with its `%`.
    Special(String),
    /// A variable, parameter or function, and bytes from its begin.
    Symbol(String, i64),
    /// A label: its place in [`Function::labels`](crate::Function::labels).
    Label(u32),
    /// The bits of a whole number, two's complement where it is negative.
    Integer(u64),
    /// The bits of `0f...` (32) and `0d...` (64).
    Float {
        /// The bits.
        bits: u64,
        /// Their number.
        width: u32,
    },
    /// `_`: a result that is not kept.
    Sink,
    /// `[base+offset]`.
    Memory(Box<Operand>, i64),
    /// `[map, {x, y}]`: of a tensor, with its coordinates.
    Tensor(Vec<Operand>),
    /// `{a, b}`, or what a call has in parentheses.
    List(Vec<Operand>),
    /// `a|b`: two results.
    Pair(Box<[Operand; 2]>),
}

/// The function that operands of a call name.
pub fn callee(operands: &[Operand]) -> Option<&str> {
    operands.iter().find_map(|operand| match operand {
        Operand::Symbol(name, _) => Some(name.as_str()),
        _ => None,
    })
}

/// What a row has for an operand: a letter, the registers of a list, the type where it is not the instruction's, `?` if
/// it may be left out.
///
/// | letter | operand |
/// |---|---|
/// | `d` | a register that is written, or `_` |
/// | `q` | the same, perhaps with a predicate: `d\|p` |
/// | `a` | a value: a register, a number, a symbol, a special register |
/// | `D`, `A` | the same, or a list of them |
/// | `p` | a predicate that is read, perhaps with `!` |
/// | `m`, `t` | memory, memory of a tensor |
/// | `i`, `l`, `f` | a number, a label, a function |
/// | `L` | a list |
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The letter.
    pub letter: char,
    /// The registers of a list; 0 where the form's modifiers say it.
    pub count: u32,
    /// The type, where it is not the instruction's last: of PTX, or a word for one that its modifiers give.
    pub ty: Option<&'static str>,
    /// Whether it may be left out.
    pub is_optional: bool,
}

impl Operand {
    /// The register that it is, or those of a list or pair.
    pub fn registers(&self) -> Vec<Register> {
        match self {
            Operand::Register(one) => vec![*one],
            Operand::List(all) => all.iter().flat_map(Operand::registers).collect(),
            Operand::Pair(both) => both.iter().flat_map(Operand::registers).collect(),
            _ => Vec::new(),
        }
    }
}

impl Operand {
    /// Visits the registers in it, those of addresses and coordinates, too.
    pub fn visit(&self, visit: &mut impl FnMut(Register)) {
        match self {
            Operand::Register(one) | Operand::Not(one) => visit(*one),
            Operand::Memory(base, _) => base.visit(visit),
            Operand::Tensor(all) | Operand::List(all) => all.iter().for_each(|one| one.visit(visit)),
            Operand::Pair(both) => both.iter().for_each(|one| one.visit(visit)),
            _ => {}
        }
    }
}

impl Pattern {
    pub(crate) fn new(text: &'static str) -> Pattern {
        let body = text.trim_end_matches('?');
        let (head, ty) = body.split_once(':').map_or((body, None), |(head, ty)| (head, Some(ty)));
        Pattern {
            letter: head.chars().next().unwrap_or('?'),
            count: head[1..].parse().unwrap_or(0),
            ty,
            is_optional: body.len() < text.len(),
        }
    }

    fn suits(&self, operand: &Operand) -> bool {
        use Operand::{Float, Integer, Label, List, Memory, Not, Pair, Sink, Special, Symbol, Tensor};
        match self.letter {
            'd' => matches!(operand, Operand::Register(_) | Sink),
            'q' => match operand {
                Pair(both) => both.iter().all(|one| matches!(one, Operand::Register(_) | Sink)),
                _ => matches!(operand, Operand::Register(_) | Sink),
            },
            'a' => matches!(
                operand,
                Operand::Register(_) | Integer(_) | Float { .. } | Symbol(..) | Special(_)
            ),
            'D' | 'A' => match operand {
                List(all) => all.iter().all(|one| {
                    Pattern {
                        letter: 'a',
                        ..self.clone()
                    }
                    .suits(one)
                        || *one == Sink
                }),
                Sink => self.letter == 'D',
                _ => Pattern {
                    letter: 'a',
                    ..self.clone()
                }
                .suits(operand),
            },
            'p' => matches!(operand, Operand::Register(_) | Not(_) | Integer(_)),
            'm' => matches!(operand, Memory(..)),
            't' => matches!(operand, Tensor(_)),
            'i' => matches!(operand, Integer(_)),
            'l' => matches!(operand, Label(_)),
            'f' => matches!(operand, Symbol(..)),
            'L' => matches!(operand, List(_)),
            _ => false,
        }
    }
}

/// Whether operands are what a row has; those that may be left out are if the next one needs their place.
pub(crate) fn suit(patterns: &[Pattern], operands: &[Operand]) -> bool {
    let Some((pattern, others)) = patterns.split_first() else {
        return operands.is_empty();
    };
    let taken = operands
        .split_first()
        .is_some_and(|(first, rest)| pattern.suits(first) && suit(others, rest));
    taken || (pattern.is_optional && suit(others, operands))
}
