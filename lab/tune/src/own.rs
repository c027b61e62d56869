//! Kernels of users as candidates: their ids, what a search draws from, what an outside proposer writes in their place,
//! and the gates that need no compiler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flashcore_bench::own::is_own;
use flashcore_check::own::{Chosen, Declared, Language, OwnError, PREFIX, Template, Value, sha256};
use flashcore_check::render::few;
use flashcore_ir::{Chip, files};
use flashcore_kernels::Family;
use flashcore_kernels::family::Lever;
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use crate::error::TuneError;
use crate::trial::Verdict;

/// The family of kernels of users.
pub const OWN: &str = "own";
const MEANING: &str = "a parameter of the user's kernel";
/// The folder of a run with what proposers wrote.
const REWRITES: &str = "rewrites";
/// Bytes of a proposer's text at most: a long kernel has a tenth.
const MOST_TEXT: usize = 256 << 10;
/// Digits of a hash in ids.
const DIGITS: usize = 12;
/// Characters of a reason that are kept: compilers write any number.
const MOST_REASON: usize = 4000;

/// A verdict and its reason.
pub(crate) type Bad = (Verdict, String);

/// The user's kernels of a search, and what an outside proposer wrote in their place, which all clones know.
#[derive(Clone, Debug, Default)]
pub struct OwnKernels {
    all: Arc<Kernels>,
    /// Why proposers may not write any, if so.
    no_code: Option<&'static str>,
}

#[derive(Debug, Default)]
struct Kernels {
    declared: Vec<(Arc<Template>, Family)>,
    rewrites: Mutex<Vec<Rewrite>>,
    /// By id.
    built: Mutex<BTreeMap<String, Result<Arc<Declared>, Bad>>>,
}

/// A kernel with the text that a proposer wrote, and the declared kernel.
type Rewrite = (Arc<Template>, Arc<Template>);

/// What an outside proposer wrote: a text for the kernel of an id, `own/attention-M64`, whose declaration and values
/// stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Code {
    pub(crate) kernel: String,
    pub(crate) language: Language,
    pub(crate) text: String,
}

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
            if family.read(&family.id(&first)) == Some(first) {
                return Ok((Arc::new(template), family));
            }
            let allowed = "names that do not look like old words of ids (turns, eager, lazy, bold): rename it";
            Err(TuneError::bad("a kernel of yours", family.id(&first), allowed))
        };
        let all: Result<Vec<_>, _> = templates.into_iter().map(of).collect();
        let declared = all?;
        Ok(OwnKernels {
            all: Arc::new(Kernels {
                declared,
                ..Kernels::default()
            }),
            no_code: None,
        })
    }

    /// The same where proposers may not write code, and why.
    #[must_use]
    pub fn without_code(self, why: &'static str) -> OwnKernels {
        let no_code = Some(why);
        OwnKernels { no_code, ..self }
    }

    /// The declarations.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        self.all.declared.iter().map(|(template, _)| &**template)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.declared.is_empty()
    }

    pub(crate) fn families(&self) -> impl Iterator<Item = Family> {
        self.all.declared.iter().map(|(_, family)| *family)
    }

    fn rewrites(&self) -> MutexGuard<'_, Vec<Rewrite>> {
        self.all.rewrites.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a proposer wrote as a candidate: its id, or why it is none.
    pub(crate) fn adopt(&self, code: &Code) -> Result<String, String> {
        if let Some(why) = self.no_code {
            return Err(why.to_string());
        }
        let bytes = code.text.len();
        if bytes > MOST_TEXT {
            return Err(format!("its text has {bytes} B; allowed: {MOST_TEXT}"));
        }
        let (word, what) = match code.language {
            Language::Cuda => ("__global__", "CUDA C++ with a kernel (`__global__`)"),
            Language::Ptx => (".entry", "PTX with a kernel (`.entry`)"),
            Language::Triton => ("triton", "function of Triton"),
        };
        if !code.text.contains(word) {
            return Err(format!("its text is no {what}"));
        }
        let (template, chosen) = self.named(&code.kernel)?;
        let mut all = self.rewrites();
        let of = all.iter().find(|(known, _)| Arc::ptr_eq(known, &template));
        let of = of.map_or(template, |(_, of)| of.clone());
        let hash = sha256(format!("{} {}\n{}", of.label, code.language.extension(), code.text));
        let rewritten = of.rewritten(code.language, &code.text, &hash[..DIGITS])?;
        let id = rewritten.id(&chosen);
        if !all.iter().any(|(known, _)| known.label == rewritten.label) {
            all.push((Arc::new(rewritten), of));
        }
        Ok(id)
    }

    /// Keeps what a candidate was made of in the folder of a run, if a proposer wrote it: the text, and the declaration
    /// with it, which other commands read.
    pub(crate) fn keep(&self, id: &str, run: &Path) -> Result<(), TuneError> {
        let (Some(Ok((template, _))), Some(code)) = (self.find(id), self.source(id)) else {
            return Ok(());
        };
        let Some((_, hash)) = template.label.rsplit_once('@') else {
            return Ok(());
        };
        if !self.rewrites().iter().any(|(known, _)| Arc::ptr_eq(known, &template)) {
            return Ok(());
        }
        let stem = run.join(REWRITES).join(hash);
        let declaration = template.to_toml().map_err(|error| TuneError::file(&stem, error))?;
        let kept = std::fs::create_dir_all(run.join(REWRITES))
            .and_then(|()| std::fs::write(stem.with_extension(code.language.extension()), &code.text))
            .and_then(|()| std::fs::write(stem.with_extension("toml"), declaration));
        kept.map_err(|error| TuneError::file(&stem, error))
    }

    /// Knows candidates of a run again that a proposer wrote.
    pub(crate) fn restore<'i>(&self, ids: impl Iterator<Item = &'i str>, run: &Path) -> Result<(), TuneError> {
        for id in ids.filter(|id| is_own(id) && self.find(id).is_none()) {
            let (Some((hash, language, file)), Some((kernel, rest))) = (kept_as(id, run), id.rsplit_once('@')) else {
                return Err(TuneError::file(
                    &run.join(REWRITES),
                    format!("the text of {id} is not there"),
                ));
            };
            let text =
                files::read_text_unlinked(&file, MOST_TEXT as u64).map_err(|error| TuneError::file(&file, error))?;
            let kernel = format!("{kernel}{}", &rest[DIGITS..]);
            let code = Code { kernel, language, text };
            match self.adopt(&code) {
                Ok(adopted) if adopted == id => {}
                Ok(_) => {
                    let why = format!(
                        "it was changed: {id} is of a kernel, language and text whose SHA-256 begins with {hash}"
                    );
                    return Err(TuneError::file(&file, why));
                }
                Err(why) => return Err(TuneError::Usage(format!("{id}: {why}"))),
            }
        }
        Ok(())
    }

    /// The text of a kernel.
    pub(crate) fn source(&self, id: &str) -> Option<Code> {
        let (template, chosen) = self.find(id)?.ok()?;
        let (language, text) = template.text(&chosen)?;
        let (kernel, text) = (id.to_string(), text.to_string());
        Some(Code { kernel, language, text })
    }

    /// A kernel of the user for a chip, each compiled once, by a compiler that is ended at the limit; `None` for other
    /// ids.
    pub(crate) fn build(&self, id: &str, chip: Option<Chip>, limit: Duration) -> Option<Result<Arc<Declared>, Bad>> {
        let known = || self.all.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = known().get(id) {
            return Some(built.clone());
        }
        let found = self.find(id)?;
        let build = || -> Result<Arc<Declared>, Bad> {
            let target = chip.ok_or_else(on_gpu)?.target;
            let (template, chosen) = found.map_err(verdict_on)?;
            let built = template.build(&chosen, target, limit);
            built.map(Arc::new).map_err(verdict_on)
        };
        let built = build();
        if !matches!(built, Err((Verdict::EnvironmentFailed, _))) {
            known().insert(id.to_string(), built.clone());
        }
        Some(built)
    }

    /// The declaration that an id is of, and the values in it; `None` for other candidates.
    pub(crate) fn find(&self, id: &str) -> Option<Result<(Arc<Template>, Chosen), OwnError>> {
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
        let rewrites = self.rewrites();
        let declared = self.all.declared.iter().map(|(template, _)| template);
        let mut found = declared
            .chain(rewrites.iter().map(|(rewrite, _)| rewrite))
            .filter_map(|template| Some((template, of(template)?)));
        let first = found.next()?;
        let found = match first.1 {
            Ok(_) => first,
            Err(_) => found.find(|(_, chosen)| chosen.is_ok()).unwrap_or(first),
        };
        Some(found.1.map(|chosen| (found.0.clone(), chosen)))
    }

    fn named(&self, id: &str) -> Result<(Arc<Template>, Chosen), String> {
        let unknown = || {
            let known: Vec<&str> = self.templates().map(|template| template.label.as_str()).collect();
            let known = if known.is_empty() {
                "none (--kernel)".to_string()
            } else {
                few(&known)
            };
            Err(format!("no kernel of yours is named {id}; there are: {known}"))
        };
        self.find(id)
            .map_or_else(unknown, |found| found.map_err(|error| error.to_string()))
    }

    /// Why a kernel of the user cannot be a candidate for a problem on a GPU, as far as its declaration says.
    pub(crate) fn look(&self, id: &str, problem: &Problem) -> Result<(), String> {
        let (template, chosen) = self.named(id)?;
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

/// The digits in the id of a candidate that a proposer wrote, and the file of its text in the folder of a run, if it is
/// there.
fn kept_as<'i>(id: &'i str, run: &Path) -> Option<(&'i str, Language, PathBuf)> {
    let hash = id.rsplit_once('@').filter(|_| is_own(id))?.1.get(..DIGITS)?;
    let stem = run.join(REWRITES).join(hash);
    let is_hash = hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut languages = Language::ALL.into_iter();
    let language = languages.find(|language| is_hash && stem.with_extension(language.extension()).is_file())?;
    Some((hash, language, stem.with_extension(language.extension())))
}

/// How other commands name a candidate of a run that a proposer wrote: `FOLDER/rewrites/HASH.toml:VALUES`.
pub fn rewritten(id: &str, run: &Path) -> Option<String> {
    let (.., file) = kept_as(id, run)?;
    let values = id.rsplit_once('@')?.1[DIGITS..].replacen('-', ":", 1);
    Some(format!("{}{values}", file.with_extension("toml").display()))
}

/// A kernel of the user on the host.
pub(crate) fn on_gpu() -> Bad {
    (Verdict::Refused, "it runs on a GPU; ask for a CUDA device".to_string())
}

/// What an error says of a candidate.
pub(crate) fn verdict_on(error: OwnError) -> Bad {
    let verdict = match error {
        OwnError::NotServed(_) | OwnError::Values(_) => Verdict::Refused,
        OwnError::Late(_) => Verdict::Hung,
        OwnError::Environment(_) => Verdict::EnvironmentFailed,
        _ => Verdict::BuildFailed,
    };
    (verdict, error.to_string().chars().take(MOST_REASON).collect())
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

    #[test]
    fn what_a_proposer_wrote_is_kept_and_known_again() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel/sweep.toml");
        let new = || OwnKernels::new(vec![Template::read(&path).unwrap().0]).unwrap();
        let (own, run) = (new(), crate::tests::folder("own-rewrites"));
        let values = "-BUGnone-M16-REGS255-VEC2-WARPS2";
        let code = |kernel: &str, text: &str| Code {
            kernel: format!("{kernel}{values}"),
            language: Language::Cuda,
            text: format!("__global__ void {text}() {{}}"),
        };
        let id = own.adopt(&code("own/sweep", "f")).unwrap();
        let (label, hash) = id.strip_suffix(values).unwrap().split_once('@').unwrap();
        assert_eq!((label, hash.len()), ("own/sweep", DIGITS));
        assert_eq!(own.adopt(&code("own/sweep", "f")), Ok(id.clone()));
        // The same text in another language is another candidate.
        let text = format!("{} // .entry triton", code("own/sweep", "f").text);
        let of = |language| {
            own.adopt(&Code {
                language,
                text: text.clone(),
                ..code("own/sweep", "")
            })
        };
        let [cuda, ptx] = [Language::Cuda, Language::Ptx].map(|language| of(language).unwrap());
        assert_ne!(cuda, ptx);
        // The declaration names no function.
        let error = of(Language::Triton).unwrap_err();
        assert!(error.contains("write entry = "), "{error}");
        // One of a rewrite is of the declared kernel, and other values are candidates too.
        let other = own.adopt(&code(&format!("own/sweep@{hash}"), "g")).unwrap();
        assert_eq!((other.matches('@').count(), other == id), (1, false));
        assert!(own.find(&id.replace("M16", "M32")).unwrap().is_ok());
        assert_eq!(own.source(&id).unwrap().text, code("", "f").text);
        assert_eq!(own.templates().count(), 1);

        own.keep(&id, &run).unwrap();
        let word = rewritten(&id, &run).unwrap();
        let file = run.join(REWRITES).join(format!("{hash}.toml"));
        assert_eq!(word, format!("{}:{}", file.display(), &values[1..]));
        let (read, _) = Template::read(&file).unwrap();
        assert_eq!(read.id(&read.chosen(&values[1..]).unwrap()), id);
        assert!(rewritten("own/sweep@nothing-here", &run).is_none() && rewritten(&other, &run).is_none());

        let again = new();
        assert!(again.find(&id).is_none());
        again.restore(["cpu/m16n16", &id].into_iter(), &run).unwrap();
        assert_eq!(again.source(&id), own.source(&id));
        let missing = new().restore([other.as_str()].into_iter(), &run).unwrap_err();
        assert!(missing.to_string().contains("is not there"), "{missing}");
        std::fs::write(file.with_extension("cu"), "__global__ void other() {}").unwrap();
        let changed = new().restore([id.as_str()].into_iter(), &run).unwrap_err();
        assert!(changed.to_string().contains("it was changed"), "{changed}");
        std::fs::remove_dir_all(run).unwrap();
    }

    #[test]
    fn a_machine_without_a_compiler_is_asked_again() {
        let why = || "why".to_string();
        let verdict = |error| verdict_on(error).0;
        assert_eq!(verdict(OwnError::Environment(why())), Verdict::EnvironmentFailed);
        assert_eq!(verdict(OwnError::NotBuilt(why())), Verdict::BuildFailed);
    }
}
