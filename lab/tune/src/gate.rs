//! The first gates, before anything is compiled: refusals, what is known to fail about a launch, and whether the same
//! machine program was tried before.

use flashcore::KernelId;
use flashcore_ir::Chip;
use flashcore_ir::proof::prove_launch;
use flashcore_kernels::{KernelCache, Plan};
use flashcore_problem::Problem;
use flashcore_problem::rng::Rng;

use crate::space::{Family, Fingerprint, Space, fingerprint};
use crate::worker::planted::{self, Conduct};

/// Says of a config what can be said without a device.
#[derive(Clone, Debug)]
pub struct Gatekeeper {
    problem: Problem,
    /// The architecture; `None` for the host.
    chip: Option<Chip>,
}

impl Gatekeeper {
    /// For a problem on an architecture, or on the host where there is none.
    pub fn new(problem: &Problem, chip: Option<Chip>) -> Gatekeeper {
        Gatekeeper {
            problem: problem.clone(),
            chip,
        }
    }

    /// Whether a config may be launched, and what its machine program is.
    ///
    /// ```
    /// use flashcore_ir::Target;
    /// use flashcore_problem::Problem;
    /// use flashcore_tune::Gatekeeper;
    /// let gate = Gatekeeper::new(&Problem::named("mission")?, Some(Target::Sm89.into()));
    /// assert!(gate.look("mma/m64n64-w4x1-s2-b1-qreg-xor-lazy").is_ok());
    /// let refused = gate.look("mma/m128n256-w4x1-s5-b1-qreg-xor-lazy").unwrap_err();
    /// assert!(refused.contains("registers") || refused.contains("shared memory"), "{refused}");
    /// # Ok::<(), flashcore_problem::ProblemError>(())
    /// ```
    ///
    /// # Errors
    /// Why not, in a sentence with numbers and remedy.
    pub fn look(&self, id: &str) -> Result<Option<Fingerprint>, String> {
        if Conduct::of_id(id).is_some() {
            return Ok(None);
        }
        let config = match (
            id.parse().map_err(|error: flashcore::Error| error.to_string())?,
            self.chip,
        ) {
            (KernelId::Cpu(_), None) => return Ok(None),
            (KernelId::Gpu(config), Some(chip)) => (config, chip),
            (KernelId::Cpu(_), Some(_)) => return Err("it runs on the host; the device is a GPU".to_string()),
            (KernelId::Gpu(_), None) => return Err("it runs on a GPU; the device is the host".to_string()),
        };
        let (config, chip) = config;
        let plan = Plan::with_cache(&self.problem, &config, chip, &KernelCache::default())
            .map_err(|refusal| refusal.to_string())?;
        for step in plan.steps() {
            if let Some(refusal) = prove_launch(&step.kernel, &step.launch, chip.target, None).first() {
                return Err(refusal.to_string());
            }
        }
        Ok(Some(fingerprint(&plan)))
    }

    /// The families worth searching: for the host its own, for a GPU those that tensor cores serve, or `scalar` where
    /// they serve none.
    pub fn families(&self) -> Vec<Family> {
        if self.chip.is_none() {
            return vec![Family::cpu()];
        }
        let mut families = vec![Family::mma(), Family::wgmma()];
        families.retain(|family| self.why_not(family).is_none());
        if families.is_empty() {
            families.push(Family::scalar());
        }
        families
    }

    /// Why no config of a family serves the problem; `None` where one does. Among so many drawn, as refusals go by whole
    /// families or by levers that do not fit.
    pub(crate) fn why_not(&self, family: &Family) -> Option<String> {
        const DRAWN: usize = 100;
        let mut rng = Rng::new(1);
        let mut last = None;
        for _ in 0..DRAWN {
            last = Some(self.look(&family.sample(&mut rng)).err()?);
        }
        last
    }

    /// The space of these families. `torture` adds candidates that are known to be bad.
    pub fn space(&self, mut families: Vec<Family>, torture: bool) -> Space {
        if torture {
            families.push(planted::family());
        }
        let gate = self.clone();
        Space::new(families, move |id| gate.look(id).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_ir::Target;
    use flashcore_problem::DType;

    #[test]
    fn what_a_space_proposes_can_be_launched() {
        let problem = Problem::named("mission").unwrap();
        for (target, families) in [
            (Some(Target::Sm89.into()), vec!["mma"]),
            (Some(Target::Sm90a.into()), vec!["mma", "wgmma"]),
            (None, vec!["cpu"]),
        ] {
            let gate = Gatekeeper::new(&problem, target);
            let space = gate.space(gate.families(), false);
            assert_eq!(space.families().map(|family| family.name).collect::<Vec<_>>(), families);
            let mut rng = Rng::new(4);
            for _ in 0..5 {
                let id = space.sample(&mut rng).unwrap();
                assert_eq!(gate.look(&id).unwrap().is_some(), target.is_some());
            }
        }
        let f32s = Problem::builder().dtype(DType::F32).build().unwrap();
        let ada = Gatekeeper::new(&f32s, Some(Target::Sm89.into()));
        assert!(ada.why_not(&Family::wgmma()).is_some() && ada.why_not(&Family::scalar()).is_none());
        let families = Gatekeeper::new(&f32s, Some(Target::Sm89.into())).families();
        assert_eq!(
            families.iter().map(|family| family.name).collect::<Vec<_>>(),
            ["scalar"]
        );
    }

    #[test]
    fn a_fingerprint_is_of_the_program_and_its_launch() {
        let gate = Gatekeeper::new(&Problem::named("mission").unwrap(), Some(Target::Sm90a.into()));
        let look = |id: &str| gate.look(id).unwrap().unwrap();
        let config = "mma/m64n64-w4x1-s2-b1-qreg-xor-lazy";
        assert_eq!(look(config), look(config));
        assert_ne!(look(config), look("mma/m64n64-w4x1-s3-b1-qreg-xor-lazy"));
        assert_ne!(look(config), look("mma/m64n64-w4x1-s2-b2-qreg-xor-lazy"));
    }

    #[test]
    fn kernels_of_another_device_are_refused() {
        let problem = Problem::named("mission").unwrap();
        let refused = |target, id: &str| Gatekeeper::new(&problem, target).look(id).unwrap_err();
        assert!(refused(None, "mma/m64n64-w4x1-s2-b1-qreg-xor-lazy").contains("GPU"));
        assert!(refused(Some(Target::Sm89.into()), "cpu/m64n64").contains("host"));
        assert!(refused(None, "what").contains("no kernel is named"));
    }
}
