//! Order of accesses to global memory: which of the earlier ones a lane follows, and the finding where
//! it does not.

use std::ops::Range;

use crate::cluster::Cluster;
use crate::finding::{Actor, FindingKind};
use crate::global::{Past, Place, keep};
use crate::machine::Region;
use crate::record::Details;
use crate::warp::Lane;

impl Cluster<'_> {
    /// A displaced access to some bytes that a lane does not follow, of those that count.
    pub(crate) fn displaced(
        &self,
        by: Lane<'_>,
        slot: usize,
        bytes: Range<u64>,
        counts: impl Fn(&Past) -> bool,
    ) -> Option<(u64, Past)> {
        if self.global.displaced.is_empty() {
            return None;
        }
        // Atomics are noted at the start of their word.
        let cells = (bytes.start & !3..bytes.end).step_by(2);
        let of = |at: u64| {
            self.global
                .displaced
                .get(&(slot, at))
                .into_iter()
                .flatten()
                .map(move |past| (at, *past))
        };
        cells.flat_map(of).find(|(at, past)| {
            let is_here = past.lanes == 0 || *at >= bytes.start;
            is_here && counts(past) && !self.follows(by, past)
        })
    }

    /// Whether a lane is ordered after a past access.
    pub(crate) fn follows(&self, by: Lane<'_>, past: &Past) -> bool {
        let of_thread = by.thread().wrapping_sub(past.actor);
        let mine = if past.cluster != self.linear {
            0
        } else if past.lanes == 0 {
            u32::from(of_thread == 0)
        } else {
            1u32.checked_shl(of_thread).unwrap_or(0)
        };
        past.unordered(self.linear, by.clock()) & !mine == 0
    }

    /// Whether a lane follows reads of the values that the last atomics left in these words. What
    /// follows an atomic in this way is ordered after it, though not after what was before it (PTX
    /// ISA, "Causality order").
    pub(crate) fn observed(&self, by: Lane<'_>, slot: usize, bytes: Range<u64>) -> bool {
        let mut words = (bytes.start & !3..bytes.end).step_by(4);
        let observers = |word: u64| self.global.observers.get(&(slot, word));
        !self.global.observers.is_empty()
            && words.all(|word| observers(word).is_some_and(|all| all.iter().any(|past| self.follows(by, past))))
    }

    /// Notes that a lane has read the value that the last atomic left in a word.
    pub(crate) fn observe(&mut self, by: Lane<'_>, place: Place) {
        let past = Past {
            cluster: self.linear,
            actor: by.thread(),
            lanes: 0,
            epoch: by.warp.epoch,
            pc: by.pc,
            atomic: true,
        };
        keep(self.global.observers.entry(place).or_default(), past);
    }

    #[cold]
    pub(crate) fn global_clash(&mut self, by: Lane<'_>, region: &Region, (at, past): (u64, Past), does: &str) {
        let machine = self.machine;
        let abroad = past.cluster != self.linear;
        let kind = if abroad {
            FindingKind::BlockRace
        } else {
            FindingKind::Race
        };
        self.report(kind, by.pc, Some(past.pc), |cluster| {
            let (place, mut details) = place(region, at, cluster.lane_actor(by));
            let other = machine.actor_of(past.cluster, past.actor + past.lanes.trailing_zeros() % 32);
            let block = if abroad {
                format!(" of block {:?}", other.block)
            } else {
                String::new()
            };
            details.message = format!(
                "{does} {place}, which warp {} lane {}{block} {}; nothing orders the two accesses",
                other.warp,
                other.lanes.trailing_zeros(),
                if past.lanes == 0 { "wrote" } else { "reads" },
            );
            details.other(other).help(if abroad {
                "let the earlier block release a flag at gpu scope after its access, and the later one acquire it \
                     before its own (`store_release` or `add_release`, `load_acquire`; or fences and an atomic)"
            } else {
                "put a barrier between them, or give each thread its own bytes"
            })
        });
    }
}

/// Name and position of a byte of a buffer for messages.
pub(crate) fn place(region: &Region, at: u64, actor: Actor) -> (String, Details) {
    let element = at / u64::from(region.element);
    let details = Details::new("", actor)
        .object(region.name.clone())
        .bytes((at as i64, at as i64 + 2))
        .element(vec![element as i64]);
    (format!("byte {at} of `{}` (element {element})", region.name), details)
}
