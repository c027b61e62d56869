//! The parser: words to declarations and statements.

use super::PtxError;
use super::body::{Body, integer};
use super::declare::{PtxEntry, PtxModule, PtxParam, SharedSymbol};
use super::lex::{Token, Word, lex};

impl PtxModule {
    /// Reads a text. What no kernel needs to be understood (debug sections, initialised constants,
    /// bodies of functions) is passed over.
    ///
    /// # Errors
    /// Where the text is no PTX, or not well-formed: the line, and what was expected.
    pub fn read(text: &str) -> Result<PtxModule, PtxError> {
        let tokens = lex(text, true)?;
        Parser { tokens, at: 0 }.module()
    }

    /// Reads what a text declares outside the bodies of its kernels, which it passes over: names,
    /// parameters, limits of blocks and clusters. A body may then use anything. Shared memory that
    /// is declared in a body is missing.
    ///
    /// # Errors
    /// As [`read`](Self::read), outside bodies.
    pub fn declarations(text: &str) -> Result<PtxModule, PtxError> {
        let tokens = lex(text, false)?;
        Parser { tokens, at: 0 }.module()
    }
}

pub(super) struct Parser<'a> {
    pub(super) tokens: Vec<Token<'a>>,
    pub(super) at: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<&Word<'a>> {
        self.tokens.get(self.at).map(|token| &token.word)
    }

    pub(super) fn line(&self) -> u32 {
        let last = self.tokens.last().map_or(1, |token| token.line);
        self.tokens.get(self.at).map_or(last, |token| token.line)
    }

    pub(super) fn wrong<T>(&self, expected: &str) -> Result<T, PtxError> {
        let found = match self.peek() {
            None => "the end of the text".to_string(),
            Some(Word::Name(text) | Word::Number(text)) => format!("`{text}`"),
            Some(Word::Text(text)) => format!("\"{text}\""),
            Some(Word::Mark(mark)) => format!("`{mark}`"),
        };
        let (expected, line) = (expected.to_string(), self.line());
        Err(PtxError::Expected { expected, found, line })
    }

    pub(super) fn takes(&mut self, mark: char) -> bool {
        let there = self.peek() == Some(&Word::Mark(mark));
        self.at += usize::from(there);
        there
    }

    pub(super) fn mark(&mut self, mark: char) -> Result<(), PtxError> {
        if self.takes(mark) {
            return Ok(());
        }
        self.wrong(&format!("`{mark}`"))
    }

    /// Reads items with commas between them, up to `end`, which it takes.
    pub(super) fn list<T>(
        &mut self,
        end: char,
        mut item: impl FnMut(&mut Self) -> Result<T, PtxError>,
    ) -> Result<Vec<T>, PtxError> {
        let mut items = vec![item(self)?];
        while self.takes(',') {
            items.push(item(self)?);
        }
        self.mark(end)?;
        Ok(items)
    }

    pub(super) fn name(&mut self, what: &str) -> Result<&'a str, PtxError> {
        let Some(Word::Name(name)) = self.peek() else {
            return self.wrong(what);
        };
        let name = *name;
        self.at += 1;
        Ok(name)
    }

    pub(super) fn number(&mut self) -> Result<u64, PtxError> {
        let Some(Word::Number(text)) = self.peek() else {
            return self.wrong("a number");
        };
        let Some(number) = integer(text) else {
            return self.wrong("a whole number");
        };
        self.at += 1;
        Ok(number)
    }

    pub(super) fn small(&mut self) -> Result<u32, PtxError> {
        let at = self.at;
        let number = self.number()?;
        u32::try_from(number).or_else(|_| {
            self.at = at;
            self.wrong("a number below 2^32")
        })
    }

    /// Passes over everything up to the end of a statement, or of a block in braces.
    pub(super) fn skip(&mut self, what: &'static str) -> Result<(), PtxError> {
        let (line, mut depth) = (self.line(), 0u32);
        while let Some(word) = self.peek() {
            let mark = match word {
                Word::Mark(mark) => *mark,
                _ => ' ',
            };
            self.at += 1;
            match mark {
                '{' => depth += 1,
                '}' if depth <= 1 => return Ok(()),
                '}' => depth -= 1,
                ';' if depth == 0 => return Ok(()),
                _ => {}
            }
        }
        Err(PtxError::Unfinished { what, line })
    }

    fn module(&mut self) -> Result<PtxModule, PtxError> {
        let (mut version, mut target) = (None, None);
        let (mut shared, mut entries, mut functions, mut files) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
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
                ".entry" => entries.push(self.entry(line)?),
                ".func" => functions.push(self.function()?),
                ".section" => self.skip("section")?,
                _ => self.skip("declaration")?,
            }
        }
        Ok(PtxModule {
            version: version.ok_or(PtxError::NoPtx(".version"))?,
            target: target.ok_or(PtxError::NoPtx(".target"))?,
            shared,
            entries,
            functions,
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

    /// What follows a state space: options, type, name, dimensions, perhaps first values. Gives the
    /// type as well. The size is left to the launch where the first dimension is open: `name[]`.
    pub(super) fn variable(&mut self, line: u32) -> Result<(SharedSymbol, String), PtxError> {
        let (mut align, mut element, mut ty) = (None, None, String::new());
        let mut vector = 1;
        let name = loop {
            match self.name("a type and a name")? {
                ".align" => align = Some(self.small()?),
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

    fn function(&mut self) -> Result<String, PtxError> {
        while matches!(self.peek(), Some(Word::Name(".noreturn"))) {
            self.at += 1;
        }
        if self.takes('(') {
            while !self.takes(')') {
                if self.peek().is_none() {
                    return self.wrong("`)`");
                }
                self.at += 1;
            }
        }
        let name = self.name("a function's name")?.to_string();
        // A declaration ends with `;`, a definition with `}`: skipping finds either.
        self.skip("function")?;
        Ok(name)
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
        let mut body = Body::of(entry);
        self.body(&mut body)?;
        body.entry.end = self.line();
        self.mark('}')?;
        Ok(body.entry)
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
mod tests {
    use super::*;
    use crate::ptx::read::statement::{Guard, Statement};

    #[test]
    fn declarations_are_read() {
        let module = PtxModule::read(
            r#"
.version 8.4
.target sm_89, debug
.address_size 64
.file 1 "x.cu", 123, 456
.shared .align 16 .b8 tile[16][64];
.extern .shared .align 128 .b8 dyn[];
.shared .f32 unused[9];
.global .align 4 .b8 table[4] = {1, 2, 3, 4};
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.func helper(.param .b32 a) { ret; }
.visible .entry k(
	.param .u64 .ptr .global .align 16 k_param_0,
	.param .align 8 .b8 k_param_1[40]
)
.maxntid 16, 16
.minnctapersm 2
.maxnreg 64
{
	.reg .pred %p<2>;
	.shared .align 4 .f32 scores[2][2][16][64];
	.loc 1 10 3
	ld.param.u64 %rd1, [k_param_0];
	{ .reg .pred q; setp.ne.b32 q, %r1, -1; @!q bra $L0; }
	mov.u32 %r1, tile;
	mov.u32 %r2, dyn+16;
$L0:
	elect.sync _|%p1, 0xffffffff;
	ret;
}
.section .debug_str { .b8 0 }
"#,
        )
        .unwrap();
        assert_eq!((module.version, module.target.as_str()), ((8, 4), "sm_89"));
        assert_eq!(module.files, [(1, "x.cu".to_string())]);
        assert_eq!(module.functions, ["vprintf", "helper"]);
        let entry = &module.entries[0];
        assert_eq!(entry.params.iter().map(|p| p.bytes).collect::<Vec<_>>(), [8, 40]);
        assert_eq!(entry.threads_allowed(), Some(256));
        assert_eq!((entry.min_blocks_per_sm, entry.max_registers), (Some(2), Some(64)));
        let shared: Vec<(&str, u64, bool)> = module
            .shared_of(entry)
            .map(|s| (s.name.as_str(), s.bytes, s.is_dynamic))
            .collect();
        assert_eq!(
            shared,
            [("tile", 1024, false), ("dyn", 0, true), ("scores", 16384, false)]
        );
        let guards: Vec<&Guard> = entry
            .body
            .iter()
            .filter_map(|s| match s {
                Statement::Inst(inst) => inst.guard.as_ref(),
                _ => None,
            })
            .collect();
        assert_eq!((guards[0].negated, guards[0].pred.as_str()), (true, "q@1"));
    }

    #[test]
    fn what_a_kernel_declares_are_facts_for_the_launch_proof() {
        let text = ".version 7.0 .target sm_80 .entry k(.param .u64 x) .maxntid 32, 4 { .shared .b8 tile[100]; ret; }";
        let module = PtxModule::read(text).unwrap();
        let facts = module.facts_of(&module.entries[0]);
        assert_eq!((facts.static_shared_bytes, facts.max_threads), (100, Some(128)));
        assert_eq!(facts.parameter_bytes, Some(vec![8]));
    }

    #[test]
    fn copies_that_no_architecture_has_are_found() {
        let text = ".version 7.0 .target sm_80 .entry k() {\n cp.async.cg.shared.global [%r1], [%rd1], 8; ret; }";
        let module = PtxModule::read(text).unwrap();
        assert_eq!(
            module.entries[0].impossible(),
            [(2, "cp.async.cg of 8 bytes; it copies 16".to_string())]
        );
    }

    #[test]
    fn declarations_are_read_whatever_the_bodies_are() {
        let text = ".version 7.0 .target sm_80 .entry k(.param .u64 x) .maxntid 64 { not even PTX \"}\" {} }";
        let module = PtxModule::declarations(text).unwrap();
        assert_eq!(module.entries[0].threads_allowed(), Some(64));
        assert!(PtxModule::read(text).is_err());
    }

    #[test]
    fn what_is_no_ptx_is_refused() {
        for (text, part) in [
            ("", "no .version"),
            (".version 7.0", "no .target"),
            ("int main() {}", "no .version"),
            (".version 7.0 .target sm_80 .entry k() { ret;", "has no end"),
            (
                ".version 7.0 .target sm_80\n.entry k() { ld.u32 %r1, [%r2; }",
                "line 2: expected `]`",
            ),
            (".version x .target sm_80", "a version such as 7.0"),
            (
                ".version 7.0 .target sm_80 .entry k( { ret; }",
                "line 1: expected `.param`, found `{`",
            ),
            (
                ".version 7.0 .target sm_80 .shared .b8 x[99999999999][99999999999];",
                "2^64",
            ),
        ] {
            let error = PtxModule::read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
