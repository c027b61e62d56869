//! The kernels: a group of instructions each.

use flashcore_ir::inst::{AtomOp, Scope};
use flashcore_ir::types::{Bits, Element, Integer, Numeric, Ordered, Scalar, Signed};
use flashcore_ir::{BF16x2, Cache, F16x2, GlobalPtr, Kernel, KernelBuilder, Swizzle, TileShape, Val, Widen};
use half::{bf16, f16};

/// Stores results one after the other, so that nothing is removed as unused.
struct Sink<'k> {
    k: &'k KernelBuilder,
    out: GlobalPtr<'k, u32>,
    next: std::cell::Cell<i32>,
}

impl<'k> Sink<'k> {
    fn new(k: &'k KernelBuilder) -> Self {
        let out = k.param_ptr_mut::<u32>("out").offset(k.thread_idx());
        Sink {
            k,
            out,
            next: std::cell::Cell::new(0),
        }
    }
    fn keep<T: Keep>(&self, value: Val<'k, T>) {
        for word in T::words(value) {
            self.out.plus(self.next.get()).store(word);
            self.next.set(self.next.get() + 1);
        }
    }
}

/// A value as 32-bit words.
trait Keep: Scalar {
    fn words<'k>(value: Val<'k, Self>) -> Vec<Val<'k, u32>>;
}
macro_rules! keep {
    ($($ty:ty: |$v:ident| $words:expr;)*) => {$(
        impl Keep for $ty { fn words<'k>($v: Val<'k, Self>) -> Vec<Val<'k, u32>> { $words } }
    )*};
}
keep! {
    u32: |v| vec![v];
    i32: |v| vec![v.reinterpret()];
    f32: |v| vec![v.reinterpret()];
    F16x2: |v| vec![v.reinterpret()];
    BF16x2: |v| vec![v.reinterpret()];
    bool: |v| vec![v.select(1u32, 0u32)];
    u64: |v| { let (lo, hi) = v.split(); vec![lo, hi] };
    i64: |v| u64::words(v.reinterpret());
    f16: |v| F16x2::words(v.pair(v));
    bf16: |v| BF16x2::words(v.pair(v));
}

fn compare<'k, T: Ordered + Keep>(sink: &Sink<'k>, a: Val<'k, T>, b: Val<'k, T>) {
    for test in [a.lt(b), a.le(b), a.gt(b), a.ge(b), a.eq(b), a.ne(b)] {
        sink.keep(test);
    }
}

fn numeric<'k, T: Numeric + Keep>(sink: &Sink<'k>, a: Val<'k, T>, b: Val<'k, T>) {
    for value in [a.min(b), a.max(b), a.fma(b, a), -a, a.on_even_lanes_or(b)] {
        sink.keep(value);
    }
}

/// `select` on any type.
trait SelectAny<'k, T> {
    fn on_even_lanes_or(self, other: Val<'k, T>) -> Val<'k, T>;
}
impl<'k, T: Scalar> SelectAny<'k, T> for Val<'k, T> {
    fn on_even_lanes_or(self, other: Val<'k, T>) -> Val<'k, T> {
        (self.builder().lane() & 1).eq(0).select(self, other)
    }
}

fn signed<'k, T: Signed + Keep>(sink: &Sink<'k>, a: Val<'k, T>) {
    sink.keep(a.abs());
}

fn integers<'k, T: Integer + Ordered + Bits + Keep>(sink: &Sink<'k>, a: Val<'k, T>, b: Val<'k, T>) {
    let amount = sink.k.lane();
    let all = [a + b, a - b, a * b, a / b, a % b, a.mul_hi(b), a & b, a | b, a ^ b, !a];
    for value in all.into_iter().chain([a << amount, a >> amount, a << 3, a >> 3]) {
        sink.keep(value);
    }
    numeric(sink, a, b);
    compare(sink, a, b);
}

fn integer_kernel() -> Kernel {
    build("integers", |k| {
        let sink = Sink::new(k);
        let (a, b) = (k.param::<u32>("a"), k.lane());
        integers(&sink, a, b);
        integers::<i32>(&sink, a.reinterpret(), b.reinterpret());
        signed::<i32>(&sink, a.reinterpret());
        let (x, y) = (k.param::<u64>("x"), b.to_u64());
        integers(&sink, x, y);
        integers::<i64>(&sink, x.reinterpret(), y.reinterpret());
        signed::<i64>(&sink, x.reinterpret());

        sink.keep(a.mul_wide(b));
        sink.keep(a.reinterpret::<i32>().mul_wide(b.reinterpret::<i32>()));
        sink.keep(a.count_ones());
        sink.keep(a.leading_zeros());
        sink.keep(a.lop3(b, 7u32, 0x96));
        sink.keep(a.prmt(b, 0x5410u32));
        sink.keep(x.to_u32());
        sink.keep(a.reinterpret::<i32>().to_i64());
        sink.keep(a.join(b));
        // Immediates on either side.
        sink.keep(k.constant(5u32) - a);
        sink.keep(k.constant(-5i32) / a.reinterpret::<i32>());
        sink.keep(k.constant(i64::MIN) + x.reinterpret::<i64>());
        sink.keep(k.constant(u64::MAX) ^ x);
        sink.keep(k.constant(1u32).lt(2u32));
        sink.keep(k.constant(3i32).mul_wide(-4i32));
    })
}

fn predicate_kernel() -> Kernel {
    build("predicates", |k| {
        let sink = Sink::new(k);
        let (p, q) = (k.lane().lt(7u32), k.lane().gt(3u32));
        for value in [p & q, p | q, p ^ q, !p, p & true, p ^ false] {
            sink.keep(value);
        }
    })
}

fn float_kernel() -> Kernel {
    build("floats", |k| {
        let sink = Sink::new(k);
        let (a, b) = (k.param::<f32>("a"), k.lane().to_f32());
        for value in [a + b, a - b, a * b, a * 2.0, k.constant(1.0f32) - a] {
            sink.keep(value);
        }
        for value in [
            a.exp2(),
            a.log2(),
            a.recip(),
            a.fma(b, 0.5f32),
            a.max(f32::NEG_INFINITY),
        ] {
            sink.keep(value);
        }
        numeric(&sink, a, b);
        signed(&sink, a);
        compare(&sink, a, b);
        let sum = k.var(0.0f32);
        sum.add_assign(a);
        sum.mul_assign(b);
        sum.max_assign(f32::NAN);
        sum.fma_assign(a, b);
        sink.keep(sum.get());
    })
}

/// Everything that packed pairs of f16 and bf16 have on sm_80.
fn packed_kernel() -> Kernel {
    build("packed", |k| {
        let sink = Sink::new(k);
        let (a, b) = (k.param::<f32>("a"), k.lane().to_f32());
        let (x, y) = (a.pack_f16(b), b.pack_f16(a));
        for value in [x + y, x - y, x * y] {
            sink.keep(value);
        }
        numeric(&sink, x, y);
        signed(&sink, x);
        sink.keep(x.fma(y, k.constant(0x3c00_3c00u32).reinterpret::<F16x2>()));
        let (x, y) = (a.pack_bf16(b), b.pack_bf16(1.0));
        numeric(&sink, x, y);
        signed(&sink, x);
    })
}

/// What bf16 pairs have from sm_90 on.
fn packed_bf16_kernel() -> Kernel {
    build("packed_bf16_sm90", |k| {
        let sink = Sink::new(k);
        let (a, b) = (k.param::<f32>("a"), k.lane().to_f32());
        let (x, y) = (a.pack_bf16(b), b.pack_bf16(a));
        for value in [x + y, x - y, x * y] {
            sink.keep(value);
        }
    })
}

fn conversion_kernel() -> Kernel {
    build("conversions", |k| {
        let sink = Sink::new(k);
        let a = k.param::<f32>("a");
        let lane = k.lane();
        sink.keep(a.to_f16());
        sink.keep(a.to_f16().to_f32());
        sink.keep(a.to_bf16());
        sink.keep(a.to_bf16().to_f32());
        sink.keep(a.to_i32());
        sink.keep(a.to_u32());
        sink.keep(lane.to_f32());
        sink.keep(lane.reinterpret::<i32>().to_f32());
        sink.keep(lane.to_u64());
        sink.keep(lane.reinterpret::<i32>().to_i64());
        sink.keep(lane.to_u64().to_u32());
        sink.keep(a.pack_f16(1.0));
        sink.keep(a.pack_bf16(1.0));
        let (lo, hi) = a.pack_f16(2.0).to_f32s();
        sink.keep(lo + hi);
        let (lo, hi) = a.pack_bf16(2.0).to_f32s();
        sink.keep(lo + hi);
        let (lo, hi) = a.pack_bf16(3.0).halves();
        sink.keep(hi.pair(lo));
        // 16-bit floats have no immediates in PTX.
        sink.keep(k.constant(0x3c00u16).reinterpret::<f16>().to_f32());
        sink.keep(k.constant(1.5f32).to_f16());
        sink.keep(lane.eq(0).select(a.to_f16(), k.constant(0x3c00u16).reinterpret()));
        sink.keep(lane.eq(0).select(a.to_bf16(), k.constant(0x3f80u16).reinterpret()));
    })
}

fn load_store<E: Element>(k: &KernelBuilder, name: &str) {
    let from = k.param_ptr::<E>(&format!("{name}_in")).offset(k.lane());
    let to = k.param_ptr_mut::<E>(&format!("{name}_out"));
    let tile = k.shared_tile::<E>(name, TileShape::new(32, 16));
    let slot = tile.at(k.lane(), 0);
    to.offset(k.lane()).store(from.load_with(Cache::ReadOnly));
    slot.store(from.load());
    to.plus(-1).store(slot.load());
    for (count, cache) in [
        (1, Cache::ReadOnly),
        (2, Cache::L2),
        (4, Cache::Streaming),
        (4, Cache::Default),
    ] {
        let words = from.load_words(count, cache);
        slot.store_words(&words, Cache::Default);
        let words = slot.load_words(count, Cache::Default);
        let cache = if cache == Cache::ReadOnly {
            Cache::Default
        } else {
            cache
        };
        to.store_words(&words, cache);
    }
}

fn widened<E: Widen>(k: &KernelBuilder, name: &str) {
    let data = k.param_ptr_mut::<E>(name).offset(k.lane() * 16);
    for (count, vector_bytes) in [(14, 16), (2, 2), (3, 4)] {
        let values = data.load_f32s(count, vector_bytes, Cache::Default);
        data.store_f32s(&values, vector_bytes, Cache::Default);
    }
}

fn memory_kernel() -> Kernel {
    build("memory", |k| {
        load_store::<f32>(k, "f32");
        load_store::<f16>(k, "fp16");
        load_store::<bf16>(k, "bf16");
        load_store::<u32>(k, "u32");
        load_store::<i32>(k, "i32");
        widened::<f32>(k, "wide_f32");
        widened::<f16>(k, "wide_fp16");
        widened::<bf16>(k, "wide_bf16");
        let out = k.param_ptr_mut::<f32>("constants");
        let zeros: Vec<_> = (0..4).map(|_| k.constant(0.0f32)).collect();
        out.store_words(&zeros, Cache::Default);
        out.store_words(&[zeros[0], k.lane().to_f32()], Cache::Default);
        out.store(1.0);
        out.offset_strided(k.lane(), k.param::<u32>("stride"))
            .store_words(&zeros[..2], Cache::Default);
        let halves = k.param_ptr_mut::<f16>("half_constants");
        halves.store(k.constant(0x3c00u16).reinterpret::<f16>());
    })
}

fn copy_kernel() -> Kernel {
    build("copies", |k| {
        let from = k.param_ptr::<f16>("from").offset(k.lane() * 8);
        let shape = TileShape::new(32, 64).swizzled(Swizzle::B128).stages(2);
        let tile = k.shared_tile::<f16>("tile", shape);
        let to = tile.at_stage(k.lane() & 1, k.lane(), 8);
        let bytes = k.lane() & 15;
        k.cp_async(to, from, None);
        k.cp_async(to, from, Some(bytes));
        k.cp_async(to, from, Some(k.constant(8)));
        for size in [4, 8, 16] {
            k.cp_async_with(to, from, size, None, Cache::Default);
            k.cp_async_with(to, from, size, Some(bytes), Cache::Default);
        }
        k.cp_async_commit();
        k.cp_async_wait(1);
        k.cp_async_wait(0);
    })
}

fn atomic_kernel() -> Kernel {
    build("atomics", |k| {
        let sink = Sink::new(k);
        fn all<'k, E: Element + Keep>(k: &'k KernelBuilder, sink: &Sink<'k>, name: &str, integer: bool) {
            let global = k.param_ptr_mut::<E>(name);
            let shared = k.shared_tile::<E>(name, TileShape::new(1, 32)).at(0, k.lane());
            let value = global.load();
            for op in [AtomOp::Add, AtomOp::Exch, AtomOp::Max, AtomOp::Min] {
                if integer || matches!(op, AtomOp::Add | AtomOp::Exch) {
                    sink.keep(global.atomic(op, value));
                    sink.keep(shared.atomic(op, value));
                }
                if integer && op != AtomOp::Exch {
                    global.reduce(op, value);
                    shared.reduce(op, value);
                }
            }
            global.reduce_add(value);
            shared.reduce_add(value);
        }
        all::<f32>(k, &sink, "f32", false);
        all::<u32>(k, &sink, "u32", true);
        all::<i32>(k, &sink, "i32", true);
        let counter = k.param_ptr_mut::<f32>("immediates");
        counter.reduce_add(1.0);
        sink.keep(counter.atomic(AtomOp::Exch, 1.0));
    })
}

fn flag_kernel() -> Kernel {
    build("flags", |k| {
        let sink = Sink::new(k);
        fn all<'k, E: Element + Keep>(k: &'k KernelBuilder, sink: &Sink<'k>, name: &str, one: Val<'k, E>) {
            let flag = k.param_ptr_mut::<E>(name).offset(k.block_idx(0));
            flag.store_release(one);
            flag.plus(1).add_release(one);
            flag.plus(2).add_relaxed(one);
            sink.keep(flag.plus(-1).load_acquire());
        }
        all::<u32>(k, &sink, "u32", k.constant(1));
        all::<i32>(k, &sink, "i32", k.lane().reinterpret());
        all::<f32>(k, &sink, "f32", k.lane().to_f32());
    })
}

fn warp_kernel() -> Kernel {
    build("warps", |k| {
        let sink = Sink::new(k);
        let (lane, p) = (k.lane(), k.lane().lt(5u32));
        let x = lane.to_f32();
        for value in [
            x.shfl_bfly(1),
            x.shfl_down(2),
            x.shfl_up(3),
            x.shfl_idx(4u32),
            x.shfl_idx(lane),
        ] {
            sink.keep(value);
        }
        sink.keep(lane.shfl_bfly(16));
        sink.keep(k.constant(1.0f32).shfl_bfly(1));
        sink.keep(x.pack_f16(x).shfl_bfly(2));
        sink.keep(x.reduce_max(4));
        sink.keep(x.reduce_sum(32));
        sink.keep(p.vote_all());
        sink.keep(p.vote_any());
        sink.keep(p.ballot());
        for value in [lane.redux_add(), lane.redux_max(), lane.redux_min()] {
            sink.keep(value);
        }
        for value in [lane.redux_and(), lane.redux_or(), lane.redux_xor()] {
            sink.keep(value);
        }
        let signed = lane.reinterpret::<i32>();
        for value in [signed.redux_add(), signed.redux_max(), signed.redux_min()] {
            sink.keep(value);
        }
        k.barrier();
        k.barrier_among(1, 64);
        k.barrier_arrive(2, 128);
        k.barrier_among(2, 128);
        k.sync_warp();
        k.fence(Scope::Block);
        k.fence(Scope::Device);
    })
}

fn tensor_core_kernel() -> Kernel {
    build("tensor_cores", |k| {
        let sink = Sink::new(k);
        let halves = k.shared_tile::<f16>("halves", TileShape::new(32, 64).swizzled(Swizzle::B128));
        let brains = k.shared_tile::<bf16>("brains", TileShape::new(32, 72));
        let row = halves.at(k.lane(), 0);
        for transposed in [false, true] {
            sink.keep(k.ldmatrix(row, 1, transposed)[0]);
            sink.keep(k.ldmatrix(row, 2, transposed)[1]);
        }
        let four = |words: Vec<Val<'_, F16x2>>| k.a_operand::<f16>(&[words[0], words[1], words[2], words[3]]);
        let two = |words: Vec<Val<'_, F16x2>>| k.b_operand::<f16>(&[words[0], words[1]]);
        let (a, b) = (four(k.ldmatrix(row, 4, false)), two(k.ldmatrix(row, 2, true)));
        let scores = k.acc("scores", 2);
        k.mma(scores, 0, a, b);
        k.mma(scores, 1, a, b);
        let rounded = k.acc_f16("rounded", 2);
        k.mma(rounded, 0, a, b);
        k.mma(rounded, 1, a, b);

        let words = k.ldmatrix(brains.at(k.lane(), 8), 4, true);
        let b = k.b_operand::<bf16>(&[words[3], words[0]]); // not contiguous: copied
        let out = k.acc_unwritten("out", 1);
        out.zero();
        k.mma(out, 0, scores.to_a::<bf16>()[0], b);
        let b = two(k.ldmatrix(row, 2, false));
        let words = [0, 1, 2, 3].map(|i| rounded.var(i).get());
        k.mma(out, 0, k.a_operand::<f16>(&words), b);
        k.mma(out, 0, scores.to_a::<f16>()[0], b);
        for i in 0..4 {
            sink.keep(out.var(i).get());
        }
    })
}

fn control_kernel() -> Kernel {
    build("control", |k| {
        k.min_blocks_per_sm(2);
        let sink = Sink::new(k);
        let (n, scale) = (k.param::<u32>("n"), k.param::<f32>("scale"));
        let (i, u, l) = (k.param::<i32>("i"), k.param::<u64>("u"), k.param::<i64>("l"));
        let h = k.param::<u16>("h").reinterpret::<f16>();
        sink.keep(i);
        sink.keep(u);
        sink.keep(l);
        sink.keep(h);
        let total = k.var(0u32);
        for dim in 0..3 {
            for value in [k.block_idx(dim), k.grid_dim(dim), k.block_dim(dim)] {
                total.add_assign(value);
            }
        }
        k.if_(k.lane().lt(4u32).divergent(), || total.add_assign(1u32));
        k.if_else(
            n.gt(4u32).uniform(),
            || total.add_assign(2u32),
            || total.add_assign(3u32),
        );
        k.for_uniform(0u32, n, 1, |i| total.add_assign(i));
        k.for_divergent(k.lane(), n, 32, |i| total.mul_assign(i));
        k.loop_(|l| {
            total.add_assign(7u32);
            l.break_if(total.get().gt(1000u32).divergent());
        });
        let wide = k.var(k.constant(1u64 << 40));
        wide.set(u);
        sink.keep(wide.get());
        let half = k.var(h);
        sink.keep(half.get());
        let later = k.var_unwritten::<f32>("later");
        later.set(scale);
        k.trace("scale", later.get());
        sink.keep(later.get());
        sink.keep(total.get());
    })
}

fn build(name: &str, body: impl FnOnce(&KernelBuilder)) -> Kernel {
    Kernel::build(name, 128, body).unwrap_or_else(|errors| panic!("{errors}"))
}

/// All of them.
pub(crate) fn kernels() -> [Kernel; 13] {
    [
        integer_kernel(),
        predicate_kernel(),
        float_kernel(),
        packed_kernel(),
        packed_bf16_kernel(),
        conversion_kernel(),
        memory_kernel(),
        copy_kernel(),
        atomic_kernel(),
        flag_kernel(),
        warp_kernel(),
        tensor_core_kernel(),
        control_kernel(),
    ]
}
