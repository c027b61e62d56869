//! What stands in a kernel's body, names resolved no further than the scope they are in.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// A register, symbol, special register or label.
    Name(String),
    /// The bits of a number, two's complement where it is negative.
    Number(u64),
    /// The bits of `0f...` and `0d...`, which say their own width.
    Float {
        bits: u64,
        /// 32 or 64.
        width: u32,
    },
    /// `[base + offset]`, or a list in brackets as bulk copies have.
    Address(Box<Written>, i64),
    /// `{a, b}`.
    List(Vec<Written>),
    /// `a|b`: two results.
    Pair(Box<Written>, Box<Written>),
    /// `!a`.
    Not(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) negated: bool,
    pub(crate) pred: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenInst {
    pub(crate) guard: Option<Guard>,
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Written>,
    pub(crate) line: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    Label(String),
    /// `.loc`: file number, line, column of what follows.
    Loc {
        file: u32,
        line: u32,
        column: u32,
    },
    /// Registers of a type: a name, or with a count a prefix and numbers from 0.
    Registers {
        ty: String,
        name: String,
        count: Option<u32>,
    },
    Inst(WrittenInst),
}
