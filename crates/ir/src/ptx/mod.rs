//! Prints a kernel as PTX. The only place that knows how instructions are spelled.
//!
//! Source: PTX ISA 9.0. The text carries the lowest `.version` and `.target` that have what the
//! kernel uses, so that old drivers load it.

use std::fmt::Write;

use crate::inst::Inst;
use crate::kernel::{Condition, Kernel, Node, ParamKind};
use crate::site::SiteId;
use crate::types::RegClass;

pub mod log;
mod notes;
mod opcode;
mod spell;

pub use notes::{Notes, TraceNote};
pub use opcode::opcode as mnemonic;
use spell::{reg_name, spell};

const SHARED_SYMBOL: &str = "shared_memory";

impl Kernel {
    /// The kernel as PTX, without debug lines: what is compiled and what identifies a module.
    pub fn to_ptx(&self) -> String {
        Writer::new(self, false).kernel()
    }

    /// The kernel as PTX with `.file`/`.loc` lines, for profilers and debuggers. The machine code
    /// is the same; the binary is larger.
    pub fn to_ptx_with_lines(&self) -> String {
        Writer::new(self, true).kernel()
    }
}

struct Writer<'a> {
    kernel: &'a Kernel,
    lines: bool,
    files: Vec<&'static str>,
    last_line: Option<(usize, u32)>,
    labels: u32,
    /// Labels of the text so far.
    placed: u32,
    notes: Notes,
    out: String,
}

impl<'a> Writer<'a> {
    fn new(kernel: &'a Kernel, lines: bool) -> Self {
        Writer {
            kernel,
            lines,
            files: Vec::new(),
            last_line: None,
            labels: 0,
            placed: 0,
            notes: Notes::default(),
            out: String::new(),
        }
    }

    fn kernel(mut self) -> String {
        let kernel = self.kernel;
        let mut loops = Vec::new();
        self.nodes(kernel.body(), &mut loops);
        let body = std::mem::take(&mut self.out);

        let required = kernel.requires();
        let mut text = String::new();
        let (major, minor) = required.ptx;
        let _ = writeln!(
            text,
            ".version {major}.{minor}\n.target {}\n.address_size 64",
            required.target_name()
        );
        for (i, file) in self.files.iter().enumerate() {
            let _ = writeln!(text, ".file {} \"{file}\"", i + 1);
        }
        let ledger = kernel.ledger();
        if !ledger.buffers.is_empty() {
            let (linkage, size) = if ledger.is_static {
                ("", ledger.total_bytes().to_string())
            } else {
                (".extern ", String::new())
            };
            let _ = writeln!(
                text,
                "{linkage}.shared .align {} .b8 {SHARED_SYMBOL}[{size}];",
                ledger.align()
            );
        }
        let params: Vec<String> = kernel
            .params()
            .iter()
            .map(|p| match p.kind {
                // 128 bytes that the kernel never reads itself.
                ParamKind::TensorMap { .. } => format!("\t.param .align 64 .b8 param_{}[128]", p.name),
                ParamKind::Pointer { .. } | ParamKind::Value(_) => {
                    let ty = p.scalar();
                    let ty = if ty.is_half() { ty.class().ptx() } else { ty.ptx() };
                    format!("\t.param .{ty} param_{}", p.name)
                }
            })
            .collect();
        let _ = writeln!(text, ".visible .entry {}(\n{}\n)", kernel.name(), params.join(",\n"));
        if let Some(blocks) = kernel.cluster() {
            let _ = writeln!(text, ".explicitcluster\n.reqnctapercluster {blocks}, 1, 1");
        }
        let _ = writeln!(text, ".maxntid {}, 1, 1", kernel.threads());
        if let Some(blocks) = kernel.min_blocks_per_sm() {
            let _ = writeln!(text, ".minnctapersm {blocks}");
        }
        if let Some(registers) = kernel.max_registers() {
            let _ = writeln!(text, ".maxnreg {registers}");
        }
        text.push_str("{\n");
        for class in RegClass::ALL {
            let count = kernel.num_regs(class);
            if count > 0 {
                let (ty, prefix) = (class.ptx(), class.prefix());
                let _ = writeln!(text, "\t.reg .{ty} %{prefix}<{count}>;");
            }
        }
        text + &body + "\tret;\n}\n"
    }

    fn nodes(&mut self, nodes: &[Node], loops: &mut Vec<u32>) {
        for node in nodes {
            match node {
                Node::Inst { inst, site } => {
                    self.location(*site);
                    self.note(inst, *site);
                    let text = self.spell(inst);
                    let _ = writeln!(self.out, "\t{text}");
                }
                Node::If {
                    condition,
                    then,
                    otherwise,
                    site,
                } => {
                    self.location(*site);
                    let (skip, end) = (self.label(), self.label());
                    self.branch(*condition, true, skip, *site);
                    self.nodes(then, loops);
                    if !otherwise.is_empty() {
                        self.notes.sites.push(*site);
                        let _ = writeln!(self.out, "\tbra{} L{end};", if condition.uniform { ".uni" } else { "" });
                    }
                    self.place(skip);
                    if !otherwise.is_empty() {
                        self.nodes(otherwise, loops);
                        self.place(end);
                    }
                }
                Node::Loop { body, site } => {
                    self.location(*site);
                    let (start, end) = (self.label(), self.label());
                    self.place(start);
                    loops.push(end);
                    self.nodes(body, loops);
                    loops.pop();
                    self.notes.sites.push(*site);
                    let _ = writeln!(self.out, "\tbra L{start};");
                    self.place(end);
                }
                Node::BreakIf { condition, site } => {
                    self.location(*site);
                    if let Some(&end) = loops.last() {
                        self.branch(*condition, false, end, *site);
                    }
                }
            }
        }
    }

    fn branch(&mut self, condition: Condition, negated: bool, label: u32, site: SiteId) {
        self.notes.sites.push(site);
        let not = if negated { "!" } else { "" };
        let uni = if condition.uniform { ".uni" } else { "" };
        let _ = writeln!(self.out, "\t@{not}{} bra{uni} L{label};", reg_name(condition.pred));
    }

    fn place(&mut self, label: u32) {
        self.placed += 1;
        let _ = writeln!(self.out, "L{label}:");
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn location(&mut self, site: SiteId) {
        if !self.lines {
            return;
        }
        let line = self.kernel.kernel_line(site);
        let file = self.files.iter().position(|f| *f == line.file).unwrap_or_else(|| {
            self.files.push(line.file);
            self.files.len() - 1
        });
        if self.last_line != Some((file, line.line)) {
            self.last_line = Some((file, line.line));
            let _ = writeln!(self.out, "\t.loc {} {} {}", file + 1, line.line, line.column);
        }
    }

    fn spell(&self, inst: &Inst) -> String {
        if let Inst::Trace { label, src } = inst {
            // On one line whatever the label: a comment ends with it.
            let label = self.kernel.traces()[*label as usize].escape_debug();
            return format!("// trace {label}: {}", reg_name(*src));
        }
        let params = self.kernel.params();
        let text = spell(inst, &|index| params[index as usize].name.clone());
        let Inst::Param { dst, index } = inst else {
            return text;
        };
        let (dst, param) = (reg_name(*dst), &params[*index as usize]);
        match param.kind {
            ParamKind::Value(_) => text,
            // A pointer parameter is generic; global accesses need it in their own space.
            ParamKind::Pointer { .. } => format!("{text}\n\tcvta.to.global.u64 {dst}, {dst};"),
            ParamKind::TensorMap { .. } => {
                format!("mov.b64 {dst}, param_{};\n\tcvta.param.u64 {dst}, {dst};", param.name)
            }
        }
    }
}
