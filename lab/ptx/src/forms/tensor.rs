//! Matrices: `mma`, `wmma`, `wgmma`, and their loads and stores. Sparse ones and those of 4 and 1 bits are not read.

use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("ldmatrix.sync.aligned.m8n8.NUM{.trans}{.CTASPACE}.b16", "D:num m"),
    // As CUTLASS writes it, which ptxas takes.
    row("ldmatrix.sync.aligned.NUM{.trans}.m8n8{.CTASPACE}.b16", "D:num m"),
    row("stmatrix.sync.aligned.m8n8.NUM{.trans}{.CTASPACE}.b16", "m A:num"),
    row("movmatrix.sync.aligned.m8n8.trans.b16", "d:b32 a:b32"),
    row(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "D4:f32 A4:b32 A2:b32 A4:f32",
    ),
    row(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        "D2:b32 A4:b32 A2:b32 A2:b32",
    ),
    row(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        "D4:f32 A2:b32 A1:b32 A4:f32",
    ),
    row(
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16",
        "D2:b32 A2:b32 A1:b32 A2:b32",
    ),
    row(
        "mma.sync.aligned.m8n8k4.LAYOUT.LAYOUT.f32.f16.f16.f32",
        "D8:f32 A2:b32 A2:b32 A8:f32",
    ),
    row(
        "mma.sync.aligned.m8n8k4.LAYOUT.LAYOUT.f16.f16.f16.f16",
        "D4:b32 A2:b32 A2:b32 A4:b32",
    ),
    row(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "D4:f32 A4:b32 A2:b32 A4:f32",
    ),
    row(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32",
        "D4:f32 A2:b32 A1:b32 A4:f32",
    ),
    row(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        "D4:f32 A4:b32 A2:b32 A4:f32",
    ),
    row(
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32",
        "D4:f32 A2:b32 A1:b32 A4:f32",
    ),
    row(
        "mma.sync.aligned.m16n8k32.row.col.f32.FP8.FP8.f32",
        "D4:f32 A4:b32 A2:b32 A4:f32",
    ),
    row(
        "mma.sync.aligned.m16n8k32.row.col.f16.FP8.FP8.f16",
        "D2:b32 A4:b32 A2:b32 A2:b32",
    ),
    row(
        "mma.sync.aligned.m8n8k16.row.col{.satfinite}.s32.INT8S.INT8S.s32",
        "D2:b32 A1:b32 A1:b32 A2:b32",
    ),
    row(
        "mma.sync.aligned.m16n8k16.row.col{.satfinite}.s32.INT8S.INT8S.s32",
        "D4:b32 A2:b32 A1:b32 A4:b32",
    ),
    row(
        "mma.sync.aligned.m16n8k32.row.col{.satfinite}.s32.INT8S.INT8S.s32",
        "D4:b32 A4:b32 A2:b32 A4:b32",
    ),
    row(
        "mma.sync.aligned.m8n8k4.row.col{.RND}.f64.f64.f64.f64",
        "D2:f64 A1:f64 A1:f64 A2:f64",
    ),
    row(
        "mma.sync.aligned.m16n8k4.row.col{.RND}.f64.f64.f64.f64",
        "D4:f64 A2:f64 A1:f64 A4:f64",
    ),
    row(
        "mma.sync.aligned.m16n8k8.row.col{.RND}.f64.f64.f64.f64",
        "D4:f64 A4:f64 A2:f64 A4:f64",
    ),
    row(
        "mma.sync.aligned.m16n8k16.row.col{.RND}.f64.f64.f64.f64",
        "D4:f64 A8:f64 A4:f64 A4:f64",
    ),
    // Fragments of wmma: which element is where is the architecture's.
    row(
        "wmma.load.AB.sync.aligned.LAYOUT.WSHAPE{.WSPACE}.f16",
        "D8:b32 m a:u32?",
    ),
    row(
        "wmma.load.AB.sync.aligned.LAYOUT.m16n16k16{.WSPACE}.bf16",
        "D4:b32 m a:u32?",
    ),
    row(
        "wmma.load.a.sync.aligned.LAYOUT.m8n32k16{.WSPACE}.bf16",
        "D2:b32 m a:u32?",
    ),
    row(
        "wmma.load.b.sync.aligned.LAYOUT.m8n32k16{.WSPACE}.bf16",
        "D8:b32 m a:u32?",
    ),
    row(
        "wmma.load.a.sync.aligned.LAYOUT.m32n8k16{.WSPACE}.bf16",
        "D8:b32 m a:u32?",
    ),
    row(
        "wmma.load.b.sync.aligned.LAYOUT.m32n8k16{.WSPACE}.bf16",
        "D2:b32 m a:u32?",
    ),
    row(
        "wmma.load.AB.sync.aligned.LAYOUT.m16n16k16{.WSPACE}.INT8S",
        "D2:b32 m a:u32?",
    ),
    row(
        "wmma.load.a.sync.aligned.LAYOUT.m8n32k16{.WSPACE}.INT8S",
        "D1:b32 m a:u32?",
    ),
    row(
        "wmma.load.b.sync.aligned.LAYOUT.m8n32k16{.WSPACE}.INT8S",
        "D4:b32 m a:u32?",
    ),
    row(
        "wmma.load.a.sync.aligned.LAYOUT.m32n8k16{.WSPACE}.INT8S",
        "D4:b32 m a:u32?",
    ),
    row(
        "wmma.load.b.sync.aligned.LAYOUT.m32n8k16{.WSPACE}.INT8S",
        "D1:b32 m a:u32?",
    ),
    row(
        "wmma.load.AB.sync.aligned.LAYOUT.m16n16k8{.WSPACE}.tf32",
        "D4:b32 m a:u32?",
    ),
    row(
        "wmma.load.AB.sync.aligned.LAYOUT.m8n8k4{.WSPACE}.f64",
        "D1:f64 m a:u32?",
    ),
    row("wmma.load.c.sync.aligned.LAYOUT.WSHAPE{.WSPACE}.f16", "D4:b32 m a:u32?"),
    row("wmma.load.c.sync.aligned.LAYOUT.WSHAPE{.WSPACE}.f32", "D8:f32 m a:u32?"),
    row("wmma.load.c.sync.aligned.LAYOUT.WSHAPE{.WSPACE}.s32", "D8:b32 m a:u32?"),
    row(
        "wmma.load.c.sync.aligned.LAYOUT.m16n16k8{.WSPACE}.f32",
        "D8:f32 m a:u32?",
    ),
    row("wmma.load.c.sync.aligned.LAYOUT.m8n8k4{.WSPACE}.f64", "D2:f64 m a:u32?"),
    row(
        "wmma.store.d.sync.aligned.LAYOUT.WSHAPE{.WSPACE}.f16",
        "m A4:b32 a:u32?",
    ),
    row(
        "wmma.store.d.sync.aligned.LAYOUT.WSHAPE{.WSPACE}.f32",
        "m A8:f32 a:u32?",
    ),
    row(
        "wmma.store.d.sync.aligned.LAYOUT.WSHAPE{.WSPACE}.s32",
        "m A8:b32 a:u32?",
    ),
    row(
        "wmma.store.d.sync.aligned.LAYOUT.m16n16k8{.WSPACE}.f32",
        "m A8:f32 a:u32?",
    ),
    row(
        "wmma.store.d.sync.aligned.LAYOUT.m8n8k4{.WSPACE}.f64",
        "m A2:f64 a:u32?",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.WSHAPE.f32.f32",
        "D8:f32 A8:b32 A8:b32 A8:f32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.WSHAPE.f32.f16",
        "D8:f32 A8:b32 A8:b32 A4:b32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.WSHAPE.f16.f32",
        "D4:b32 A8:b32 A8:b32 A8:f32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.WSHAPE.f16.f16",
        "D4:b32 A8:b32 A8:b32 A4:b32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m16n16k16.f32.bf16.bf16.f32",
        "D8:f32 A4:b32 A4:b32 A8:f32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m8n32k16.f32.bf16.bf16.f32",
        "D8:f32 A2:b32 A8:b32 A8:f32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m32n8k16.f32.bf16.bf16.f32",
        "D8:f32 A8:b32 A2:b32 A8:f32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m16n16k8.f32.tf32.tf32.f32",
        "D8:f32 A4:b32 A4:b32 A8:f32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m8n8k4.f64.f64.f64.f64{.RND}",
        "D2:f64 A1:f64 A1:f64 A2:f64",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m16n16k16.s32.u8.u8.s32{.satfinite}",
        "D8:b32 A2:b32 A2:b32 A8:b32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m16n16k16.s32.s8.s8.s32{.satfinite}",
        "D8:b32 A2:b32 A2:b32 A8:b32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m8n32k16.s32.u8.u8.s32{.satfinite}",
        "D8:b32 A1:b32 A4:b32 A8:b32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m8n32k16.s32.s8.s8.s32{.satfinite}",
        "D8:b32 A1:b32 A4:b32 A8:b32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m32n8k16.s32.u8.u8.s32{.satfinite}",
        "D8:b32 A4:b32 A1:b32 A8:b32",
    ),
    row(
        "wmma.mma.sync.aligned.LAYOUT.LAYOUT.m32n8k16.s32.s8.s8.s32{.satfinite}",
        "D8:b32 A4:b32 A1:b32 A8:b32",
    ),
    // A warpgroup's products: A in registers or, as B is, in shared memory behind a descriptor.
    row("wgmma.fence.sync.aligned", ""),
    row("wgmma.commit_group.sync.aligned", ""),
    row("wgmma.wait_group.sync.aligned", "i"),
    row(
        "wgmma.mma_async.sync.aligned.N16.F32F16.f16.f16",
        "D:acc A:b64 a:b64 p i i i i?",
    ),
    row(
        "wgmma.mma_async.sync.aligned.N16.f32.bf16.bf16",
        "D:acc A:b64 a:b64 p i i i i?",
    ),
    row(
        "wgmma.mma_async.sync.aligned.N8.f32.tf32.tf32",
        "D:acc A:b64 a:b64 p i i",
    ),
    row(
        "wgmma.mma_async.sync.aligned.N32.F32F16.FP8.FP8",
        "D:acc A:b64 a:b64 p i i",
    ),
    row(
        "wgmma.mma_async.sync.aligned.P32{.satfinite}.s32.INT8S.INT8S",
        "D:acc A:b64 a:b64 p",
    ),
];
