//! From a program to a kernel: variables, branches and loops, outputs. What operations are,
//! `arithmetic`, `memory`, `warp` and `hopper` say.

use std::cell::RefCell;
use std::collections::BTreeSet;

use flashcore_ir::{
    Assignable, BF16x2, BuildErrors, Element, F16x2, GlobalPtr, Kernel, KernelBuilder, SharedTile, Swizzle, TileShape,
    Val, Var,
};
use half::{bf16, f16};

use crate::fuzz::hopper::Hopper;
use crate::fuzz::input::{POOL, SCRATCH, SUMS, first_word};
use crate::fuzz::program::{Args, Decision, File, Need, Op, Program, Rounds, Step};
use crate::fuzz::slot::Slot;

/// A program as a kernel, and the words that it stores.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// The kernel.
    pub kernel: Kernel,
    /// What the words of its output are: of each place one a thread, thread by thread.
    pub slots: Vec<Slot>,
}

type Names = BTreeSet<(File, usize)>;

impl Program {
    /// Writes the program down as a kernel.
    ///
    /// # Errors
    /// Where the kernel language refuses it, which is a mistake of the generator.
    pub fn emit(&self) -> Result<Emitted, BuildErrors> {
        // Once to see which variables it uses, then with those alone.
        let all = File::ALL.into_iter().flat_map(|f| (0..f.count()).map(move |i| (f, i)));
        let (_, used) = self.emit_with(&all.collect())?;
        Ok(self.emit_with(&used)?.0)
    }

    fn emit_with(&self, loaded: &Names) -> Result<(Emitted, Names), BuildErrors> {
        let mut written = Default::default();
        let kernel = Kernel::build(format!("program_{}", self.seed), self.threads, |k| {
            let writer = Writer::new(k, self, loaded);
            writer.steps(&self.steps);
            writer.outputs();
            written = (writer.slots.take(), writer.used.take());
        })?;
        let (slots, used) = written;
        Ok((Emitted { kernel, slots }, used))
    }
}

type Variables<'k, T> = Vec<Var<'k, T>>;

/// The variables of each type. Those that a program does not use are never written.
pub(crate) struct AllVariables<'k> {
    u: Variables<'k, u32>,
    s: Variables<'k, i32>,
    w: Variables<'k, u64>,
    x: Variables<'k, i64>,
    f: Variables<'k, f32>,
    h: Variables<'k, F16x2>,
    b: Variables<'k, BF16x2>,
    /// Conditions as 0 or 1: a predicate is no variable.
    p: Variables<'k, u32>,
}

pub(crate) trait Variable: Assignable {
    const FILE: File;
    fn of<'v, 'k>(all: &'v AllVariables<'k>) -> &'v Variables<'k, Self>;
}

macro_rules! variables {
    ($($ty:ty: $file:ident $field:ident;)*) => {$(
        impl Variable for $ty {
            const FILE: File = File::$file;
            fn of<'v, 'k>(all: &'v AllVariables<'k>) -> &'v Variables<'k, $ty> {
                &all.$field
            }
        }
    )*};
}
variables! { u32: U u; i32: S s; u64: W w; i64: X x; f32: F f; F16x2: H h; BF16x2: B b; }

pub(crate) struct Global<'k> {
    pub(crate) pool_u: GlobalPtr<'k, u32>,
    pub(crate) pool_s: GlobalPtr<'k, i32>,
    pub(crate) pool_f: GlobalPtr<'k, f32>,
    pub(crate) pool_h: GlobalPtr<'k, f16>,
    pub(crate) pool_b: GlobalPtr<'k, bf16>,
    /// This thread's own words.
    pub(crate) scratch_u: GlobalPtr<'k, u32>,
    pub(crate) scratch_s: GlobalPtr<'k, i32>,
    pub(crate) scratch_f: GlobalPtr<'k, f32>,
    pub(crate) sums: GlobalPtr<'k, u32>,
    pub(crate) out: GlobalPtr<'k, u32>,
}

/// Tiles in shared memory, of which each thread owns a row.
pub(crate) struct Tiles<'k> {
    pub(crate) h: SharedTile<'k, f16>,
    pub(crate) w: SharedTile<'k, u32>,
    pub(crate) f: SharedTile<'k, f32>,
}

/// Columns of the tile of f32.
pub(crate) const F_COLS: u32 = 4;

pub(crate) struct Writer<'k, 'p> {
    pub(crate) k: &'k KernelBuilder,
    pub(crate) program: &'p Program,
    pub(crate) global: Global<'k>,
    pub(crate) tiles: Option<Tiles<'k>>,
    pub(crate) hopper: Hopper<'k>,
    pub(crate) me: Val<'k, u32>,
    pub(crate) lane: Val<'k, u32>,
    variables: AllVariables<'k>,
    slots: RefCell<Vec<Slot>>,
    used: RefCell<Names>,
}

impl<'k, 'p> Writer<'k, 'p> {
    fn variable<T: Assignable>(&self, file: File, of: &Variables<'k, T>, number: u32) -> Var<'k, T> {
        let index = number as usize % file.count();
        self.used.borrow_mut().insert((file, index));
        of[index]
    }

    /// The value of the variable that a number chooses.
    pub(crate) fn get<T: Variable>(&self, number: u32) -> Val<'k, T> {
        self.variable(T::FILE, T::of(&self.variables), number).get()
    }

    pub(crate) fn set<T: Variable>(&self, number: u32, value: Val<'k, T>) {
        self.variable(T::FILE, T::of(&self.variables), number).set(value);
    }

    pub(crate) fn get_all<T: Variable>(&self, first: u32, count: u32) -> Vec<Val<'k, T>> {
        (0..count).map(|i| self.get(first + i)).collect()
    }

    pub(crate) fn set_all<T: Variable>(&self, first: u32, values: impl IntoIterator<Item = Val<'k, T>>) {
        (0..).zip(values).for_each(|(i, value)| self.set(first + i, value));
    }

    pub(crate) fn u(&self, number: u32) -> Val<'k, u32> {
        self.get(number)
    }
    pub(crate) fn f(&self, number: u32) -> Val<'k, f32> {
        self.get(number)
    }
    pub(crate) fn h(&self, number: u32) -> Val<'k, F16x2> {
        self.get(number)
    }

    fn flag(&self, number: u32) -> Var<'k, u32> {
        self.variable(File::P, &self.variables.p, number)
    }

    pub(crate) fn p(&self, number: u32) -> Val<'k, bool> {
        self.flag(number).get().eq(1)
    }

    pub(crate) fn set_p(&self, number: u32, value: Val<'k, bool>) {
        self.flag(number).set(value.select(1u32, 0u32));
    }

    fn new(k: &'k KernelBuilder, program: &'p Program, loaded: &Names) -> Writer<'k, 'p> {
        if program.ops().contains(&Op::Dependency) {
            // Before it, global memory is another launch's.
            k.dependency_wait();
        }
        let me = k.thread_idx();
        let number = k.block_idx(0) * program.threads + me;
        let own = number * SCRATCH;
        let first = k.param_ptr::<u32>("first").offset(number);
        let global = Global {
            pool_u: k.param_ptr("pool_u"),
            pool_s: k.param_ptr("pool_s"),
            pool_f: k.param_ptr("pool_f"),
            pool_h: k.param_ptr("pool_h"),
            pool_b: k.param_ptr("pool_b"),
            scratch_u: k.param_ptr_mut("scratch_u").offset(own),
            scratch_s: k.param_ptr_mut("scratch_s").offset(own),
            scratch_f: k.param_ptr_mut("scratch_f").offset(own),
            sums: k.param_ptr_mut("sums"),
            out: k.param_ptr_mut("out").offset(number),
        };
        let word = |file: File, index: usize, part: u32| -> Option<Val<'k, u32>> {
            let place = first_word(program, file, index, part);
            loaded.contains(&(file, index)).then(|| first.plus(place as i32).load())
        };
        let wide = |file: File, i: usize| Some(word(file, i, 0)?.join(word(file, i, 1)?));
        let variables = AllVariables {
            u: first_values(k, File::U, |i| word(File::U, i, 0)),
            s: first_values(k, File::S, |i| Some(word(File::S, i, 0)?.reinterpret())),
            w: first_values(k, File::W, |i| wide(File::W, i)),
            x: first_values(k, File::X, |i| Some(wide(File::X, i)?.reinterpret())),
            f: first_values(k, File::F, |i| Some(word(File::F, i, 0)?.reinterpret())),
            h: first_values(k, File::H, |i| Some(word(File::H, i, 0)?.reinterpret())),
            b: first_values(k, File::B, |i| Some(word(File::B, i, 0)?.reinterpret())),
            p: first_values(k, File::P, |i| Some(word(File::P, i, 0)? & 1u32)),
        };
        let writer = Writer {
            k,
            program,
            global,
            tiles: program.has_need(Need::Tiles).then(|| tiles(k, program)),
            hopper: Hopper::new(k, program),
            me,
            lane: k.lane(),
            variables,
            slots: RefCell::default(),
            used: RefCell::default(),
        };
        writer.fill_tiles();
        writer
    }

    pub(crate) fn steps(&self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Do(op, args) => self.operation(*op, args),
                Step::If {
                    by,
                    args,
                    then,
                    otherwise,
                } => {
                    let cond = match by {
                        Decision::Lane => self.bit(args[0]).divergent(),
                        Decision::AnyOfWarp => self.unforeseen(args[0]).vote_any().uniform(),
                        Decision::AllOfWarp => self.unforeseen(args[0]).vote_all().uniform(),
                        Decision::Block => self.k.block_idx(0).eq(args[1] % 2).uniform(),
                    };
                    match otherwise.is_empty() {
                        true => self.k.if_(cond, || self.steps(then)),
                        false => self.k.if_else(cond, || self.steps(then), || self.steps(otherwise)),
                    }
                }
                Step::Loop { rounds, args, body } => self.repeat(*rounds, args, body),
            }
        }
    }

    /// A condition that a number chooses, to be voted on: with a word from memory, so that ptxas
    /// knows nothing of it. Where it works a condition out, or takes it for a vote's own result, it
    /// gets the vote wrong.
    pub(crate) fn unforeseen(&self, number: u32) -> Val<'k, bool> {
        let word = self.pool(self.global.pool_u, number, 1).load();
        (((self.u(number) ^ word) >> (number % 32)) & 1u32).eq(1)
    }

    fn bit(&self, number: u32) -> Val<'k, bool> {
        ((self.u(number) >> (number % 32)) & 1u32).eq(1)
    }

    fn repeat(&self, rounds: Rounds, args: &Args, body: &[Step]) {
        let round = |index: Val<'k, u32>| {
            self.set(args[1], index);
            self.steps(body);
        };
        match rounds {
            Rounds::Constant => self.k.for_uniform(0u32, args[0] % 3 + 1, 1, round),
            Rounds::PerLane => self.k.for_divergent(0u32, self.u(args[0]) & 3u32, 1, round),
            Rounds::BreakInside => {
                let counter = self.k.var(0u32);
                self.k.loop_(|l| {
                    l.break_if(counter.get().ge(args[0] % 4).divergent());
                    round(counter.get());
                    l.break_if(self.bit(args[2]).divergent());
                    counter.add_assign(1u32);
                });
            }
        }
    }

    fn operation(&self, op: Op, args: &Args) {
        let done = self.integers(op, args)
            || self.wide_integers(op, args)
            || self.floats(op, args)
            || self.halves(op, args)
            || self.memory(op, args)
            || self.tile_rows(op, args)
            || self.warp(op, args)
            || self.block(op, args)
            || self.hopper(op, args);
        assert!(done, "{op:?} is not written");
    }

    /// Stores a word that is only compared, never computed with; returns its place.
    pub(crate) fn observe(&self, slot: Slot, value: Val<'k, u32>) -> usize {
        let place = self.next_place();
        self.slots.borrow_mut().push(slot);
        let at = place as u32 * self.program.all_threads();
        self.global.out.plus(at as i32).store(value);
        place
    }

    /// Stores the magnitude of a sum of products, and says how the sum is compared.
    pub(crate) fn observe_size(&self, size: Val<'k, f32>, steps: u32, e4m3: bool) -> Slot {
        let magnitude = self.next_place();
        let slot = Slot::Product { magnitude, steps, e4m3 };
        self.observe(slot, size.reinterpret());
        slot
    }

    pub(crate) fn next_place(&self) -> usize {
        self.slots.borrow().len()
    }

    fn outputs(&self) {
        for &(file, index) in &self.program.outputs {
            let number = index as u32;
            let words = match file {
                File::U => vec![self.u(number)],
                File::S => vec![self.get::<i32>(number).reinterpret()],
                File::F => vec![self.f(number).reinterpret()],
                File::H => vec![self.h(number).reinterpret()],
                File::B => vec![self.get::<BF16x2>(number).reinterpret()],
                File::P => vec![self.flag(number).get()],
                File::W => <[_; 2]>::from(self.get::<u64>(number).split()).to_vec(),
                File::X => <[_; 2]>::from(self.get::<i64>(number).reinterpret::<u64>().split()).to_vec(),
            };
            let slot = match file {
                File::F => Slot::F32,
                File::H => Slot::F16x2,
                File::B => Slot::BF16x2,
                _ => Slot::Bits,
            };
            for word in words {
                self.observe(slot, word);
            }
        }
    }

    /// The first of `count` words that a number chooses in memory of `words`, aligned to `count`.
    pub(crate) fn aligned(&self, number: u32, words: u32, count: u32) -> Val<'k, u32> {
        self.u(number) & (words - 1) & !(count - 1)
    }

    /// An element of the pool that a number chooses: the first of `count` words.
    pub(crate) fn pool<E: Element>(&self, pool: GlobalPtr<'k, E>, number: u32, count: u32) -> GlobalPtr<'k, E> {
        pool.offset(self.aligned(number, POOL, count) * E::PER_WORD)
    }

    /// A counter of the common ones that a variable chooses; each kind of reduction, 0 to 2, has
    /// its own.
    pub(crate) fn sum(&self, number: u32, kind: u32) -> GlobalPtr<'k, u32> {
        let each = SUMS / 4;
        let counters = self.global.sums.offset(self.u(number) & (each - 1));
        counters.plus((kind * each) as i32)
    }

    /// One of the remaining counters, the same for every lane.
    pub(crate) fn last_sum(&self, number: u32) -> GlobalPtr<'k, u32> {
        self.global.sums.plus((SUMS - 1 - number % (SUMS / 4)) as i32)
    }
}

/// The variables of a type; `value` gives the first value of those that the program uses.
fn first_values<'k, T: Assignable>(
    k: &'k KernelBuilder,
    file: File,
    value: impl Fn(usize) -> Option<Val<'k, T>>,
) -> Variables<'k, T> {
    let variable = |i| value(i).map_or_else(|| k.var_unwritten("unused"), |value| k.var(value));
    (0..file.count()).map(variable).collect()
}

fn tiles<'k>(k: &'k KernelBuilder, program: &Program) -> Tiles<'k> {
    let choice = program.tiles;
    let swizzles = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
    let shape = |cols: u32, choice: u32, pad: u32| {
        let shape = TileShape::new(program.threads, cols);
        match choice % 5 {
            4 => shape.padded(pad),
            n => shape.swizzled(swizzles[n as usize]),
        }
    };
    Tiles {
        h: k.shared_tile("h", shape(16 << (choice % 3), choice >> 8, 8)),
        w: k.shared_tile("w", shape(8 << (choice / 3 % 3), choice >> 16, 4)),
        f: k.shared_tile("f", TileShape::new(program.threads, F_COLS)),
    }
}
