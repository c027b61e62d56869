//! [`Space`]: what a search may propose for a problem on a device. Candidates go by their ids.

mod family;
mod fingerprint;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use flashcore_problem::rng::Rng;
use serde::Serialize;

pub use family::{CPU_LEVERS, Family, LeverInfo};
pub use fingerprint::{Fingerprint, fingerprint};

/// Whether a candidate may be proposed, or why not.
type Admit = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// Families with their levers, and what a problem and a device leave of them.
#[derive(Clone)]
pub struct Space {
    families: Vec<Arc<Family>>,
    admit: Arc<Admit>,
    /// All that may be proposed, where that is a list.
    listed: Option<Arc<Vec<String>>>,
    /// What was measured of it, if it is one that is only replayed.
    measured: Option<Arc<str>>,
    known: Arc<Mutex<HashMap<String, Result<(), String>>>>,
}

/// What a space is made of, for people and for files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counted {
    /// The family.
    pub family: &'static str,
    /// Its levers.
    pub levers: Vec<LeverInfo>,
    /// What keeps combinations out, a sentence each.
    pub constraints: &'static [&'static str],
    /// Configs whose levers go together, whatever the problem.
    pub configs: usize,
}

impl Space {
    /// A space of these families, of which `admit` says whether a config may be proposed, such as
    /// [`Gatekeeper`](crate::Gatekeeper) or a table of what was measured. It is asked once for each config.
    ///
    /// ```
    /// use flashcore_problem::rng::Rng;
    /// use flashcore_tune::space::{Family, Space};
    /// let even = |id: &str| if id.contains("-s2") { Ok(()) } else { Err("two stages only".to_string()) };
    /// let space = Space::new(vec![Family::wgmma()], even);
    /// let id = space.sample(&mut Rng::new(1)).unwrap();
    /// assert!(id.starts_with("wgmma/") && id.contains("-s2"));
    /// assert!(space.neighbours(&id).iter().all(|other| other.contains("-s2")));
    /// assert_eq!(space.admits("wgmma/m128n128-s3-turns-lazy").unwrap_err(), "two stages only");
    /// ```
    pub fn new(families: Vec<Family>, admit: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> Space {
        Space {
            families: families.into_iter().map(Arc::new).collect(),
            admit: Arc::new(admit),
            listed: None,
            measured: None,
            known: Arc::default(),
        }
    }

    /// A space of just these configs, such as those that were measured once. Samples are drawn evenly from the list.
    ///
    /// ```
    /// use flashcore_problem::rng::Rng;
    /// use flashcore_tune::space::{Family, Space};
    /// let ids = ["cpu/m64n64", "cpu/m64n128"].map(str::to_string);
    /// let space = Space::of_list(vec![Family::cpu()], ids.to_vec());
    /// assert_eq!(space.neighbours("cpu/m64n64"), ["cpu/m64n128"]);
    /// assert!(space.admits("cpu/m32n32").is_err());
    /// ```
    pub fn of_list(families: Vec<Family>, ids: Vec<String>) -> Space {
        let there: HashSet<String> = ids.iter().cloned().collect();
        let listed = move |id: &str| match there.contains(id) {
            true => Ok(()),
            false => Err("it is not among those that can be tried here".to_string()),
        };
        Space {
            listed: Some(Arc::new(ids)),
            ..Space::new(families, listed)
        }
    }

    /// The same space, to be replayed from what was measured of it: that is part of what it is.
    pub(crate) fn replaying(self, measured: String) -> Space {
        Space {
            measured: Some(measured.into()),
            ..self
        }
    }

    /// What was measured of it, if it is one that is only replayed.
    pub(crate) fn measured(&self) -> Option<&str> {
        self.measured.as_deref()
    }

    /// The families.
    pub fn families(&self) -> impl Iterator<Item = &Family> {
        self.families.iter().map(Arc::as_ref)
    }

    /// The family of a config, if it is one of this space's.
    pub fn family_of(&self, id: &str) -> Option<&Family> {
        self.families().find(|family| family.owns(id))
    }

    /// What it is made of.
    pub fn count(&self) -> Vec<Counted> {
        let count = |family: &Family| Counted {
            family: family.name,
            levers: family.levers.clone(),
            constraints: family.constraints,
            configs: family.configs().count(),
        };
        self.families().map(count).collect()
    }

    /// Whether a config may be proposed.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn admits(&self, id: &str) -> Result<(), String> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = known().get(id) {
            return answer.clone();
        }
        let answer = match self.family_of(id) {
            None => Err(format!("`{id}` is no config of the families searched")),
            Some(_) => (self.admit)(id),
        };
        known().insert(id.to_string(), answer.clone());
        answer
    }

    /// Every config, family by family, whether or not it may be proposed: nobody is asked.
    ///
    /// ```
    /// use flashcore_tune::space::{Family, Space};
    /// let none = Space::new(vec![Family::cpu()], |_| Err("not one".to_string()));
    /// assert_eq!((none.configs().count(), none.all().count()), (120, 0));
    /// ```
    pub fn configs(&self) -> Box<dyn Iterator<Item = String> + '_> {
        match &self.listed {
            Some(listed) => Box::new(listed.iter().cloned()),
            None => Box::new(self.families().flat_map(|family| family.configs())),
        }
    }

    /// Every config that may be proposed, family by family. Asks about all of them: for small spaces.
    pub fn all(&self) -> Box<dyn Iterator<Item = String> + '_> {
        Box::new(
            self.configs()
                .filter(|id| self.listed.is_some() || self.admits(id).is_ok()),
        )
    }

    /// A config that may be proposed: from a list evenly, otherwise a family drawn evenly, then one of its configs.
    /// `None` where a thousand draws find none.
    pub fn sample(&self, rng: &mut Rng) -> Option<String> {
        if let Some(listed) = &self.listed {
            return rng.pick(listed).cloned();
        }
        let family = rng.pick(&self.families)?.clone();
        let mut drawn = (0..DRAWS).map(|_| family.sample(rng));
        drawn.find(|id| self.admits(id).is_ok())
    }

    /// The configs that differ in one lever and may be proposed.
    pub fn neighbours(&self, id: &str) -> Vec<String> {
        let around = self.family_of(id).map(|family| family.neighbours(id));
        let mut around = around.unwrap_or_default();
        around.retain(|other| self.admits(other).is_ok());
        around
    }

    /// A config that differs in so many levers and may be proposed; `None` where none that was drawn may.
    pub fn mutate(&self, id: &str, levers: usize, rng: &mut Rng) -> Option<String> {
        let family = self.family_of(id)?;
        let mut drawn = (0..TRIES).filter_map(|_| family.mutate(id, levers, rng));
        drawn.find(|mutant| self.admits(mutant).is_ok())
    }

    /// A mixture of two configs of one family that may be proposed and is neither; `None` where there is none among
    /// those drawn, or the families differ.
    pub fn crossover(&self, a: &str, b: &str, rng: &mut Rng) -> Option<String> {
        let family = self.family_of(a).filter(|family| family.owns(b))?;
        let mut drawn = (0..TRIES).filter_map(|_| family.crossover(a, b, rng));
        drawn.find(|child| child != a && child != b && self.admits(child).is_ok())
    }

    /// What a config's niche is called: its family, and how large a tile it has.
    pub fn niche(&self, id: &str) -> String {
        self.family_of(id).map_or("none".to_string(), |family| family.niche(id))
    }

    /// Each lever's name and its value in a config.
    pub fn values(&self, id: &str) -> Vec<(&'static str, String)> {
        self.family_of(id).map(|family| family.values(id)).unwrap_or_default()
    }

    /// A config with one lever at each of its values in the lever's order, those that may be proposed and itself: value
    /// and id. None where its family has no such lever.
    ///
    /// ```
    /// use flashcore_tune::space::{Family, Space};
    /// let space = Space::new(vec![Family::mma()], |_| Ok(()));
    /// let turned = space.turned("mma/m64n64-w4x1-s2-b1-qsh-xor-lazy", "q_in_registers");
    /// assert_eq!(turned[1], ("true".to_string(), "mma/m64n64-w4x1-s2-b1-qreg-xor-lazy".to_string()));
    /// assert!(space.turned("mma/m64n64-w4x1-s2-b1-qsh-xor-lazy", "cluster").is_empty());
    /// ```
    pub fn turned(&self, id: &str, lever: &str) -> Vec<(String, String)> {
        let settings = self.family_of(id).map(|family| family.settings(id, lever));
        let mut settings = settings.unwrap_or_default();
        settings.retain(|(_, other)| other == id || self.admits(other).is_ok());
        settings
    }
}

/// Draws before a sample is given up.
const DRAWS: usize = 1000;
/// Draws before a mutation or a mixture is given up.
const TRIES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_admitted_is_never_proposed() {
        let odd = |id: &str| match id.len() % 2 {
            0 => Err("even".to_string()),
            _ => Ok(()),
        };
        let space = Space::new(vec![Family::mma(), Family::wgmma(), Family::cpu()], odd);
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
    fn a_config_is_asked_about_once() {
        let asked = Arc::new(Mutex::new(0));
        let counter = asked.clone();
        let space = Space::new(vec![Family::cpu()], move |_| {
            *counter.lock().unwrap() += 1;
            Ok(())
        });
        for _ in 0..3 {
            space.admits("cpu/m64n64").unwrap();
        }
        assert_eq!(*asked.lock().unwrap(), 1);
        assert!(
            space
                .admits("mma/m64n64-w4x1-s2-b1-qsh-xor-eager")
                .unwrap_err()
                .contains("no config")
        );
    }
}
