//! What a PTX text declares: version, target, shared memory, kernels and their limits.
//!
//! Source: PTX ISA 9.0, "Directives".

use std::collections::HashSet;
use std::ops::Range;

use flashcore_ir::proof::KernelFacts;

use crate::error::PtxError;
use crate::words::{Word, Words};

/// Kernels, shared symbols, functions and files of a text, each; and parameters of a kernel, which have 32,764 bytes
/// together (PTX ISA, "Kernel Function Parameter Attributes").
pub(crate) const MOST_DECLARED: usize = 1 << 13;
/// Bytes that a variable may be aligned to. Shared memory is never larger.
const MOST_ALIGNED: u32 = 1 << 18;

/// What a PTX text declares outside the bodies of its kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct PtxModule {
    /// `.version`, major and minor.
    pub version: (u32, u32),
    /// `.target`: `sm_80`, `sm_90a`.
    pub target: String,
    /// Shared memory declared outside kernels, which every kernel has that names it.
    pub shared: Vec<SharedSymbol>,
    /// The kernels.
    pub entries: Vec<PtxEntry>,
    /// `.file`: number and path.
    pub files: Vec<(u32, String)>,
}

/// Shared memory by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSymbol {
    /// Its name.
    pub name: String,
    /// Type and dimensions as declared: `f32[64][32]`.
    pub declared: String,
    /// Bytes; 0 where the launch decides (`.extern .shared x[]`).
    pub bytes: u64,
    /// Alignment, bytes.
    pub align: u32,
    /// Whether the launch decides its size.
    pub is_dynamic: bool,
    /// Line of the declaration.
    pub line: u32,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxParam {
    /// Its name.
    pub name: String,
    /// Its type: `u64`, `f32`, `b8` for arrays of bytes.
    pub ty: String,
    /// Bytes.
    pub bytes: u64,
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PtxEntry {
    /// Its name.
    pub name: String,
    /// Parameters, in order.
    pub params: Vec<PtxParam>,
    /// `.maxntid`: no block may have more threads than the product.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: the only block there may be.
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`: blocks an SM that the assembler leaves registers for.
    pub min_blocks_per_sm: Option<u32>,
    /// `.maxnreg`: registers a thread that the assembler may use.
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`: the only cluster there may be.
    pub required_cluster: Option<[u32; 3]>,
    /// Line of its `.entry`.
    pub line: u32,
    /// Its body: the bytes of the text between the braces.
    pub body: Range<usize>,
    /// Line on which the body begins.
    pub body_line: u32,
}

impl PtxModule {
    /// Reads what a text declares. What no kernel needs to be understood (debug sections, initialised
    /// constants, functions) is passed over, and so are the bodies of kernels, which may use anything.
    ///
    /// ```
    /// use flashcore_ptx::PtxModule;
    /// let module = PtxModule::declarations(
    ///     ".version 7.0 .target sm_80 .address_size 64
    ///      .visible .entry scale(.param .u64 x) .maxntid 128, 1, 1 { ret; }",
    /// )?;
    /// let entry = &module.entries[0];
    /// assert_eq!((entry.name.as_str(), entry.max_threads), ("scale", Some([128, 1, 1])));
    /// # Ok::<(), flashcore_ptx::PtxError>(())
    /// ```
    ///
    /// # Errors
    /// Where the text is no PTX, or not well-formed: the line, and what was expected.
    pub fn declarations(text: &str) -> Result<PtxModule, PtxError> {
        PtxModule::with_others(text, |_, _, _| Ok(false))
    }

    /// The same. `other` is called behind each directive that no launch depends on, with the directive and its line:
    /// it reads what follows, or leaves it to be passed over, and says which.
    ///
    /// # Errors
    /// Those of [`declarations`](Self::declarations), and of `other`.
    pub(crate) fn with_others(
        text: &str,
        mut other: impl FnMut(&mut Words<'_>, &str, u32) -> Result<bool, PtxError>,
    ) -> Result<PtxModule, PtxError> {
        Words::outside_braces(text)?.module(&mut other)
    }

    /// The kernels and their [facts](PtxEntry::facts), as a driver takes them with the text.
    pub fn kernels(&self) -> Vec<(&str, KernelFacts)> {
        let entries = self.entries.iter();
        entries.map(|entry| (entry.name.as_str(), entry.facts())).collect()
    }

    /// The kernel of a name.
    pub fn entry(&self, name: &str) -> Option<&PtxEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

impl PtxEntry {
    /// Most threads a block may have by what the kernel declares.
    pub fn threads_allowed(&self) -> Option<u32> {
        self.required_threads.or(self.max_threads).map(product)
    }

    /// The facts for the launch proof that stand outside the body: all but shared memory and registers.
    pub fn facts(&self) -> KernelFacts {
        KernelFacts {
            max_threads: self.max_threads.map(product),
            required_block: self.required_threads,
            required_cluster: self.required_cluster,
            parameter_bytes: Some(self.params.iter().map(|param| param.bytes).collect()),
            ..KernelFacts::default()
        }
    }
}

fn product(dims: [u32; 3]) -> u32 {
    dims.iter().fold(1, |product: u32, &n| product.saturating_mul(n))
}

impl<'a> Words<'a> {
    fn module(
        &mut self,
        other: &mut dyn FnMut(&mut Self, &str, u32) -> Result<bool, PtxError>,
    ) -> Result<PtxModule, PtxError> {
        let (mut version, mut target) = (None, None);
        let (mut names, mut shared) = (HashSet::new(), Vec::new());
        let (mut entries, mut files) = (Vec::new(), Vec::new());
        while self.peek().is_some() {
            let line = self.line();
            if self.takes(';') {
                continue;
            }
            match self.name("a directive")? {
                ".version" => version = Some(self.version()?),
                ".target" => {
                    target = Some(self.name("an architecture")?.to_string());
                    while self.takes(',') {
                        self.name("an option")?;
                    }
                }
                ".address_size" => {
                    self.number()?;
                }
                ".file" => files.push(self.file()?),
                ".visible" | ".weak" | ".common" | ".extern" => {}
                ".shared" => shared.extend(self.list(';', |it| Ok(it.variable(line)?.0))?),
                ".entry" => {
                    let entry = self.entry(line)?;
                    let (what, name) = ("kernel", entry.name.clone());
                    if !names.insert(name.clone()) {
                        return Err(PtxError::Twice { what, name, line });
                    }
                    entries.push(entry);
                }
                ".section" => self.skip("section")?,
                directive => {
                    if !other(self, directive, line)? {
                        self.skip("declaration")?;
                    }
                }
            }
            let declared = entries.len().max(shared.len()).max(files.len());
            PtxError::at_most("declarations of one kind", declared as u64, MOST_DECLARED as u64, line)?;
        }
        Ok(PtxModule {
            version: version.ok_or(PtxError::NoPtx(".version"))?,
            target: target.ok_or(PtxError::NoPtx(".target"))?,
            shared,
            entries,
            files,
        })
    }

    fn version(&mut self) -> Result<(u32, u32), PtxError> {
        let Some(Word::Number(text)) = self.peek() else {
            return self.wrong("a version such as 7.0");
        };
        let parts = text.split_once('.').map(|(a, b)| (a.parse(), b.parse()));
        let Some((Ok(major), Ok(minor))) = parts else {
            return self.wrong("a version such as 7.0");
        };
        self.at += 1;
        Ok((major, minor))
    }

    fn file(&mut self) -> Result<(u32, String), PtxError> {
        let number = self.small()?;
        let Some(Word::Text(path)) = self.peek() else {
            return self.wrong("a path in quotes");
        };
        let path = path.to_string();
        self.at += 1;
        while self.takes(',') {
            self.number()?;
        }
        Ok((number, path))
    }

    /// Takes what follows a state space: options, type, name, dimensions, perhaps first values. Gives
    /// the type as well. The size is left to the launch where the first dimension is open: `name[]`.
    ///
    /// # Errors
    /// What follows is no variable, or one of 2^64 bytes.
    pub(crate) fn variable(&mut self, line: u32) -> Result<(SharedSymbol, String), PtxError> {
        let (mut align, mut element, mut ty) = (None, None, String::new());
        let mut vector = 1;
        let name = loop {
            match self.name("a type and a name")? {
                ".align" => align = Some(self.alignment()?),
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                word if word.starts_with('.') => {
                    // `.ptr .global` and the like say nothing about the size.
                    if let Some(bytes) = bytes_of(word) {
                        (element, ty) = (Some(bytes), word[1..].to_string());
                    }
                }
                name => break name.to_string(),
            }
        };
        let Some(element) = element else {
            return self.wrong("a variable with a type");
        };
        let (mut bytes, mut is_dynamic) = (u64::from(element) * vector, false);
        let mut declared = match vector {
            1 => ty.clone(),
            n => format!("v{n}.{ty}"),
        };
        while self.takes('[') {
            if self.takes(']') {
                is_dynamic = true;
                declared.push_str("[]");
                continue;
            }
            let count = self.number()?;
            declared.push_str(&format!("[{count}]"));
            let Some(product) = bytes.checked_mul(count) else {
                return self.wrong("an array of fewer than 2^64 bytes");
            };
            bytes = product;
            self.mark(']')?;
        }
        let symbol = SharedSymbol {
            name,
            declared,
            bytes: if is_dynamic { 0 } else { bytes },
            align: align.unwrap_or(element * vector as u32),
            is_dynamic,
            line,
        };
        Ok((symbol, ty))
    }

    fn alignment(&mut self) -> Result<u32, PtxError> {
        let line = self.line();
        let align = self.small()?;
        if align.is_power_of_two() && align <= MOST_ALIGNED {
            return Ok(align);
        }
        let allowed = format!("a power of two from 1 to {MOST_ALIGNED}");
        let (what, given) = ("bytes of alignment", u64::from(align));
        Err(PtxError::Limit {
            what,
            given,
            allowed,
            line,
        })
    }

    fn entry(&mut self, line: u32) -> Result<PtxEntry, PtxError> {
        let name = self.name("the kernel's name")?.to_string();
        let mut entry = PtxEntry {
            name,
            line,
            ..PtxEntry::default()
        };
        if self.takes('(') && !self.takes(')') {
            entry.params = self.list(')', |it| {
                if it.peek() != Some(&Word::Name(".param")) {
                    return it.wrong("`.param`");
                }
                it.at += 1;
                let (SharedSymbol { name, bytes, .. }, ty) = it.variable(line)?;
                Ok(PtxParam { name, ty, bytes })
            })?;
            let params = entry.params.len();
            PtxError::at_most("parameters of a kernel", params as u64, MOST_DECLARED as u64, line)?;
            let mut names = HashSet::new();
            if let Some(param) = entry.params.iter().find(|param| !names.insert(param.name.as_str())) {
                let (what, name) = ("parameter", param.name.clone());
                return Err(PtxError::Twice { what, name, line });
            }
        }
        while !self.takes('{') {
            match self.name("a directive or the kernel's body")? {
                ".maxntid" => entry.max_threads = Some(self.dims()?),
                ".reqntid" => entry.required_threads = Some(self.dims()?),
                ".reqnctapercluster" => entry.required_cluster = Some(self.dims()?),
                ".minnctapersm" => entry.min_blocks_per_sm = Some(self.small()?),
                ".maxnreg" => entry.max_registers = Some(self.small()?),
                ".maxnctapersm" | ".maxclusterrank" => {
                    self.number()?;
                }
                ".explicitcluster" | ".blocksareclusters" => {}
                ".pragma" => self.skip("pragma")?,
                _ => {
                    self.at -= 1;
                    return self.wrong("a performance directive or `{`");
                }
            }
        }
        let brace = &self.tokens[self.at - 1];
        entry.body_line = brace.line;
        let begin = brace.offset + 1;
        let end = self.tokens.get(self.at).map_or(begin, |token| token.offset);
        entry.body = begin..end;
        self.mark('}')?;
        Ok(entry)
    }

    fn dims(&mut self) -> Result<[u32; 3], PtxError> {
        let mut dims = [self.small()?, 1, 1];
        for dim in dims.iter_mut().skip(1) {
            if !self.takes(',') {
                break;
            }
            *dim = self.small()?;
        }
        Ok(dims)
    }
}

/// Bytes of a fundamental type (PTX ISA, "Fundamental Types"); none for a word that is no type.
fn bytes_of(word: &str) -> Option<u32> {
    Some(match word {
        ".b8" | ".u8" | ".s8" | ".pred" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
