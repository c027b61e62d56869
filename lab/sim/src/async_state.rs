//! What a warp keeps of asynchronous work, beside its registers and clocks.

use std::collections::{HashMap, VecDeque};

use crate::clock::Epoch;
use crate::machine::Machine;

/// Registers that products use together: an accumulator, or operand A of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fragment {
    /// Whether it was written since the last `wgmma.fence`.
    pub(crate) unfenced: bool,
    /// Products in flight that write it, and that read it.
    pub(crate) writers: u32,
    pub(crate) readers: u32,
    /// The last of them.
    pub(crate) pc: u32,
    /// Columns of the product that writes it.
    pub(crate) n: u32,
}

/// A product that a warp has issued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issued {
    /// Its number among those of the warpgroup.
    pub(crate) number: u64,
    pub(crate) epoch: Epoch,
    pub(crate) d: u16,
    pub(crate) a: Option<u16>,
}

/// What a warp keeps of asynchronous work.
#[derive(Debug, Default)]
pub(crate) struct AsyncState {
    pub(crate) fragments: Vec<Fragment>,
    /// Whether it has executed a `wgmma.fence` at all.
    pub(crate) has_fenced: bool,
    /// Products issued since the last commit.
    pub(crate) open: Vec<Issued>,
    /// Groups of products not waited for, oldest first.
    pub(crate) groups: VecDeque<Vec<Issued>>,
    /// Products issued at all.
    pub(crate) products: u64,
    /// Registers a thread has, once they have been set.
    pub(crate) registers: Option<u32>,
    /// What registers were set to, in order.
    pub(crate) settings: Vec<(u32, u32)>,
    /// By mbarrier: the phase whose end it has waited for last, and where.
    pub(crate) seen: HashMap<u32, (i64, u32)>,
    /// Phase of the cluster's barrier that each lane has come to and not waited for; 0 for none.
    pub(crate) cluster_phase: [u32; 32],
    /// Whether it knows that the other blocks of the cluster have started.
    pub(crate) peers_started: bool,
    /// Where it has stored to another block since it last ordered that for the cluster.
    pub(crate) remote_store: Option<u32>,
}

impl AsyncState {
    pub(crate) fn new(machine: &Machine<'_>) -> AsyncState {
        AsyncState {
            fragments: vec![Fragment::default(); machine.program.fragments.len()],
            ..AsyncState::default()
        }
    }
}
