//! Collects findings: one per place, with the number of occurrences.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use crate::finding::{Actor, Finding, FindingKind, Other};
use crate::machine::Machine;
use crate::report::lines;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) kind: FindingKind,
    pub(crate) pc: u32,
    /// The operation of the second access.
    pub(crate) other: Option<u32>,
}

/// The contents of a finding, except its place.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    pub(crate) message: String,
    pub(crate) actor: Actor,
    pub(crate) other: Option<Actor>,
    pub(crate) object: Option<String>,
    pub(crate) bytes: Option<(i64, i64)>,
    pub(crate) element: Option<Vec<i64>>,
    pub(crate) help: Option<&'static str>,
}

impl Details {
    pub(crate) fn new(message: impl Into<String>, actor: Actor) -> Details {
        Details {
            message: message.into(),
            actor,
            other: None,
            object: None,
            bytes: None,
            element: None,
            help: None,
        }
    }

    pub(crate) fn other(mut self, other: impl Into<Option<Actor>>) -> Details {
        self.other = other.into();
        self
    }

    pub(crate) fn object(mut self, object: impl Into<String>) -> Details {
        self.object = Some(object.into());
        self
    }

    pub(crate) fn bytes(mut self, bytes: (i64, i64)) -> Details {
        self.bytes = Some(bytes);
        self
    }

    pub(crate) fn element(mut self, element: Vec<i64>) -> Details {
        self.element = Some(element);
        self
    }

    pub(crate) fn help(mut self, help: &'static str) -> Details {
        self.help = Some(help);
        self
    }
}

/// Findings in order of first occurrence.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    index: FxHashMap<Key, usize>,
    list: Vec<(Key, Finding)>,
}

impl Findings {
    /// Counts an occurrence. The first one at a place supplies the details.
    #[cold]
    #[inline(never)]
    pub(crate) fn report(&mut self, machine: &Machine<'_>, key: Key, details: impl FnOnce() -> Details) {
        self.add(key, 1, || {
            let details = details();
            let lines_of = |pc: u32| lines(machine.kernel, machine.program.sites[pc as usize]);
            let other = details.other.zip(key.other).map(|(actor, pc)| Other {
                lines: lines_of(pc),
                actor,
            });
            Finding {
                kind: key.kind,
                message: details.message,
                lines: lines_of(key.pc),
                actor: details.actor,
                other,
                object: details.object,
                bytes: details.bytes,
                element: details.element,
                help: details.help.map(Cow::Borrowed),
                count: 1,
            }
        });
    }

    pub(crate) fn merge(&mut self, later: Findings) {
        for (key, finding) in later.list {
            self.add(key, finding.count, || finding);
        }
    }

    fn add(&mut self, key: Key, count: u64, finding: impl FnOnce() -> Finding) {
        match self.index.get(&key) {
            Some(&at) => self.list[at].1.count += count,
            None => {
                self.index.insert(key, self.list.len());
                self.list.push((key, finding()));
            }
        }
    }

    /// Whether a finding makes further blocks pointless.
    pub(crate) fn is_fatal(&self) -> bool {
        let fatal = [
            FindingKind::Deadlock,
            FindingKind::Livelock,
            FindingKind::BarrierMismatch,
            FindingKind::TransactionBytes,
            FindingKind::Trap,
        ];
        self.list.iter().any(|(key, _)| fatal.contains(&key.kind))
    }

    pub(crate) fn into_vec(self) -> Vec<Finding> {
        self.list.into_iter().map(|(_, finding)| finding).collect()
    }

    /// Whether a warp exceeded its instruction budget.
    pub(crate) fn is_livelocked(&self) -> bool {
        self.list.iter().any(|(key, _)| key.kind == FindingKind::Livelock)
    }
}
