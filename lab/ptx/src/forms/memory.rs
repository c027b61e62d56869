//! Memory: accesses, addresses, atomic operations, copies, fences, barriers in memory.

use super::{Row, row, row_if};

/// One access has 16 bytes at most: four of 8 are two too many, and two of 16.
fn at_most_16_bytes(words: &[&str]) -> bool {
    let ty = words.last().copied().unwrap_or("");
    let bits = ty[1..].parse().unwrap_or(128);
    let count = [("v2", 2), ("v4", 4)]
        .iter()
        .find(|(vec, _)| words.contains(vec))
        .map_or(1, |(_, count)| *count);
    bits * count <= 128u32
}

/// Caches are chosen for global and shared memory; hints are for global memory, in place of such a choice.
fn load(words: &[&str]) -> bool {
    let has = |some: &[&str]| words.iter().any(|word| some.contains(word));
    let is_hinted = words.iter().any(|word| word.starts_with('L'));
    let is_cached = has(&["ca", "cg", "cs", "lu", "cv", "wb", "wt"]);
    let is_shared = has(&["shared", "shared::cta", "shared::cluster"]);
    let is_own = has(&["param", "param::entry", "param::func", "const", "local"]);
    at_most_16_bytes(words) && !(is_hinted && (is_shared || is_cached)) && !((is_hinted || is_cached) && is_own)
}

/// Vectors are added in global memory.
fn of_global(words: &[&str]) -> bool {
    !words.iter().any(|word| word.starts_with("shared"))
}

pub(super) const ROWS: &[Row] = &[
    row_if(
        "ld{.weak}{.SPACE}{.LDCACHE}{.EVICT}{.HINT}{.AHEAD}{.VEC}.MEM",
        "D m a:b64?",
        load,
    ),
    row_if("ld.volatile{.ATSPACE}{.VEC}.MEM", "D m", at_most_16_bytes),
    row_if(
        "ld.LDORDER.SCOPE{.ATSPACE}{.EVICT}{.HINT}{.AHEAD}{.VEC}.MEM",
        "D m a:b64?",
        load,
    ),
    row_if(
        "ld.global{.NCCACHE}.nc{.EVICT}{.HINT}{.AHEAD}{.VEC}.MEM",
        "D m a:b64?",
        load,
    ),
    row_if("ldu{.global}{.VEC}.MEM", "D m", at_most_16_bytes),
    row_if(
        "st{.weak}{.STSPACE}{.STCACHE}{.EVICT}{.HINT}{.VEC}.MEM",
        "m A a:b64?",
        load,
    ),
    row_if("st.volatile{.ATSPACE}{.VEC}.MEM", "m A", at_most_16_bytes),
    row_if(
        "st.STORDER.SCOPE{.ATSPACE}{.EVICT}{.HINT}{.VEC}.MEM",
        "m A a:b64?",
        load,
    ),
    row_if(
        "st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.VEC}.REMOTE",
        "m A m",
        at_most_16_bytes,
    ),
    row("prefetch{.global}.L1", "m"),
    row("prefetch{.global}.L2", "m"),
    row("prefetch{.const}.tensormap", "m"),
    row("prefetch.param.tensormap", "m"),
    row("prefetchu.L1", "m"),
    row("discard{.global}.L2", "m i"),
    row("applypriority{.global}.L2::evict_normal", "m i"),
    row("createpolicy.fractional.L2::evict_first.b64", "d a:f32?"),
    row("createpolicy.fractional.L2::evict_last.b64", "d a:f32?"),
    row("cvta.WINDOW.u64", "d a"),
    row("cvta.to.WINDOW.u64", "d a"),
    row("isspacep.WINDOW", "d:pred a:b64"),
    row("mapa{.shared::cluster}.u32", "d a a:u32"),
    row("mapa.u64", "d a a:u32"),
    row("getctarank{.shared::cluster}.u32", "d a"),
    row("getctarank.u64", "d:u32 a"),
    // Atomic operations. `red` has no result.
    row("atom@.inc.u32", "d m a"),
    row("atom@.dec.u32", "d m a"),
    row("atom@.min.INT32", "d m a"),
    row("atom@.max.INT32", "d m a"),
    row("atom@.and.B32TO64", "d m a"),
    row("atom@.or.B32TO64", "d m a"),
    row("atom@.xor.B32TO64", "d m a"),
    row("atom@.exch.B32TO64", "d m a"),
    row("atom@.exch.b128", "d m a"),
    row("atom@.cas.B16TO64", "d m a a"),
    row("atom@.cas.b128", "d m a a"),
    row("atom@.add.SUMMED", "d m a"),
    row("atom@.add.noftz.F16S", "d m a"),
    row_if("atom@.add.VEC.f32", "D m A", of_global),
    row("red@.add.SUMMED", "m a"),
    row("red@.inc.u32", "m a"),
    row("red@.dec.u32", "m a"),
    row("red@.min.INT32", "m a"),
    row("red@.max.INT32", "m a"),
    row("red@.and.B32TO64", "m a"),
    row("red@.or.B32TO64", "m a"),
    row("red@.xor.B32TO64", "m a"),
    row("red@.add.noftz.F16S", "m a"),
    row_if("red@.add.VEC.f32", "m A", of_global),
    row(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.STEP.u32",
        "m a m",
    ),
    row(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.SUMOP.W32",
        "m a m",
    ),
    row(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64",
        "m a m",
    ),
    row(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.BOOL.b32",
        "m a m",
    ),
    // Copies.
    row("cp.async.ca.CTASPACE.global{.HINT}{.AHEAD}", "m m i a:u32? a:b64?"),
    row("cp.async.cg.CTASPACE.global{.HINT}{.AHEAD}", "m m i a:u32? a:b64?"),
    row("cp.async.commit_group", ""),
    row("cp.async.wait_group", "i"),
    row("cp.async.wait_all", ""),
    row("cp.async.mbarrier.arrive{.noinc}{.CTASPACE}.b64", "m"),
    row(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{.multicast::cluster}{.HINT}",
        "m m a:u32 m a:b16? a:b64?",
    ),
    row(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes{.HINT}",
        "m m a:u32 m a:b64?",
    ),
    row(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
        "m m a:u32 m",
    ),
    row("cp.async.bulk.global.shared::cta.bulk_group{.HINT}", "m m a:u32 a:b64?"),
    row("cp.async.bulk.prefetch.L2.global{.HINT}", "m a:u32 a:b64?"),
    row("cp.async.bulk.commit_group", ""),
    row("cp.async.bulk.wait_group{.read}", "i"),
    row(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group{.HINT}.add.SUMMED",
        "m m a:u32 a:b64?",
    ),
    row(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group{.HINT}.add.noftz.SUM16",
        "m m a:u32 a:b64?",
    ),
    row(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group{.HINT}.STEP.u32",
        "m m a:u32 a:b64?",
    ),
    row(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group{.HINT}.MINMAX.INT32",
        "m m a:u32 a:b64?",
    ),
    row(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group{.HINT}.BOOL.B32TO64",
        "m m a:u32 a:b64?",
    ),
    row(
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.STEP.u32",
        "m m a:u32 m",
    ),
    row(
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.SUMOP.W32",
        "m m a:u32 m",
    ),
    row(
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u64",
        "m m a:u32 m",
    ),
    row(
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.BOOL.b32",
        "m m a:u32 m",
    ),
    row(
        "cp.async.bulk.tensor.DIM.shared::cluster.global{.tile}.mbarrier::complete_tx::bytes{.multicast::cluster}{.HINT}",
        "m t m a:b16? a:b64?",
    ),
    row(
        "cp.async.bulk.tensor.IMDIM.shared::cluster.global.im2col.mbarrier::complete_tx::bytes{.multicast::cluster}{.HINT}",
        "m t m L a:b16? a:b64?",
    ),
    row(
        "cp.async.bulk.tensor.DIM.shared::cta.global{.tile}.mbarrier::complete_tx::bytes{.HINT}",
        "m t m a:b64?",
    ),
    row(
        "cp.async.bulk.tensor.DIM.global.shared::cta{.tile}.bulk_group{.HINT}",
        "t m a:b64?",
    ),
    row("cp.async.bulk.prefetch.tensor.DIM.L2.global{.tile}{.HINT}", "t a:b64?"),
    row(
        "cp.reduce.async.bulk.tensor.DIM.global.shared::cta.add{.tile}.bulk_group{.HINT}",
        "t m a:b64?",
    ),
    row("tensormap.replace.tile.global_address{.global}.b1024.b64", "m a"),
    row("tensormap.replace.tile.global_address.shared::cta.b1024.b64", "m a"),
    row("tensormap.replace.tile.global_stride.shared::cta.b1024.b64", "m i a"),
    row("tensormap.replace.tile.rank.shared::cta.b1024.b32", "m a"),
    row("tensormap.replace.tile.TENSOR.shared::cta.b1024.b32", "m i a"),
    row("tensormap.replace.tile.MODE.shared::cta.b1024.b32", "m i"),
    row(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned",
        "m m i",
    ),
    // Order.
    row("membar.cta", ""),
    row("membar.gl", ""),
    row("membar.sys", ""),
    row("fence{.FENCE}.SCOPE", ""),
    row("fence.mbarrier_init.release.cluster", ""),
    row("fence.proxy.alias", ""),
    row("fence.proxy.async{.ASYNC}", ""),
    row("fence.proxy.tensormap::generic.release.SCOPE", ""),
    row("fence.proxy.tensormap::generic.acquire.SCOPE", "m i"),
    // Barriers in memory.
    row("mbarrier.init{.CTASPACE}.b64", "m a:u32"),
    row("mbarrier.inval{.CTASPACE}.b64", "m"),
    row("mbarrier.expect_tx{.relaxed.MBSCOPE}{.MBSPACE}.b64", "m a:u32"),
    row("mbarrier.complete_tx{.relaxed.MBSCOPE}{.MBSPACE}.b64", "m a:u32"),
    row("mbarrier.ARRIVAL{.MBORDER.MBSCOPE}{.MBSPACE}.b64", "d m a:u32?"),
    row(
        "mbarrier.ARRIVAL.expect_tx{.MBORDER.MBSCOPE}{.MBSPACE}.b64",
        "d m a:u32",
    ),
    row("mbarrier.ARRIVAL.noComplete{.release.cta}{.CTASPACE}.b64", "d m a:u32"),
    row(
        "mbarrier.WAITING{.WAITORDER.MBSCOPE}{.CTASPACE}.b64",
        "q:pred m a a:u32?",
    ),
    row(
        "mbarrier.WAITING.parity{.WAITORDER.MBSCOPE}{.CTASPACE}.b64",
        "q:pred m a:u32 a:u32?",
    ),
    row("mbarrier.pending_count.b64", "d:u32 a"),
];
