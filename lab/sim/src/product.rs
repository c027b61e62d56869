//! Warpgroup products: `wgmma`.
//!
//! A product is executed by four warps. Its reads of shared memory are one actor per warpgroup.
//! Each warp checks and computes its 16 rows at issue. Until the warp waits for the product's
//! group, any other access to the product's registers is a finding. The wait needs all four warps
//! to have issued the product, and covers the product's reads.

use std::collections::VecDeque;
use std::rc::Rc;

use flashcore_ir::inst::{Descriptor, WgmmaA, WgmmaInst};
use flashcore_ir::{Operand, Reg};
use pulp::Arch;

use crate::async_state::Issued;
use crate::clock::Epoch;
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::Row;
use crate::record::Details;
use crate::registers::FULL;
use crate::tensor;
use crate::tensor_sum::{HopperSum, TensorSums};
use crate::text::matrix::{Fragment, Part, Types};
use crate::warp::{Wait, Warp};

/// Bytes of a row of an operand that a product takes.
const ROW_BYTES: u32 = 32;

/// The operands of `wgmma.mma_async`.
struct Product {
    types: Types,
    /// How sums are rounded, if not once.
    hopper: Option<HopperSum>,
    n: u32,
    d: Reg,
    a: WgmmaA,
    b: Descriptor,
    accumulate: Operand,
}

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
    /// Executes a product instruction. Returns false if the warp must retry.
    /// A product may be of other types than the kernel language has.
    pub(crate) fn wgmma(&mut self, warp: &mut Warp, pc: u32, inst: &WgmmaInst, types: Option<Types>) -> bool {
        match *inst {
            WgmmaInst::Mma {
                input,
                n,
                d,
                a,
                b,
                accumulate,
            } => {
                let is_hopper = self.machine.options.tensor_sums == TensorSums::Hopper && types.is_none();
                let types = types.unwrap_or(Types::of(input));
                let product = Product {
                    types,
                    hopper: is_hopper.then(|| HopperSum::of(input)),
                    n: n * types.d.in_register(),
                    d,
                    a,
                    b,
                    accumulate,
                };
                self.product(warp, pc, &product);
            }
            WgmmaInst::Fence => {
                self.check_members(warp, pc, FULL, "wgmma.fence");
                warp.asynchronous.has_fenced = true;
                warp.asynchronous.fragments.iter_mut().for_each(|f| f.unfenced = false);
            }
            // Closes the group of products since the last commit.
            WgmmaInst::Commit => {
                self.check_members(warp, pc, FULL, "wgmma.commit_group");
                let group = std::mem::take(&mut warp.asynchronous.open);
                warp.asynchronous.groups.push_back(group);
            }
            WgmmaInst::Wait { pending } => return self.wgmma_wait(warp, pc, pending),
        }
        true
    }

    fn fragment(&self, reg: Reg) -> u16 {
        self.machine.program.fragment_of[&reg]
    }

    fn product(&mut self, warp: &mut Warp, pc: u32, product: &Product) {
        self.check_members(warp, pc, FULL, "wgmma.mma_async");
        let machine = self.machine;
        let d_fragment = self.fragment(product.d);
        let a_fragment = match product.a {
            WgmmaA::Regs(first) => Some(self.fragment(first)),
            WgmmaA::Shared(_) => None,
        };
        self.check_product_registers(warp, pc, product.n, d_fragment, a_fragment);
        let (group, place) = (warp.index / 4, warp.index % 4);
        let bits = |operand: &Descriptor| warp.value::<u64>(machine, operand.bits)[0];
        let a = match &product.a {
            WgmmaA::Shared(operand) => Some(bits(operand)),
            WgmmaA::Regs(_) => None,
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
        let (epoch, matrix, chunks) = (shared.epoch, shared.matrix.clone(), shared.chunks.clone());
        if (shared.pc, shared.a, shared.b) != (pc, a, b) {
            self.report(FindingKind::Warpgroup, pc, Some(shared.pc), |cluster| {
                let message = "warps of a warpgroup start different products";
                Details::new(message, cluster.actor(warp.index, FULL))
                    .other(cluster.actor(4 * group, FULL))
                    .help("let all four warps execute the same products in the same order with the same descriptors")
            });
        }
        self.read_chunks(warp, pc, &product.b, &chunks, epoch);
        let rows = match &product.a {
            WgmmaA::Regs(first) => {
                let fragment = Fragment {
                    part: Part::A,
                    shape: [16, product.n, product.types.k()],
                    element: product.types.a,
                    is_opaque: false,
                    quads: None,
                    registers: 4,
                };
                let registers: [Operand; 4] = std::array::from_fn(|i| Operand::Reg(first.plus(i as u32)));
                Some(self.matrix(warp, &fragment, &registers))
            }
            WgmmaA::Shared(operand) => {
                let first_row = 16 * place as u32;
                self.shared_chunks(warp, pc, product.types.k(), operand, a.unwrap_or(0), first_row, 16)
                    .map(|chunks| {
                        self.read_chunks(warp, pc, operand, &chunks, epoch);
                        self.gather(&chunks, product.types.a, operand.major, 16, true)
                    })
            }
        };
        if let (Some(rows), Some(matrix)) = (rows, matrix) {
            let d: Vec<Row> = (0..product.n / 2 / product.types.d.in_register())
                .map(|i| machine.program.rows.row(product.d.plus(i)))
                .collect();
            let accumulate = match product.accumulate {
                Operand::Reg(reg) => warp.registers.pred(machine.program.rows.row(reg)) & 1 != 0,
                Operand::Imm(bits) => bits != 0,
            };
            Arch::new().dispatch(tensor::Multiply {
                r: &mut warp.registers,
                d: &d,
                accumulate,
                a: &rows,
                b: &matrix,
                types: product.types,
                hopper: product.hopper,
            });
        }
        let d = &mut warp.asynchronous.fragments[usize::from(d_fragment)];
        (d.writers, d.pc, d.n) = (d.writers + 1, pc, product.n);
        if let Some(a) = a_fragment {
            let a = &mut warp.asynchronous.fragments[usize::from(a)];
            (a.readers, a.pc) = (a.readers + 1, pc);
        }
        warp.asynchronous.open.push(Issued {
            number,
            epoch,
            d: d_fragment,
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
        // A counts the rows of all four warps. Swizzled operands are read 128 bytes per pass; ncu
        // counts the same.
        let rows_of_a = if a.is_some() { 64 } else { 0 };
        self.count_ideal(pc, (product.n + rows_of_a) * ROW_BYTES / 128);
        let chunks = self.shared_chunks(warp, pc, product.types.k(), &product.b, b, 0, product.n);
        let matrix = chunks
            .as_ref()
            .map(|chunks| Rc::new(self.gather(chunks, product.types.b, product.b.major, product.n, false)));
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
    fn check_product_registers(&mut self, warp: &Warp, pc: u32, n: u32, d: u16, a: Option<u16>) {
        let state = |fragment: u16| &warp.asynchronous.fragments[usize::from(fragment)];
        let is_used = |&fragment: &u16| {
            if fragment == d {
                state(d).readers > 0 || state(d).writers > 0 && state(d).n != n
            } else {
                state(fragment).writers > 0
            }
        };
        let mut fragments = [Some(d), a].into_iter().flatten();
        let in_use = fragments.clone().find(is_used);
        let unfenced = fragments.find(|&fragment| state(fragment).unfenced);
        if let Some(fragment) = in_use {
            let other = Some(state(fragment).pc);
            self.report_registers(warp, pc, other, FindingKind::InFlight, fragment, |name| {
                format!("starts a product on registers `{name}`, which a product in flight uses")
            });
        } else if !warp.asynchronous.has_fenced {
            let fragment = unfenced.unwrap_or(d);
            self.report_registers(warp, pc, None, FindingKind::MissingFence, fragment, |_| {
                "starts a product before any `wgmma.fence`".to_string()
            });
        } else if let Some(fragment) = unfenced {
            self.report_registers(warp, pc, None, FindingKind::MissingFence, fragment, |name| {
                format!("starts a product on registers `{name}`, which were written after the last `wgmma.fence`")
            });
        }
    }

    /// An instruction other than a product accesses product registers.
    #[inline(always)]
    pub(crate) fn touch(&mut self, warp: &mut Warp, pc: u32, fragment: u16, write: bool) {
        let state = &mut warp.asynchronous.fragments[usize::from(fragment)];
        state.unfenced |= write;
        if state.writers > 0 || write && state.readers > 0 {
            let other = Some(state.pc);
            self.report_registers(warp, pc, other, FindingKind::InFlight, fragment, |name| {
                let does = if write { "writes" } else { "reads" };
                format!("{does} registers `{name}` while a product that uses them is in flight")
            });
        }
    }

    #[cold]
    #[inline(never)]
    fn report_registers(
        &mut self,
        warp: &Warp,
        pc: u32,
        other: Option<u32>,
        kind: FindingKind,
        fragment: u16,
        message: impl FnOnce(&str) -> String,
    ) {
        self.report(kind, pc, other, |cluster| {
            let name = &cluster.machine.program.fragments[usize::from(fragment)];
            let actor = cluster.actor(warp.index, warp.active);
            Details::new(message(name), actor)
                .other(other.map(|_| actor))
                .object(name.clone())
                .help(match other {
                    Some(_) => "wait for the product's group (`wgmma_commit`, `wgmma_wait`) first",
                    None => "execute `wgmma_fence` between the last write to accumulators or operand A and the product",
                })
        });
    }

    /// Returns false if the warp must retry: others have not issued the products yet.
    fn wgmma_wait(&mut self, warp: &mut Warp, pc: u32, pending: u32) -> bool {
        let over = warp.asynchronous.groups.len().saturating_sub(pending as usize);
        let newest = warp.asynchronous.groups.iter().take(over).flatten().last().copied();
        let group = warp.index / 4;
        if let Some(newest) = newest {
            let issued = &self.warpgroups[group].issued;
            if issued.iter().any(|&issued| issued <= newest.number) {
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
        let asynchronous = &warp.asynchronous;
        let oldest = asynchronous.groups.iter().flatten().chain(&asynchronous.open).next();
        let behind = self.warpgroups.get(warp.index / 4).is_some_and(|group| {
            // Another warp has issued a product that this warp has not.
            group.issued.iter().any(|&issued| issued > asynchronous.products)
        });
        match oldest {
            Some(product) => product.epoch - 1,
            None if behind => 0,
            None => now,
        }
    }

    /// Reports products in flight when their warp exits.
    pub(crate) fn check_products_at_end(&mut self, warp: &Warp, pc: u32) {
        if warp.asynchronous.open.is_empty() && warp.asynchronous.groups.iter().all(Vec::is_empty) {
            return;
        }
        self.report(FindingKind::MissingWait, pc, None, |cluster| {
            let message = "exits while its products are in flight";
            Details::new(message, cluster.actor(warp.index, FULL))
                .help("close their group (`wgmma_commit`) and wait for it (`wgmma_wait(0)`)")
        });
    }
}
