//! The text of a program, and which bytes of its output each instruction made.

use flashcore_problem::rng::Rng;
use flashcore_ptx::{Bound, Spelled};
use serde::Serialize;

use super::pool::{ENTRIES, Kind, SECTION, section};

/// Threads of a block; each program has one.
pub(super) const THREADS: u32 = 64;
/// Bytes of a thread's own scratch memory, global, shared and local.
pub(super) const OWN: u32 = 64;
/// Scratch memory of all threads in common, after their own.
pub(super) const COMMON: u32 = 256;
/// Bytes of each thread of shared memory that nothing writes to after the begin.
pub(super) const MATRIX: u32 = 16;

/// Bytes of the output that are compared alike.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Area {
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// `u` for bits; or the type of floats, of which all NaN are one.
    pub(super) kind: String,
    pub(super) absolute: f64,
    pub(super) relative: f64,
    /// The instruction that made them.
    pub(super) form: String,
}

impl Area {
    /// All bytes of a buffer.
    pub(super) fn whole(bytes: u64, form: &str) -> Area {
        Area {
            bytes,
            kind: "u".to_string(),
            form: form.to_string(),
            ..Area::default()
        }
    }
}

/// A program as it is written.
pub(super) struct Writer {
    pub(super) rng: Rng,
    pub(super) body: Vec<String>,
    /// Registers by class: p, h, r, d, f, g.
    taken: [u32; 6],
    /// Exact results that other instructions may take.
    values: Vec<(Kind, String)>,
    pub(super) areas: Vec<Area>,
    pub(super) out_bytes: u64,
    /// Bytes of the common scratch memory that are taken.
    pub(super) common: u32,
    /// mbarriers that are taken, and labels.
    pub(super) barriers: u32,
    /// Whether f32 and f64 are in registers of their own types.
    is_typed: bool,
    /// The instruction that is being written.
    pub(super) form: String,
    /// Every opcode that is in the text.
    pub(super) opcodes: Vec<String>,
}

const CLASSES: [(char, &str); 6] = [
    ('p', "pred"),
    ('h', "b16"),
    ('r', "b32"),
    ('d', "b64"),
    ('f', "f32"),
    ('g', "f64"),
];

impl Writer {
    pub(super) fn new(rng: Rng) -> Writer {
        let mut rng = rng;
        Writer {
            is_typed: rng.below(2) == 0,
            rng,
            body: Vec::new(),
            taken: [0; 6],
            values: Vec::new(),
            areas: Vec::new(),
            out_bytes: 0,
            common: 0,
            barriers: 0,
            form: String::new(),
            opcodes: Vec::new(),
        }
    }

    pub(super) fn line(&mut self, text: impl Into<String>) {
        self.body.push(text.into());
    }

    /// Whether a thing of so many happens.
    pub(super) fn one_in(&mut self, many: usize) -> bool {
        self.rng.below(many) == 0
    }

    fn class(&self, kind: Kind) -> usize {
        use super::pool::Element;
        match kind {
            Kind::Pred => 0,
            Kind::Int(8 | 16) | Kind::F16 | Kind::BF16 => 1,
            Kind::Int(64) => 3,
            Kind::F32 | Kind::Mid | Kind::Angle | Kind::Matrix(Element::F32, _) if self.is_typed => 4,
            Kind::F64 | Kind::Matrix(Element::F64, _) => 3 + 2 * usize::from(self.is_typed),
            _ => 2,
        }
    }

    /// A new register.
    pub(super) fn register(&mut self, kind: Kind) -> String {
        let class = self.class(kind);
        self.taken[class] += 1;
        format!("%{}{}", CLASSES[class].0, self.taken[class])
    }

    /// New registers of a kind.
    pub(super) fn registers(&mut self, count: u32, kind: Kind) -> Vec<String> {
        (0..count).map(|_| self.register(kind)).collect()
    }

    /// The type of a load or store of a whole register.
    fn width(&self, kind: Kind) -> &'static str {
        CLASSES[self.class(kind)].1
    }

    /// A place of a section, of 16 bytes a thread at most.
    pub(super) fn salt(&mut self) -> u32 {
        2 * self.rng.below((ENTRIES / 2 - THREADS) as usize / 2) as u32
    }

    /// A value of the pool in a new register.
    pub(super) fn load(&mut self, kind: Kind) -> String {
        let at = section(kind) + 8 * self.salt();
        if kind == Kind::Pred {
            let (bits, p) = (self.register(Kind::Int(32)), self.register(Kind::Pred));
            self.line(format!("ld.global.b32 {bits}, [%in+{at}];"));
            self.line(format!("setp.lt.s32 {p}, {bits}, 64;"));
            return p;
        }
        let (to, width) = (self.register(kind), self.width(kind));
        self.line(format!("ld.global.{width} {to}, [%in+{at}];"));
        to
    }

    /// The bits of one as an untyped register of 32 bits.
    pub(super) fn load_bits(&mut self, kind: Kind) -> String {
        let (at, to) = (section(kind) + 8 * self.salt(), self.register(Kind::Int(32)));
        self.line(format!("ld.global.b32 {to}, [%in+{at}];"));
        to
    }

    /// A value of the pool, or of an instruction before.
    pub(super) fn value(&mut self, kind: Kind) -> String {
        let known: Vec<&String> = self
            .values
            .iter()
            .filter(|(of, _)| *of == kind)
            .map(|(_, reg)| reg)
            .collect();
        if !known.is_empty() && self.rng.below(3) == 0 {
            return known[self.rng.below(known.len())].clone();
        }
        self.load(kind)
    }

    /// Bytes of the output: a place of each thread.
    pub(super) fn place(&mut self, bytes: u32) -> u64 {
        let at = self.out_bytes.next_multiple_of(u64::from(bytes));
        self.out_bytes = at + u64::from(bytes * THREADS);
        at
    }

    /// Notes what made bytes of the output.
    pub(super) fn area(&mut self, at: u64, bytes: u64, kind: Kind, bound: Bound) {
        let kind = match kind {
            Kind::F16 | Kind::F16x2 => "f16",
            Kind::BF16 | Kind::BF16x2 => "bf16",
            Kind::F32 => "f32",
            Kind::F64 => "f64",
            _ => "u",
        };
        self.areas.push(Area {
            at,
            bytes,
            kind: kind.to_string(),
            absolute: bound.absolute,
            relative: bound.relative,
            form: self.form.clone(),
        });
    }

    /// Stores a result for the comparison.
    pub(super) fn store(&mut self, kind: Kind, register: &str, bound: Bound) {
        let at = self.place(8);
        if kind == Kind::Pred {
            let bits = self.register(Kind::Int(32));
            self.line(format!("selp.u32 {bits}, 1, 0, {register};"));
            self.line(format!("st.global.b32 [%out+{at}], {bits};"));
        } else {
            let width = self.width(kind);
            self.line(format!("st.global.{width} [%out+{at}], {register};"));
        }
        self.area(at, u64::from(8 * THREADS), kind, bound);
    }

    /// Stores a result; other instructions may take it where it is exact.
    pub(super) fn keep(&mut self, kind: Kind, register: &str, bound: Bound) {
        self.store(kind, register, bound);
        if bound.is_exact() {
            self.values.push((kind, register.to_string()));
        }
    }

    /// Stores exact results, and keeps them as operands.
    pub(super) fn keep_all(&mut self, kind: Kind, registers: &[String]) {
        for register in registers {
            self.keep(kind, register, Bound::default());
        }
    }

    /// Writes an instruction.
    pub(super) fn instruction(&mut self, form: &Spelled, operands: &[String]) {
        let opcode = flashcore_ptx::print(form);
        self.opcode(opcode, operands);
    }

    pub(super) fn opcode(&mut self, opcode: String, operands: &[String]) {
        self.line(format!("{opcode} {};", operands.join(", ")));
        self.opcodes.push(opcode);
    }

    fn declarations(&self) -> String {
        let all = CLASSES.iter().zip(self.taken);
        all.map(|((class, ty), count)| format!(".reg .{ty} %{class}<{}>; ", count + 1))
            .collect()
    }

    /// All on one line, with its own registers: for an assembler to say what it refuses.
    pub(super) fn snippet(&self) -> String {
        format!("{{ {}{} }}", self.declarations(), self.body.join(" "))
    }

    /// The kernel, and the bytes of its output buffer.
    pub(super) fn kernel(&self, name: &str) -> String {
        format!(
            ".visible .entry {name}{PARAMETERS}\n.maxntid {THREADS}, 1, 1\n{{\n{}\n{PROLOGUE}{}\nret;\n}}\n",
            self.declarations(),
            self.body.join("\n")
        )
    }
}

/// Registers as one operand.
pub(super) fn braced(registers: &[String]) -> String {
    format!("{{{}}}", registers.join(", "))
}

/// What a module begins with, `.target` excepted.
pub(super) fn module(target: &str, table: &[u8]) -> String {
    let table: Vec<String> = table.iter().map(u8::to_string).collect();
    format!(
        ".version 8.8\n.target {target}\n.address_size 64\n.const .align 16 .b8 table[{}] = {{{}}};\n",
        table.len(),
        table.join(", ")
    )
}

/// Bytes of the constant table.
pub(super) const TABLE: u32 = 16 * THREADS + 256;
/// Bytes of the parameter that programs load parts of.
pub(super) const BLOCK: u32 = 64;

pub(super) const PARAMETERS: &str =
    "(.param .u64 pool, .param .u64 output, .param .u64 scratch, .param .align 16 .b8 block[64])";

/// Registers by name: the thread, its places in the pool (8 and 16 bytes apart), in the output, in scratch memory of
/// each space and in the constant table. Shared and local memory begin with values of the pool.
pub(super) const PROLOGUE: &str = include_str!("prologue.ptx");

/// Bytes of the pool that programs may reach from a section's begin.
pub(super) const REACH: u32 = SECTION;
