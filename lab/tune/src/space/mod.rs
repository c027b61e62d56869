//! [`Space`]: the configs that a search may propose for a problem on a device, by id.

mod family;
mod fingerprint;
mod moves;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use flashcore_bench::own::is_own;
use flashcore_check::levers::{LeverInfo, described};
use flashcore_kernels::Family;
use flashcore_kernels::family::Values;
use flashcore_problem::rng::Rng;
use serde::Serialize;

use crate::own::OWN;

pub use family::{ALL, CPU};
pub use fingerprint::Fingerprint;
pub(crate) use fingerprint::fingerprint;

type Admit = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// Families, restricted to what a problem and a device allow.
#[derive(Clone)]
pub struct Space {
    families: Vec<Family>,
    admit: Arc<Admit>,
    /// All configs that may be proposed, if they are a list.
    listed: Option<Arc<Vec<String>>>,
    pub(crate) measured: Option<Arc<str>>,
    known: Arc<Mutex<HashMap<String, Result<(), String>>>>,
    /// Counting takes seconds in a debug build.
    counted: Arc<OnceLock<Vec<Counted>>>,
    yours: Arc<OnceLock<Vec<String>>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Counted {
    family: &'static str,
    levers: Vec<LeverInfo>,
    constraints: Vec<&'static str>,
    /// Number of configs whose levers are compatible, for any problem.
    configs: usize,
}

impl Space {
    /// A space of these families. `admit` decides whether a config may be proposed and is called
    /// once for each config; [`Gatekeeper`](crate::Gatekeeper) does this for a problem on a device.
    pub fn new(families: Vec<Family>, admit: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> Space {
        Space {
            families,
            admit: Arc::new(admit),
            listed: None,
            measured: None,
            known: Arc::default(),
            counted: Arc::default(),
            yours: Arc::default(),
        }
    }

    /// A space of just these configs. Samples are drawn uniformly from the list.
    pub fn of_list(families: Vec<Family>, ids: Vec<String>) -> Space {
        let there: HashSet<String> = ids.iter().cloned().collect();
        let listed = move |id: &str| {
            if there.contains(id) {
                Ok(())
            } else {
                Err("it is not among the measured configs".to_string())
            }
        };
        Space {
            listed: Some(Arc::new(ids)),
            ..Space::new(families, listed)
        }
    }

    /// The families.
    pub fn families(&self) -> impl Iterator<Item = &Family> {
        self.families.iter()
    }

    /// The family of a config, if it is in this space.
    pub fn family_of(&self, id: &str) -> Option<&Family> {
        self.read(id).map(|(family, _)| family)
    }

    fn read(&self, id: &str) -> Option<(&Family, Values)> {
        self.families()
            .find_map(|family| Some((family, family.read(id).filter(|values| family.allows(values))?)))
    }

    pub(crate) fn count(&self) -> &[Counted] {
        let count = |family: &Family| Counted {
            family: family.name,
            levers: described(family),
            constraints: family.constraints.iter().map(|constraint| constraint.rule).collect(),
            configs: family.configs().count(),
        };
        self.counted.get_or_init(|| self.families().map(count).collect())
    }

    /// Of each kernel of the user the first config that may be proposed, or the first if none may.
    pub(crate) fn yours(&self) -> &[String] {
        let admitted = |family: &Family| family.ids().find(|id| self.admits(id).is_ok());
        let first = |family: &Family| admitted(family).or_else(|| family.ids().next());
        let own = || self.families().filter(|family| family.name == OWN);
        self.yours.get_or_init(|| own().filter_map(first).collect())
    }

    /// Whether a config may be proposed, or why not.
    pub fn admits(&self, id: &str) -> Result<(), String> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = known().get(id) {
            return answer.clone();
        }
        let answer = match self.family_of(id) {
            // What a proposer wrote is of no family.
            None if !is_own(id) => Err(format!("`{id}` is no config of the families searched")),
            _ => (self.admit)(id),
        };
        known().insert(id.to_string(), answer.clone());
        answer
    }

    /// Every config, family by family, whether or not it may be proposed.
    pub fn configs(&self) -> Box<dyn Iterator<Item = String> + '_> {
        match &self.listed {
            Some(listed) => Box::new(listed.iter().cloned()),
            None => Box::new(self.families().flat_map(|family| family.ids())),
        }
    }

    /// A random config that may be proposed: uniform from a list, otherwise a uniform family, then
    /// one of its configs. `None` if a thousand draws find none.
    pub fn sample(&self, rng: &mut Rng) -> Option<String> {
        if let Some(listed) = &self.listed {
            return rng.pick(listed).cloned();
        }
        let family = *rng.pick(&self.families)?;
        let mut drawn = (0..DRAWS).map(|_| family.id(&family.sample(rng)));
        drawn.find(|id| self.admits(id).is_ok())
    }

    /// Configs that differ in one lever and may be proposed.
    pub fn neighbours(&self, id: &str) -> Vec<String> {
        let Some((family, values)) = self.read(id) else {
            return Vec::new();
        };
        let around = family.neighbours(&values).into_iter().map(|values| family.id(&values));
        around.filter(|other| self.admits(other).is_ok()).collect()
    }

    /// A random config that differs in this number of levers and may be proposed.
    pub fn mutate(&self, id: &str, levers: usize, rng: &mut Rng) -> Option<String> {
        let (family, values) = self.read(id)?;
        let mut drawn = (0..TRIES).filter_map(|_| Some(family.id(&moves::mutate(family, &values, levers, rng)?)));
        drawn.find(|mutant| self.admits(mutant).is_ok())
    }

    /// A random mixture of two configs of one family that may be proposed and is neither.
    pub fn crossover(&self, a: &str, b: &str, rng: &mut Rng) -> Option<String> {
        let (family, values) = self.read(a)?;
        let other = family.read(b).filter(|values| family.allows(values))?;
        let mut drawn = (0..TRIES).map(|_| family.id(&moves::crossover(family, &values, &other, rng)));
        drawn.find(|child| child != a && child != b && self.admits(child).is_ok())
    }

    /// A config's niche: its family and the size class of its tile of scores.
    pub fn niche(&self, id: &str) -> String {
        let Some((family, values)) = self.read(id) else {
            return "none".to_string();
        };
        let class = match (family.tile)(&values) {
            0 => "none",
            1..=2048 => "small",
            2049..=8192 => "medium",
            _ => "large",
        };
        format!("{}, {class} tiles", family.name)
    }

    /// The value of each lever in a config.
    pub fn values(&self, id: &str) -> Vec<(&'static str, String)> {
        let read = self.read(id);
        read.map(|(family, values)| family.print(&values)).unwrap_or_default()
    }

    /// The values of a lever in its order, each with the id of the config that has it, for those
    /// that may be proposed and the config itself. Empty if its family has no such lever.
    pub fn turned(&self, id: &str, lever: &str) -> Vec<(String, String)> {
        let Some((family, values)) = self.read(id) else {
            return Vec::new();
        };
        let Some(at) = family.levers.iter().position(|known| known.name == lever) else {
            return Vec::new();
        };
        let settings = family.settings(&values, at);
        let settings = settings.filter(|other| *other == values || family.allows(other));
        let mut turned: Vec<(String, String)> = settings
            .map(|other| (family.levers[at].print(other[at]), family.id(&other)))
            .collect();
        turned.retain(|(_, other)| other == id || self.admits(other).is_ok());
        turned
    }
}

/// Draws for a sample.
pub(crate) const DRAWS: usize = 1000;
/// Draws for a mutation or a mixture.
const TRIES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_kernels::{mma, wgmma};

    #[test]
    fn a_list_and_a_lever_restrict_the_neighbours() {
        let ids = ["cpu/m64n64", "cpu/m64n128"].map(str::to_string);
        let space = Space::of_list(vec![CPU], ids.to_vec());
        assert_eq!(space.neighbours("cpu/m64n64"), ["cpu/m64n128"]);
        assert!(space.admits("cpu/m32n32").is_err());
        let none = Space::new(vec![CPU], |_| Err("not one".to_string()));
        assert_eq!(
            (
                none.configs().count(),
                none.configs().filter(|id| none.admits(id).is_ok()).count()
            ),
            (120, 0)
        );
        let space = Space::new(vec![mma::FAMILY], |_| Ok(()));
        let turned = space.turned("mma/m64n64-w4x1-s2-b1-qsh-xor-cond", "q_in_registers");
        let id = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond".to_string();
        assert_eq!(turned[1], ("true".to_string(), id));
        assert!(space.turned("mma/m64n64-w4x1-s2-b1-qsh-xor-cond", "cluster").is_empty());
    }

    #[test]
    fn configs_that_are_not_admitted_are_never_proposed() {
        let odd = |id: &str| match id.len() % 2 {
            0 => Err("even".to_string()),
            _ => Ok(()),
        };
        let space = Space::new(vec![mma::FAMILY, wgmma::FAMILY, CPU], odd);
        let mut rng = Rng::new(1);
        let mut families = std::collections::BTreeSet::new();
        for _ in 0..60 {
            let id = space.sample(&mut rng).unwrap();
            families.insert(space.family_of(&id).unwrap().name);
            let mate = space.sample(&mut rng).unwrap();
            let mut proposed = space.neighbours(&id);
            proposed.extend(space.mutate(&id, 2, &mut rng));
            proposed.extend(space.crossover(&id, &mate, &mut rng));
            proposed.push(id);
            assert!(proposed.iter().all(|id| id.len() % 2 == 1));
        }
        assert_eq!(families.len(), 3);
    }

    #[test]
    fn a_config_is_checked_once() {
        let asked = Arc::new(Mutex::new(0));
        let counter = asked.clone();
        let space = Space::new(vec![CPU], move |_| {
            *counter.lock().unwrap() += 1;
            Ok(())
        });
        for _ in 0..3 {
            space.admits("cpu/m64n64").unwrap();
        }
        assert_eq!(*asked.lock().unwrap(), 1);
        assert!(
            space
                .admits("mma/m64n64-w4x1-s2-b1-qsh-xor-always")
                .unwrap_err()
                .contains("no config")
        );
    }
}
