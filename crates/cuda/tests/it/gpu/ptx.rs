//! The kernels of these tests, as literal PTX: the driver is tested without the kernel language.

/// `out[i] = a[i] + b[i]` for `i < n`.
pub(crate) const VECTOR_ADD: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 out, .param .u32 n)
{
    .reg .pred %p;
    .reg .u32 %r<6>;
    .reg .u64 %rd<8>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [out];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p ret;
    mul.wide.u32 %rd4, %r5, 4;
    add.u64 %rd5, %rd1, %rd4;
    add.u64 %rd6, %rd2, %rd4;
    add.u64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
    ret;
}
";

/// Stores its arguments, one after the other, each in 8 bytes.
pub(crate) const ECHO: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry echo(
    .param .u64 out, .param .u32 a, .param .s32 b, .param .u64 c, .param .s64 d, .param .f32 e
)
{
    .reg .u32 %r<4>;
    .reg .u64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [a];
    ld.param.u32 %r2, [b];
    ld.param.u64 %rd2, [c];
    ld.param.u64 %rd3, [d];
    ld.param.u32 %r3, [e];
    st.global.u32 [%rd1], %r1;
    st.global.u32 [%rd1+8], %r2;
    st.global.u64 [%rd1+16], %rd2;
    st.global.u64 [%rd1+24], %rd3;
    st.global.u32 [%rd1+32], %r3;
    ret;
}
";

/// Writes the last word of its dynamic shared memory and reads it back: `out[block] = last + 7`.
pub(crate) const DYNAMIC_SHARED: &str = "
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry dynamic_shared(.param .u64 out, .param .u32 last)
{
    .reg .u32 %r<6>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [last];
    mov.u32 %r2, dynamic;
    add.u32 %r3, %r2, %r1;
    add.u32 %r4, %r1, 7;
    st.shared.u32 [%r3], %r4;
    bar.sync 0;
    ld.shared.u32 %r5, [%r3];
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r5;
    ret;
}
";

/// `data[i] += 1` for `i < n`, in the order of the stream.
pub(crate) const INCREMENT: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry increment(.param .u64 data, .param .u32 n)
.maxntid 256, 1, 1
{
    .reg .pred %p;
    .reg .u32 %r<6>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p ret;
    mul.wide.u32 %rd2, %r5, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}
";

/// Keeps one warp busy for that many cycles.
pub(crate) const SPIN: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .pred %p;
    .reg .u64 %rd<5>;
    ld.param.u64 %rd1, [cycles];
    mov.u64 %rd2, %clock64;
AGAIN:
    mov.u64 %rd3, %clock64;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p, %rd4, %rd1;
    @%p bra AGAIN;
    ret;
}
.visible .entry nothing()
{
    ret;
}
";

/// Stores to whatever address it is given: an illegal address, or a misaligned one.
pub(crate) const STRAY_STORE: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry stray_store(.param .u64 address)
{
    .reg .u32 %r<2>;
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [address];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry stop_here()
{
    trap;
    ret;
}
";

/// Indexes an array at run time, which puts it into local memory.
pub(crate) const LOCAL_ARRAY: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry local_array(.param .u64 out, .param .u32 index)
{
    .local .align 16 .b8 frame[256];
    .reg .u32 %r<3>;
    .reg .u64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [index];
    mov.u64 %rd2, frame;
    mul.wide.u32 %rd3, %r1, 4;
    add.u64 %rd4, %rd2, %rd3;
    st.local.u32 [%rd4], %r1;
    ld.local.u32 %r2, [frame+64];
    st.global.u32 [%rd1], %r2;
    ret;
}
";

/// Reads wgmma accumulators before the wait: the compiler warns (C7514, or C7517 from 13.0 on) and
/// serialises.
pub(crate) const UNWAITED_WGMMA: &str = "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry unwaited(.param .u64 out, .param .u64 descriptor)
.maxntid 128, 1, 1
{
    .reg .u64 %rd<3>;
    .reg .f32 %f<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [descriptor];
    mov.f32 %f0, 0f00000000;
    mov.f32 %f1, %f0;
    mov.f32 %f2, %f0;
    mov.f32 %f3, %f0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd2, %rd2, 1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    add.f32 %f4, %f0, %f1;
    st.global.f32 [%rd1], %f4;
    wgmma.wait_group.sync.aligned 0;
    ret;
}
";

/// 57,376 B of static shared memory, as a kernel of the reports had: refused by every compiler.
pub(crate) const STATIC_OVERFLOW: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry static_overflow(.param .u64 out)
{
    .shared .align 16 .b8 tiles[57376];
    .reg .u32 %r<3>;
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    st.shared.u32 [tiles+57372], %r1;
    ld.shared.u32 %r2, [tiles+57372];
    st.global.u32 [%rd1], %r2;
    ret;
}
";

/// `out[block] = rank in cluster + 256 · blocks in cluster`.
pub(crate) const CLUSTER: &str = "
.version 7.8
.target sm_90
.address_size 64
.visible .entry cluster_rank(.param .u64 out)
{
    .reg .u32 %r<5>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r2, %cluster_nctarank;
    mad.lo.u32 %r3, %r2, 256, %r1;
    mov.u32 %r4, %ctaid.x;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    ret;
}
";

/// `INCREMENT` that lets the next launch begin early and waits for the one before.
pub(crate) const DEPENDENT_INCREMENT: &str = "
.version 7.8
.target sm_90
.address_size 64
.visible .entry dependent_increment(.param .u64 data, .param .u32 n)
{
    .reg .pred %p;
    .reg .u32 %r<6>;
    .reg .u64 %rd<4>;
    griddepcontrol.launch_dependents;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    griddepcontrol.wait;
    setp.ge.u32 %p, %r5, %r1;
    @%p ret;
    mul.wide.u32 %rd2, %r5, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd3], %r2;
    ret;
}
";

/// Stores when it begins and, so many nanoseconds later, ends, by the device's clock. Waits for the launch before it
/// only then.
pub(crate) const STAMPED: &str = "
.version 7.8
.target sm_90
.address_size 64
.visible .entry stamped(.param .u64 stamps, .param .u64 nanoseconds)
{
    .reg .pred %p;
    .reg .u64 %rd<6>;
    griddepcontrol.launch_dependents;
    ld.param.u64 %rd1, [stamps];
    ld.param.u64 %rd2, [nanoseconds];
    mov.u64 %rd3, %globaltimer;
    add.u64 %rd4, %rd3, %rd2;
again:
    mov.u64 %rd5, %globaltimer;
    setp.lt.u64 %p, %rd5, %rd4;
    @%p bra again;
    griddepcontrol.wait;
    st.global.u64 [%rd1], %rd3;
    st.global.u64 [%rd1+8], %rd5;
    ret;
}
";

/// One block copies the box at (0, 32·x, y, z) of a 4-D tensor with TMA and stores it as it lies in
/// shared memory: 32 rows of 128 B.
pub(crate) const TENSOR_MAP: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry copy_box(.param .align 64 .b8 map[128], .param .u64 out)
.maxntid 128, 1, 1
{
    .shared .align 1024 .b8 tile[4096];
    .shared .align 8 .b64 ready;
    .reg .pred %p<3>;
    .reg .u32 %r<16>;
    .reg .u64 %rd<8>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, ready;
    mov.u32 %r3, tile;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ctaid.y;
    mov.u32 %r6, %ctaid.z;
    shl.b32 %r7, %r4, 5;
    mov.u32 %r8, 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra BEGUN;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
    fence.proxy.async;
    mov.b64 %rd1, map;
    cvta.param.u64 %rd2, %rd1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;
    cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r3], [%rd2, {%r8, %r7, %r5, %r6}], [%r2];
BEGUN:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
    @!%p2 bra WAIT;
    // out + 4096 * ((z * gridDim.y + y) * gridDim.x + x) + 32 * thread
    mov.u32 %r9, %nctaid.x;
    mov.u32 %r10, %nctaid.y;
    mad.lo.u32 %r11, %r6, %r10, %r5;
    mad.lo.u32 %r11, %r11, %r9, %r4;
    ld.param.u64 %rd3, [out];
    mul.wide.u32 %rd4, %r11, 4096;
    mul.wide.u32 %rd5, %r1, 32;
    add.u64 %rd6, %rd3, %rd4;
    add.u64 %rd6, %rd6, %rd5;
    shl.b32 %r12, %r1, 5;
    add.u32 %r12, %r12, %r3;
    ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r12];
    st.global.v4.u32 [%rd6], {%r4, %r5, %r6, %r7};
    ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r12+16];
    st.global.v4.u32 [%rd6+16], {%r4, %r5, %r6, %r7};
    ret;
}
";
