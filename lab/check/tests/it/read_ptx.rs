//! PTX of our own kernels and of compilers, as any text: with the answers and findings of the kernel language, at the
//! same lines.

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckError, CheckOptions, judge_elsewhere};
use flashcore_ir::{Kernel, Launch, Target};
use flashcore_kernels::{Config, Plan};
use flashcore_problem::{Mask, Problem};
use flashcore_ptx::Module;
use flashcore_sim::{FindingKind, PtxArg, PtxBuffer, PtxKernel, PtxLaunch, SimError, SimOptions, SimReport, simulate};

fn problem() -> Problem {
    let builder = Problem::builder().heads(2, 1).seq_len_q(45).seq_len_kv(77).head_dim(40);
    builder.mask(Mask::CAUSAL).return_lse(true).build().unwrap()
}

fn options() -> SimOptions {
    SimOptions {
        max_instructions: 300_000,
        ..SimOptions::default()
    }
}

/// Runs a kernel's text as that of any compiler.
fn as_text(kernel: &Kernel, launch: &Launch, buffers: &mut [Vec<u8>]) -> Result<SimReport, SimError> {
    let module = Module::read(&kernel.to_ptx_with_lines())?;
    let launch = PtxLaunch::of(launch, "kernel.ptx".to_string());
    PtxKernel::read(&module, kernel.name(), &launch)?.simulate(buffers, &options())
}

/// Runs a kernel in place of a plan's, by the kernel language and by its text; their findings.
fn both(plan: &Plan, kernel: &Kernel) -> [Vec<(FindingKind, String, u32)>; 2] {
    let mut found = Default::default();
    let gate = judge_elsewhere(plan, &CheckOptions::default(), |step, contents| {
        if step.kernel.name() != plan.main.kernel.name() {
            simulate(&step.kernel, &step.launch, contents, &options())?;
            return Ok::<_, CheckError>(());
        }
        let mut again = contents.to_vec();
        let ours = simulate(kernel, &step.launch, contents, &options())?;
        let theirs = as_text(kernel, &step.launch, &mut again)?;
        found = [findings(&ours), findings(&theirs)];
        if ours.is_clean() {
            assert!(contents == again, "{}", kernel.name());
        }
        Ok(())
    });
    assert!(gate.unwrap().passed() || !found[0].is_empty());
    found
}

/// Kind and line of each finding.
fn findings(report: &SimReport) -> Vec<(FindingKind, String, u32)> {
    let of_line = report.findings.iter().map(|finding| {
        let line = finding.line().unwrap();
        (finding.kind, line.file.to_string(), line.line)
    });
    let mut found: Vec<_> = of_line.collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn own_kernels_give_the_same_output_and_findings_as_text() {
    let mut count = 0;
    for config in Config::all() {
        let Some(plan) = Plan::new(&problem(), &config, Target::Sm89).ok() else {
            continue;
        };
        assert_eq!(both(&plan, &plan.main.kernel), [Vec::new(), Vec::new()], "{config}");
        count += 1;
    }
    assert!(count > 10, "{count} kernels");
    for id in [
        "scalar/tiled-m32n32-w4-v16",
        "mma/m32n64-w2x1-s2-b1-qreg-xor-cond",
        "ladder/mma-m64n32-w4",
    ] {
        let plan = Plan::new(&problem(), &id.parse().unwrap(), Target::Sm89).unwrap();
        let kernel = &plan.main.kernel;
        let mut compared = 0;
        for operator in [Operator::DropBarrier, Operator::DropWarpBarrier] {
            for mutation in mutations(kernel).into_iter().filter(|it| it.operator == operator) {
                let [ours, theirs] = both(&plan, &mutation.apply(kernel));
                assert_eq!(ours, theirs, "{id} {mutation}");
                compared += usize::from(!ours.is_empty());
            }
        }
        assert!(compared > 0, "{id}");
    }
}

/// Runs a kernel of a text on buffers, with numbers after their addresses; and what they contain then.
fn run(
    text: &str,
    block: [u32; 3],
    buffers: &[(&str, Vec<u8>)],
    numbers: &[u32],
) -> Result<(SimReport, Vec<Vec<u8>>), SimError> {
    let module = Module::read(text)?;
    let addresses = (0..buffers.len()).map(|slot| PtxArg {
        bytes: vec![0; 8],
        pointers: vec![(0, slot)],
        ..PtxArg::default()
    });
    let numbers = numbers.iter().map(|number| PtxArg {
        bytes: number.to_le_bytes().to_vec(),
        ..PtxArg::default()
    });
    let launch = PtxLaunch {
        file: "kernel.ptx".to_string(),
        grid: [1, 1, 1],
        block,
        buffers: buffers
            .iter()
            .map(|(name, contents)| PtxBuffer {
                name: name.to_string(),
                bytes: contents.len() as u64,
                element: 4,
                written: true,
            })
            .collect(),
        args: addresses.chain(numbers).collect(),
        ..PtxLaunch::default()
    };
    let name = &module.declared.entries[0].name;
    let mut contents: Vec<Vec<u8>> = buffers.iter().map(|(_, contents)| contents.clone()).collect();
    let report = PtxKernel::read(&module, name, &launch)?.simulate(&mut contents, &SimOptions::default())?;
    Ok((report, contents))
}

/// As nvcc prints a sum over a block: guarded loads, a loop that ends with its jump back, a tree in shared memory, an
/// early return.
const BLOCK_SUM: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.file 1 "sum.cu"
.visible .entry block_sum(
	.param .u64 block_sum_param_0,
	.param .u64 block_sum_param_1,
	.param .u32 block_sum_param_2
)
.maxntid 64, 1, 1
{
	.reg .pred 	%p<7>;
	.reg .f32 	%f<12>;
	.reg .b32 	%r<16>;
	.reg .b64 	%rd<7>;
	.shared .align 4 .b8 _ZZ9block_sumE4sums[256];

	ld.param.u64 	%rd2, [block_sum_param_0];
	ld.param.u64 	%rd3, [block_sum_param_1];
	ld.param.u32 	%r7, [block_sum_param_2];
	.loc	1 5 9
	mov.u32 	%r1, %tid.x;
	mov.f32 	%f11, 0f00000000;
	setp.ge.u32 	%p1, %r1, %r7;
	@%p1 bra 	$L__BB0_3;

	cvta.to.global.u64 	%rd1, %rd2;
	mov.u32 	%r14, %r1;
$L__BB0_2:
	mul.wide.u32 	%rd4, %r14, 4;
	add.s64 	%rd5, %rd1, %rd4;
	.loc	1 8 13
	ld.global.nc.f32 	%f6, [%rd5];
	add.f32 	%f11, %f11, %f6;
	add.s32 	%r14, %r14, 64;
	setp.lt.u32 	%p2, %r14, %r7;
	@%p2 bra 	$L__BB0_2;

$L__BB0_3:
	shl.b32 	%r8, %r1, 2;
	mov.u32 	%r9, _ZZ9block_sumE4sums;
	add.s32 	%r4, %r9, %r8;
	.loc	1 10 5
	st.shared.f32 	[%r4], %f11;
	mov.u32 	%r15, 32;
$L__BB0_4:
	.loc	1 13 9
	bar.sync 	0;
	setp.ge.u32 	%p4, %r1, %r15;
	@%p4 bra 	$L__BB0_6;

	shl.b32 	%r11, %r15, 2;
	add.s32 	%r12, %r4, %r11;
	ld.shared.f32 	%f8, [%r12];
	ld.shared.f32 	%f9, [%r4];
	add.f32 	%f10, %f8, %f9;
	st.shared.f32 	[%r4], %f10;

$L__BB0_6:
	shr.u32 	%r15, %r15, 1;
	setp.ne.s32 	%p5, %r15, 0;
	@%p5 bra 	$L__BB0_4;

	setp.ne.s32 	%p6, %r1, 0;
	@%p6 bra 	$L__BB0_9;

	.loc	1 18 5
	ld.shared.f32 	%f7, [_ZZ9block_sumE4sums];
	cvta.to.global.u64 	%rd6, %rd3;
	st.global.f32 	[%rd6], %f7;
$L__BB0_9:
	ret;
}
"#;

fn block_sum(text: &str, n: u32) -> (SimReport, Vec<Vec<u8>>) {
    let input = (0..100).flat_map(|i| (i as f32).to_le_bytes()).collect();
    run(text, [64, 1, 1], &[("in", input), ("out", vec![0; 4])], &[n]).unwrap()
}

#[test]
fn what_nvcc_prints_is_simulated() {
    let (report, buffers) = block_sum(BLOCK_SUM, 100);
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(buffers[1], 4950f32.to_le_bytes());
}

#[test]
fn what_is_wrong_with_it_is_found_at_its_cuda_line() {
    let (report, _) = block_sum(&BLOCK_SUM.replace("bar.sync \t0;", ""), 100);
    let race = report
        .findings
        .iter()
        .find(|found| found.kind == FindingKind::Race)
        .unwrap();
    assert_eq!(race.object.as_deref(), Some("_ZZ9block_sumE4sums"));
    assert_eq!(race.line().map(|line| (line.file, line.line)), Some(("sum.cu", 13)));
    assert_eq!(race.line().map(|line| line.column), Some(9));
    assert_eq!(race.lines[1].file, "kernel.ptx");

    // One element more than there is.
    let (report, _) = block_sum(BLOCK_SUM, 101);
    assert_eq!(report.findings[0].kind, FindingKind::OutOfBounds);
    assert_eq!(report.findings[0].line().map(|line| line.line), Some(8));
}

/// Each thread of a block stores the number that it has of its two axes.
const FILL: &str = ".version 8.0\n.target sm_80\n.entry fill(.param .u64 p) { .reg .b32 %r<5>; .reg .b64 %rd<3>;
ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
mad.lo.u32 %r4, %r2, %r3, %r1; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], %r4; ret; }";

/// Threads that follow the last whole warp run, and what is wrong in them is found.
#[test]
fn blocks_have_any_shape() {
    let expected: Vec<u8> = (0..40u32).flat_map(u32::to_le_bytes).collect();
    for block in [[40, 1, 1], [10, 4, 1]] {
        let (report, buffers) = run(FILL, block, &[("p", vec![0; 160])], &[]).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
        assert_eq!(buffers[0], expected);
        let (report, _) = run(FILL, block, &[("p", vec![0; 156])], &[]).unwrap();
        let found = &report.findings[0];
        let by = (found.actor.warp, found.actor.lanes);
        assert_eq!((found.kind, by), (FindingKind::OutOfBounds, (1, 1 << 7)));
    }
}

#[test]
fn what_is_not_understood_is_named_with_its_line() {
    for (text, part) in [
        (
            "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];",
            "line 7: `tex.2d.v4.f32.f32`",
        ),
        ("frobnicate.b32 %r1, %r2;", "line 7: `frobnicate.b32`"),
        ("ld.global.u32 %f9, [%rd1];", "line 7: `%f9`"),
        ("cp.async.cg.shared.global [s], [%rd1], 8;", "it copies 16"),
        ("bra nowhere;", "there is no such label"),
        ("mov.u32 %r1, %nothing;", "line 7: `%nothing`"),
        ("mov.u32 %r1, -2147483649;", "-2147483649 does not fit into the 4 B"),
    ] {
        let text = format!(
            ".version 8.0\n.target sm_80\n.entry k(.param .u64 p)\n{{\n.reg .pred %p<3>; .reg .b32 %r<5>; .reg .f32 \
             %f<5>; .reg .b64 %rd<5>; .reg .f64 %d<3>; .shared .b32 s[8];\nld.param.u64 %rd1, [p];\n{text}\nret;\n}}"
        );
        let error = run(&text, [32, 1, 1], &[("p", vec![0; 4])], &[]).map(|(report, _)| report.findings);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
