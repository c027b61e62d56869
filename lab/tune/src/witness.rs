//! Who may witness in the finals: a kernel whose whole answer the finalists' are held against. It is none of them, and none
//! that a planted one of them is made from; it is of another family where one serves the problem, or is the host.

use flashcore::KernelId;
use flashcore_problem::rng::Rng;
use flashcore_problem::{InputKind, Problem, Tensor};

use crate::error::TuneError;
use crate::gate::Gatekeeper;
use crate::remote::Written;
use crate::space::{Family, Fingerprint, Space};
use crate::trial::History;
use crate::worker::draw;
use crate::worker::planted::{self, Conduct};

/// Configs drawn of a family to find one that serves.
const DRAWN: usize = 50;
/// Configs of the finalists' own families that are drawn where none was tried, and witnesses tried of those families.
const KIN: usize = 8;
/// Longest that the host may take for its answer, and what a core of it does at least: seconds, operations a second.
const HOST_SECONDS: f64 = 10.0;
const HOST_RATE: f64 = 10e9;

/// Somebody to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// A kernel, on the device.
    Kernel(String),
    /// This process, by the kernel of the CPU that the library would use.
    Host(String),
}

/// Who there is to ask.
pub(crate) struct Witnesses<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) gate: Gatekeeper,
    pub(crate) space: &'a Space,
    pub(crate) history: &'a History,
    /// The kernel that planted candidates are made from.
    pub(crate) wrapped: Option<String>,
    /// Whether candidates run on a GPU, so that the host is somebody else.
    pub(crate) on_gpu: bool,
}

impl Witnesses<'_> {
    /// Those that nothing runs of in the finals, the most unlike the finalists first.
    pub(crate) fn of(&self, finalists: &[String]) -> Vec<Candidate> {
        let in_finals = self.in_finals(finalists);
        let programs: Vec<Fingerprint> = in_finals.iter().filter_map(|id| self.program(id)).collect();
        let is_free = |id: &String| {
            let same_program = || self.program(id).is_some_and(|program| programs.contains(&program));
            !in_finals.contains(id) && !same_program()
        };
        let mut rng = Rng::new(1);
        let plain = [Family::scalar(), Family::cpu()].into_iter();
        let plain = plain.filter(|family| in_finals.iter().all(|id| self::family(id) != family.name));
        let strangers = plain.filter_map(|family| {
            let mut drawn = (0..DRAWN).map(|_| family.sample(&mut rng));
            drawn.find(|id| self.gate.look(id).is_ok())
        });
        let mut candidates: Vec<Candidate> = strangers.map(Candidate::Kernel).collect();
        if let Some(host) = self.host() {
            candidates.push(Candidate::Host(host));
            return candidates;
        }
        // Those that came through the gates; the slowest first, of those that share as many levers.
        let ranked = self.history.ranked();
        let tried = ranked.iter().rev().map(|trial| trial.id.clone());
        let mut kin: Vec<String> = tried.filter(|id| Conduct::of_id(id).is_none() && is_free(id)).collect();
        if kin.is_empty() {
            // Of planted candidates alone nothing else is in the space.
            let plain = [Family::scalar(), Family::cpu()];
            let searched = self.space.families().filter(|family| family.name != planted::NAME);
            for family in searched.chain(&plain) {
                let drawn = (0..DRAWN).map(|_| family.sample(&mut rng));
                kin.extend(drawn.filter(|id| self.gate.look(id).is_ok() && is_free(id)).take(KIN));
            }
        }
        kin.sort_by_key(|id| in_finals.iter().map(|finalist| self.shared(id, finalist)).max());
        kin.truncate(KIN);
        candidates.extend(kin.into_iter().map(Candidate::Kernel));
        candidates
    }

    /// Whether somebody may witness beside these finalists.
    pub(crate) fn may(&self, witness: &str, finalists: &[String]) -> bool {
        !self.in_finals(finalists).iter().any(|id| id == witness)
    }

    /// Finalists, and what planted ones of them are made from.
    fn in_finals(&self, finalists: &[String]) -> Vec<String> {
        let is_planted = finalists.iter().any(|id| Conduct::of_id(id).is_some());
        let wrapped = self.wrapped.iter().filter(|_| is_planted);
        finalists.iter().chain(wrapped).cloned().collect()
    }

    fn program(&self, id: &str) -> Option<Fingerprint> {
        self.gate.look(id).ok().flatten()
    }

    /// Levers in which two configs agree.
    fn shared(&self, one: &str, other: &str) -> usize {
        if family(one) != family(other) {
            return 0;
        }
        let (one, other) = (self.space.values(one), self.space.values(other));
        one.iter().filter(|value| other.contains(value)).count()
    }

    /// The host's kernel, where it is not the device itself and soon done.
    fn host(&self) -> Option<String> {
        let threads = rayon::current_num_threads();
        let most = HOST_SECONDS * HOST_RATE * threads as f64;
        let config = flashcore_cpu::default_config(self.problem, threads);
        (self.on_gpu && self.problem.flops() <= most).then(|| KernelId::Cpu(config).to_string())
    }
}

/// The family of an id.
fn family(id: &str) -> &str {
    id.split_once('/').map_or(id, |(family, _)| family)
}

/// What the host computes for normal inputs of a seed.
///
/// # Errors
/// What the host's kernel says of the problem.
pub(crate) fn answer_of_host(problem: &Problem, seed: u64) -> Result<Written, TuneError> {
    let inputs = draw(problem, InputKind::Normal, seed);
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let mut lse = vec![0.0_f32; if problem.return_lse() { problem.lse_len() } else { 0 }];
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let asked = problem.return_lse().then_some(&mut lse[..]);
    flashcore_cpu::attention(problem, q, k, v, &mut out.view_mut(), asked).map_err(flashcore::Error::from)?;
    Ok(Written {
        out: out.bytes().to_vec(),
        lse: lse.iter().flat_map(|value| value.to_ne_bytes()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use flashcore_ir::{Chip, Target};
    use flashcore_problem::DType;

    use super::*;
    use crate::rows;

    const FINALISTS: [&str; 2] = ["wgmma/m64n64-s2-free-bold", "wgmma/m64n128-s2-free-bold"];

    /// Who is asked in the finals of a problem on an H200.
    fn asked(problem: &Problem, tried: &[&str], finalists: &[&str]) -> Vec<Candidate> {
        let chip = Chip {
            target: Target::Sm90a,
            sms: 132,
        };
        let gate = Gatekeeper::new(problem, Some(chip));
        let space = gate.space(gate.families(), false);
        let mut history = History::default();
        for (number, id) in tried.iter().enumerate() {
            history.add(crate::trial::tests::trial(number, id, Some(1.0 + number as f64)));
        }
        let finalists: Vec<String> = finalists.iter().map(ToString::to_string).collect();
        let witnesses = Witnesses {
            problem,
            gate,
            space: &space,
            history: &history,
            wrapped: Some(FINALISTS[1].to_string()),
            on_gpu: true,
        };
        let asked = witnesses.of(&finalists);
        for candidate in &asked {
            let (Candidate::Kernel(id) | Candidate::Host(id)) = candidate;
            assert!(witnesses.may(id, &finalists), "{id} is in the finals");
        }
        assert!(!witnesses.may(&finalists[0], &finalists));
        asked
    }

    fn problem(dtype: DType, heads: usize, length: usize) -> Problem {
        let problem = Problem::builder().heads(heads, heads).seq_len(length).head_dim(64);
        problem.dtype(dtype).build().unwrap()
    }

    #[test]
    fn a_witness_is_of_another_family_or_the_host() {
        let half = asked(&problem(DType::F16, 4, 512), &FINALISTS, &FINALISTS);
        assert!(
            matches!(&half[0], Candidate::Kernel(id) if id.starts_with("scalar/")),
            "{half:?}"
        );
        // Of e4m3 no plain kernel is on the card.
        let fp8 = asked(&problem(DType::E4M3, 4, 512), &FINALISTS, &FINALISTS);
        assert!(matches!(&fp8[..], [Candidate::Host(_)]), "{fp8:?}");
    }

    #[test]
    fn where_the_host_takes_too_long_a_witness_is_no_finalist_and_the_most_unlike() {
        let large = problem(DType::E4M3, 1024, 16384);
        let (like, unlike) = ("wgmma/m64n64-s3-free-bold", "wgmma/m192n128-s3-turns-lazy");
        // The slowest is a finalist: the default.
        let tried = [unlike, like, FINALISTS[0], FINALISTS[1]];
        let kernel = |id: &str| Candidate::Kernel(id.to_string());
        assert_eq!(asked(&large, &tried, &FINALISTS), [kernel(unlike), kernel(like)]);
        // Nobody else was tried.
        let drawn = asked(&large, &FINALISTS, &FINALISTS);
        assert!(!drawn.is_empty());
        // A planted finalist is made from a kernel that is to witness for nobody then.
        let planted = ["planted/lazy-in-finals", FINALISTS[0]];
        assert_eq!(
            asked(&large, &[FINALISTS[0], FINALISTS[1], like], &planted),
            [kernel(like)]
        );
        assert_eq!(
            asked(&large, &[FINALISTS[0], FINALISTS[1]], &FINALISTS[..1]),
            [kernel(FINALISTS[1])]
        );
    }

    #[test]
    fn the_host_answers_e4m3_as_float64_does() {
        let problem = Problem::builder()
            .heads(4, 2)
            .seq_len(130)
            .head_dim(64)
            .dtype(DType::E4M3);
        let problem = problem.return_lse(true).build().unwrap();
        let answer = answer_of_host(&problem, 5).unwrap();
        let every: Vec<[usize; 3]> = (0..64).map(|at| [0, at % 4, at * 2]).collect();
        assert!(rows::arbitrate(&problem, 5, &every, &answer).unwrap().is_none());
        let mut spoiled = answer_of_host(&problem, 5).unwrap();
        spoiled.out[1] ^= 0x40;
        assert!(rows::arbitrate(&problem, 5, &every, &spoiled).unwrap().is_some());
        assert_eq!(rows::differing(&problem, &spoiled, &answer), [[0, 0, 0]]);
    }
}
