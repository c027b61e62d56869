//! Cubins: ELF files with machine code of one architecture.
//!
//! The format is undocumented. What is read here was derived by assembling known PTX with ptxas
//! 12.0 and 13.0 for sm_80, sm_89 and sm_90a; attribute names are those of `cuobjdump -elf`.
//!
//! - `.text.NAME`: registers per thread in the upper byte of `sh_info`.
//! - `.nv.shared.NAME`: its size is that of static shared memory; from sm_90 on it includes the
//!   1,024 B that the system reserves.
//! - `.nv.info`, `.nv.info.NAME`: attributes, each a format byte, a kind byte, and two bytes of
//!   value or length.

use std::collections::HashMap;

use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader as _, SectionHeader as _};
use object::{Object, ObjectSection, ObjectSymbol, SectionIndex, SymbolIndex};

use super::{CodeForm, ForeignError, ForeignKernel, Shared, binary_kind};

/// `e_machine` of CUDA.
const EM_CUDA: u16 = 190;

/// Kinds of attributes that are read.
const MAX_THREADS: u8 = 0x05;
const REQUIRED_THREADS: u8 = 0x10;
const FRAME_SIZE: u8 = 0x11;
const PARAMETER: u8 = 0x17;
const REGISTERS: u8 = 0x2f;
/// Format of an attribute whose last two bytes are the length of what follows.
const FORMAT_LONG: u8 = 0x04;

type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// Sections and symbols by name, the first of each, and the symbols of each section: searching for those of every
/// kernel would take time with the square of their number.
struct Parts<'e, 'a> {
    elf: &'e Elf<'a>,
    sections: HashMap<&'a str, SectionIndex>,
    symbols: HashMap<&'a str, SymbolIndex>,
    inside: HashMap<SectionIndex, Vec<SymbolIndex>>,
}

impl<'e, 'a> Parts<'e, 'a> {
    fn of(elf: &'e Elf<'a>) -> Self {
        let mut parts = Parts {
            elf,
            sections: HashMap::new(),
            symbols: HashMap::new(),
            inside: HashMap::new(),
        };
        for section in elf.sections() {
            if let Ok(name) = section.name() {
                parts.sections.entry(name).or_insert(section.index());
            }
        }
        for symbol in elf.symbols() {
            if let Ok(name) = symbol.name() {
                parts.symbols.entry(name).or_insert(symbol.index());
            }
            if let Some(section) = symbol.section_index() {
                parts.inside.entry(section).or_default().push(symbol.index());
            }
        }
        parts
    }

    fn section(&self, name: &str) -> Option<impl ObjectSection<'a> + use<'e, 'a>> {
        self.elf.section_by_index(*self.sections.get(name)?).ok()
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<Vec<ForeignKernel>, ForeignError> {
    let no_cubin = || ForeignError::NoCubin(format!("this is {}", binary_kind(bytes).unwrap_or("no ELF file")));
    let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(|_| no_cubin())?;
    let endian = LittleEndian;
    if header.e_machine(endian).0 != EM_CUDA {
        return Err(no_cubin());
    }
    let flags = header.e_flags(endian).0;
    // From ABI 8 on (CUDA 13) the architecture is in the second byte, before in the first.
    let sm = match header.e_ident().abi_version {
        8.. => flags >> 8 & 0xff,
        _ => flags & 0xff,
    };
    let broken = |error: object::Error| ForeignError::Broken(error.to_string());
    let elf: Elf<'_> = ElfFile64::parse(bytes).map_err(broken)?;
    let parts = Parts::of(&elf);
    let of_all = attributes(&parts, ".nv.info")?;
    let mut kernels = Vec::new();
    for section in elf.sections() {
        let Some(name) = section.name().map_err(broken)?.strip_prefix(".text.") else {
            continue;
        };
        // Functions other than kernels have no constant bank for parameters.
        let own = attributes(&parts, &format!(".nv.info.{name}"))?;
        if !parts.sections.contains_key(format!(".nv.constant0.{name}").as_str()) {
            continue;
        }
        let symbol = parts.symbols.get(name).map(|symbol| symbol.0 as u32);
        let in_section = section.elf_section_header().sh_info(endian) >> 24;
        kernels.push(ForeignKernel {
            name: name.to_string(),
            form: CodeForm::Cubin,
            made_for: format!("sm_{sm}"),
            parameter_bytes: parameters(&own),
            registers: of_symbol(&of_all, REGISTERS, symbol).or((in_section > 0).then_some(in_section)),
            stack_bytes: of_symbol(&of_all, FRAME_SIZE, symbol),
            compiler: Some("the cubin".to_string()),
            static_shared: static_shared(&parts, name, sm),
            shared: shared(&parts, name),
            max_threads: threads(&own, MAX_THREADS),
            required_threads: threads(&own, REQUIRED_THREADS),
            ..ForeignKernel::default()
        });
    }
    Ok(kernels)
}

/// Attributes of a section by kind, in order; empty if the section does not exist.
fn attributes(parts: &Parts<'_, '_>, name: &str) -> Result<HashMap<u8, Vec<Vec<u8>>>, ForeignError> {
    let mut found: HashMap<u8, Vec<Vec<u8>>> = HashMap::new();
    let Some(section) = parts.section(name) else {
        return Ok(found);
    };
    let data = section.data();
    let mut rest = data.map_err(|error| ForeignError::Broken(error.to_string()))?;
    while let [format, kind, low, high, tail @ ..] = rest {
        let mut value = [*low, *high].to_vec();
        rest = tail;
        if *format == FORMAT_LONG {
            let Some((long, after)) = tail.split_at_checked(usize::from(u16::from_le_bytes([*low, *high]))) else {
                return Err(ForeignError::Broken(format!("{name} ends within an attribute")));
            };
            (value, rest) = (long.to_vec(), after);
        }
        found.entry(*kind).or_default().push(value);
    }
    Ok(found)
}

fn words(value: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    value.chunks_exact(4).map(word).collect()
}

/// The value of an attribute for a symbol, which precedes the value.
fn of_symbol(attributes: &HashMap<u8, Vec<Vec<u8>>>, kind: u8, symbol: Option<u32>) -> Option<u32> {
    let all = attributes.get(&kind)?.iter().map(|value| words(value));
    let mut ours = all.filter(|words| words.first() == symbol.as_ref());
    ours.next()?.get(1).copied()
}

fn threads(attributes: &HashMap<u8, Vec<Vec<u8>>>, kind: u8) -> Option<u32> {
    let dims = words(attributes.get(&kind)?.first()?);
    (dims.len() == 3).then(|| dims.iter().fold(1, |product: u32, &n| product.saturating_mul(n)))
}

/// Bytes of each parameter in order. An attribute has a number, a position, and the size in the
/// upper bits of the last word.
fn parameters(attributes: &HashMap<u8, Vec<Vec<u8>>>) -> Vec<u64> {
    let all = attributes.get(&PARAMETER).into_iter().flatten();
    let found = all.filter_map(|value| match words(value).as_slice() {
        [_, place, size] => Some((place & 0xffff, u64::from(size >> 18))),
        _ => None,
    });
    let mut found: Vec<(u32, u64)> = found.collect();
    found.sort_unstable();
    found.into_iter().map(|(_, bytes)| bytes).collect()
}

fn static_shared(parts: &Parts<'_, '_>, name: &str, sm: u32) -> u64 {
    let section = parts.section(&format!(".nv.shared.{name}"));
    // From sm_90 on it includes what the system reserves.
    let reserved = if sm >= 90 { 1024 } else { 0 };
    section.map_or(0, |section| section.size().saturating_sub(reserved))
}

/// Symbols in the kernel's shared memory; ptxas keeps only those visible to other modules.
fn shared(parts: &Parts<'_, '_>, name: &str) -> Vec<Shared> {
    let Some(section) = parts.section(&format!(".nv.shared.{name}")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let inside = parts.inside.get(&section.index()).into_iter().flatten();
    for symbol in inside.filter_map(|index| parts.elf.symbol_by_index(*index).ok()) {
        let is_ours = symbol.size() > 0;
        let Some(name) = symbol.name().ok().filter(|_| is_ours) else {
            continue;
        };
        found.push(Shared {
            name: name.to_string(),
            bytes: symbol.size(),
            ..Shared::default()
        });
    }
    found
}
