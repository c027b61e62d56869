//! The gates before compilation: refusals, the launch proof, and the identity of the machine
//! program.

use flashcore::KernelId;
use flashcore_bench::own::is_own;
use flashcore_ir::Chip;
use flashcore_ir::proof::prove_launch;
use flashcore_kernels::{Family, KernelCache, Plan, mma, scalar, wgmma};
use flashcore_problem::Problem;
use flashcore_problem::rng::Rng;

use crate::own::OwnKernels;
use crate::space::{CPU, DRAWS, Fingerprint, Space, fingerprint};
use crate::worker::planted::{self, Conduct};

/// Checks configs without a device.
#[derive(Clone, Debug)]
pub struct Gatekeeper {
    pub(crate) problem: Problem,
    pub(crate) chip: Option<Chip>,
    own: OwnKernels,
}

impl Gatekeeper {
    /// For a problem on an architecture, or on the host if there is none.
    pub fn new(problem: &Problem, chip: Option<Chip>) -> Gatekeeper {
        Gatekeeper {
            problem: problem.clone(),
            chip,
            own: OwnKernels::default(),
        }
    }

    /// The same with kernels of the user.
    #[must_use]
    pub fn with_own(self, own: &OwnKernels) -> Gatekeeper {
        let own = own.clone();
        Gatekeeper { own, ..self }
    }

    /// A config's machine program, or why it may not be launched, with numbers and remedy.
    pub fn look(&self, id: &str) -> Result<Option<Fingerprint>, String> {
        if Conduct::of_id(id).is_some() {
            return Ok(None);
        }
        if is_own(id) {
            // Its program is not known before it is compiled.
            let chip = self.chip.ok_or("it runs on a GPU; the device is the host");
            return chip
                .map_err(str::to_string)
                .and_then(|_| self.own.look(id, &self.problem))
                .map(|()| None);
        }
        let kernel = id.parse().map_err(|error: flashcore::Error| error.to_string())?;
        let (config, chip) = match (kernel, self.chip) {
            (KernelId::Cpu(_), None) => return Ok(None),
            (KernelId::Gpu(config), Some(chip)) => (config, chip),
            (_, Some(_)) => return Err("it runs on the host; the device is a GPU".to_string()),
            (_, None) => return Err("it runs on a GPU; the device is the host".to_string()),
        };
        let plan = Plan::with_cache(&self.problem, &config, chip, &KernelCache::default())
            .map_err(|refusal| refusal.to_string())?;
        for step in plan.steps() {
            if let Some(refusal) = prove_launch(&step.kernel, &step.launch, chip.target, None).first() {
                return Err(refusal.to_string());
            }
        }
        Ok(Some(fingerprint(&plan)))
    }

    /// The families worth searching: the host's, or a GPU's with tensor cores, or else `scalar`.
    pub fn families(&self) -> Vec<Family> {
        if self.chip.is_none() {
            return vec![CPU];
        }
        let families = [mma::FAMILY, wgmma::FAMILY].into_iter();
        let mut families: Vec<_> = families.map(|family| family.of_problem(&self.problem)).collect();
        families.retain(|family| self.why_not(family).is_none());
        if families.is_empty() {
            families.push(scalar::FAMILY);
        }
        families
    }

    /// Whether there are no kernels of the user.
    pub(crate) fn has_none(&self) -> bool {
        self.own.is_empty()
    }

    /// Why no config of a family serves the problem; `None` if one does. A sample suffices, since a
    /// refusal concerns a whole family or levers that do not fit.
    pub(crate) fn why_not(&self, family: &Family) -> Option<String> {
        let mut rng = Rng::new(1);
        let mut last = None;
        for _ in 0..DRAWS {
            last = Some(self.look(&family.id(&family.sample(&mut rng))).err()?);
        }
        last
    }

    /// The space of these families and of the user's kernels. `torture` adds planted candidates.
    pub fn space(&self, mut families: Vec<Family>, torture: bool) -> Space {
        if torture {
            families.push(planted::FAMILY);
        }
        families.extend(self.own.families());
        let gate = self.clone();
        Space::new(families, move |id| gate.look(id).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_ir::Target;
    use flashcore_problem::{DType, Direction};

    #[test]
    fn proposals_of_a_space_can_be_launched() {
        let problem = Problem::named("small").unwrap();
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
        for head_dim in [40, 64, 128, 256] {
            let problem = Problem::builder().heads(4, 2).seq_len(256).head_dim(head_dim);
            let problem = problem.direction(Direction::Backward).build().unwrap();
            let gate = Gatekeeper::new(&problem, Some(Target::Sm90a.into()));
            let names: Vec<_> = gate.families().iter().map(|family| family.name).collect();
            assert_eq!(names, ["mma", "wgmma"], "the backward pass of head_dim {head_dim}");
        }
        // Of a deterministic one, no block shares a tile of keys.
        let problem = Problem::builder().heads(4, 2).seq_len(256).head_dim(64);
        let problem = problem
            .deterministic(true)
            .direction(Direction::Backward)
            .build()
            .unwrap();
        let splits = |family: &Family| {
            family
                .levers
                .iter()
                .find(|lever| lever.name == "splits")
                .unwrap()
                .values
        };
        for family in Gatekeeper::new(&problem, Some(Target::Sm90a.into())).families() {
            assert_eq!(splits(&family), [1], "{}", family.name);
        }
        let f32s = Problem::builder()
            .heads(1, 1)
            .seq_len(128)
            .head_dim(64)
            .dtype(DType::F32)
            .build()
            .unwrap();
        let ada = Gatekeeper::new(&f32s, Some(Target::Sm89.into()));
        assert!(ada.why_not(&wgmma::FAMILY).is_some() && ada.why_not(&scalar::FAMILY).is_none());
        let families = Gatekeeper::new(&f32s, Some(Target::Sm89.into())).families();
        assert_eq!(
            families.iter().map(|family| family.name).collect::<Vec<_>>(),
            ["scalar"]
        );
    }

    #[test]
    fn a_fingerprint_identifies_program_and_launch() {
        let gate = Gatekeeper::new(&Problem::named("small").unwrap(), Some(Target::Sm90a.into()));
        let look = |id: &str| gate.look(id).unwrap().unwrap();
        let config = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond";
        assert_eq!(look(config), look(config));
        assert_ne!(look(config), look("mma/m64n64-w4x1-s3-b1-qreg-xor-cond"));
        assert_ne!(look(config), look("mma/m64n64-w4x1-s2-b2-qreg-xor-cond"));
    }

    #[test]
    fn kernels_of_another_device_are_refused() {
        let problem = Problem::named("small").unwrap();
        let refused = |target, id: &str| Gatekeeper::new(&problem, target).look(id).unwrap_err();
        let too_large = refused(Some(Target::Sm89.into()), "mma/m128n256-w4x1-s5-b1-qreg-xor-cond");
        assert!(
            too_large.contains("registers") || too_large.contains("shared memory"),
            "{too_large}"
        );
        assert!(refused(None, "mma/m64n64-w4x1-s2-b1-qreg-xor-cond").contains("GPU"));
        assert!(refused(Some(Target::Sm89.into()), "cpu/m64n64").contains("host"));
        assert!(refused(None, "what").contains("no kernel is named"));
    }
}
