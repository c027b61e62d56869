//! What the text of a kernel cannot say, for a reader of it that judges more than the text.

use super::Writer;
use crate::inst::{Inst, Object, Slot, WgmmaA, WgmmaInst};
use crate::kernel::{Kernel, Node, ParamKind};
use crate::site::SiteId;
use crate::types::Reg;

/// What [`Kernel::to_ptx`] does not print, by the number of the instruction in the text, from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// Where each instruction of the text was written.
    pub sites: Vec<SiteId>,
    /// The objects that an instruction's addresses are meant for, in the order of its operands: of memory, of tensors,
    /// and of the descriptors of products.
    pub objects: Vec<(u32, Vec<Object>)>,
    /// Values that are shown, in order.
    pub traces: Vec<TraceNote>,
}

/// A value that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceNote {
    /// The instructions of the text before it.
    pub instructions: u32,
    /// The labels of the text before it.
    pub labels: u32,
    /// As [`Inst::Trace`] has it.
    pub label: u32,
    /// The register.
    pub src: Reg,
}

impl Kernel {
    /// What its text cannot say.
    pub fn notes(&self) -> Notes {
        let mut writer = Writer::new(self, false);
        writer.nodes(self.body(), &mut Vec::new());
        // That of `ret`.
        let last = self.body().last().map_or(SiteId(0), |node| match node {
            Node::Inst { site, .. } | Node::If { site, .. } | Node::Loop { site, .. } | Node::BreakIf { site, .. } => {
                *site
            }
        });
        writer.notes.sites.push(last);
        writer.notes
    }
}

impl Writer<'_> {
    /// Notes what the text of an instruction cannot say.
    pub(super) fn note(&mut self, inst: &Inst, site: SiteId) {
        let number = self.notes.sites.len() as u32;
        if let Inst::Trace { label, src } = inst {
            self.notes.traces.push(TraceNote {
                instructions: number,
                labels: self.placed,
                label: *label,
                src: *src,
            });
            return;
        }
        self.notes.sites.push(site);
        // An address is printed with its `cvta`.
        if let Inst::Param { index, .. } = inst
            && !matches!(self.kernel.params()[*index as usize].kind, ParamKind::Value(_))
        {
            self.notes.sites.push(site);
        }
        let mut objects = Vec::new();
        for slot in inst.clone().slots() {
            if let Slot::Memory(addr, ..) | Slot::TensorBox(addr, ..) = slot {
                objects.push(addr.object);
            }
        }
        if let Inst::Wgmma(WgmmaInst::Mma { a, b, .. }) = inst {
            if let WgmmaA::Shared(a) = a {
                objects.push(Object::Shared(a.buffer));
            }
            objects.push(Object::Shared(b.buffer));
        }
        if !objects.is_empty() {
            self.notes.objects.push((number, objects));
        }
    }
}
