//! How the instructions of clusters, mbarriers, bulk copies and warpgroups are spelled.

use super::names::{address, operand, reg_name, regs};
use crate::inst::Major;
use crate::inst::{Address, BulkInst, ClusterInst, L2Hint, MbarInst, Operand, Scope, WgmmaA, WgmmaInput, WgmmaInst};
use crate::types::ScalarType;

pub(super) fn mbar(inst: &MbarInst) -> String {
    match inst {
        MbarInst::Init { addr, arrivals } => format!("mbarrier.init.shared::cta.b64 {}, {arrivals};", address(addr)),
        MbarInst::Arrive {
            addr,
            remote,
            scope,
            tx,
        } => {
            let expect = if tx.is_some() { ".expect_tx" } else { "" };
            // A block's scope is the default; spelling it would need a later PTX version.
            let order = if *scope == Scope::Cluster {
                ".release.cluster"
            } else {
                ""
            };
            let space = if *remote { "shared::cluster" } else { "shared::cta" };
            let tx = tx.map_or(String::new(), |tx| format!(", {}", operand(&tx, ScalarType::U32)));
            format!("mbarrier.arrive{expect}{order}.{space}.b64 _, {}{tx};", address(addr))
        }
        MbarInst::ExpectTx { addr, tx } => format!(
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 {}, {};",
            address(addr),
            operand(tx, ScalarType::U32)
        ),
        MbarInst::Test {
            dst,
            addr,
            parity,
            blocking,
            scope,
        } => {
            let op = if *blocking { "try_wait" } else { "test_wait" };
            let order = if *scope == Scope::Cluster {
                ".acquire.cluster"
            } else {
                ""
            };
            format!(
                "mbarrier.{op}.parity{order}.shared::cta.b64 {}, {}, {};",
                reg_name(*dst),
                address(addr),
                operand(parity, ScalarType::U32)
            )
        }
    }
}

/// A tensor map and the coordinates in it: `[%rd1, {%r1, %r2}]`.
fn map_at(map: &Address, at: &[Operand]) -> String {
    let map = address(map);
    let at: Vec<String> = at.iter().map(|x| operand(x, ScalarType::S32)).collect();
    format!("{}, {{{}}}]", map.trim_end_matches(']'), at.join(", "))
}

/// The cache policies that `createpolicy` makes for all lines of a copy (CUTLASS, `TMA::CacheHintSm90`).
fn policy(hint: L2Hint) -> Option<u64> {
    match hint {
        L2Hint::None => None,
        L2Hint::EvictFirst => Some(0x12f0_0000_0000_0000),
        L2Hint::EvictLast => Some(0x14f0_0000_0000_0000),
    }
}

pub(super) fn bulk(inst: &BulkInst) -> String {
    match inst {
        BulkInst::Load {
            dst,
            map,
            at,
            bar,
            multicast,
            hint,
        } => {
            let (mut options, mut tail) = (String::new(), String::new());
            if let Some(mask) = multicast {
                options.push_str(".multicast::cluster");
                tail = format!(", {}", operand(mask, ScalarType::B16));
            }
            if let Some(policy) = policy(*hint) {
                options.push_str(".L2::cache_hint");
                tail.push_str(&format!(", {policy:#018x}"));
            }
            format!(
                "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{options} {}, {}, {}{tail};",
                at.len(),
                address(dst),
                map_at(map, at),
                address(bar)
            )
        }
        BulkInst::Store { map, at, src } => format!(
            "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group {}, {};",
            at.len(),
            map_at(map, at),
            address(src)
        ),
        BulkInst::Prefetch { map } => format!("prefetch.tensormap {};", address(map)),
        BulkInst::Commit => "cp.async.bulk.commit_group;".to_string(),
        BulkInst::Wait { pending, read } => {
            format!(
                "cp.async.bulk.wait_group{} {pending};",
                if *read { ".read" } else { "" }
            )
        }
    }
}

pub(super) fn cluster(inst: &ClusterInst) -> String {
    let aligned = |aligned: bool| if aligned { ".aligned" } else { "" };
    match inst {
        ClusterInst::Mapa { dst, addr, rank } => format!(
            "mapa.shared::cluster.u32 {}, {}, {};",
            reg_name(*dst),
            operand(addr, ScalarType::U32),
            operand(rank, ScalarType::U32)
        ),
        ClusterInst::Arrive { release, aligned: a } => {
            let order = if *release { "release" } else { "relaxed" };
            format!("barrier.cluster.arrive.{order}{};", aligned(*a))
        }
        ClusterInst::Wait { aligned: a } => format!("barrier.cluster.wait.acquire{};", aligned(*a)),
    }
}

pub(super) fn wgmma(inst: &WgmmaInst) -> String {
    match inst {
        WgmmaInst::Mma {
            input,
            n,
            d,
            a,
            b,
            accumulate,
        } => {
            let ty = match input {
                WgmmaInput::F16 => "f16",
                WgmmaInput::BF16 => "bf16",
                WgmmaInput::E4M3 => "e4m3",
            };
            let transposed = |major: Major| u8::from(major == Major::Mn);
            let (a, a_transposed) = match a {
                WgmmaA::Shared(descriptor) => (
                    operand(&descriptor.bits, ScalarType::B64),
                    format!(", {}", transposed(descriptor.major)),
                ),
                WgmmaA::Regs(first) => (regs(*first, 4), String::new()),
            };
            // 8-bit operands cannot be transposed, and the instruction has no place to say so.
            let majors = match input {
                WgmmaInput::E4M3 => String::new(),
                _ => format!("{a_transposed}, {}", transposed(b.major)),
            };
            format!(
                "wgmma.mma_async.sync.aligned.m64n{n}k{}.f32.{ty}.{ty} {}, {a}, {}, {}, 1, 1{majors};",
                input.k(),
                regs(*d, n / 2),
                operand(&b.bits, ScalarType::B64),
                operand(accumulate, ScalarType::Pred)
            )
        }
        WgmmaInst::Fence => "wgmma.fence.sync.aligned;".to_string(),
        WgmmaInst::Commit => "wgmma.commit_group.sync.aligned;".to_string(),
        WgmmaInst::Wait { pending } => format!("wgmma.wait_group.sync.aligned {pending};"),
    }
}
