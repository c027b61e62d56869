//! [`Work`]: what instructions need from the machine, whichever machine it is.

use std::ops::Index;

use flashcore_ptx::{Instruction, Operand, Spelled, shape_of};

use super::rates::Latencies;

/// A unit of an SM that does work, counted in warp instructions unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The schedulers: all issued instructions.
    Issue,
    /// f32 sums, products, fused products.
    Fma,
    /// Integer products.
    IntMul,
    /// f64 arithmetic, products of matrices included.
    Double,
    /// Packed 16-bit arithmetic.
    Half,
    /// Integers, logic, comparisons, selections, f32 minimum and maximum.
    Alu,
    /// Conversions between f32 and 16-bit floats.
    Convert,
    /// ex2, lg2, rcp, conversions between integers and floats.
    Mufu,
    /// Tensor-core FLOPs with f32 accumulators.
    TensorF32,
    /// Tensor-core FLOPs with f16 accumulators.
    TensorF16,
    /// Tensor-core FLOPs of warpgroup products of 16-bit elements.
    TensorWgmma,
    /// Tensor-core FLOPs of warpgroup products of e4m3.
    TensorE4m3,
    /// Passes over the 128 bytes of shared memory or L1: wavefronts of shared accesses, 128-byte
    /// parts of global ones, one for each exchange between lanes.
    Passes,
    /// Bytes between the SM and L2.
    L2Bytes,
}

impl Unit {
    /// What is counted, by name.
    pub(crate) const NAMED: [(&'static str, Unit); UNITS] = [
        ("instructions", Unit::Issue),
        ("f32 instructions", Unit::Fma),
        ("integer products", Unit::IntMul),
        ("f64 instructions", Unit::Double),
        ("packed 16-bit instructions", Unit::Half),
        ("integer and logic instructions", Unit::Alu),
        ("conversions", Unit::Convert),
        ("special functions", Unit::Mufu),
        ("FLOPs of mma with f32 sums", Unit::TensorF32),
        ("FLOPs of mma with f16 sums", Unit::TensorF16),
        ("FLOPs of wgmma", Unit::TensorWgmma),
        ("FLOPs of wgmma of e4m3", Unit::TensorE4m3),
        ("passes of shared memory and L1", Unit::Passes),
        ("bytes from and to L2", Unit::L2Bytes),
    ];
}

/// The number of [`Unit`]s.
pub(crate) const UNITS: usize = Unit::L2Bytes as usize + 1;

/// Work by unit.
///
/// Counted as the machine executes them, as far as that is known without its compiler: register
/// copies, parameters and special registers cost nothing (they become operands), 64-bit integer
/// operations cost two, integer divisions their usual expansion.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work([f64; UNITS]);

impl Index<Unit> for Work {
    type Output = f64;

    fn index(&self, unit: Unit) -> &f64 {
        &self.0[unit as usize]
    }
}

/// Machine instructions of a 32-bit integer division or remainder (CUDA C++ Programming Guide,
/// "Maximize Instruction Throughput": tens of instructions; ptxas 13 emits about 20, one of them a
/// reciprocal).
const DIVISION: f64 = 20.0;

/// Machine instructions of a quotient, a reciprocal or a root of f32 that is rounded correctly, where no operand is
/// out of the ordinary (A: ptxas 13 emits 8 to 10, one of them on the special-function pipe).
const EXACT_F32: Work = issued(9.0).and(Unit::Mufu, 1.0).and(Unit::Fma, 6.0).and(Unit::Alu, 2.0);
/// Products of f64 in a quotient or a root of f64 (A: ptxas 13 emits 8 to 12).
const ITERATED_F64: f64 = 10.0;
/// FLOPs of `mma.sync.m16n8k16`, whose latency is known.
const MMA_FLOPS: f64 = 2.0 * 16.0 * 8.0 * 16.0;

const NONE: Work = Work([0.0; UNITS]);
const ISSUED: Work = issued(1.0);
const FMA: Work = ISSUED.and(Unit::Fma, 1.0);
const HALF: Work = ISSUED.and(Unit::Half, 1.0);
const CONVERT: Work = ISSUED.and(Unit::Convert, 1.0);
const MUFU: Work = ISSUED.and(Unit::Mufu, 1.0);
const PASS: Work = ISSUED.and(Unit::Passes, 1.0);

const fn issued(n: f64) -> Work {
    NONE.and(Unit::Issue, n)
}

/// `n` instructions of the ALU pipe.
const fn alu(n: f64) -> Work {
    issued(n).and(Unit::Alu, n)
}

const fn int_mul(n: f64) -> Work {
    issued(n).and(Unit::IntMul, n)
}

const fn double(n: f64) -> Work {
    issued(n).and(Unit::Double, n)
}

impl Work {
    /// The same work with that of a unit set.
    const fn and(mut self, unit: Unit, work: f64) -> Work {
        self.0[unit as usize] = work;
        self
    }

    /// FLOPs of all tensor-core products.
    pub fn tensor_flops(&self) -> f64 {
        let units = [Unit::TensorF32, Unit::TensorF16, Unit::TensorWgmma, Unit::TensorE4m3];
        units.into_iter().map(|unit| self[unit]).sum()
    }

    /// Adds other work `times` times.
    pub fn add(&mut self, other: &Work, times: f64) {
        for (sum, work) in self.0.iter_mut().zip(other.0) {
            *sum += times * work;
        }
    }
}

/// Operations that are waited for in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Asynchronous copies.
    Copies,
    /// Warpgroup products.
    Products,
}

/// What a warp waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Timing {
    /// Results are ready so many clocks after its start.
    After(f64),
    /// Results of an asynchronous copy are there after so many clocks.
    Copy(f64),
    /// A product of a warpgroup, after the one before it.
    Product,
    /// A branch.
    Jump,
    /// The other warps of the block.
    Barrier,
    /// Nothing: it closes a group.
    Commit(Group),
    /// All groups but so many.
    Wait(Group, u32),
}

/// What memory does for one execution of an instruction by a warp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// What the simulator counted: passes of a shared access, 32-byte sectors of a global one.
    pub(crate) transactions: f64,
    /// Those of them in shared memory.
    pub(crate) shared: f64,
    /// The share of loads that L1 does not have.
    pub(crate) misses: f64,
}

/// The work of one execution of an instruction by a warp, and what it waits for.
pub(crate) fn price(inst: &Instruction, form: &Spelled, memory: Memory, latency: &Latencies) -> (Work, Timing) {
    let transactions = memory.transactions;
    let (name, ty) = (form.name(), form.modifiers().last().unwrap_or(""));
    let (work, clocks) = match name {
        // Copies, parameters and addresses become operands, and logic of predicates is part of the comparison that
        // makes them. Halves of a 64-bit register are registers; those of a 32-bit one are operand modifiers, as signs
        // of floats are.
        "mov" if ty == "b32" && matches!(inst.operands[..], [Operand::Register(_), Operand::List(_)]) => {
            (alu(1.0), 0.0)
        }
        "mov" | "cvta" | "neg" | "abs" | "copysign" => (NONE, 0.0),
        "ret" | "exit" | "call" | "pmevent" | "applypriority" | "discard" | "createpolicy" => (NONE, 0.0),
        _ if ty == "pred" && matches!(name, "and" | "or" | "xor") => (NONE, 0.0),
        "setp" if inst.operands.iter().skip(1).all(is_number) => (NONE, 0.0),
        // Lanes that part are brought together by two instructions more. A jump by all is part of the code's layout.
        "bra" if inst.guard.is_none() => return (NONE, Timing::Jump),
        "bra" => return (issued(if form.has("uni") { 1.0 } else { 3.0 }), Timing::Jump),
        "bar" | "barrier" if form.has("sync") && !form.has("warp") || form.has("red") => {
            return (ISSUED, Timing::Barrier);
        }
        "cp" if form.has("commit_group") && !form.has("bulk") => return (ISSUED, Timing::Commit(Group::Copies)),
        "cp" if form.has("wait_all") => return (ISSUED, Timing::Wait(Group::Copies, 0)),
        "cp" if form.has("wait_group") && !form.has("bulk") => {
            return (ISSUED, Timing::Wait(Group::Copies, number(&inst.operands)));
        }
        "wgmma" if form.has("commit_group") => return (ISSUED, Timing::Commit(Group::Products)),
        "wgmma" if form.has("wait_group") => {
            return (ISSUED, Timing::Wait(Group::Products, number(&inst.operands)));
        }
        "ld" | "ldu" | "st" | "atom" | "red" if !form.has("async") => return access(form, memory, latency),
        "ldmatrix" | "stmatrix" => return access(form, memory, latency),
        "wmma" if !form.has("mma") => return access(form, memory, latency),
        "mma" | "wmma" => {
            let (flops, unit) = product(form);
            (ISSUED.and(unit, flops), latency.mma * (flops / MMA_FLOPS).max(1.0))
        }
        "wgmma" if form.has("mma_async") => {
            let unit = if form.has("e4m3") || form.has("e5m2") {
                Unit::TensorE4m3
            } else {
                Unit::TensorWgmma
            };
            // A warp's quarter of the product.
            let flops = flops(form) / 4.0;
            let work = ISSUED.and(unit, flops).and(Unit::Passes, transactions);
            return (work, Timing::Product);
        }
        "cp" if form.has("shared::cta") && form.has("shared::cluster") => (PASS, 0.0),
        "cp" if form.has("ca") || form.has("cg") => return (global(transactions), Timing::Copy(latency.l2)),
        "cp" if form.has("bulk") && !form.has("commit_group") && !form.has("wait_group") && !form.has("prefetch") => {
            (global(transactions), 0.0)
        }
        // A wait succeeds at its first attempt: later ones use free issue slots, and copies are far ahead of the warps
        // that wait for them.
        "mbarrier" => (PASS, latency.shared),
        "shfl" | "redux" | "movmatrix" | "match" => (PASS, latency.exchange),
        "vote" | "activemask" => (alu(1.0), latency.exchange),
        "cvt" => (convert(form), latency.convert),
        "fma" | "mad" | "add" | "sub" | "mul" | "min" | "max" | "div" | "rem" | "setp" | "selp" | "set" | "slct"
        | "sad" | "mad24" | "mul24" | "madc" | "addc" | "subc" | "rcp" | "sqrt" | "rsqrt" => {
            let (work, chained) = arithmetic(inst, form);
            let approximates = form.has("approx") || form.has("full");
            let clocks = match name {
                "rcp" | "rsqrt" if approximates => latency.mufu,
                // A reciprocal, or that of a root, and a product.
                "div" | "sqrt" if approximates => latency.mufu + latency.arithmetic,
                _ => chained * latency.arithmetic,
            };
            (work, clocks)
        }
        "ex2" | "lg2" | "sin" | "cos" | "tanh" | "popc" | "clz" | "bfind" | "brev" | "fns" => {
            // Without `.ftz`, small results are scaled; angles are scaled.
            let scaled = matches!(name, "ex2" | "lg2") && ty == "f32" && !form.has("ftz");
            let is_angle = matches!(name, "sin" | "cos");
            let work = match (scaled, is_angle) {
                (true, _) => issued(4.0).and(Unit::Mufu, 1.0).and(Unit::Fma, 2.0).and(Unit::Alu, 1.0),
                (_, true) => issued(2.0).and(Unit::Mufu, 1.0).and(Unit::Fma, 1.0),
                _ => MUFU,
            };
            (work, latency.mufu)
        }
        "dp4a" | "dp2a" => (int_mul(1.0), latency.arithmetic),
        "bfe" | "bfi" | "bmsk" | "szext" => (alu(2.0), 2.0 * latency.arithmetic),
        "lop3" | "prmt" | "elect" | "not" | "and" | "or" | "xor" | "cnot" | "shl" | "shr" | "shf" | "testp"
        | "isspacep" => (alu(words(ty)), latency.arithmetic),
        // Barriers' arrivals, fences, waits, prefetches and what is rare.
        _ => (ISSUED, 0.0),
    };
    (work, Timing::After(clocks))
}

fn is_number(operand: &Operand) -> bool {
    matches!(operand, Operand::Integer(_) | Operand::Float { .. })
}

/// The number that a wait has for its groups.
fn number(operands: &[Operand]) -> u32 {
    match operands {
        [Operand::Integer(n), ..] => *n as u32,
        _ => 0,
    }
}

/// Bits of a type, by the number in its name.
fn bits(ty: &str) -> u32 {
    let digits = ty.trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
    digits.parse().unwrap_or(32)
}

/// 32-bit words of a type.
fn words(ty: &str) -> f64 {
    f64::from(bits(ty).div_ceil(32).max(1))
}

fn is_half(ty: &str) -> bool {
    matches!(ty, "f16" | "bf16" | "f16x2" | "bf16x2")
}

/// The work of arithmetic, and its length in dependent instructions.
fn arithmetic(inst: &Instruction, form: &Spelled) -> (Work, f64) {
    let (name, ty) = (form.name(), form.modifiers().last().unwrap_or(""));
    let n = words(ty);
    let work = match (name, ty) {
        ("setp" | "set", "f64") => double(1.0),
        ("setp" | "selp" | "set" | "slct" | "sad", _) => alu(n),
        ("rcp" | "rsqrt", "f32") if form.has("approx") => MUFU,
        ("sqrt", "f32") if form.has("approx") => issued(2.0).and(Unit::Mufu, 1.0).and(Unit::Fma, 1.0),
        ("div", "f32") if form.has("approx") || form.has("full") => {
            issued(2.0).and(Unit::Mufu, 1.0).and(Unit::Fma, 1.0)
        }
        ("div" | "rcp" | "sqrt", "f32") => EXACT_F32,
        ("div" | "rcp" | "sqrt" | "rsqrt", "f64") => double(ITERATED_F64).and(Unit::Mufu, 1.0),
        (_, "f64") => double(1.0),
        ("fma" | "mad" | "add" | "sub" | "mul", "f32") => FMA,
        (_, ty) if is_half(ty) => HALF,
        ("mul" | "mad" | "mul24" | "mad24" | "madc", _) if n > 1.0 && !form.has("wide") => int_mul(4.0),
        ("mul" | "mad" | "mul24" | "mad24" | "madc", _) => int_mul(1.0),
        // By a constant: a shift or a mask, or the high half of a product and a correction.
        ("div" | "rem", _) => match inst.operands.last() {
            Some(Operand::Integer(d)) if d.is_power_of_two() => alu(n),
            Some(Operand::Integer(_)) => issued(3.0 * n).and(Unit::Alu, 2.0 * n).and(Unit::IntMul, n),
            _ => {
                let all = DIVISION * n * n;
                let work = issued(all).and(Unit::Alu, 0.6 * all).and(Unit::IntMul, 0.3 * all);
                work.and(Unit::Mufu, 1.0)
            }
        },
        _ => alu(n),
    };
    let chained = match name {
        "div" | "rem" | "rcp" | "sqrt" | "rsqrt" => work[Unit::Issue],
        _ => 1.0,
    };
    (work, chained)
}

fn convert(form: &Spelled) -> Work {
    let types: Vec<&str> = form.modifiers().filter(|word| !is_rounding(word)).collect();
    let (to, from) = match types[..] {
        [.., to, from] => (to, from),
        _ => return CONVERT,
    };
    let is_float = |ty: &str| ty.contains('f') || ty.starts_with('e');
    match (is_float(to), is_float(from)) {
        (false, false) if bits(to) <= bits(from) || to.starts_with('u') => NONE,
        (false, false) => alu(1.0),
        (true, true) if to != from && to != "f64" && from != "f64" => CONVERT,
        _ => MUFU,
    }
}

fn is_rounding(word: &str) -> bool {
    matches!(
        word,
        "rn" | "rz" | "rm" | "rp" | "rna" | "rni" | "rzi" | "rmi" | "rpi" | "rs" | "ftz" | "sat" | "satfinite" | "relu"
    )
}

/// A product's FLOPs, by its shape.
fn flops(form: &Spelled) -> f64 {
    let shape = form.modifiers().find_map(shape_of);
    shape.map_or(MMA_FLOPS, |shape| 2.0 * shape.map(f64::from).iter().product::<f64>())
}

/// The FLOPs of a warp's product, and the unit that has as many of them as of f16 in that time.
fn product(form: &Spelled) -> (f64, Unit) {
    let flops = flops(form);
    let has = |some: &[&str]| some.iter().any(|word| form.has(word));
    match form
        .modifiers()
        .find(|word| matches!(*word, "f16" | "f32" | "f64" | "s32"))
    {
        Some("f64") => (flops / 64.0, Unit::Double),
        _ if has(&["tf32"]) => (2.0 * flops, Unit::TensorF32),
        _ if has(&["s8", "u8", "e4m3", "e5m2"]) => (flops / 2.0, Unit::TensorF32),
        Some("f16") => (flops, Unit::TensorF16),
        _ => (flops, Unit::TensorF32),
    }
}

/// A load, a store or an atomic operation, and those of matrices.
fn access(form: &Spelled, memory: Memory, latency: &Latencies) -> (Work, Timing) {
    let Memory {
        transactions, misses, ..
    } = memory;
    // L1 may have what another SM has changed since: it does not serve strong loads.
    let is_strong = ["volatile", "relaxed", "acquire", "mmio"]
        .iter()
        .any(|some| form.has(some));
    let misses = if is_strong { 1.0 } else { misses };
    let has = |some: &str| form.modifiers().any(|word| word.split("::").next() == Some(some));
    let (work, clocks) = match form.name() {
        _ if has("param") => (NONE, 0.0),
        "ldmatrix" | "stmatrix" => (shared(transactions), with_conflicts(transactions, latency)),
        // An access without a space is taken to be where most of its transactions were.
        _ if has("shared") || 2.0 * memory.shared > transactions => {
            (shared(transactions), with_conflicts(transactions, latency))
        }
        // In L1, or in the cache of constants.
        _ if has("local") || has("const") => (shared(transactions), latency.shared),
        "atom" => (global(transactions), latency.l2),
        "ld" | "ldu" | "wmma" if !has("store") => {
            let work = global(transactions).and(Unit::L2Bytes, 32.0 * transactions * misses);
            (work, latency.shared + misses * (latency.l2 - latency.shared))
        }
        _ => (global(transactions), 0.0),
    };
    (work, Timing::After(clocks))
}

fn with_conflicts(transactions: f64, latency: &Latencies) -> f64 {
    latency.shared + (transactions - 1.0).max(0.0)
}

/// Passes of 128 bytes over shared memory or L1.
fn shared(transactions: f64) -> Work {
    ISSUED.and(Unit::Passes, transactions.max(1.0))
}

/// Passes, and bytes from or to L2.
fn global(transactions: f64) -> Work {
    let work = ISSUED.and(Unit::Passes, (transactions / 4.0).max(1.0));
    work.and(Unit::L2Bytes, 32.0 * transactions)
}

#[cfg(test)]
mod tests {
    use flashcore_ptx::Module;

    use super::*;

    /// The work of an instruction, among registers of all types.
    fn work(text: &str, transactions: f64) -> Work {
        let text = format!(
            ".version 8.0 .target sm_90a .entry k() {{ .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .f64 %d<3>; .reg .b64 %a; {text} }}"
        );
        let module = Module::read(&text).unwrap();
        let inst = &module.kernels[0].instructions[0];
        let form = module.forms()[inst.form as usize].as_ref().unwrap();
        let memory = Memory {
            transactions,
            shared: 0.0,
            misses: 1.0,
        };
        price(inst, form, memory, &Latencies::default()).0
    }

    #[test]
    fn tensor_products_and_their_loads() {
        let mma = work(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3};",
            0.0,
        );
        assert_eq!(
            (mma[Unit::Issue], mma[Unit::TensorF32], mma[Unit::TensorF16]),
            (1.0, 4096.0, 0.0)
        );
        let mma =
            "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r6,%r7}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%r6,%r7};";
        assert_eq!(work(mma, 0.0)[Unit::TensorF16], 4096.0);
        // Four 8 × 8 matrices of halves are 512 bytes: four passes without conflicts, 32 in one bank group.
        let ldmatrix = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0,%r1,%r2,%r3}, [%r4];";
        assert_eq!(work(ldmatrix, 4.0)[Unit::Passes], 4.0);
        assert_eq!(work(ldmatrix, 32.0)[Unit::Passes], 32.0);
        assert_eq!(work(ldmatrix, 4.0)[Unit::L2Bytes], 0.0);
        // A warp copies 512 bytes, which are 16 sectors.
        let copy = work("cp.async.cg.shared.global [%r0], [%a], 16;", 16.0);
        assert_eq!(
            (copy[Unit::Passes], copy[Unit::L2Bytes], copy[Unit::Issue]),
            (4.0, 512.0, 1.0)
        );
    }

    #[test]
    fn what_becomes_an_operand_costs_nothing() {
        for text in [
            "mov.f32 %f0, %f1;",
            "neg.f32 %f0, %f1;",
            "mov.u32 %r0, %tid.x;",
            "cvt.u64.u32 %a, %r0;",
        ] {
            assert_eq!(work(text, 0.0), Work::default(), "{text}");
        }
        let exp = work("ex2.approx.ftz.f32 %f0, %f1;", 0.0);
        assert_eq!((exp[Unit::Issue], exp[Unit::Mufu]), (1.0, 1.0));
        assert_eq!(work("fma.rn.f64 %d0, %d1, %d1, %d2;", 0.0)[Unit::Double], 1.0);
    }

    #[test]
    fn divisions_by_constants_are_cheap() {
        let issued = |by: &str| work(&format!("div.u32 %r0, %r1, {by};"), 0.0)[Unit::Issue];
        assert_eq!((issued("64"), issued("12"), issued("%r2")), (1.0, 3.0, DIVISION));
    }
}
