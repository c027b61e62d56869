//! The instructions of the kernel language that a form may be, with operands to be filled in.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::{Reader, UNKNOWN};
use flashcore_ir::inst::{
    Address, BulkInst, Cache, ClusterInst, Descriptor, FenceInst, Inst, L2Hint, Major, MmaAcc, MmaInput, Operand,
    Scope, WgmmaA, WgmmaInput, WgmmaInst,
};
use flashcore_ir::ptx::{Notes, mnemonic};
use flashcore_ir::shared::BufferId;
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ptx::{Module, Spelled, print};

/// Those that the writer prints as the form.
pub(super) fn candidates(form: &Spelled) -> Arc<[Inst]> {
    static KNOWN: LazyLock<Mutex<HashMap<Spelled, Arc<[Inst]>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let candidates = known.entry(form.clone()).or_insert_with(|| {
        let opcode = normal(&print(form));
        let mut all = of_words(&opcode);
        all.retain(|inst| inst.impossible().is_none() && normal(&mnemonic(inst)) == opcode);
        all.into()
    });
    candidates.clone()
}

/// One opcode for all that mean the same: without `::cta` and hints, and with the space that alone is possible.
fn normal(opcode: &str) -> String {
    let opcode = opcode.replace("::cta", "");
    match opcode.as_str() {
        copy if copy.starts_with("cp.async.c") && copy.contains(".L2::") => {
            let words: Vec<&str> = copy.split('.').filter(|word| !word.starts_with("L2::")).collect();
            words.join(".")
        }
        matrix if matrix.contains("matrix.sync.aligned") => {
            let matrix = matrix.replace(".m8n8", "").replace(".aligned", ".aligned.m8n8");
            let has_space = matrix.contains(".shared");
            matrix.replace(".b16", if has_space { ".b16" } else { ".shared.b16" })
        }
        copy if copy.starts_with("cp.async.bulk") || copy.starts_with("cp.reduce.async.bulk") => {
            // Hints of caches are not needed, tiles are the default, and who copies to its own block need not say so.
            let copy = copy
                .replace(".tile", "")
                .replace("bulk.shared.global", "bulk.shared::cluster.global");
            let copy = copy.replace("d.shared.global", "d.shared::cluster.global");
            copy.replace(".L2::cache_hint", "")
        }
        "barrier.cluster.arrive" | "barrier.cluster.arrive.aligned" => opcode.replace(".arrive", ".arrive.release"),
        "barrier.cluster.wait" | "barrier.cluster.wait.aligned" => opcode.replace(".wait", ".wait.acquire"),
        _ => opcode,
    }
}

/// Whether the simulator executes a form of PTX, given operands that it reads.
pub fn executes(form: &str) -> bool {
    let Ok(spelled) = flashcore_ptx::read(form) else {
        return false;
    };
    // Of calls, the function decides.
    let Some(example) = spelled.example() else { return true };
    let registers = flashcore_ptx::EXAMPLE_REGISTERS;
    let text = format!(".version 9.0 .target sm_90a .entry k(.param .b64 k) {{ {registers} {example} END: ret; }}");
    let reads = |module: Module| {
        let (_, function) = module.entries().next()?;
        let mut reader = Reader::new(&module, function, HashMap::new(), HashMap::new());
        reader.places = Some(HashMap::from([("k".to_string(), 0)]));
        reader.read(&Notes::default()).ok()
    };
    Module::read(&text).ok().and_then(reads).is_some()
}

/// An operand to be filled in: a number that is possible as a count of bytes.
pub(super) const IMM: Operand = Operand::Imm(16);
pub(super) const ADDRESS: Address = Address {
    base: IMM,
    offset: 0,
    object: UNKNOWN,
};

fn reg(class: RegClass) -> Reg {
    Reg { class, index: 0 }
}

/// Each of some with each of others.
fn each<A: Copy, B: Copy>(a: impl IntoIterator<Item = A>, b: &[B]) -> impl Iterator<Item = (A, B)> {
    a.into_iter().flat_map(|a| b.iter().map(move |&b| (a, b)))
}

/// All instructions, of the types and with the modifiers that an opcode has.
fn of_words(opcode: &str) -> Vec<Inst> {
    use FenceInst::{MbarrierInit, ProxyAsync, ProxyAsyncGlobal};
    let words: Vec<&str> = opcode.split('.').collect();
    let has = |word: &str| words.contains(&word);
    let number = |prefix: &str| {
        let digits = words
            .iter()
            .filter_map(|word| word.strip_prefix(prefix)?.split('k').next());
        digits.filter_map(|digits| digits.parse::<u32>().ok()).next()
    };
    let (pred, word, float) = (reg(RegClass::Pred), reg(RegClass::B32), reg(RegClass::F32));
    let mut all = Vec::new();

    let addr = ADDRESS;
    let count = number("x").unwrap_or(1);
    let src = float;
    all.push(Inst::AddFour { addr, src });

    let (dst, src, transposed) = (word, word, has("trans"));
    all.push(Inst::LdMatrix {
        dst,
        count,
        transposed,
        addr,
    });
    all.push(Inst::StMatrix {
        src,
        count,
        transposed,
        addr,
    });
    for (input, acc) in each(MmaInput::ALL, &MmaAcc::ALL) {
        let d = if acc == MmaAcc::F32 { float } else { word };
        let (a, b, c) = (word, word, d);
        all.push(Inst::Mma { input, acc, d, a, b, c });
    }
    all.extend([Inst::Elect { dst: pred }, Inst::DependencyWait, Inst::DependencyTrigger]);
    all.extend([ProxyAsync, ProxyAsyncGlobal, MbarrierInit].map(Inst::Fence));
    all.extend(Scope::ALL.map(|scope| Inst::Fence(FenceInst::Memory(scope))));

    let (dst, src, bytes) = (ADDRESS, ADDRESS, 16);
    for (cache, src_bytes) in each([Cache::Default, Cache::L2], &[None, Some(IMM)]) {
        all.push(Inst::CpAsync {
            dst,
            src,
            bytes,
            src_bytes,
            cache,
        });
    }
    all.extend([Inst::CpAsyncCommit, Inst::CpAsyncWait { pending: 0 }]);
    let (map, bar, bytes, read) = (ADDRESS, ADDRESS, IMM, has("read"));
    let mut bulk = vec![
        BulkInst::Prefetch { map },
        BulkInst::StoreBytes { dst, src, bytes },
        BulkInst::Reduce { dst, src, bytes },
        BulkInst::LoadBytes { dst, src, bytes, bar },
        BulkInst::Send { dst, src, bytes, bar },
        BulkInst::Commit,
        BulkInst::Wait { pending: 0, read },
    ];
    let dims = words.iter().find_map(|word| word.strip_suffix('d')?.parse().ok());
    for hint in [L2Hint::None, L2Hint::EvictFirst, L2Hint::EvictLast] {
        let (at, multicast) = (vec![IMM; dims.unwrap_or(1)], has("multicast::cluster").then_some(IMM));
        bulk.push(BulkInst::Load {
            dst,
            map,
            at,
            bar,
            multicast,
            hint,
        });
    }
    let at = vec![IMM; dims.unwrap_or(1)];
    bulk.push(BulkInst::Store { map, at, src });
    all.extend(bulk.into_iter().map(Inst::Bulk));

    let (release, aligned, dst, addr, rank) = (has("release"), has("aligned"), word, IMM, IMM);
    let of_clusters = [
        ClusterInst::Mapa { dst, addr, rank },
        ClusterInst::Arrive { release, aligned },
        ClusterInst::Wait { aligned },
    ];
    all.extend(of_clusters.map(Inst::Cluster));
    let (regs, raise) = (24, has("inc"));
    all.push(Inst::SetMaxRegs { regs, raise });
    all.extend(products(number("m64n").unwrap_or(8)).map(Inst::Wgmma));
    all.extend([WgmmaInst::Fence, WgmmaInst::Commit, WgmmaInst::Wait { pending: 0 }].map(Inst::Wgmma));
    all
}

/// Products of warpgroups of `n` columns.
pub(super) fn products(n: u32) -> impl Iterator<Item = WgmmaInst> {
    let b = Descriptor {
        bits: IMM,
        buffer: BufferId(0),
        major: Major::K,
    };
    let of_a = [WgmmaA::Regs(reg(RegClass::B32)), WgmmaA::Shared(b)];
    let (d, accumulate) = (reg(RegClass::F32), IMM);
    let each = WgmmaInput::ALL
        .into_iter()
        .flat_map(move |input| of_a.map(|a| (input, a)));
    each.map(move |(input, a)| WgmmaInst::Mma {
        input,
        n,
        d,
        a,
        b,
        accumulate,
    })
}
