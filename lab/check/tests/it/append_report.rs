//! Simulates an append, and compares what it leaves with float64.

use std::fmt;

use flashcore_ir::proof::prove_launch;
use flashcore_ir::{Arg, BufferSpec, Launch, Target};
use flashcore_kernels::Step;
use flashcore_problem::{Layout, POISON, ProblemError, SlotMapping, Tensor};
use flashcore_sim::{Finding, SimError, SimOptions, simulate};
use flashcore_testkit::{AppendCase, AppendReference, Expected};

/// What was found in an append.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppendReport {
    /// Lengths, pages, slots and positions that contradict it, with array, sequence and entry: the
    /// kernel cuts lengths to their bounds, and writes no row that has no place in the cache.
    pub values: Vec<ProblemError>,
    /// Findings of the launch proof.
    pub refusals: Vec<String>,
    /// Findings of the simulator.
    pub findings: Vec<Finding>,
    /// The tensor that is not as it must be, and why: a wrong element, or one that is of no new row.
    pub wrong: Option<(&'static str, String)>,
}

impl AppendReport {
    /// Whether the kernel did what it must. Its values may still contradict the append.
    pub(crate) fn is_right(&self) -> bool {
        self.refusals.is_empty() && self.findings.is_empty() && self.wrong.is_none()
    }
}

impl fmt::Display for AppendReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values
            .iter()
            .try_for_each(|error| writeln!(f, "error[values]: {error}"))?;
        self.refusals
            .iter()
            .try_for_each(|refusal| writeln!(f, "error[launch]: {refusal}"))?;
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))?;
        match &self.wrong {
            Some((tensor, why)) => writeln!(f, "error[wrong]: {tensor}: {why}"),
            None => Ok(()),
        }
    }
}

/// Simulates an append on a case. Caches and `q_out` begin as poison, so that every byte that is
/// written is seen; with `in_place`, Q is rotated where it is.
pub(crate) fn check_append(
    case: &AppendCase,
    step: &Step,
    in_place: bool,
    options: &SimOptions,
) -> Result<AppendReport, SimError> {
    let mut launch = step.launch.clone();
    if in_place {
        share_q(&mut launch);
    }
    // Whichever has the instructions of the kernel: rotations of e4m3 need sm_90.
    let first = Target::ALL
        .into_iter()
        .find(|target| step.kernel.requires().is_met_by(*target));
    let mut report = AppendReport {
        values: case.append.findings(&case.values(), case.slots()),
        refusals: prove_launch(&step.kernel, &launch, first.unwrap_or(Target::Sm80), None)
            .iter()
            .map(ToString::to_string)
            .collect(),
        ..AppendReport::default()
    };
    let before: Vec<Vec<u8>> = launch
        .buffers
        .iter()
        .map(|spec| content(case, spec, in_place))
        .collect();
    let mut after = before.clone();
    report.findings = simulate(&step.kernel, &launch, &mut after, options)?.findings;
    let want = case.reference();
    for (spec, (before, after)) in launch.buffers.iter().zip(before.iter().zip(&after)) {
        let compare = |expected: &[Option<Expected>], layout: &Layout| {
            AppendReference::compare(expected, case.append.dtype, layout, before, after)
        };
        let same = match (spec.name, &case.append.rotary) {
            ("k_cache", _) => compare(&want.k_cache, &case.append.k_cache),
            ("v_cache", _) => compare(&want.v_cache, &case.append.v_cache),
            ("q_out", Some(rotary)) => compare(&want.q, &rotary.q_out),
            ("seqused_k", _) => {
                let want: Vec<u8> = want.seqused_k.iter().flat_map(|keys| keys.to_le_bytes()).collect();
                let given = || {
                    after
                        .chunks(4)
                        .map(|keys| i32::from_le_bytes([keys[0], keys[1], keys[2], keys[3]]))
                };
                (want == *after)
                    .then_some(())
                    .ok_or_else(|| format!("{:?}", given().collect::<Vec<_>>()))
            }
            _ => Ok(()),
        };
        if let Err(why) = same {
            report.wrong.get_or_insert((spec.name, why));
        }
    }
    Ok(report)
}

/// Makes the argument `q` the memory of `q_out`.
fn share_q(launch: &mut Launch) {
    let slot = |name| launch.buffers.iter().position(|spec| spec.name == name);
    let (q, q_out) = (slot("q"), slot("q_out"));
    for arg in &mut launch.args {
        if let (Arg::Buffer { slot, .. }, Some(to)) = (arg, q_out)
            && Some(*slot) == q
        {
            *slot = to;
        }
    }
}

/// The bytes of a launch's buffer before it.
fn content(case: &AppendCase, spec: &BufferSpec, in_place: bool) -> Vec<u8> {
    let of = |tensor: &Tensor| tensor.bytes().to_vec();
    let i32s = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    if let Some(values) = case.values.named(spec.name) {
        return i32s(values);
    }
    match (spec.name, &case.rotary, case.slots()) {
        ("k_new", ..) => of(&case.k_new),
        ("v_new", ..) => of(&case.v_new),
        ("k_cache", ..) => of(&case.k_cache),
        ("v_cache", ..) => of(&case.v_cache),
        ("rotary_cos", Some([cos, ..]), _) => of(cos),
        ("rotary_sin", Some([_, sin, _]), _) => of(sin),
        ("q", Some([.., q]), _) => of(q),
        ("q_out", Some([.., q]), _) if in_place => of(q),
        ("slot_mapping", _, Some(SlotMapping::I32(slots))) => i32s(slots),
        ("slot_mapping", _, Some(SlotMapping::I64(slots))) => {
            slots.iter().flat_map(|slot| slot.to_le_bytes()).collect()
        }
        _ => vec![POISON; spec.bytes as usize],
    }
}
