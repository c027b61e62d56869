//! PTX that is read back: that of our own kernels word by word, with the same findings at the same lines; and what
//! compilers print.

use std::sync::Arc;

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::ptx::{PtxText, ReadAs};
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, Target};
use flashcore_kernels::{Config, Plan, mma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{Mask, Problem};
use flashcore_sim::{FindingKind, SimError, SimOptions, SimReport, simulate};

/// Every instruction that compilers of C++ use.
#[path = "../../../../crates/ir/tests/it/every_instruction/kernels.rs"]
mod every_instruction;

fn read(ptx: &str, name: &str, dynamic_shared: u32) -> Kernel {
    let options = ReadAs {
        file: "kernel.ptx".to_string(),
        threads: None,
        dynamic_shared,
    };
    let text = PtxText::read(ptx).unwrap();
    text.kernel(name, &options)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A kernel printed and read back.
fn again(kernel: &Kernel, lines: bool) -> Kernel {
    let ptx = if lines {
        kernel.to_ptx_with_lines()
    } else {
        kernel.to_ptx()
    };
    read(&ptx, kernel.name(), kernel.ledger().total_bytes())
}

#[test]
fn what_is_printed_reads_back() {
    // A trace is printed as a comment, and the type of an exchanged immediate is not printed.
    let is_exact = |kernel: &&Kernel| kernel.traces().is_empty() && kernel.name() != "atomics";
    for kernel in every_instruction::kernels().iter().filter(is_exact) {
        assert_eq!(again(kernel, false).to_ptx(), kernel.to_ptx());
    }
}

fn problem() -> Problem {
    let builder = Problem::builder().heads(2, 1).seq_len_q(45).seq_len_kv(77).head_dim(40);
    builder.mask(Mask::CAUSAL).return_lse(true).build().unwrap()
}

fn configs() -> Vec<Config> {
    let mut configs = Config::all();
    // Kernels without tensor maps.
    configs.retain(|config| config.family() != "wgmma" && !config.to_string().ends_with("-v2"));
    let mut rng = Rng::new(7);
    configs.extend((0..20).map(|_| Config::Mma(mma::FAMILY.sample(&mut rng).into())));
    configs
}

#[test]
fn what_is_printed_reads_back_word_by_word() {
    let mut count = 0;
    for config in configs() {
        let Ok(plan) = Plan::new(&problem(), &config, Target::Sm90a) else {
            continue;
        };
        for step in plan.steps() {
            let ptx = step.kernel.to_ptx();
            assert_eq!(
                again(&step.kernel, false).to_ptx(),
                ptx,
                "{config} {}",
                step.kernel.name()
            );
            count += 1;
        }
    }
    assert!(count > 40, "{count} kernels");
}

fn checked(plan: &Plan, kernel: Kernel) -> CheckReport {
    let mut plan = plan.clone();
    plan.main.kernel = Arc::new(kernel);
    let mut options = CheckOptions::default();
    options.sim.max_instructions = 300_000;
    check_plan(&plan, &options).unwrap()
}

/// Kind and line of each finding. Shared memory is one buffer in PTX, so that what leaves one buffer of the ledger for
/// another is not out of bounds there.
fn findings(report: &CheckReport) -> Vec<(FindingKind, String, u32)> {
    let mut found: Vec<_> = report
        .findings
        .iter()
        .map(|found| {
            let line = found.finding.line().unwrap();
            (found.finding.kind, line.file.to_string(), line.line)
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn what_is_read_back_gives_the_same_answer_and_the_same_findings_at_the_same_lines() {
    for id in [
        "scalar/tiled-m32n32-w4-v16",
        "mma/m32n64-w2x1-s2-b1-qreg-xor-cond",
        "ladder/mma-m64n32-w4",
    ] {
        let plan = Plan::new(&problem(), &id.parse().unwrap(), Target::Sm89).unwrap();
        let kernel = &plan.main.kernel;
        let clean = checked(&plan, again(kernel, true));
        assert_eq!(clean.verdict, Verdict::Clean, "{id}: {clean}");
        let mut compared = 0;
        for operator in [Operator::DropBarrier, Operator::DropWarpBarrier] {
            for mutation in mutations(kernel).into_iter().filter(|it| it.operator == operator) {
                let mutant = mutation.apply(kernel);
                let (ours, theirs) = (checked(&plan, mutant.clone()), checked(&plan, again(&mutant, true)));
                assert_eq!(findings(&ours), findings(&theirs), "{id} {mutation}");
                compared += usize::from(!ours.findings.is_empty());
            }
        }
        assert!(compared > 0, "{id}");
    }
}

fn launch(kernel: &Kernel, buffers: &[(&'static str, usize, bool)], numbers: &[u32]) -> Launch {
    let mut args: Vec<Arg> = (0..buffers.len())
        .map(|slot| Arg::Buffer { slot, byte_offset: 0 })
        .collect();
    args.extend(numbers.iter().map(|&number| Arg::U32(number)));
    Launch {
        grid: [1, 1, 1],
        block: [kernel.threads(), 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: kernel.ledger().total_bytes(),
        programmatic: false,
        buffers: buffers
            .iter()
            .map(|&(name, bytes, written)| BufferSpec {
                name,
                bytes: bytes as u64,
                written,
                align: 16,
            })
            .collect(),
        args,
    }
}

fn run(kernel: &Kernel, buffers: &mut [Vec<u8>], launch: &Launch) -> SimReport {
    simulate(kernel, launch, buffers, &SimOptions::default()).unwrap()
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

#[test]
fn what_nvcc_prints_is_simulated() {
    let kernel = read(BLOCK_SUM, "block_sum", 0);
    let launch = launch(&kernel, &[("in", 400, false), ("out", 4, true)], &[100]);
    let input: Vec<u8> = (0..100).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let mut buffers = vec![input, vec![0; 4]];
    let report = run(&kernel, &mut buffers, &launch);
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(buffers[1], 4950f32.to_le_bytes());
}

/// Its last threads would not run, and nothing would be found in them.
#[test]
fn a_block_that_ends_in_a_part_of_a_warp_is_not_simulated() {
    for threads in [16, 100] {
        let options = ReadAs {
            file: "kernel.ptx".to_string(),
            threads: Some(threads),
            dynamic_shared: 0,
        };
        let kernel = PtxText::read(BLOCK_SUM).unwrap().kernel("block_sum", &options).unwrap();
        let launch = launch(&kernel, &[("in", 4, false), ("out", 4, true)], &[1]);
        let refused = simulate(&kernel, &launch, &mut [vec![0; 4], vec![0; 4]], &SimOptions::default());
        assert_eq!(refused.unwrap_err(), SimError::PartOfAWarp { threads });
    }
}

#[test]
fn what_is_wrong_with_it_is_found_at_its_cuda_line() {
    let racing = BLOCK_SUM.replace("bar.sync \t0;", "");
    let kernel = read(&racing, "block_sum", 0);
    let launch = launch(&kernel, &[("in", 400, false), ("out", 4, true)], &[100]);
    let report = run(&kernel, &mut [vec![0; 400], vec![0; 4]], &launch);
    let race = report
        .findings
        .iter()
        .find(|found| found.kind == FindingKind::Race)
        .unwrap();
    assert_eq!(race.object.as_deref(), Some("_ZZ9block_sumE4sums"));
    assert_eq!(race.line().map(|line| (line.file, line.line)), Some(("sum.cu", 13)));
    assert_eq!(race.lines[1].file, "kernel.ptx");

    // One element more than there is.
    let kernel = read(BLOCK_SUM, "block_sum", 0);
    let launch = self::launch(&kernel, &[("in", 400, false), ("out", 4, true)], &[101]);
    let report = run(&kernel, &mut [vec![0; 400], vec![0; 4]], &launch);
    assert_eq!(report.findings[0].kind, FindingKind::OutOfBounds);
    assert_eq!(report.findings[0].line().map(|line| line.line), Some(8));
}

#[test]
fn what_is_not_understood_is_named_with_its_line() {
    let body = |text: &str| {
        format!(
            ".version 8.0\n.target sm_80\n.entry k(.param .u64 p)\n{{\n.reg .pred %p<3>; .reg .b32 %r<5>; .reg .f32 \
             %f<5>; .reg .b64 %rd<5>; .reg .f64 %d<3>; .shared .b32 s[8];\nld.param.u64 %rd1, [p];\n{text}\nret;\n}}"
        )
    };
    let options = ReadAs {
        file: "x.ptx".to_string(),
        threads: Some(32),
        dynamic_shared: 0,
    };
    for (text, part) in [
        ("ex2.approx.f32 %f1, %f2;", "line 7: `ex2.approx.f32`"),
        ("sin.approx.f32 %f1, %f2;", "line 7: `sin.approx.f32`"),
        ("add.f64 %d1, %d1, %d1;", "line 7: `add.f64`"),
        ("ld.global.u8 %r1, [%rd1];", "2, 4 and 8 bytes"),
        ("ld.u32 %r1, [%rd1];", "global and shared memory"),
        ("ld.global.u32 %r1, [%rd2];", "neither from a parameter"),
        ("st.shared.u32 [%rd1], %r1;", "another kind of memory"),
        ("cp.async.cg.shared.global [s], [%rd1], 8;", "it copies 16"),
        ("mov.u64 %rd2, s;", "32-bit addresses"),
        (
            "@%p1 bra A;\n@%p2 bra B;\nA:\nadd.s32 %r1, %r1, 1;\nB:\nadd.s32 %r1, %r1, 2;",
            "line 8: this jump",
        ),
        ("bra nowhere;", "no such label"),
        ("shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1;", "a register is needed"),
        ("setp.ne.f32 %p1, %f1, %f2;", "use setp.neu"),
    ] {
        let error = PtxText::read(&body(text)).unwrap().kernel("k", &options);
        let error = error.map(|kernel| kernel.to_ptx()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// As a block along x it would have other `%tid`.
#[test]
fn a_block_with_threads_along_y_is_not_read() {
    let options = ReadAs {
        file: "x.ptx".to_string(),
        threads: None,
        dynamic_shared: 0,
    };
    let read = |block: &str| {
        let text = format!(".version 8.0\n.target sm_80\n.entry k() {block} {{ ret; }}");
        PtxText::read(&text).unwrap().kernel("k", &options)
    };
    assert_eq!(read(".reqntid 64, 1, 1").unwrap().threads(), 64);
    for block in [".reqntid 16, 4", ".maxntid 16, 4"] {
        let error = read(block).unwrap_err().to_string();
        assert!(error.contains("only blocks along x are supported"), "{error}");
    }
}
