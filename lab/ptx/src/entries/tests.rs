use flashcore_ir::proof::{LaunchRefusal, LaunchShape, prove, prove_launch};
use flashcore_ir::{Arg, BufferSpec, Chip, Kernel, Launch, Target};
use flashcore_kernels::{KernelCache, Plan, near};
use flashcore_problem::Problem;

use super::*;

#[test]
fn declarations_are_read_whatever_the_bodies_are() {
    let text = ".version 7.0 .target sm_80 .entry k(.param .u64 x) .maxntid 32, 4\n{ not even PTX \"}\" {} }";
    let module = PtxModule::declarations(text).unwrap();
    let entry = &module.entries[0];
    assert_eq!(entry.threads_allowed(), Some(128));
    assert_eq!((entry.line, entry.body_line), (1, 2));
    assert_eq!(&text[entry.body.clone()], " not even PTX \"}\" {} ");
    let facts = entry.facts();
    assert_eq!((facts.max_threads, facts.parameter_bytes), (Some(128), Some(vec![8])));
}

#[test]
fn what_is_no_ptx_is_refused() {
    for (text, part) in [
        ("", "no .version"),
        (".version 7.0", "no .target"),
        ("int main() {}", "no .version"),
        (".version 7.0 .target sm_80 .entry k() { ret;", "has no end"),
        (".version x .target sm_80", "a version such as 7.0"),
        (
            ".version 7.0 .target sm_80 .entry k( { ret; }",
            "line 1: expected `.param`, found `{`",
        ),
        (
            ".version 7.0 .target sm_80 .shared .b8 x[99999999999][99999999999];",
            "2^64",
        ),
    ] {
        let error = PtxModule::declarations(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn the_writers_ptx_declares_what_its_kernel_says() {
    let kernel = Kernel::build("add_one", 128, |k| {
        k.in_clusters_of(2);
        let data = k.param_ptr_mut::<f32>("data");
        let (len, _step, _bits) = (k.param::<u32>("len"), k.param::<i64>("step"), k.param::<u16>("bits"));
        let i = k.block_idx(0) * 128 + k.thread_idx();
        k.if_(i.lt(len).divergent(), || {
            let at = data.offset(i);
            at.store(at.load() + 1.0);
        });
    })
    .unwrap();
    let facts = KernelFacts::declared(&kernel);
    assert_eq!(facts.parameter_bytes, Some(vec![8, 4, 8, 2]));
    assert_eq!(
        (facts.max_threads, facts.required_cluster),
        (Some(128), Some([2, 1, 1]))
    );
    for ptx in [kernel.to_ptx(), kernel.to_ptx_with_lines()] {
        let module = PtxModule::declarations(&ptx).unwrap();
        assert_eq!(module.kernels(), [(kernel.name(), facts.clone())]);
    }
}

#[test]
fn kernels_of_attention_declare_what_they_say() {
    let kernels = KernelCache::default();
    for (name, target) in [
        ("small-causal", Target::Sm80),
        ("small-f32-backward", Target::Sm80),
        ("llama8b-prefill-2k", Target::Sm90a),
        ("llama8b-decode-8k", Target::Sm90a),
        ("gpt2-backward", Target::Sm90a),
    ] {
        let (problem, chip) = (Problem::named(name).unwrap(), Chip::from(target));
        let configs = near(&problem, chip, &kernels);
        assert!(!configs.is_empty(), "{name}");
        for config in &configs[..configs.len().min(4)] {
            let plan = Plan::with_cache(&problem, config, chip, &kernels).unwrap();
            for kernel in plan.steps().map(|step| &step.kernel) {
                let ptx = kernel.to_ptx();
                let module = PtxModule::declarations(&ptx).unwrap();
                assert_eq!(
                    module.kernels(),
                    [(kernel.name(), KernelFacts::declared(kernel))],
                    "{config}"
                );
            }
        }
    }
}

/// One kernel, known from its value, from its PTX, and by its numbers alone.
#[test]
fn every_source_of_facts_gets_the_same_answer() {
    let kernel = Kernel::build("nine_warps", 288, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        out.offset(k.thread_idx()).store(1.0);
    })
    .unwrap();
    let launch = Launch {
        grid: [1, 1, 1],
        block: [288, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: 0,
        programmatic: false,
        buffers: vec![BufferSpec {
            name: "out",
            bytes: 1152,
            written: true,
            align: 4,
        }],
        args: vec![Arg::Buffer {
            slot: 0,
            byte_offset: 0,
        }],
    };
    let module = PtxModule::declarations(&kernel.to_ptx()).unwrap();
    let mut read = module.entries[0].facts();
    read.registers = Some(200);
    let own = prove_launch(&kernel, &launch, Target::Sm89, Some(200));
    let foreign = prove(&LaunchShape::of(&launch), &read, &Target::Sm89.limits(), "sm_89");
    assert!(
        matches!(own[..], [LaunchRefusal::Registers { needed: 76_800, .. }]),
        "{own:?}"
    );
    assert_eq!(own, foreign);
    assert_eq!(prove_launch(&kernel, &launch, Target::Sm89, Some(168)), []);
}
