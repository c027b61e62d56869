//! Jumps to structures: `if`, `if`/`else` and loops that are left at their top level.

use std::collections::HashMap;
use std::ops::Range;

use flashcore_ir::inst::{Inst, Operand, UnOp};
use flashcore_ir::kernel::{Condition, Node};
use flashcore_ir::site::SiteId;
use flashcore_ir::types::{Reg, ScalarType};

use super::PtxError;
use super::body::MOST_NESTED;

#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    pub(super) pred: Reg,
    pub(super) negated: bool,
}

impl Test {
    fn not(self) -> Test {
        let negated = !self.negated;
        Test { negated, ..self }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Item {
    Inst {
        inst: Inst,
        guard: Option<Test>,
        site: SiteId,
    },
    Label(String),
    /// A jump to a label, or to the kernel's end.
    Jump {
        to: Option<String>,
        test: Option<Test>,
        uniform: bool,
        site: SiteId,
        line: u32,
    },
}

/// Makes a tree of a body; `new_pred` gives fresh predicate registers.
pub(super) fn structured(items: &[Item], new_pred: &mut dyn FnMut() -> Reg) -> Result<Vec<Node>, PtxError> {
    let mut control = Control::new(items, new_pred);
    control.region(0, items.len(), None)
}

struct Control<'a> {
    items: &'a [Item],
    new_pred: &'a mut dyn FnMut() -> Reg,
    /// Where the labels stand.
    labels: HashMap<&'a str, usize>,
    /// The jumps to each label, in order.
    jumps: HashMap<usize, Vec<usize>>,
    /// For each place the next item that is no label, and the one before it, counted from 1.
    after: Vec<usize>,
    before: Vec<usize>,
    /// Structures around the region that is being read.
    depth: u64,
}

impl<'a> Control<'a> {
    fn new(items: &'a [Item], new_pred: &'a mut dyn FnMut() -> Reg) -> Control<'a> {
        let is_label = |at: usize| matches!(items[at], Item::Label(_));
        let labels = items.iter().enumerate().filter_map(|(at, item)| match item {
            Item::Label(name) => Some((name.as_str(), at)),
            _ => None,
        });
        let mut control = Control {
            items,
            new_pred,
            labels: labels.collect(),
            jumps: HashMap::new(),
            after: vec![items.len(); items.len() + 1],
            before: vec![0; items.len() + 1],
            depth: 0,
        };
        for (at, item) in items.iter().enumerate() {
            control.before[at + 1] = if is_label(at) { control.before[at] } else { at + 1 };
            if let Item::Jump { to: Some(to), .. } = item
                && let Some(&to) = control.labels.get(to.as_str())
            {
                control.jumps.entry(to).or_default().push(at);
            }
        }
        for at in (0..items.len()).rev() {
            control.after[at] = if is_label(at) { control.after[at + 1] } else { at };
        }
        control
    }

    /// Where a label stands; the end of the items for the kernel's end.
    fn place(&self, to: Option<&String>) -> Option<usize> {
        match to {
            None => Some(self.items.len()),
            Some(name) => self.labels.get(name.as_str()).copied(),
        }
    }

    /// Whether nothing but labels stands between two places.
    fn same_place(&self, from: usize, to: usize) -> bool {
        from <= to && self.after[from] >= to
    }

    fn jumps_to(&self, at: usize) -> Option<usize> {
        match &self.items[at] {
            Item::Jump { to, .. } => self.place(to.as_ref()),
            _ => None,
        }
    }

    /// The last jump before `to` that goes back to a label.
    fn last_jump_back(&self, label: usize, to: usize) -> Option<usize> {
        let jumps = self.jumps.get(&label)?;
        let before = &jumps[..jumps.partition_point(|&jump| jump < to)];
        before.last().copied().filter(|&jump| jump > label)
    }

    /// The items of a structure that begins or ends with a jump.
    fn inner(&mut self, items: Range<usize>, exit: Option<usize>, line: u32) -> Result<Vec<Node>, PtxError> {
        self.depth += 1;
        PtxError::at_most("structures in one another", self.depth, MOST_NESTED, line)?;
        let nodes = self.region(items.start, items.end, exit)?;
        self.depth -= 1;
        Ok(nodes)
    }

    /// The items from `from` up to `to`, within a loop whose exit is at `exit`.
    fn region(&mut self, from: usize, to: usize, exit: Option<usize>) -> Result<Vec<Node>, PtxError> {
        let mut nodes = Vec::new();
        let mut at = from;
        while at < to {
            match &self.items[at] {
                Item::Label(_) => match self.last_jump_back(at, to) {
                    None => at += 1,
                    Some(jump) => {
                        self.repeat(at, jump, &mut nodes)?;
                        at = jump + 1;
                    }
                },
                Item::Inst { inst, guard, site } => {
                    let (inst, site) = (inst.clone(), *site);
                    let node = Node::Inst { inst, site };
                    match *guard {
                        None => nodes.push(node),
                        Some(test) => {
                            let condition = self.condition(test, false, site, &mut nodes);
                            nodes.push(Node::branch(condition, vec![node], Vec::new(), site));
                        }
                    }
                    at += 1;
                }
                Item::Jump { .. } => at = self.jump(at, to, exit, &mut nodes)?,
            }
        }
        Ok(nodes)
    }

    fn repeat(&mut self, label: usize, jump: usize, nodes: &mut Vec<Node>) -> Result<(), PtxError> {
        let Item::Jump {
            test,
            uniform,
            site,
            line,
            ..
        } = self.items[jump]
        else {
            return Ok(());
        };
        let mut body = self.inner(label + 1..jump, Some(jump + 1), line)?;
        if let Some(test) = test {
            let condition = self.condition(test.not(), uniform, site, &mut body);
            body.push(Node::BreakIf { condition, site });
        }
        nodes.push(Node::Loop { body, site });
        Ok(())
    }

    /// A jump ahead; gives where to go on.
    fn jump(&mut self, at: usize, to: usize, exit: Option<usize>, nodes: &mut Vec<Node>) -> Result<usize, PtxError> {
        let items = self.items;
        let Item::Jump {
            to: ref name,
            test,
            uniform,
            site,
            line,
        } = items[at]
        else {
            return Ok(at + 1);
        };
        let wrong = |why: &str| PtxError::not_understood("this jump", why, line);
        let target = self
            .place(name.as_ref())
            .ok_or_else(|| wrong("there is no such label"))?;
        if self.same_place(at + 1, target) {
            return Ok(at + 1);
        }
        let Some(test) = test else {
            return Err(wrong("it ends neither an if nor a loop"));
        };
        if let Some(exit) = exit
            && (self.same_place(exit, target) || self.same_place(target, exit))
        {
            let condition = self.condition(test, uniform, site, nodes);
            nodes.push(Node::BreakIf { condition, site });
            return Ok(at + 1);
        }
        // The kernel's end is where the outermost region ends, whatever labels stand there.
        let target = if self.same_place(to, target) { to } else { target };
        if target <= at || target > to {
            return Err(wrong(
                "it leaves more than one structure; supported are if, if/else and loops that are left at their top level",
            ));
        }
        let condition = self.condition(test.not(), uniform, site, nodes);
        let last = self.before[target].checked_sub(1).filter(|&last| last > at);
        let otherwise_ends = last
            .filter(|&last| matches!(self.items[last], Item::Jump { test: None, .. }))
            .and_then(|last| {
                let end = self.jumps_to(last)?;
                let end = if self.same_place(to, end) { to } else { end };
                (end > target && end <= to).then_some((last, end))
            });
        // A loop is left at its top level only: within an `if` in it there is no exit.
        let (then, otherwise, next) = match otherwise_ends {
            Some((last, end)) => {
                let then = self.inner(at + 1..last, None, line)?;
                (then, self.inner(target..end, None, line)?, end)
            }
            None => (self.inner(at + 1..target, None, line)?, Vec::new(), target),
        };
        nodes.push(Node::branch(condition, then, otherwise, site));
        Ok(next)
    }

    /// The condition of a test; a negated one is computed into a new register.
    fn condition(&mut self, test: Test, uniform: bool, site: SiteId, nodes: &mut Vec<Node>) -> Condition {
        let mut pred = test.pred;
        if test.negated {
            pred = (self.new_pred)();
            let (op, ty, dst, a) = (UnOp::Not, ScalarType::Pred, pred, Operand::Reg(test.pred));
            let inst = Inst::Un { op, ty, dst, a };
            nodes.push(Node::Inst { inst, site });
        }
        Condition { pred, uniform }
    }
}
