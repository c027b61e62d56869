//! Warpgroup products: `wgmma`.
//!
//! A product is executed by four warps. Its reads of shared memory are one actor per warpgroup.
//! Each warp checks and computes its 16 rows at issue. Until the warp waits for the product's
//! group, any other access to the product's registers is a finding. The wait needs all four warps
//! to have issued the product, and covers the product's reads.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::async_state::Issued;
use crate::clock::Epoch;
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::{Product, ProductA, SharedOperand};
use crate::record::{Details, Key};
use crate::registers::FULL;
use crate::tensor;
use crate::tensor_sum::{HopperSum, TensorSums};
use crate::traffic::Traffic;
use crate::warp::{Wait, Warp};

/// A product that some warps of a warpgroup have issued.
#[derive(Debug)]
struct Shared {
    pc: u32,
    a: Option<u64>,
    b: u64,
    epoch: Epoch,
    /// Operand B, k × n, read by the first warp; `None` if it could not be read.
    matrix: Option<Rc<Vec<f64>>>,
    /// Offsets of its chunks in the cluster's shared memory.
    chunks: Rc<Vec<u32>>,
}

#[derive(Debug, Default)]
pub(crate) struct Warpgroup {
    /// Products that not every warp has issued, and the number of the first.
    open: VecDeque<Shared>,
    first: u64,
    /// Number of products issued by each warp.
    issued: [u64; 4],
}

impl Cluster<'_> {
    pub(crate) fn wgmma(&mut self, warp: &mut Warp, pc: u32, product: u32) {
        self.check_members(warp, pc, FULL, "wgmma.mma_async");
        let machine = self.machine;
        let product = &machine.program.products[product as usize];
        self.check_product_registers(warp, pc, product);
        let (group, place) = (warp.index / 4, warp.index % 4);
        let bits = |operand: &SharedOperand| warp.registers.get64(&machine.constants, operand.bits)[0];
        let a = match &product.a {
            ProductA::Shared(operand) => Some(bits(operand)),
            ProductA::Regs { .. } => None,
        };
        let b = bits(&product.b);
        let number = warp.asynchronous.products;
        warp.asynchronous.products += 1;
        self.warpgroups[group].issued[place] = warp.asynchronous.products;
        self.woken = true;
        let at = (number - self.warpgroups[group].first) as usize;
        if at == self.warpgroups[group].open.len() {
            let shared = self.begin_product(warp, pc, product, a, b);
            self.warpgroups[group].open.push_back(shared);
        }
        let shared = &self.warpgroups[group].open[at];
        if (shared.pc, shared.a, shared.b) != (pc, a, b) {
            let other = shared.pc;
            self.not_together(warp, pc, other);
        }
        let (epoch, matrix, chunks) = {
            let shared = &self.warpgroups[group].open[at];
            (shared.epoch, shared.matrix.clone(), shared.chunks.clone())
        };
        self.read_chunks(warp, pc, product.b.buffer, &chunks, epoch);
        let rows = match &product.a {
            ProductA::Regs { rows, .. } => Some(tensor::operand_a(
                &warp.registers,
                &machine.constants,
                rows,
                product.input,
            )),
            ProductA::Shared(operand) => {
                let first_row = 16 * place as u32;
                self.shared_chunks(warp, pc, product, operand, a.unwrap_or(0), first_row, 16)
                    .map(|chunks| {
                        self.read_chunks(warp, pc, operand.buffer, &chunks, epoch);
                        self.gather(&chunks, product.input, operand.major, 16, true)
                    })
            }
        };
        if let (Some(rows), Some(matrix)) = (rows, matrix) {
            let accumulate = warp.registers.pred(product.accumulate) & 1 != 0;
            let k = product.input.k() as usize;
            let hopper = (machine.options.tensor_sums == TensorSums::Hopper).then(|| HopperSum::of(product.input));
            tensor::multiply(&mut warp.registers, &product.d, accumulate, (&rows, &matrix), k, hopper);
        }
        let a_fragment = match product.a {
            ProductA::Regs { fragment, .. } => Some(fragment),
            ProductA::Shared(_) => None,
        };
        let d = &mut warp.asynchronous.fragments[usize::from(product.d_fragment)];
        (d.writers, d.pc, d.n) = (d.writers + 1, pc, product.n);
        if let Some(a) = a_fragment {
            let a = &mut warp.asynchronous.fragments[usize::from(a)];
            (a.readers, a.pc) = (a.readers + 1, pc);
        }
        warp.asynchronous.open.push(Issued {
            number,
            epoch,
            d: product.d_fragment,
            a: a_fragment,
        });
        let warpgroup = &mut self.warpgroups[group];
        let done = warpgroup.issued.iter().copied().min().unwrap_or(0);
        while warpgroup.first < done {
            warpgroup.open.pop_front();
            warpgroup.first += 1;
        }
    }

    fn begin_product(&mut self, warp: &Warp, pc: u32, product: &Product, a: Option<u64>, b: u64) -> Shared {
        let epoch = self.next_epoch();
        if !self.traffic.is_empty() {
            // A counts the rows of all four warps. Swizzled operands are read 128 bytes per pass;
            // ncu counts the same.
            let rows = product.n
                + match product.a {
                    ProductA::Shared(_) => 64,
                    ProductA::Regs { .. } => 0,
                };
            let passes = u64::from(rows * product.input.k() * product.input.bytes() / 128);
            self.traffic[pc as usize].add(Traffic {
                requests: 1,
                transactions: passes,
                ideal: passes,
            });
        }
        let chunks = self.shared_chunks(warp, pc, product, &product.b, b, 0, product.n);
        let matrix = chunks
            .as_ref()
            .map(|chunks| Rc::new(self.gather(chunks, product.input, product.b.major, product.n, false)));
        Shared {
            pc,
            a,
            b,
            epoch,
            matrix,
            chunks: Rc::new(chunks.unwrap_or_default()),
        }
    }

    /// Checks the register rules: fenced after the last write, and not used by other products.
    fn check_product_registers(&mut self, warp: &Warp, pc: u32, product: &Product) {
        let d = &warp.asynchronous.fragments[usize::from(product.d_fragment)];
        let a = match product.a {
            ProductA::Regs { fragment, .. } => Some((fragment, &warp.asynchronous.fragments[usize::from(fragment)])),
            ProductA::Shared(_) => None,
        };
        let in_use = if d.readers > 0 || d.writers > 0 && d.n != product.n {
            Some((product.d_fragment, d.pc))
        } else {
            a.filter(|(_, a)| a.writers > 0).map(|(fragment, a)| (fragment, a.pc))
        };
        let unfenced = if d.unfenced {
            Some(product.d_fragment)
        } else {
            a.filter(|(_, a)| a.unfenced).map(|(fragment, _)| fragment)
        };
        let name = |fragment: u16| self.machine.program.fragments[usize::from(fragment)].clone();
        if let Some((fragment, other)) = in_use {
            let name = name(fragment);
            let message = format!("starts a product on registers `{name}`, which a product in flight uses");
            self.report_registers(warp, pc, Some(other), FindingKind::InFlight, message, name, HELP_WAIT);
        } else if !warp.asynchronous.has_fenced || unfenced.is_some() {
            let name = name(unfenced.unwrap_or(product.d_fragment));
            let message = if warp.asynchronous.has_fenced {
                format!("starts a product on registers `{name}`, which were written after the last `wgmma.fence`")
            } else {
                "starts a product before any `wgmma.fence`".to_string()
            };
            self.report_registers(warp, pc, None, FindingKind::MissingFence, message, name, HELP_FENCE);
        }
    }

    /// An instruction other than a product accesses product registers.
    #[inline(always)]
    pub(crate) fn touch(&mut self, warp: &mut Warp, pc: u32, fragment: u16, write: bool) {
        let state = &mut warp.asynchronous.fragments[usize::from(fragment)];
        let (writers, readers, other) = (state.writers, state.readers, state.pc);
        state.unfenced |= write;
        if writers > 0 || write && readers > 0 {
            let name = self.machine.program.fragments[usize::from(fragment)].clone();
            let does = if write { "writes" } else { "reads" };
            let message = format!("{does} registers `{name}` while a product that uses them is in flight");
            self.report_registers(warp, pc, Some(other), FindingKind::InFlight, message, name, HELP_WAIT);
        }
    }

    #[cold]
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn report_registers(
        &mut self,
        warp: &Warp,
        pc: u32,
        other: Option<u32>,
        kind: FindingKind,
        message: String,
        name: String,
        help: &'static str,
    ) {
        let actor = self.actor(warp.index, warp.active);
        let key = Key::new(kind, pc, other);
        self.findings.report(self.machine, key, || {
            Details::new(message, actor)
                .other(other.map(|_| actor))
                .object(name)
                .help(help)
        });
    }

    #[cold]
    fn not_together(&mut self, warp: &Warp, pc: u32, other: u32) {
        let actor = self.actor(warp.index, FULL);
        let first = self.actor(warp.index / 4 * 4, FULL);
        let key = Key::new(FindingKind::Warpgroup, pc, Some(other));
        self.findings.report(self.machine, key, || {
            Details::new("warps of a warpgroup start different products".to_string(), actor)
                .other(first)
                .help("let all four warps execute the same products in the same order with the same descriptors")
        });
    }

    /// `wgmma.fence`.
    pub(crate) fn wgmma_fence(&mut self, warp: &mut Warp, pc: u32) {
        self.check_members(warp, pc, FULL, "wgmma.fence");
        warp.asynchronous.has_fenced = true;
        for fragment in &mut warp.asynchronous.fragments {
            fragment.unfenced = false;
        }
    }

    /// Closes the group of products since the last commit.
    pub(crate) fn wgmma_commit(&mut self, warp: &mut Warp, pc: u32) {
        self.check_members(warp, pc, FULL, "wgmma.commit_group");
        let group = std::mem::take(&mut warp.asynchronous.open);
        warp.asynchronous.groups.push_back(group);
    }

    /// Waits until at most `pending` groups are open. Returns false if the warp must retry because
    /// other warps of the warpgroup have not issued the products yet.
    pub(crate) fn wgmma_wait(&mut self, warp: &mut Warp, pc: u32, pending: u32) -> bool {
        let over = warp.asynchronous.groups.len().saturating_sub(pending as usize);
        let newest = warp.asynchronous.groups.iter().take(over).flatten().last().copied();
        let group = warp.index / 4;
        if let Some(newest) = newest {
            let come = self.warpgroups[group]
                .issued
                .iter()
                .all(|&issued| issued > newest.number);
            if !come {
                self.block(warp, pc, Wait::Warpgroup);
                return false;
            }
        }
        self.check_members(warp, pc, FULL, "wgmma.wait_group");
        for _ in 0..over {
            for product in warp.asynchronous.groups.pop_front().unwrap_or_default() {
                warp.asynchronous.fragments[usize::from(product.d)].writers -= 1;
                if let Some(a) = product.a {
                    warp.asynchronous.fragments[usize::from(a)].readers -= 1;
                }
            }
        }
        if let Some(newest) = newest {
            let actor = self.machine.actors.warpgroup(group as u32);
            warp.learn_each(FULL, |clock| clock.learn(actor, newest.epoch));
        }
        true
    }

    /// The epoch up to which the warpgroup's products are complete for a warp.
    pub(crate) fn products_finished(&self, warp: &Warp, now: Epoch) -> Epoch {
        let oldest = warp
            .asynchronous
            .groups
            .iter()
            .flatten()
            .chain(&warp.asynchronous.open)
            .next();
        let behind = self.warpgroups.get(warp.index / 4).is_some_and(|group| {
            // Another warp has issued a product that this warp has not.
            group.issued.iter().any(|&issued| issued > warp.asynchronous.products)
        });
        match oldest {
            Some(product) => product.epoch - 1,
            None if behind => 0,
            None => now,
        }
    }

    /// Whether a warp has waited for a product read at an epoch.
    pub(crate) fn has_waited_for_products(&self, warp: &Warp, group: u32, epoch: Epoch) -> bool {
        warp.index / 4 == group as usize && self.products_finished(warp, self.epoch) >= epoch
    }

    /// Reports products in flight when their warp exits.
    pub(crate) fn check_products_at_end(&mut self, warp: &Warp, pc: u32) {
        if warp.asynchronous.open.is_empty() && warp.asynchronous.groups.iter().all(Vec::is_empty) {
            return;
        }
        self.report(FindingKind::MissingWait, pc, |cluster| {
            let message = "exits while its products are in flight";
            Details::new(message, cluster.actor(warp.index, FULL))
                .help("close their group (`wgmma_commit`) and wait for it (`wgmma_wait(0)`)")
        });
    }
}

const HELP_WAIT: &str = "wait for the product's group (`wgmma_commit`, `wgmma_wait`) first";
const HELP_FENCE: &str = "execute `wgmma_fence` between the last write to accumulators or operand A and the product";
