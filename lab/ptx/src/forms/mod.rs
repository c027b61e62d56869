//! The table of forms: every spelling of an opcode with its modifiers that is read, and its operands.
//!
//! A row of `forms.txt` spells many forms. `.name` is a modifier, `{.name}` one that may be left out, and a word in
//! capitals is one of a set (`sets.txt`). In `atom` and `red`, `@` stands for order, scope and space, which compilers
//! put in several orders.
//! Source: PTX ISA 9.0, "Instruction Set".

mod bounds;
mod conditions;
mod example;
mod sets;

use std::collections::HashMap;
use std::sync::LazyLock;

pub use bounds::Bound;
pub use example::EXAMPLE_REGISTERS;
pub(crate) use sets::is_one_of;

use crate::operand::Pattern;

/// A row as it is written: its spelling, its operands, and which words do not go together.
struct Row {
    spelling: &'static str,
    operands: &'static str,
    allows: fn(&[&str]) -> bool,
}

/// The rows of the file, in its order.
fn rows() -> impl Iterator<Item = Row> {
    let lines = include_str!("forms.txt").lines();
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| {
        let mut columns = row.split('|').map(str::trim);
        let mut column = || columns.next().unwrap_or_default();
        Row {
            spelling: column(),
            operands: column(),
            allows: conditions::named(column()),
        }
    })
}

/// A modifier of a row: one of some words, or none.
#[derive(Debug)]
struct Segment {
    words: Vec<&'static str>,
    is_optional: bool,
}

/// A row with one order of its modifiers.
#[derive(Debug)]
struct Form {
    name: &'static str,
    segments: Vec<Segment>,
    operands: Vec<Pattern>,
    allows: fn(&[&str]) -> bool,
}

struct Table {
    forms: Vec<Form>,
    by_name: HashMap<&'static str, Vec<u16>>,
}

/// Orders of the modifiers that `@` stands for, before and after the operation.
const ATOMIC_ORDERS: [[&str; 2]; 4] = [
    ["{.ORDER}{.SCOPE}{.ATSPACE}", ""],
    [".ATSPACE{.ORDER}{.SCOPE}", ""],
    ["{.ATSPACE}.SCOPE{.ORDER}", ""],
    ["{.ATSPACE}", ".ORDER.SCOPE"],
];

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table {
        forms: Vec::new(),
        by_name: HashMap::new(),
    };
    for row in rows() {
        match row.spelling.split_once('@') {
            None => table.add(&row, row.spelling.to_string()),
            Some((name, rest)) => {
                // The operation is the first modifier; its type and hints follow the orders.
                let (op, ty) = rest[1..]
                    .split_once('.')
                    .map_or((rest, ""), |(op, _)| rest.split_at(op.len() + 1));
                for [before, after] in ATOMIC_ORDERS {
                    let spelling = format!("{name}{before}{op}{after}{ty}");
                    // What has no result cannot acquire.
                    let order = if name == "red" { "STORDER" } else { "ORDER" };
                    table.add(&row, spelling.replace("ORDER", order));
                }
            }
        }
    }
    table
});

/// Each of some words with each of others.
fn pairs(some: Vec<&'static str>, others: Vec<&'static str>) -> Vec<&'static str> {
    let pair = |(one, other): (&str, &str)| &*format!("{one}.{other}").leak();
    some.iter()
        .flat_map(|one| others.iter().map(move |other| (*one, *other)))
        .map(pair)
        .collect()
}

impl Table {
    fn add(&mut self, row: &Row, spelling: String) {
        // The table lives as long as the program.
        let mut rest: &'static str = spelling.leak();
        let end = rest.find(['.', '{']).unwrap_or(rest.len());
        let name;
        (name, rest) = rest.split_at(end);
        let mut segments = Vec::new();
        while !rest.is_empty() {
            let is_optional = rest.starts_with('{');
            let from = 1 + usize::from(is_optional);
            let ends: &[char] = if is_optional { &['}'] } else { &['.', '{'] };
            let end = rest[from..].find(ends).map_or(rest.len(), |end| from + end);
            let words = rest[from..end]
                .split('.')
                .map(sets::words)
                .reduce(pairs)
                .unwrap_or_default();
            segments.push(Segment { words, is_optional });
            rest = &rest[end + usize::from(is_optional)..];
        }
        self.by_name.entry(name).or_default().push(self.forms.len() as u16);
        self.forms.push(Form {
            name,
            segments,
            operands: row.operands.split_whitespace().map(Pattern::new).collect(),
            allows: row.allows,
        });
    }
}

/// A form that the table has: which row, and which word of each of its modifiers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spelled {
    form: u16,
    /// Which word; [`NONE`] for one that is left out.
    words: Box<[u8]>,
}

const NONE: u8 = u8::MAX;

/// A form that the table does not have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Missing {
    /// The opcode with its modifiers.
    pub form: String,
    /// Why it is not read.
    pub why: &'static str,
}

/// Reads an opcode with its modifiers.
///
/// ```
/// use flashcore_ptx::{print, read};
/// let form = read("ld.global.nc.v4.f32")?;
/// assert_eq!((form.name(), print(&form).as_str()), ("ld", "ld.global.nc.v4.f32"));
/// assert_eq!(read("tex.2d.v4.f32.f32").unwrap_err().why, "textures and surfaces are not read");
/// # Ok::<(), flashcore_ptx::Missing>(())
/// ```
///
/// # Errors
/// No row of the table spells it.
pub fn read(opcode: &str) -> Result<Spelled, Missing> {
    let (name, rest) = opcode.split_once('.').unwrap_or((opcode, ""));
    let words: Vec<&str> = rest.split('.').filter(|_| !rest.is_empty()).collect();
    let mut spelled = Vec::new();
    for &form in TABLE.by_name.get(name).map_or(&[][..], Vec::as_slice) {
        let row = &TABLE.forms[form as usize];
        // In this order: what a row allows, it says of words that it has.
        if fits(&row.segments, &words, &mut spelled) && (row.allows)(&words) {
            let words = spelled.into_boxed_slice();
            return Ok(Spelled { form, words });
        }
        spelled.clear();
    }
    let why = match name {
        "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" | "istypep" => "textures and surfaces are not read",
        "brx" => "indirect jumps are not read",
        "tcgen05" | "clusterlaunchcontrol" => "instructions of sm_100 are not read",
        "alloca" | "stacksave" | "stackrestore" => "stacks of a size known at run time are not read",
        "multimem" => "memory of several GPUs is not read",
        _ if !TABLE.by_name.contains_key(name) => "the table of forms has no such opcode",
        _ => "the table of forms has this opcode without these modifiers",
    };
    let form = opcode.to_string();
    Err(Missing { form, why })
}

/// Whether words are the modifiers of a row; leaves which they are in `spelled`.
fn fits(segments: &[Segment], words: &[&str], spelled: &mut Vec<u8>) -> bool {
    let Some((segment, others)) = segments.split_first() else {
        return words.is_empty();
    };
    let place = spelled.len();
    // The rest of the words after one of the segment's, which may be two: `relaxed.cluster`.
    let after = |known: &&str| {
        let count = known.split('.').count();
        let fits = words.len() >= count && known.split('.').eq(words[..count].iter().copied());
        fits.then(|| &words[count..])
    };
    let found = segment.words.iter().map(after).enumerate();
    if let Some((which, Some(rest))) = found.into_iter().find(|(_, rest)| rest.is_some()) {
        spelled.push(which as u8);
        if fits(others, rest, spelled) {
            return true;
        }
        spelled.truncate(place);
    }
    if segment.is_optional {
        spelled.push(NONE);
        if fits(others, words, spelled) {
            return true;
        }
        spelled.truncate(place);
    }
    false
}

/// The shape `[m, n, k]` that a word names, such as `m16n8k16`.
pub fn shape_of(word: &str) -> Option<[u32; 3]> {
    let mut numbers = word
        .strip_prefix('m')?
        .split(['n', 'k'])
        .map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

/// An opcode with its modifiers as it was read.
pub fn print(form: &Spelled) -> String {
    form.modifiers()
        .fold(form.name().to_string(), |text, word| text + "." + word)
}

impl Spelled {
    fn row(&self) -> &'static Form {
        &TABLE.forms[self.form as usize]
    }

    /// What stands before the first dot.
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// The modifiers, in the order of the text.
    pub fn modifiers(&self) -> impl Iterator<Item = &'static str> {
        let segments = self.row().segments.iter().zip(&*self.words);
        let words = segments.filter_map(|(segment, &which)| segment.words.get(which as usize));
        words.flat_map(|words| words.split('.'))
    }

    /// Whether it has a modifier.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers().any(|word| word == modifier)
    }

    /// What its row has for its operands, in order.
    pub fn operands(&self) -> &'static [Pattern] {
        &self.row().operands
    }
}

/// The rows, each with forms that it spells: about `most` of them, such that each modifier is in one.
///
/// ```
/// let rows = flashcore_ptx::spellings(64);
/// assert!(rows.len() > 300 && rows.iter().flatten().any(|form| flashcore_ptx::print(form) == "add.sat.s32"));
/// ```
pub fn spellings(most: usize) -> Vec<Vec<Spelled>> {
    let of_form = |(index, form): (usize, &Form)| {
        let sizes = form
            .segments
            .iter()
            .map(|segment| segment.words.len() + usize::from(segment.is_optional));
        let sizes: Vec<usize> = sizes.collect();
        let all = sizes.iter().product::<usize>();
        // An odd step that is no multiple of a set's size visits all words of all sets.
        let step = if all <= most { 1 } else { (all / most) | 1 };
        let spelled = (0..all).step_by(step).filter_map(|number| {
            let mut rest = number;
            let words = sizes.iter().zip(&form.segments).map(|(size, segment)| {
                let which = rest % size;
                rest /= size;
                if which < segment.words.len() { which as u8 } else { NONE }
            });
            let words = words.collect();
            let spelled = Spelled {
                form: index as u16,
                words,
            };
            let words: Vec<&str> = spelled.modifiers().collect();
            (form.allows)(&words).then_some(spelled)
        });
        spelled.collect()
    };
    TABLE.forms.iter().enumerate().map(of_form).collect()
}
