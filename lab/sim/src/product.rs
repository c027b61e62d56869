//! Products of warpgroups: `wgmma`.
//!
//! A product is an operation of four warps; its reads of shared memory are one actor for each warpgroup. Each
//! warp checks and computes its 16 rows when it issues it. Until it has waited for the product's group, its
//! registers are the product's: whoever touches them is found. Waiting needs all four warps to have come,
//! and teaches what the product has read.

use std::collections::VecDeque;
use std::rc::Rc;

use flashcore_ir::SharedBuffer;
use flashcore_ir::inst::{Major, WgmmaInput};

use crate::async_state::Issued;
use crate::clock::Epoch;
use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::machine::SHARED_BASE;
use crate::program::{At, Product, ProductA, SharedOperand};
use crate::record::{Details, Key};
use crate::registers::FULL;
use crate::tensor;
use crate::tensor_sum::{HopperSum, TensorSums};
use crate::traffic::Traffic;
use crate::warp::{Wait, Warp};

/// Bytes of the pieces in which operands lie.
const CHUNK: u32 = 16;

/// A product that some warps of a warpgroup have issued.
#[derive(Debug)]
struct Shared {
    pc: u32,
    a: Option<u64>,
    b: u64,
    epoch: Epoch,
    /// Operand B, k by n, once the first warp has read it; none where it could not be read.
    matrix: Option<Rc<Vec<f64>>>,
    /// Where its chunks are in the cluster's shared memory.
    chunks: Rc<Vec<u32>>,
}

/// The products of a warpgroup.
#[derive(Debug, Default)]
pub(crate) struct Warpgroup {
    /// Those that not every warp has issued, and the number of the first.
    open: VecDeque<Shared>,
    first: u64,
    /// Products that each warp has issued.
    issued: [u64; 4],
}

/// A matrix descriptor (PTX ISA, "Matrix Descriptor Format").
struct Layout {
    address: u32,
    leading: u32,
    stride: u32,
    mode: u32,
}

impl Layout {
    fn of(bits: u64) -> Layout {
        let field = |at: u32| ((bits >> at) as u32 & 0x3fff) << 4;
        Layout {
            address: field(0),
            leading: field(16),
            stride: field(32),
            mode: (bits >> 62) as u32,
        }
    }
}

impl Cluster<'_> {
    /// Starts a product.
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
        let number = warp.side.products;
        warp.side.products += 1;
        self.warpgroups[group].issued[place] = warp.side.products;
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
        let d = &mut warp.side.fragments[usize::from(product.d_fragment)];
        (d.writers, d.pc, d.n) = (d.writers + 1, pc, product.n);
        if let Some(a) = a_fragment {
            let a = &mut warp.side.fragments[usize::from(a)];
            (a.readers, a.pc) = (a.readers + 1, pc);
        }
        warp.side.open.push(Issued {
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
            // Of A all four warps' rows. Swizzled as they are, operands are read 128 bytes a pass, as ncu counts too.
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

    /// Checks that a warp may read the chunks of an operand, and takes the reads down.
    fn read_chunks(&mut self, warp: &Warp, pc: u32, buffer: u16, chunks: &[u32], epoch: Epoch) {
        let at = At {
            base: 0,
            object: buffer,
            offset: 0,
            remote: false,
        };
        let ranges: Vec<(u32, u32)> = chunks.iter().map(|&chunk| (chunk, CHUNK)).collect();
        self.judge_async_read(warp, FULL, pc, at, &ranges);
        let reader = self.machine.product_reader(warp.index / 4);
        let shift = self.shadow.shift;
        for &chunk in chunks {
            let cells = (chunk >> shift) as usize..((chunk + CHUNK) >> shift) as usize;
            self.shadow.note_reads(reader, cells, epoch, 1, pc);
        }
    }

    /// Where the chunks of an operand are in the cluster's shared memory: `count` rows of A or columns of B from
    /// `first` on, for one step of k. Along k each has two; else each step of k has one for every 8 of them.
    /// A descriptor that does not describe its tile is reported.
    #[allow(clippy::too_many_arguments)]
    fn shared_chunks(
        &mut self,
        warp: &Warp,
        pc: u32,
        product: &Product,
        operand: &SharedOperand,
        bits: u64,
        first: u32,
        count: u32,
    ) -> Option<Vec<u32>> {
        let buffer = self.machine.kernel.ledger().buffers.get(usize::from(operand.buffer))?;
        let layout = Layout::of(bits);
        let span = self.check_layout(warp, pc, &layout, buffer, operand.major, first + count)?;
        // The address as the unit computes it: offsets are added, then bits are permuted.
        let place = |offset: u32| {
            let address = layout.address.wrapping_add(offset);
            buffer.swizzle.apply(address).wrapping_sub(SHARED_BASE)
        };
        let mut chunks = Vec::new();
        match operand.major {
            Major::K => {
                for row in first..first + count {
                    let start = row / 8 * layout.stride + row % 8 * span;
                    chunks.extend([place(start), place(start + CHUNK)]);
                }
            }
            Major::Mn => {
                for k in 0..product.input.k() {
                    for byte in (2 * first..2 * (first + count)).step_by(CHUNK as usize) {
                        let slab = byte / span * layout.leading;
                        chunks.push(place(slab + k / 8 * layout.stride + k % 8 * span + byte % span));
                    }
                }
            }
        }
        let (start, end) = (buffer.offset, buffer.offset + buffer.bytes);
        if let Some(&stray) = chunks.iter().find(|&&chunk| chunk < start || chunk + CHUNK > end) {
            let relative = i64::from(stray as i32) - i64::from(start);
            self.report(FindingKind::OutOfBounds, pc, |cluster| {
                let message = format!(
                    "a product reads bytes {relative}..{} of shared buffer `{}`, which has {} bytes",
                    relative + i64::from(CHUNK),
                    buffer.name,
                    buffer.bytes
                );
                let mut details = Details::new(message, cluster.actor(warp.index, FULL));
                details.object = Some(buffer.name.clone());
                details.bytes = Some((relative, relative + i64::from(CHUNK)));
                details
            });
            return None;
        }
        for chunk in &mut chunks {
            *chunk += warp.shared_first;
        }
        Some(chunks)
    }

    /// Compares a descriptor with the tile it is meant to describe; the bytes of a row, if it is one.
    fn check_layout(
        &mut self,
        warp: &Warp,
        pc: u32,
        layout: &Layout,
        buffer: &SharedBuffer,
        major: Major,
        extent: u32,
    ) -> Option<u32> {
        let span = buffer.row_stride * buffer.element.bytes();
        let mode = match buffer.swizzle {
            flashcore_ir::Swizzle::None => 0,
            flashcore_ir::Swizzle::B128 => 1,
            flashcore_ir::Swizzle::B64 => 2,
            flashcore_ir::Swizzle::B32 => 3,
        };
        let several_slabs = major == Major::Mn && extent * buffer.element.bytes() > span;
        let wrong = if layout.mode != mode || mode == 0 {
            Some(format!("has swizzle mode {}, the tile {mode}", layout.mode))
        } else if buffer.swizzle.span() != Some(span) {
            Some(format!(
                "is of a tile whose rows of {span} bytes are not as wide as its swizzle"
            ))
        } else if layout.stride != 8 * span {
            Some(format!(
                "has groups of 8 rows {} bytes apart, the tile {}",
                layout.stride,
                8 * span
            ))
        } else if several_slabs && layout.leading != buffer.slab_bytes() {
            Some(format!(
                "has slabs of columns {} bytes apart, the tile {}",
                layout.leading,
                buffer.slab_bytes()
            ))
        } else {
            None
        };
        let Some(wrong) = wrong else { return Some(span) };
        self.report(FindingKind::Descriptor, pc, |cluster| {
            let message = format!("a descriptor for shared buffer `{}` {wrong}", buffer.name);
            let mut details = Details::new(message, cluster.actor(warp.index, FULL));
            details.object = Some(buffer.name.clone());
            details.help = Some("derive it from the tile (`k_major`, `mn_major`)");
            details
        });
        None
    }

    /// An operand as a matrix: A row by row, B step of k by step of k.
    fn gather(&self, chunks: &[u32], input: WgmmaInput, major: Major, count: u32, is_a: bool) -> Vec<f64> {
        let (k, count) = (input.k() as usize, count as usize);
        let per_chunk = (CHUNK / input.bytes()) as usize;
        let mut matrix = vec![0.0; k * count];
        for (i, &chunk) in chunks.iter().enumerate() {
            let word = chunk as usize / 4;
            let mut elements = [0.0; 16];
            tensor::widen_words(&self.words[word..word + 4], input, &mut elements);
            for (e, &value) in elements.iter().enumerate().take(per_chunk) {
                let (mn, step) = match major {
                    Major::K => (i / 2, i % 2 * per_chunk + e),
                    Major::Mn => (i % (count / 8) * 8 + e, i / (count / 8)),
                };
                matrix[if is_a { mn * k + step } else { step * count + mn }] = value;
            }
        }
        matrix
    }

    /// The rules for registers: fenced since they were written, and not in use by other products.
    fn check_product_registers(&mut self, warp: &Warp, pc: u32, product: &Product) {
        let d = &warp.side.fragments[usize::from(product.d_fragment)];
        let a = match product.a {
            ProductA::Regs { fragment, .. } => Some((fragment, &warp.side.fragments[usize::from(fragment)])),
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
            let message = format!("starts a product on registers `{name}`, which another product in flight uses");
            self.report_registers(warp, pc, Some(other), FindingKind::InFlight, message, name, HELP_WAIT);
        } else if !warp.side.has_fenced || unfenced.is_some() {
            let name = name(unfenced.unwrap_or(product.d_fragment));
            let message = if warp.side.has_fenced {
                format!("starts a product on registers `{name}`, which were written since the last `wgmma.fence`")
            } else {
                "starts a product before any `wgmma.fence`".to_string()
            };
            self.report_registers(warp, pc, None, FindingKind::MissingFence, message, name, HELP_FENCE);
        }
    }

    /// Something other than a product touches registers that products use.
    #[inline(always)]
    pub(crate) fn touch(&mut self, warp: &mut Warp, pc: u32, fragment: u16, write: bool) {
        let state = &mut warp.side.fragments[usize::from(fragment)];
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
        let key = Key { kind, pc, other };
        self.findings.report(self.machine, key, || Details {
            other: other.map(|_| actor),
            object: Some(name),
            help: Some(help),
            ..Details::new(message, actor)
        });
    }

    #[cold]
    fn not_together(&mut self, warp: &Warp, pc: u32, other: u32) {
        let actor = self.actor(warp.index, FULL);
        let first = self.actor(warp.index / 4 * 4, FULL);
        let key = Key {
            kind: FindingKind::Warpgroup,
            pc,
            other: Some(other),
        };
        self.findings.report(self.machine, key, || Details {
            other: Some(first),
            help: Some(
                "the four warps of a warpgroup execute the same products in the same order, with the same descriptors",
            ),
            ..Details::new("warps of a warpgroup start different products".to_string(), actor)
        });
    }

    /// `wgmma.fence`.
    pub(crate) fn wgmma_fence(&mut self, warp: &mut Warp, pc: u32) {
        self.check_members(warp, pc, FULL, "wgmma.fence");
        warp.side.has_fenced = true;
        for fragment in &mut warp.side.fragments {
            fragment.unfenced = false;
        }
    }

    /// Closes the group of the products started since the last commit.
    pub(crate) fn wgmma_commit(&mut self, warp: &mut Warp, pc: u32) {
        self.check_members(warp, pc, FULL, "wgmma.commit_group");
        let group = std::mem::take(&mut warp.side.open);
        warp.side.groups.push_back(group);
    }

    /// Waits until at most `pending` groups are open. Returns false where the warp has to try again, because
    /// other warps of the warpgroup have not come to the products yet.
    pub(crate) fn wgmma_wait(&mut self, warp: &mut Warp, pc: u32, pending: u32) -> bool {
        let over = warp.side.groups.len().saturating_sub(pending as usize);
        let newest = warp.side.groups.iter().take(over).flatten().last().copied();
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
            for product in warp.side.groups.pop_front().unwrap_or_default() {
                warp.side.fragments[usize::from(product.d)].writers -= 1;
                if let Some(a) = product.a {
                    warp.side.fragments[usize::from(a)].readers -= 1;
                }
            }
        }
        if let Some(newest) = newest {
            let actor = self.machine.actors.warpgroup(group as u32);
            warp.learn_each(FULL, |clock| clock.learn(actor, newest.epoch));
        }
        true
    }

    /// Up to which epoch a warp has nothing to wait for of its warpgroup's products.
    pub(crate) fn products_finished(&self, warp: &Warp, now: Epoch) -> Epoch {
        let oldest = warp.side.groups.iter().flatten().chain(&warp.side.open).next();
        let behind = self.warpgroups.get(warp.index / 4).is_some_and(|group| {
            // Another warp has started one that this warp has not come to.
            group.issued.iter().any(|&issued| issued > warp.side.products)
        });
        match oldest {
            Some(product) => product.epoch - 1,
            None if behind => 0,
            None => now,
        }
    }

    /// Whether a read of an epoch by products of a warpgroup is one that the warp itself has waited for.
    pub(crate) fn has_waited_for_products(&self, warp: &Warp, group: u32, epoch: Epoch) -> bool {
        warp.index / 4 == group as usize && self.products_finished(warp, self.epoch) >= epoch
    }

    /// Finds products that nobody has waited for when their warp ends.
    pub(crate) fn check_products_at_end(&mut self, warp: &Warp, pc: u32) {
        if warp.side.open.is_empty() && warp.side.groups.iter().all(Vec::is_empty) {
            return;
        }
        self.report(FindingKind::MissingWait, pc, |cluster| {
            let message = "ends while products that it has started are in flight".to_string();
            let mut details = Details::new(message, cluster.actor(warp.index, FULL));
            details.help = Some("close their group (`wgmma_commit`) and wait for it (`wgmma_wait(0)`)");
            details
        });
    }
}

const HELP_WAIT: &str = "wait for the product's group (`wgmma_commit`, `wgmma_wait`) first";
const HELP_FENCE: &str = "`wgmma_fence` after the last write to accumulators or operand A and before the product";
