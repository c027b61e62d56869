//! The time of one warp of a block that has its part of an SM to itself: the latency side of the
//! model.
//!
//! The kernel's tree is walked once with the times at which registers become ready. Between places
//! that the compiler does not move code across (branches, barriers, waits), instructions start as
//! soon as their operands are ready, as if the compiler had found the best order. Such a stretch
//! takes as long as its longest chain, or as the warp's instructions take on a quarter of the SM.
//! Loops are walked a few times and then extrapolated. The simulator counts how often each node
//! runs.

use std::collections::VecDeque;

use flashcore_ir::inst::WgmmaInst;
use flashcore_ir::{Inst, Kernel, Node, Reg, RegClass};

use super::observe::NodeRuns;
use super::sm::Sm;
use super::work::{Group, Timing, Work, price};

/// Iterations of a loop that are walked before it counts as steady: enough to fill the pipelines of
/// asynchronous copies.
const WALKED_ROUNDS: u32 = 4;

/// Clocks of one warp of a block, averaged over its warps. `runs` are those of the block.
pub(crate) fn clocks(kernel: &Kernel, runs: &[NodeRuns], sm: &Sm) -> f64 {
    let mut first = Vec::new();
    let mut registers = 0;
    for class in RegClass::ALL {
        first.push(registers);
        registers += kernel.num_regs(class) as usize;
    }
    let mut walk = Walk {
        runs,
        sm,
        first,
        now: Times {
            front: 0.0,
            ready: vec![0.0; registers],
            copies: VecDeque::new(),
            open_copies: 0.0,
            products: VecDeque::new(),
            last_product: 0.0,
        },
        stretch: Stretch::default(),
    };
    walk.nodes(kernel.body(), 0);
    walk.close();
    walk.now.front
}

/// Number of nodes of a subtree.
fn size(node: &Node) -> usize {
    1 + match node {
        Node::Inst { .. } | Node::BreakIf { .. } => 0,
        Node::If { then, otherwise, .. } => sizes(then) + sizes(otherwise),
        Node::Loop { body, .. } => sizes(body),
    }
}

/// Whether nodes contain warpgroup products.
fn has_products(nodes: &[Node]) -> bool {
    nodes.iter().any(|node| match node {
        Node::Inst { inst, .. } => matches!(inst, Inst::Wgmma(_)),
        Node::BreakIf { .. } => false,
        Node::If { then, otherwise, .. } => has_products(then) || has_products(otherwise),
        Node::Loop { body, .. } => has_products(body),
    })
}

fn sizes(nodes: &[Node]) -> usize {
    nodes.iter().map(size).sum()
}

/// The start of the current stretch, and when results are ready.
#[derive(Clone)]
struct Times {
    front: f64,
    /// By register.
    ready: Vec<f64>,
    /// When each closed group of asynchronous copies arrives, oldest first.
    copies: VecDeque<f64>,
    /// When the copies of the open group arrive.
    open_copies: f64,
    /// When each closed group of products finishes, oldest first.
    products: VecDeque<f64>,
    /// When the last started product finishes.
    last_product: f64,
}

#[derive(Default)]
struct Stretch {
    /// Clocks from its start to the latest start of an instruction.
    last: f64,
    work: Work,
}

struct Walk<'a> {
    runs: &'a [NodeRuns],
    sm: &'a Sm,
    /// Where each register class begins in [`Times::ready`].
    first: Vec<usize>,
    now: Times,
    stretch: Stretch,
}

impl Walk<'_> {
    /// Walks nodes; the first is number `index` of the kernel.
    fn nodes(&mut self, nodes: &[Node], mut index: usize) {
        for node in nodes {
            match node {
                Node::Inst { inst, .. } => self.inst(inst, index),
                Node::BreakIf { .. } => self.branch(),
                Node::If {
                    condition,
                    then,
                    otherwise,
                    ..
                } => {
                    self.branch();
                    let entered = self.runs[index].runs;
                    // Warp roles: the computing warps are walked, not those that copy.
                    let computes = [then, otherwise].map(|side| has_products(side));
                    if condition.uniform && !then.is_empty() && !otherwise.is_empty() && computes[0] != computes[1] {
                        match computes[0] {
                            true => self.nodes(then, index + 1),
                            false => self.nodes(otherwise, index + 1 + sizes(then)),
                        }
                        index += size(node);
                        continue;
                    }
                    self.side(then, index + 1, entered);
                    self.side(otherwise, index + 1 + sizes(then), entered);
                }
                Node::Loop { body, .. } => self.repeat(body, index),
            }
            index += size(node);
        }
    }

    /// Walks one side of an `If` that was reached `entered` times.
    fn side(&mut self, nodes: &[Node], index: usize, entered: f64) {
        if nodes.is_empty() || entered <= 0.0 || self.runs[index].runs <= 0.0 {
            return;
        }
        let taken = (self.runs[index].runs / entered).min(1.0);
        self.partly(taken, |walk| walk.nodes(nodes, index));
    }

    /// Walks something that runs with probability `part`.
    fn partly(&mut self, part: f64, walk: impl FnOnce(&mut Self)) {
        let before = (part < 1.0).then(|| self.now.clone());
        walk(self);
        self.close();
        if let Some(before) = before {
            let front = before.front + part * (self.now.front - before.front);
            if part < 0.5 {
                self.now = before;
            }
            self.now.front = front;
        }
    }

    fn repeat(&mut self, body: &[Node], index: usize) {
        self.close();
        let entered = self.runs[index].runs;
        // The last node outside a break counts the complete iterations.
        let mut at = index + 1;
        let mut whole = 0.0;
        for node in body {
            if !matches!(node, Node::BreakIf { .. }) {
                whole = self.runs[at].runs;
            }
            at += size(node);
        }
        if entered <= 0.0 || whole <= 0.0 {
            return;
        }
        let rounds = whole / entered;
        let mut done = 0.0;
        let mut step = 0.0;
        while done < rounds && done < f64::from(WALKED_ROUNDS) {
            let before = self.now.front;
            self.partly((rounds - done).min(1.0), |walk| {
                walk.nodes(body, index + 1);
                walk.branch();
            });
            step = self.now.front - before;
            done += 1.0;
        }
        if rounds > done {
            // Extrapolates: moves all times.
            let now = &mut self.now;
            let single = [&mut now.front, &mut now.open_copies, &mut now.last_product];
            let all = single.into_iter().chain(&mut now.ready);
            let all = all.chain(&mut now.copies).chain(&mut now.products);
            all.for_each(|at| *at += (rounds - done) * step);
        }
    }

    fn branch(&mut self) {
        self.close();
        self.now.front += self.sm.latency.branch;
    }

    /// Ends the current stretch.
    fn close(&mut self) {
        let stretch = std::mem::take(&mut self.stretch);
        let alone = self.sm.clocks_of_a_warp(&stretch.work);
        self.now.front += stretch.last.max(alone);
    }

    fn inst(&mut self, inst: &Inst, index: usize) {
        let runs = &self.runs[index];
        let transactions = runs.transactions / runs.runs.max(1.0);
        let (work, timing) = price(inst, transactions, &self.sm.latency);
        let latency = match timing {
            Timing::After(clocks) => clocks,
            Timing::Barrier => {
                self.close();
                self.now.front += self.sm.latency.barrier;
                return;
            }
            Timing::Commit(Group::Copies) => return self.now.copies.push_back(self.now.open_copies),
            Timing::Commit(Group::Products) => return self.now.products.push_back(self.now.last_product),
            Timing::Wait(group, pending) => {
                self.close();
                let groups = match group {
                    Group::Copies => &mut self.now.copies,
                    Group::Products => &mut self.now.products,
                };
                let over = groups.len().saturating_sub(pending as usize);
                self.now.front = groups.drain(..over).fold(self.now.front, f64::max);
                return;
            }
        };
        self.stretch.work.add(&work, 1.0);
        let registers = |first: Reg, n: u32| {
            let at = self.first[first.class as usize] + first.index as usize;
            at..at + n as usize
        };
        let (mut operands, mut writes) = (self.now.front, Vec::new());
        inst.visit_regs(
            |reg, n| {
                operands = self.now.ready[registers(reg, n)]
                    .iter()
                    .copied()
                    .fold(operands, f64::max)
            },
            |reg, n| writes.push(registers(reg, n)),
        );
        self.stretch.last = self.stretch.last.max(operands - self.now.front);
        let done = operands + latency;
        if let Inst::Wgmma(WgmmaInst::Mma { .. }) = inst {
            // Products run one after another; their registers are ready after the wait.
            let clocks = self.sm.clocks_of_a_warp(&Work::of(inst, 0.0));
            self.now.last_product = self.now.last_product.max(done) + clocks;
            return;
        }
        if let Inst::CpAsync { .. } = inst {
            self.now.open_copies = self.now.open_copies.max(done);
        }
        for registers in writes {
            self.now.ready[registers].fill(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::{Arg, BufferSpec, KernelBuilder, Launch, Profile};
    use flashcore_sim::{SimOptions, simulate};

    use super::super::rates::Rates;
    use super::*;

    fn launch(kernel: &Kernel) -> Launch {
        Launch {
            grid: [1, 1, 1],
            block: [kernel.threads(), 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: kernel.ledger().total_bytes(),
            programmatic: false,
            buffers: vec![BufferSpec {
                name: "data",
                bytes: 128,
                written: true,
                align: 16,
            }],
            args: vec![Arg::Buffer {
                slot: 0,
                byte_offset: 0,
            }],
        }
    }

    /// Clocks of a kernel whose threads each have a word of `data`, on an L4.
    fn clocks_of(body: impl FnOnce(&KernelBuilder)) -> f64 {
        let kernel = Kernel::build("test", 32, body).unwrap();
        let options = SimOptions {
            memory_counts: true,
            ..SimOptions::default()
        };
        let report = simulate(&kernel, &launch(&kernel), &mut [vec![0u8; 128]], &options).unwrap();
        assert!(report.is_clean());
        let runs: Vec<NodeRuns> = report
            .nodes
            .iter()
            .map(|node| NodeRuns {
                runs: node.warps as f64,
                transactions: node.transactions as f64,
            })
            .collect();
        clocks(&kernel, &runs, &Sm::of(Profile::named("l4").unwrap(), None))
    }

    #[test]
    fn a_chain_takes_its_latencies_and_independent_work_its_slots() {
        let latency = Rates::of(flashcore_ir::Target::Sm89).latency;
        let chain = |n: usize| {
            clocks_of(|k| {
                let at = k.param_ptr_mut::<f32>("data").offset(k.thread_idx());
                let x = at.load();
                at.store((0..n).fold(x, |sum, _| sum + 1.0));
            })
        };
        assert_eq!(chain(30) - chain(20), 10.0 * latency.arithmetic);
        // The load's latency is in it, once; so are the address and the store's own start.
        assert!(chain(0) >= latency.l2 && chain(0) < latency.l2 + 20.0, "{}", chain(0));
        let independent = |n: usize| {
            clocks_of(|k| {
                let at = k.param_ptr_mut::<f32>("data").offset(k.thread_idx());
                k.barrier();
                let x = k.constant(2.0);
                let sums: Vec<_> = (0..n).map(|i| x * (i as f32)).collect();
                k.barrier();
                at.store(sums[n - 1]);
            })
        };
        assert_eq!(independent(300) - independent(100), 200.0);
    }

    #[test]
    fn loops_go_on_as_they_went_last() {
        let rounds = |n: u32| {
            clocks_of(|k| {
                let at = k.param_ptr_mut::<f32>("data").offset(k.thread_idx());
                let x = k.var(at.load());
                k.for_uniform(k.constant(0u32), n, 1u32, |_| x.set(x.get().fma(x.get(), 1.0)));
                at.store(x.get());
            })
        };
        let (ten, twenty, thirty) = (rounds(10), rounds(20), rounds(30));
        assert!(twenty > ten + 40.0, "{ten} {twenty}");
        assert!((thirty - 2.0 * twenty + ten).abs() < 1e-9, "{ten} {twenty} {thirty}");
    }

    #[test]
    fn waits_for_copies_are_hidden_behind_work() {
        let latency = Rates::of(flashcore_ir::Target::Sm89).latency;
        let run = |work: usize| {
            clocks_of(|k| {
                let data = k.param_ptr_mut::<f32>("data");
                let tile = k.shared_tile::<f32>("tile", flashcore_ir::TileShape::new(1, 32));
                let me = k.thread_idx();
                k.cp_async_l1(tile.at(0u32, me), data.offset(me), 4, None);
                k.cp_async_commit();
                let x = (0..work).fold(k.constant(1.0) * 2.0, |x, _| x + 1.0);
                k.cp_async_wait(0);
                k.barrier();
                data.offset(me).store(tile.at(0u32, me).load() + x);
            })
        };
        // 200 clocks of dependent work fit into the wait; 2,000 do not.
        assert_eq!(run(1), run(50));
        assert!(run(500) > run(50) + 1000.0 && run(500) < 500.0 * latency.arithmetic + 2.0 * latency.l2);
    }
}
