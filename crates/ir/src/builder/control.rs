//! Control flow: conditions, branches, loops, verbs; and the proof that instructions a warp must
//! execute together stand where it is together.

use super::value::{Source, Val};
use super::{KernelBuilder, invalid_if};
use crate::error::{BuildError, BuildErrorKind};
use crate::inst::Cmp;
use crate::kernel::{Condition, Node};
use crate::site::{Frame, FrameId, Site, SiteId, SourceLine};
use crate::types::{Integer, Ordered, RegClass};

/// A predicate declared uniform or divergent, as control flow needs it.
#[derive(Clone, Copy, Debug)]
pub struct Cond<'k> {
    pub(crate) pred: Val<'k, bool>,
    pub(crate) uniform: bool,
}

impl<'k> Val<'k, bool> {
    /// Declares that all lanes of a warp that get here agree. The simulator checks it.
    pub fn uniform(self) -> Cond<'k> {
        let (pred, uniform) = (self, true);
        Cond { pred, uniform }
    }
    /// Declares that lanes of a warp may differ.
    pub fn divergent(self) -> Cond<'k> {
        let (pred, uniform) = (self, false);
        Cond { pred, uniform }
    }
}

/// A loop being written; see [`KernelBuilder::loop_`].
#[derive(Clone, Copy, Debug)]
pub struct LoopScope<'k> {
    k: &'k KernelBuilder,
    block: usize,
}

impl LoopScope<'_> {
    /// Lanes where the condition holds leave the loop here.
    #[track_caller]
    pub fn break_if(self, cond: Cond<'_>) {
        let condition = self.k.condition(cond);
        let site = self.k.site();
        if self.k.state.borrow().current_block() != self.block {
            self.k.error(BuildErrorKind::BreakNotInLoop);
            return;
        }
        self.k.push(Node::BreakIf { condition, site });
    }
}

impl KernelBuilder {
    /// Lanes where the condition holds run `then`.
    #[track_caller]
    pub fn if_(&self, cond: Cond<'_>, then: impl FnOnce()) {
        self.if_else(cond, then, || ());
    }

    /// Lanes where the condition holds run `then`, the others `otherwise`.
    #[track_caller]
    pub fn if_else(&self, cond: Cond<'_>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        let (condition, site) = (self.condition(cond), self.site());
        let then = self.block(|_| then());
        let otherwise = self.block(|_| otherwise());
        self.push(Node::branch(condition, then, otherwise, site));
    }

    /// Repeats `body` until [`LoopScope::break_if`] has let every lane out.
    #[track_caller]
    pub fn loop_<'k>(&'k self, body: impl FnOnce(LoopScope<'k>)) {
        let site = self.site();
        let body = self.block(|block| body(LoopScope { k: self, block }));
        self.push(Node::Loop { body, site });
    }

    /// Runs `body` for `start, start + step, …` below `end`, which all lanes of a warp agree on.
    ///
    /// A [`Var`](crate::Var) given as `end` is read before each round; pass its `get()` to fix it.
    #[track_caller]
    pub fn for_uniform<'k, T: Integer + Ordered>(
        &'k self,
        start: impl Source<'k, T>,
        end: impl Source<'k, T>,
        step: T,
        body: impl FnOnce(Val<'k, T>),
    ) {
        self.counted(start, end, step, true, body);
    }

    /// Runs `body` for `start, start + step, …` below `end`, which lanes need not agree on; `end`
    /// as in [`for_uniform`](Self::for_uniform).
    #[track_caller]
    pub fn for_divergent<'k, T: Integer + Ordered>(
        &'k self,
        start: impl Source<'k, T>,
        end: impl Source<'k, T>,
        step: T,
        body: impl FnOnce(Val<'k, T>),
    ) {
        self.counted(start, end, step, false, body);
    }

    #[track_caller]
    fn counted<'k, T: Integer + Ordered>(
        &'k self,
        start: impl Source<'k, T>,
        end: impl Source<'k, T>,
        step: T,
        uniform: bool,
        body: impl FnOnce(Val<'k, T>),
    ) {
        // Not in a closure, so that each instruction carries the caller's line.
        invalid_if!(self, step <= T::default() => "a counted loop needs a positive step, or it never ends");
        let counter = self.var(start);
        let end = end.operand();
        let site = self.site();
        let block = self.open_block();
        let done = counter.now().compare(Cmp::Ge, end);
        LoopScope { k: self, block }.break_if(Cond { pred: done, uniform });
        body(counter.get());
        counter.add_assign(self.constant(step));
        let body = self.close_block();
        self.push(Node::Loop { body, site });
    }

    /// Runs `body` as a tile verb: findings in it name the verb and the line that called it.
    #[track_caller]
    pub fn verb<R>(&self, verb: &'static str, body: impl FnOnce() -> R) -> R {
        let called_at = SourceLine::caller();
        let parent = {
            let mut state = self.state.borrow_mut();
            let parent = state.frame;
            let frame = Frame {
                verb,
                called_at,
                parent,
            };
            let next = FrameId(state.kernel.frames.len() as u32);
            let id = *state.frame_ids.entry(frame).or_insert(next);
            if id == next {
                state.kernel.frames.push(frame);
            }
            state.frame = Some(id);
            parent
        };
        let result = body();
        self.state.borrow_mut().frame = parent;
        result
    }

    #[track_caller]
    pub(super) fn condition(&self, cond: Cond<'_>) -> Condition {
        let pred = self.in_register(RegClass::Pred, cond.pred.operand());
        if !self.is_in_scope(pred, 1) {
            self.error(BuildErrorKind::OutOfScope);
        }
        let uniform = cond.uniform;
        Condition { pred, uniform }
    }
}

/// Finds `.aligned` instructions where lanes of a warp may have parted: under a divergent `if`, or
/// in a loop that some lanes may have left. `divergent` is where they parted.
pub(super) fn check_aligned(nodes: &[Node], sites: &[Site], divergent: Option<SiteId>, errors: &mut Vec<BuildError>) {
    for node in nodes {
        match node {
            Node::Inst { inst, site } => {
                if let Some(condition) = divergent
                    && inst.is_aligned()
                {
                    errors.push(BuildError {
                        kind: BuildErrorKind::AlignedUnderDivergence {
                            instruction: crate::ptx::mnemonic(inst),
                            condition: sites[condition.0 as usize].line,
                        },
                        line: sites[site.0 as usize].line,
                    });
                }
            }
            Node::If {
                condition,
                then,
                otherwise,
                site,
            } => {
                let inner = if condition.uniform { divergent } else { Some(*site) };
                check_aligned(then, sites, inner, errors);
                check_aligned(otherwise, sites, inner, errors);
            }
            Node::Loop { body, .. } => {
                let parting = body.iter().find_map(|node| match node {
                    Node::BreakIf { condition, site } if !condition.uniform => Some(*site),
                    _ => None,
                });
                check_aligned(body, sites, parting.or(divergent), errors);
            }
            Node::BreakIf { .. } => {}
        }
    }
}
