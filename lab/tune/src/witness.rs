//! The witness of the finals: a kernel whose whole output the finalists' outputs are compared with.
//! It is of another family than each of them, or the host if the device is a GPU. If neither
//! serves, there is no witness.

use flashcore::KernelId;
use flashcore_bench::cpu::{CpuBed, CpuSubject};
use flashcore_bench::defences::Output;
use flashcore_bench::{Bed, BenchError, Subject, Trouble, draw};
use flashcore_problem::rng::Rng;
use flashcore_problem::{InputKind, Problem, Tensor};

use crate::error::TuneError;
use crate::gate::Gatekeeper;
use crate::remote::Written;
use flashcore_kernels::scalar;

const DRAWN: usize = 50;
/// Longest time for the host's output, seconds, and lowest rate of a core, operations per second.
const HOST_SECONDS: f64 = 10.0;
const HOST_RATE: f64 = 10e9;

/// Witnesses in the order of preference: a kernel of the device, and the CPU kernel that the library
/// would choose, for this process.
pub(crate) fn witnesses(gate: &Gatekeeper, finalists: &[String]) -> Vec<String> {
    let (mut rng, scalar) = (Rng::new(1), scalar::FAMILY);
    let mut drawn = (0..DRAWN).map(|_| scalar.id(&scalar.sample(&mut rng)));
    let kernel = drawn.find(|id| may_witness(id, finalists) && gate.look(id).is_ok());
    // The host, if the device is a GPU and the host is fast enough.
    let threads = rayon::current_num_threads();
    let is_fast = gate.problem.flops() <= HOST_SECONDS * HOST_RATE * threads as f64;
    let config = flashcore_cpu::default_config(&gate.problem, threads);
    let host = (gate.chip.is_some() && is_fast).then(|| KernelId::Cpu(config).to_string());
    kernel.into_iter().chain(host).collect()
}

pub(crate) fn may_witness(witness: &str, finalists: &[String]) -> bool {
    finalists.iter().all(|id| family(id) != family(witness))
}

pub(crate) fn family(id: &str) -> &str {
    id.split_once('/').map_or(id, |(family, _)| family)
}

pub(crate) fn output_of_host(problem: &Problem, seed: u64) -> Result<Written, TuneError> {
    let failed = |trouble: Trouble| BenchError::Failed(format!("the host's output: {trouble}"));
    let bed = CpuBed::new(problem);
    bed.load(0, &draw(problem, InputKind::Normal, seed)).map_err(failed)?;
    let config = flashcore_cpu::default_config(problem, rayon::current_num_threads());
    CpuSubject::new(&bed, config, 0).call().map_err(failed)?;
    let mut out = Vec::new();
    bed.see(0, Output::Final, &mut |outs| {
        out = outs.iter().map(Tensor::bytes).collect::<Vec<_>>().concat()
    })
    .map_err(failed)?;
    let lse = bed.read_lse(0).map_err(failed)?;
    let lse = lse.iter().flatten().flat_map(|value| value.to_ne_bytes());
    Ok(Written {
        out,
        lse: lse.collect(),
    })
}

#[cfg(test)]
mod tests {
    use flashcore_ir::{Chip, Target};
    use flashcore_problem::DType;

    use super::*;
    use crate::rows;

    /// Witnesses for the finals of a problem on an H200, or on the host.
    fn asked(problem: &Problem, finalists: &[&str], on_gpu: bool) -> Vec<String> {
        let chip = Chip {
            target: Target::Sm90a,
            sms: 132,
        };
        let gate = Gatekeeper::new(problem, on_gpu.then_some(chip));
        let finalists: Vec<String> = finalists.iter().map(ToString::to_string).collect();
        let asked = witnesses(&gate, &finalists);
        for id in &asked {
            assert!(may_witness(id, &finalists), "{id} is of a finalist's family");
        }
        asked
    }

    fn problem(dtype: DType, heads: usize, length: usize) -> Problem {
        let problem = Problem::builder().heads(heads, heads).seq_len(length).head_dim(64);
        problem.dtype(dtype).build().unwrap()
    }

    #[test]
    fn a_witness_is_of_another_family_or_the_host_or_there_is_none() {
        const WGMMA: [&str; 2] = ["wgmma/m64n64-s2-free-spec", "wgmma/m64n128-s2-free-spec"];
        let small = problem(DType::F16, 4, 512);
        let half = asked(&small, &WGMMA, true);
        let families = |ids: &[String]| ids.iter().map(|id| family(id).to_string()).collect::<Vec<_>>();
        assert_eq!(families(&half), ["scalar", "cpu"]);
        // A scalar kernel is among the finalists.
        let scalar = asked(&small, &[&half[0], WGMMA[0]], true);
        assert_eq!(families(&scalar), ["cpu"]);
        // For e4m3 there is no scalar kernel, and the host takes too long for a large problem.
        let fp8 = asked(&problem(DType::E4M3, 4, 512), &WGMMA, true);
        assert_eq!(families(&fp8), ["cpu"]);
        assert_eq!(asked(&problem(DType::E4M3, 1024, 16_384), &WGMMA, true), [""; 0]);
        // The host's kernels are one family.
        assert_eq!(asked(&small, &["cpu/m16n16", "planted/honest"], false), [""; 0]);
    }

    #[test]
    fn the_host_computes_e4m3_as_float64_does() {
        let problem = Problem::builder()
            .heads(4, 2)
            .seq_len(130)
            .head_dim(64)
            .dtype(DType::E4M3);
        let problem = problem.return_lse(true).build().unwrap();
        let output = output_of_host(&problem, 5).unwrap();
        let every: Vec<rows::Row> = (0..64).map(|at| (0, [0, at % 4, at * 2])).collect();
        assert!(rows::arbitrate(&problem, 5, &every, &output, 1.0).unwrap().is_none());
        let mut spoiled = output_of_host(&problem, 5).unwrap();
        spoiled.out[1] ^= 0x40;
        assert!(rows::arbitrate(&problem, 5, &every, &spoiled, 1.0).unwrap().is_some());
        assert_eq!(rows::differing(&problem, &spoiled, &output), [(0, [0, 0, 0])]);
    }
}
