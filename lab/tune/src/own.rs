//! Kernels of users as candidates: their ids, what a search draws from, and the gates that need no compiler.

use std::sync::Arc;

use flashcore_check::own::{Chosen, OwnError, PREFIX, Template, Value};
use flashcore_kernels::Family;
use flashcore_kernels::family::Lever;
use flashcore_problem::Problem;

use crate::error::TuneError;

/// The family of kernels of users.
pub const OWN: &str = "own";
const MEANING: &str = "a parameter of the user's kernel";

/// The user's kernels of a search.
#[derive(Clone, Debug, Default)]
pub struct OwnKernels(Arc<Vec<(Template, Family)>>);

/// Levers and families live as long as the program. A search has few of them, and they are made once.
fn kept(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// A template as a family: a lever that names it, and one for each parameter.
fn family(template: &Template) -> Family {
    let words = |of: Vec<(String, String)>| -> &'static [(&'static str, &'static str)] {
        let words: Vec<_> = of.into_iter().map(|(print, id)| (kept(print), kept(id))).collect();
        Box::leak(words.into_boxed_slice())
    };
    let name = template.label[PREFIX.len()..].to_string();
    let named = Lever::words(words(vec![(name.clone(), name)])).named("kernel", "the user's kernel");
    let of_parameter = |(name, values): (&String, &Vec<Value>)| {
        let spelled = values
            .iter()
            .map(|value| (value.to_string(), format!("-{name}{value}")));
        Lever::words(words(spelled.collect())).named(kept(name.clone()), MEANING)
    };
    let of_parameters = template.parameters().iter().map(of_parameter);
    let levers: Vec<Lever> = std::iter::once(named).chain(of_parameters).collect();
    Family {
        name: OWN,
        levers: Box::leak(levers.into_boxed_slice()),
        backward: None,
        constraints: &[],
        tile: |_| 0,
        repeated: None,
    }
}

impl OwnKernels {
    /// These kernels, as candidates of a search.
    ///
    /// # Errors
    /// One whose name or parameters cannot stand in ids, and two that may have one id.
    pub fn new(templates: Vec<Template>) -> Result<OwnKernels, TuneError> {
        for (at, one) in templates.iter().enumerate() {
            if let Some(other) = templates[..at].iter().find(|other| one.may_share_an_id(other)) {
                let given = format!("{} and {}", other.label, one.label);
                let allowed = "kernels whose ids differ whatever their values are: give one another `name`";
                return Err(TuneError::bad("kernels of yours", given, allowed));
            }
        }
        let of = |template: Template| {
            let family = family(&template);
            let first = family.first();
            match family.read(&family.id(&first)) == Some(first) {
                true => Ok((template, family)),
                false => {
                    let allowed = "names that do not look like old words of ids (turns, eager, lazy, bold): rename it";
                    Err(TuneError::bad("a kernel of yours", family.id(&first), allowed))
                }
            }
        };
        let all: Result<Vec<_>, _> = templates.into_iter().map(of).collect();
        Ok(OwnKernels(Arc::new(all?)))
    }

    /// The declarations.
    pub fn templates(&self) -> Vec<Template> {
        self.0.iter().map(|(template, _)| template.clone()).collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn families(&self) -> impl Iterator<Item = Family> {
        self.0.iter().map(|(_, family)| *family)
    }

    /// The declaration that an id is of, and the values in it; `None` for other candidates.
    pub(crate) fn find(&self, id: &str) -> Option<Result<(&Template, Chosen), OwnError>> {
        let of = |template: &Template| {
            let values = id.strip_prefix(&template.label)?;
            // Of `own/a-b` both `own/a` and `own/a-b` may be meant.
            let is_whole = values.is_empty() || values.starts_with('-');
            is_whole.then(|| {
                let chosen = template.chosen(values)?;
                match template.id(&chosen) {
                    spelled if spelled == id => Ok(chosen),
                    spelled => Err(OwnError::Values(format!("{id} is spelled {spelled}"))),
                }
            })
        };
        let mut found = self
            .0
            .iter()
            .filter_map(|(template, _)| Some((template, of(template)?)));
        let first = found.next()?;
        let found = match first.1 {
            Ok(_) => first,
            Err(_) => found.find(|(_, chosen)| chosen.is_ok()).unwrap_or(first),
        };
        Some(found.1.map(|chosen| (found.0, chosen)))
    }

    /// Why a kernel of the user cannot be a candidate for a problem on a GPU, as far as its declaration says.
    pub(crate) fn look(&self, id: &str, problem: &Problem) -> Result<(), String> {
        let unknown = || Err(format!("no kernel of yours is named {id}"));
        let found = self
            .find(id)
            .map_or_else(unknown, |found| found.map_err(|error| error.to_string()));
        let (template, chosen) = found?;
        template.serves(&chosen, problem).map_err(|error| error.to_string())
    }

    /// How many times the default tolerance an error of a candidate may be.
    pub(crate) fn tolerance(&self, id: &str) -> f64 {
        match self.find(id) {
            Some(Ok((template, _))) => template.tolerance(),
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::space::Space;

    #[test]
    fn parameters_are_levers_and_ids_say_their_values() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel/sweep.toml");
        let own = OwnKernels::new(vec![Template::read(&path).unwrap().0]).unwrap();
        let problem = Problem::builder()
            .heads(8, 8)
            .seq_len(512)
            .head_dim(64)
            .build()
            .unwrap();
        let asked = (own.clone(), problem.clone());
        let space = Space::new(own.families().collect(), move |id| asked.0.look(id, &asked.1));
        let may: Vec<String> = space.configs().filter(|id| space.admits(id).is_ok()).collect();
        // 27 without a fault, and three with one.
        assert_eq!((space.configs().count(), may.len()), (216, 30));
        assert_eq!(space.yours(), ["own/sweep-BUGnone-M16-REGS255-VEC2-WARPS2"]);
        let values = space.values("own/sweep-BUGrace-M32-REGS255-VEC8-WARPS4");
        assert_eq!(values[1], ("BUG", "race".to_string()));
        let (template, chosen) = own.find(&may[0]).unwrap().unwrap();
        assert_eq!(template.id(&chosen), may[0]);
        assert!(space.neighbours(&may[0]).iter().all(|id| may.contains(id)));
        let other = own
            .look("own/sweep-BUGrace-M16-REGS255-VEC8-WARPS4", &problem)
            .unwrap_err();
        assert!(other.contains("it needs `BUG.none"), "{other}");
        assert!(own.find("mma/m64n64").is_none() && own.find("own/other").is_none());
        let turned = own.find("own/sweep-M16-BUGnone-REGS255-VEC2-WARPS2").unwrap();
        let why = turned.unwrap_err().to_string();
        assert!(
            why.ends_with("is spelled own/sweep-BUGnone-M16-REGS255-VEC2-WARPS2"),
            "{why}"
        );
    }

    #[test]
    fn no_id_is_of_two_kernels() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel/attention.toml");
        let folder = crate::tests::folder("own-ids");
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(path.with_extension("ptx"), folder.join("attention.ptx")).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let named = |name: &str, parameters: &str| {
            let file = folder.join(format!("{name}.toml"));
            std::fs::write(&file, format!("{text}\n[parameters]\n{parameters}\n")).unwrap();
            Template::read(&file).unwrap().0
        };
        for (one, other, may) in [
            (named("a", "b = [1]"), named("a-b1", ""), false),
            (named("a", "b = [1, 2]\nc = [3]"), named("a-b2", "c = [3, 4]"), false),
            (named("a", ""), named("a", ""), false),
            (named("a", "b = [1]"), named("a-b2", ""), true),
            (named("a", "b = [1]\nc = [3]"), named("a-b1", "c = [4]"), true),
        ] {
            let given = format!("{} and {}", one.label, other.label);
            match OwnKernels::new(vec![one, other]) {
                Ok(_) => assert!(may, "{given}"),
                Err(error) => assert!(!may && error.to_string().contains(&given), "{given}: {error}"),
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
