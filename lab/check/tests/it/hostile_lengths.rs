//! Lengths and pages that contradict the problem, as a device may hold them: kernels cut them to their bounds, touch no
//! foreign memory, and `check` names each with its array, sequence and entry.

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::BufferSpec;
use flashcore_kernels::Plan;
use flashcore_problem::rng::Rng;
use flashcore_problem::tensor::write_element;
use flashcore_problem::{KvLengths, Lengths, Mask, POISON, random_lengths};
use flashcore_sim::FindingKind;

use crate::lengths::{MMA, PACKED, PAGED, PAGED_BOXES, SCALAR, WGMMA, ragged, run_steps};

fn checked(plan: &Plan, lengths: Lengths<Vec<i32>>) -> flashcore_check::CheckReport {
    let options = CheckOptions {
        lengths: Some(lengths),
        ..CheckOptions::default()
    };
    check_plan(plan, &options).unwrap()
}

#[test]
fn values_that_contradict_the_problem_are_named() {
    for (config, pages) in [(SCALAR, PAGED), (MMA, PAGED), (WGMMA, PAGED_BOXES)] {
        let plan = ragged(config, pages, Mask::CAUSAL);
        let right = Lengths {
            cu_seqlens_q: Some(vec![0, 40, 60, 80]),
            seqused_q: Some(vec![40, 20, 20]),
            seqused_k: Some(vec![50, 20, 20]),
            block_table: Some((0..30).collect()),
            ..Lengths::default()
        };
        let report = checked(&plan, right.clone());
        assert_eq!(
            (report.verdict, report.values.len()),
            (Verdict::Clean, 0),
            "{config}\n{report}"
        );
        assert_eq!(report.gate.map(|gate| gate.passed()), Some(true));
        let mut wrong = right.clone();
        wrong.seqused_q = Some(vec![40, 20, 21]);
        wrong.seqused_k = Some(vec![50, 51, 20]);
        wrong.block_table.as_mut().unwrap()[3] = 40;
        let report = checked(&plan, wrong);
        assert_eq!(report.verdict, Verdict::Findings, "{config}\n{report}");
        let named = [
            "block_table has 40 in entry 3 of sequence 0; the cache has pages 0 to 39",
            "seqused_k has 51 for sequence 1; allowed are 0 to 50",
            "seqused_q has 21 for sequence 2; allowed are 0 to 20",
        ];
        assert_eq!(report.values, named, "{config}");
        // The kernel cuts them, and there is no right output.
        assert!(
            report.findings.is_empty() && report.gate.is_none(),
            "{config}\n{report}"
        );
        let text = report.to_string();
        assert!(text.contains(&format!("error[values]: {}", named[0])), "{text}");
        assert!(text.contains("the output was not compared"), "{text}");
        assert!(text.contains("3 findings under 1 schedule"), "{text}");
        let fault = report.fault().unwrap();
        assert_eq!(fault, format!("values; {}", named[0]));
    }
}

#[test]
fn arrays_of_another_problem_are_refused() {
    let plan = ragged(SCALAR, PAGED, Mask::FULL);
    let mut lengths = random_lengths(&plan.problem, 0);
    lengths.block_table.as_mut().unwrap().pop();
    let options = CheckOptions {
        lengths: Some(lengths),
        ..CheckOptions::default()
    };
    let refused = check_plan(&plan, &options).unwrap_err().to_string();
    assert!(refused.contains("block_table has 29 entries"), "{refused}");
}

/// Whatever the values are, no address leaves its tensor.
#[test]
fn hostile_values_touch_no_foreign_memory() {
    let values = [i32::MIN, -1, 0, 3, 79, 80, 81, 1 << 20, i32::MAX];
    let mut rng = Rng::new(5);
    for (config, kv_lengths) in [(SCALAR, PAGED), (MMA, PAGED), (WGMMA, PAGED_BOXES)]
        .into_iter()
        .flat_map(|(config, pages)| [PACKED, pages, KvLengths::Cache].map(|kv| (config, kv)))
    {
        // Without keys, the last rows of the window still ask for blocks of them.
        let masks = [Mask::FULL, Mask::window(Some(3), None).top_left()];
        let plans = masks.map(|mask| ragged(config, kv_lengths, mask));
        for round in 0..20 {
            let plan = &plans[round % 2];
            let content = |spec: &BufferSpec| {
                if Lengths::<i32>::NAMES.contains(&spec.name) {
                    (0..spec.bytes / 4)
                        .flat_map(|_| rng.pick(&values).unwrap().to_le_bytes())
                        .collect()
                } else {
                    vec![0; spec.bytes as usize]
                }
            };
            let (_, findings) = run_steps(plan, content);
            // Sequences that overlap write the same rows; that is all there may be.
            let worse = findings.iter().find(|finding| finding.kind != FindingKind::BlockRace);
            assert!(worse.is_none(), "round {round}: {worse:?}");
        }
    }
}

/// Lengths above their bounds count as the bounds, those below 0 as 0, and pages outside the cache hold zeros.
#[test]
fn values_beyond_bounds_are_cut_to_them() {
    let q = (vec![0, 60, 70, 80], [i32::MAX, 10, 10], [40, 10, 10]);
    let of_packed = |used: [i32; 3]| Lengths {
        cu_seqlens_k: Some(vec![0, 70, 90, 110]),
        seqused_k: Some(used.to_vec()),
        ..Lengths::default()
    };
    // Page 37 holds zeros.
    let of_pages = |used: [i32; 3], outside: [i32; 3]| {
        let entry = |i: usize| if i % 4 == 1 { outside[i % 3] } else { i as i32 };
        Lengths {
            seqused_k: Some(used.to_vec()),
            block_table: Some((0..30).map(entry).collect()),
            ..Lengths::default()
        }
    };
    let (beyond, cut) = ([1 << 20, 20, -5], [50, 20, 0]);
    for (kv_lengths, given, meant) in [
        (PACKED, of_packed(beyond), of_packed(cut)),
        (PAGED, of_pages(beyond, [-1, 40, i32::MAX]), of_pages(cut, [37; 3])),
        (
            PAGED_BOXES,
            of_pages(beyond, [-1, 40, i32::MAX]),
            of_pages(cut, [37; 3]),
        ),
    ] {
        for config in [SCALAR, MMA, WGMMA] {
            if (config, kv_lengths) == (WGMMA, PAGED) {
                continue;
            }
            let plan = ragged(config, kv_lengths, Mask::CAUSAL);
            let output = |lengths: &Lengths<Vec<i32>>, used_q: [i32; 3]| {
                let mut rng = Rng::new(3);
                let lengths = Lengths {
                    cu_seqlens_q: Some(q.0.clone()),
                    seqused_q: Some(used_q.to_vec()),
                    ..lengths.clone()
                };
                let content = |spec: &BufferSpec| match (lengths.named(spec.name), plan.problem.dtype()) {
                    (Some(values), _) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                    _ if spec.written => vec![POISON; spec.bytes as usize],
                    (None, dtype) => {
                        let count = spec.bytes as usize / dtype.size_bytes();
                        let of_pages = kv_lengths != PACKED && spec.name != "q";
                        let mut bytes = vec![0; spec.bytes as usize];
                        for i in (0..count).filter(|i| !(of_pages && i * 40 / count == 37)) {
                            write_element(dtype, &mut bytes, i, rng.normal());
                        }
                        bytes
                    }
                };
                let (mut buffers, findings) = run_steps(&plan, content);
                assert!(findings.is_empty(), "{config}: {findings:?}");
                buffers.retain(|name, _| ["out", "lse"].contains(name));
                buffers
            };
            assert!(output(&given, q.1) == output(&meant, q.2), "{config}, {kv_lengths:?}");
        }
    }
}
