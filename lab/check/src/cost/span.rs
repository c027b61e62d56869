//! The time of one warp of a block that has its part of an SM to itself: the latency side of the
//! model.
//!
//! The instructions that a simulated warp executed are walked with the times at which registers become ready. Between
//! places that the compiler does not move code across (branches, barriers, waits), instructions start as soon as their
//! operands are ready, as if the compiler had found the best order. Such a stretch takes as long as its longest chain,
//! or as the warp's instructions take on a quarter of the SM.

use std::collections::VecDeque;

use super::code::Code;
use super::observe::{Path, Runs};
use super::sm::Sm;
use super::work::{Group, Timing, Work};

/// Clocks of a warp that executes the instructions of a path. `misses`: the share of loads that L1 does not have.
pub(crate) fn clocks(code: &Code, path: &Path, misses: f64, sm: &Sm) -> f64 {
    waits(code, path, misses, sm).clocks
}

/// Where a warp's time goes.
pub(crate) struct Waits {
    pub(crate) clocks: f64,
    /// By instruction: clocks in which nothing else of the warp could start.
    pub(crate) waited: Vec<f64>,
}

pub(crate) fn waits(code: &Code, path: &Path, misses: f64, sm: &Sm) -> Waits {
    let mut walk = Walk {
        code,
        runs: &path.runs,
        misses,
        sm,
        waited: vec![0.0; path.runs.len()],
        front: 0.0,
        ready: vec![0.0; code.registers],
        copies: VecDeque::new(),
        open_copies: 0.0,
        products: VecDeque::new(),
        last_product: 0.0,
        stretch: Stretch::default(),
    };
    for &number in &*path.instructions {
        walk.instruction(number as usize);
    }
    walk.close();
    Waits {
        clocks: walk.front,
        waited: walk.waited,
    }
}

#[derive(Default)]
struct Stretch {
    /// Clocks from its start to the latest start of an instruction, and which that is.
    last: f64,
    latest: usize,
    work: Work,
}

struct Walk<'a> {
    code: &'a Code,
    runs: &'a [Runs],
    misses: f64,
    sm: &'a Sm,
    waited: Vec<f64>,
    /// The start of the current stretch.
    front: f64,
    /// By register: when its value is ready.
    ready: Vec<f64>,
    /// When each closed group of asynchronous copies arrives, oldest first.
    copies: VecDeque<f64>,
    /// When the copies of the open group arrive.
    open_copies: f64,
    /// When each closed group of products finishes, oldest first.
    products: VecDeque<f64>,
    /// When the last started product finishes.
    last_product: f64,
    stretch: Stretch,
}

impl Walk<'_> {
    /// Ends the current stretch.
    fn close(&mut self) {
        let stretch = std::mem::take(&mut self.stretch);
        let alone = self.sm.clocks_of_a_warp(&stretch.work);
        if stretch.last > alone {
            self.waited[stretch.latest] += stretch.last - alone;
        }
        self.front += stretch.last.max(alone);
    }

    /// Until a time.
    fn wait(&mut self, number: usize, until: f64) {
        self.waited[number] += until - self.front;
        self.front = until;
    }

    fn instruction(&mut self, number: usize) {
        let latency = &self.sm.latency;
        let (work, timing) = self.code.price(number, &self.runs[number], self.misses, latency);
        match timing {
            Timing::Jump => {
                self.close();
                return self.wait(number, self.front + latency.branch);
            }
            Timing::Barrier => {
                self.close();
                return self.wait(number, self.front + latency.barrier);
            }
            Timing::Commit(Group::Copies) => return self.copies.push_back(self.open_copies),
            Timing::Commit(Group::Products) => return self.products.push_back(self.last_product),
            Timing::Wait(group, pending) => {
                self.close();
                let groups = match group {
                    Group::Copies => &mut self.copies,
                    Group::Products => &mut self.products,
                };
                let over = groups.len().saturating_sub(pending as usize);
                let until = groups.drain(..over).fold(self.front, f64::max);
                return self.wait(number, until);
            }
            Timing::After(_) | Timing::Copy(_) | Timing::Product => {}
        }
        self.stretch.work.add(&work, 1.0);
        let [reads, writes] = self.code.registers_of(number);
        let operands = reads.iter().map(|&register| self.ready[register as usize]);
        let start = operands.fold(self.front, f64::max);
        if start - self.front > self.stretch.last {
            (self.stretch.last, self.stretch.latest) = (start - self.front, number);
        }
        match timing {
            // Products run one after another; their registers are ready after the wait.
            Timing::Product => self.last_product = self.last_product.max(start) + self.sm.clocks_of_a_warp(&work),
            Timing::Copy(clocks) => self.open_copies = self.open_copies.max(start + clocks),
            Timing::After(clocks) => {
                for &register in writes {
                    self.ready[register as usize] = start + clocks;
                }
            }
            Timing::Jump | Timing::Barrier | Timing::Commit(_) | Timing::Wait(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::{Arg, BufferSpec, Cache, Kernel, KernelBuilder, Launch, Profile};
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
            path: 100_000,
            ..SimOptions::default()
        };
        let report = simulate(&kernel, &launch(&kernel), &mut [vec![0u8; 128]], &options).unwrap();
        assert!(report.is_clean());
        let runs: Vec<Runs> = report.instructions.iter().map(|count| Runs::of(count, 1.0)).collect();
        let sm = Sm::of(Profile::named("l4").unwrap(), None);
        let path = Path {
            instructions: report.path.into(),
            runs: runs.into(),
            weight: 1.0,
        };
        clocks(&Code::of(&kernel).unwrap(), &path, 1.0, &sm)
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
    fn each_round_of_a_loop_takes_as_long() {
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
                k.cp_async_with(tile.at(0u32, me), data.offset(me), 4, None, Cache::Default);
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
