//! Every default for sm_89 fits an L4: its launch is proved, and an SM holds at least one of its blocks.
//!
//! Where `FLASHCORE_PTXAS` names an assembler, registers are in the proof, and what spills is passed over as on a
//! device, which takes minutes. Without one registers are left out.

use std::collections::{BTreeMap, BTreeSet};

use flashcore_check::registers::{Unknown, offline};
use flashcore_ir::proof::{LaunchRefusal, prove_launch};
use flashcore_ir::{Profile, Target};
use flashcore_kernels::{KernelCache, Plan, Refusal, Step, select, select_with};
use flashcore_problem::{DType, Mask, Problem};
use flashcore_sim::occupancy;

/// Batch, heads, heads of K and V, rows and keys: decoding, and prefills that leave SMs idle, fill them, and queue.
const SIZES: [[usize; 5]; 7] = [
    [1, 32, 8, 1, 4096],
    [16, 8, 8, 1, 1000],
    [1, 8, 8, 512, 512],
    [2, 8, 8, 512, 512],
    [2, 8, 8, 1024, 1024],
    [32, 32, 32, 512, 512],
    [1, 32, 8, 16_384, 16_384],
];

fn problems() -> Vec<Problem> {
    let mut problems = Vec::new();
    for [batch, heads, kv_heads, rows, keys] in SIZES {
        for head_dim in (8..=256).step_by(8) {
            for dtype in [DType::F16, DType::BF16] {
                for mask in [Mask::FULL, Mask::CAUSAL] {
                    let builder = Problem::builder().batch(batch).heads(heads, kv_heads);
                    let builder = builder.seq_len_q(rows).seq_len_kv(keys).head_dim(head_dim);
                    let builder = builder.dtype(dtype).mask(mask);
                    problems.push(builder.clone().build().unwrap());
                    problems.push(builder.softcap(30.0).return_lse(true).build().unwrap());
                }
            }
        }
    }
    problems
}

/// What an offline assembler makes of kernels, each asked about once.
struct Assembler {
    target: Target,
    /// Registers and spilled bytes by kernel.
    known: BTreeMap<String, (u32, u32)>,
}

impl Assembler {
    /// Registers of a kernel, where there is an assembler.
    fn registers(&mut self, step: &Step) -> Result<Option<u32>, Refusal> {
        let name = step.kernel.name();
        if !self.known.contains_key(name) {
            match offline(&step.kernel, self.target) {
                Ok(found) => self
                    .known
                    .insert(name.to_string(), (found.per_thread, found.spilled_bytes)),
                Err(Unknown::NoAssembler) => return Ok(None),
                Err(other) => panic!("{name}: {other}"),
            };
        }
        match self.known[name] {
            (registers, 0) => Ok(Some(registers)),
            (_, bytes) => Err(Refusal::Compiler {
                message: format!("{name} spills {bytes} B"),
            }),
        }
    }

    /// Registers of a plan's steps, or that one of them spills.
    fn judge(&mut self, plan: &Plan) -> Result<Vec<Option<u32>>, Refusal> {
        plan.steps().map(|step| self.registers(step)).collect()
    }
}

#[test]
fn every_default_of_sm_89_fits_an_l4() {
    let l4 = Profile::named("l4").unwrap();
    let limits = l4.target.limits();
    let kernels = KernelCache::default();
    let mut assembler = Assembler {
        target: l4.target,
        known: BTreeMap::new(),
    };
    let (mut shared_bytes, mut passed_over) = (BTreeMap::new(), BTreeSet::new());
    for problem in problems() {
        let judge = |plan: &Plan| Ok::<_, ()>(assembler.judge(plan));
        let (choice, registers) = select_with(&problem, l4.target, 16, &[], &kernels, judge)
            .unwrap()
            .unwrap();
        for considered in &choice.considered {
            if let Some(Refusal::Compiler { message }) = &considered.refusal {
                passed_over.insert(message.clone());
            }
        }
        let plan = choice.plan;
        assert_eq!(plan.config.family(), "mma", "{problem}: {}", plan.config);
        for (step, registers) in plan.steps().zip(registers) {
            let refusals = prove_launch(&step.kernel, &step.launch, l4.target, registers);
            assert_eq!(refusals, [], "{problem} by {}", plan.config);
            let shared = step.kernel.ledger().total_bytes();
            let occupancy = occupancy(&limits, step.kernel.threads(), registers.unwrap_or(0), shared);
            assert!(occupancy.blocks_per_sm >= 1, "{problem} by {}", plan.config);
            shared_bytes.insert(step.kernel.name().to_string(), shared);
        }
    }
    let most = shared_bytes.values().max().unwrap();
    println!(
        "{} kernels, {} assembled; at most {most} B of shared memory; {} passed over: {passed_over:#?}",
        shared_bytes.len(),
        assembler.known.len(),
        passed_over.len()
    );
    assert!((64 << 10..=limits.shared_per_block).contains(most));
}

/// The proof is one that can fail: a default of Hopper has no room on an L4.
#[test]
fn a_default_of_hopper_does_not_fit_an_l4() {
    let builder = Problem::builder().batch(32).heads(32, 32).seq_len(1024).head_dim(256);
    let kernels = KernelCache::default();
    let plan = select(&builder.build().unwrap(), Target::Sm90a, 16, &kernels)
        .unwrap()
        .plan;
    let l4 = Profile::named("l4").unwrap();
    let refusals = prove_launch(&plan.main.kernel, &plan.main.launch, l4.target, None);
    assert!(
        refusals
            .iter()
            .any(|refusal| matches!(refusal, LaunchRefusal::Shared { .. })),
        "{}: {refusals:?}",
        plan.config
    );
}
