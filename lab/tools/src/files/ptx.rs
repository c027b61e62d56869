//! PTX for the reader and the simulator: texts of compilers and of kernels of ours, and how far one comes.

use flashcore_check::foreign::{self, Fill, ForeignLaunch, Given, RunError};
use flashcore_ir::{Kernel, KernelBuilder, TileShape};
use flashcore_kernels::{Config, Plan};
use flashcore_problem::Problem;
use flashcore_ptx::Module;
use flashcore_sim::SimOptions;

use super::formats::Fate;

/// What compilers print: guards, a loop, shared symbols, an early return, inline assembly in its own block.
const COMPILED: [&str; 2] = [
    r#".version 8.0
.target sm_80
.address_size 64
.file 1 "sum.cu", 123, 456
.extern .shared .align 16 .b8 dyn[];
.shared .align 4 .b8 sums[256];
.visible .entry block_sum(.param .u64 p0, .param .u64 .ptr .global .align 16 p1, .param .u32 p2, .param .f32 p3)
.maxntid 64, 1, 1
.minnctapersm 1
{
	.reg .pred %p<9>; .reg .b16 %h<3>;
	.reg .f32 %f<12>;
	.reg .b32 %r<16>;
	.reg .b64 %rd<9>;
	.loc 1 8 3
	ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1];
	ld.param.u32 %r2, [p2]; ld.param.f32 %f9, [p3];
	mov.u32 %r1, %tid.x;
	mov.f32 %f1, 0f00000000;
	setp.ge.s32 %p1, %r1, %r2;
	@%p1 bra $L__BB0_3;
	cvta.to.global.u64 %rd3, %rd1;
	mov.u32 %r3, %r1;
$L__BB0_2:
	mul.wide.s32 %rd4, %r3, 4;
	add.s64 %rd5, %rd3, %rd4;
	ld.global.nc.f32 %f2, [%rd5];
	fma.rn.f32 %f1, %f2, %f9, %f1;
	add.s32 %r3, %r3, 64;
	setp.lt.s32 %p2, %r3, %r2;
	@%p2 bra $L__BB0_2;
$L__BB0_3:
	shl.b32 %r4, %r1, 2;
	mov.u32 %r5, sums;
	add.s32 %r6, %r5, %r4;
	st.shared.f32 [%r6], %f1;
	bar.sync 0;
	setp.lt.s32 %p3, %r1, 32;
	@!%p3 bra $L__BB0_5;
	ld.shared.f32 %f3, [%r6+128];
	add.f32 %f1, %f1, %f3;
	shfl.sync.bfly.b32 %r7|%p4, %r4, 16, 31, -1;
	vote.sync.any.pred %p5, %p3, -1;
	selp.b32 %r8, %r7, 7, %p5;
	lop3.b32 %r9, %r8, %r4, %r1, 0x96;
$L__BB0_5:
	bar.warp.sync -1;
	{ .reg .pred q; setp.ne.b32 q, %r1, 0; @q bra DONE; mov.b32 {%h1, %h2}, %r4; DONE: bar.sync 1, 64; }
	setp.ne.s32 %p6, %r1, 0;
	@%p6 bra $L__BB0_9;
	.loc 1 18 5
	cvta.to.global.u64 %rd6, %rd2;
	st.global.f32 [%rd6], %f1;
$L__BB0_9:
	ret;
}
"#,
    r#".version 8.4
.target sm_90a, debug
.address_size 64
.global .align 4 .b8 table[4] = {1, 2, 3, 4};
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.func helper(.param .b32 a) { ret; }
.entry copies(.param .u64 p0, .param .u64 p1)
.reqntid 32, 1, 1
.maxnreg 64
{
	.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<12>; .reg .v4 .b32 %v<2>;
	.shared .align 16 .b32 tile[4][64];
	ld.param.u64 %rd1, [p0]; cvta.to.global.u64 %rd1, %rd1;
	ld.param.u64 %rd2, [p1]; cvta.to.global.u64 %rd2, %rd2;
	mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, 16; cvt.u64.u32 %rd3, %r2;
	add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
	mov.u32 %r3, tile; add.u32 %r4, %r3, %r2;
	cp.async.cg.shared.global [%r4], [%rd4], 16; cp.async.commit_group; cp.async.wait_group 0;
	bar.warp.sync 0xffffffff;
	ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r4];
	atom.global.add.u32 %r9, [%rd2+512], 1;
	red.shared.max.s32 [tile+64], %r9;
	membar.gl; fence.proxy.async.shared::cta;
	elect.sync _|%p1, 0xffffffff;
	@%p1 st.global.v4.u32 [%rd5], {%r5, %r6, %r7, 3};
	prmt.b32 %r10, %r5, %r6, 0x5410; popc.b32 %r11, %r10; setp.eq.u32 %p2, %r11, 99;
	@%p2 trap;
	ret;
}
"#,
];

/// A kernel of ours that is short: tiles, loops, branches, products, copies, votes.
fn small(k: &KernelBuilder) {
    let (from, to) = (k.param_ptr::<half::f16>("from"), k.param_ptr_mut::<f32>("to"));
    let n = k.param::<u32>("n");
    let tile = k.shared_tile::<half::f16>("tile", TileShape::new(16, 16));
    let (lane, acc) = (k.lane(), k.acc("acc", 1));
    k.cp_async(tile.at(0, 0).offset(lane * 8u32), from.offset(lane * 8u32), None);
    k.cp_async_commit();
    k.cp_async_wait(0);
    k.barrier();
    k.for_uniform(0u32, n, 1, |_| {
        let a = k.ldmatrix(tile.at(0, 0).offset(lane * 8u32), 4, false);
        let b = k.b_operand::<half::f16>(&[a[0], a[1]]);
        k.mma(acc, 0, k.a_operand(&[a[0], a[1], a[2], a[3]]), b);
    });
    let high = acc.var(0).get().reduce_max(4);
    k.if_else(
        high.gt(0.5).divergent(),
        || to.offset(lane).store(high),
        || to.offset(lane).reduce_add(high.exp2()),
    );
}

/// Texts that the reader knows: those of compilers, and of kernels of ours, without which no damaged one would come
/// far.
pub(super) fn texts() -> Vec<String> {
    let mut texts: Vec<String> = COMPILED.map(str::to_string).to_vec();
    texts.extend(Kernel::build("small", 32, small).map(|kernel| kernel.to_ptx_with_lines()));
    let problem = Problem::builder().heads(2, 1).seq_len_q(45).seq_len_kv(77).head_dim(40);
    let problem = problem.return_lse(true).build();
    for config in Config::all().into_iter().filter(|config| config.family() != "wgmma") {
        let plan = problem.as_ref().ok().and_then(|problem| {
            let plan = Plan::new(problem, &config, flashcore_ir::Target::Sm89);
            plan.ok()
        });
        texts.extend(plan.map(|plan| plan.main.kernel.to_ptx()));
    }
    texts
}

/// Operations of a warp, at most.
const MAX_INSTRUCTIONS: u64 = 2000;

/// Reads a text and simulates its kernels.
pub(super) fn fate(text: &str) -> Result<Fate, super::formats::Refused> {
    let module = Module::read(text)?;
    let declared = foreign::read(text.as_bytes()).map_or(0, |kernels| kernels.len());
    let mut fate = Fate::Read;
    for (entry, _) in module.entries().take(declared) {
        let args = entry.params.iter().map(|param| match (param.ty.as_str(), param.bytes) {
            ("f32" | "f64", _) => Given::Float(0.5),
            (_, 8) => Given::Buffer {
                bytes: 1024,
                fill: Fill::F32,
            },
            (_, 1 | 2 | 4) => Given::Integer(2),
            _ => Given::Struct(Vec::new()),
        });
        let launch = ForeignLaunch {
            grid: [entry.required_cluster.map_or(1, |[blocks, _, _]| blocks), 1, 1],
            threads: entry.threads_allowed().is_none().then_some(64),
            dynamic_shared: 256,
            args: args.collect(),
            schedules: 1,
            sim: SimOptions {
                max_instructions: MAX_INSTRUCTIONS,
                // Of late schedules, too.
                seed: text.len() as u64 % 2,
                ..SimOptions::default()
            },
            ..ForeignLaunch::default()
        };
        fate = fate.max(match foreign::run(text, &entry.name, "fuzz.ptx", &launch) {
            Ok(_) => Fate::Simulated,
            Err(RunError::Ptx(_)) => Fate::Read,
            Err(_) => Fate::Kernel,
        });
    }
    Ok(fate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::mutate::Corpus;

    #[test]
    fn what_is_not_damaged_is_simulated() {
        let small = Kernel::build("small", 32, small).unwrap().to_ptx();
        for text in COMPILED.into_iter().chain([small.as_str()]) {
            assert_eq!(fate(text).unwrap(), Fate::Simulated, "{text}");
        }
    }

    #[test]
    fn many_damaged_texts_are_ptx_still() {
        let texts: Vec<Vec<u8>> = texts().into_iter().map(String::into_bytes).collect();
        let corpus = Corpus::new(&texts);
        let mut counts = [0; 3];
        for number in 0..4000 {
            if let Ok(fate) = fate(&String::from_utf8_lossy(&corpus.damaged(number))) {
                counts[fate as usize] += 1;
            }
        }
        // A third is PTX still, and one in ten a kernel that runs.
        assert!(counts.iter().sum::<u32>() > 1000 && counts[2] > 200, "{counts:?}");
    }
}
