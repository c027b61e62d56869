//! [`Template`]: a declaration before its parameters have values, with the texts that it names.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use flashcore_ir::{Target, files};
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::value::{Chosen, Language, Value};
use super::{BUFFERS, Declaration, Declared, OwnError, PREFIX, of_toml, served, triton};
use crate::foreign::{self, CompileError, Source};
use crate::programs;
use crate::render::few;
use crate::sandbox::Confinement;

/// Bytes of a text of a declared kernel, which is read and compiled whole.
const MOST_TEXT: u64 = 8 * files::SMALL;
/// When a compiler is ended, unless a command says otherwise.
pub(super) const TO_COMPILE: Duration = Duration::from_secs(100);
/// Most parameters, values of one, and combinations of values.
const MOST_PARAMETERS: usize = 12;
const MOST_VALUES: usize = 20;
const MOST_COMBINATIONS: usize = 100_000;
/// Most that a declaration may ask for in place of the default tolerance.
const MOST_TOLERANCE: f64 = 1000.0;
/// A user's kernel for all values of its parameters: the declaration, and the source or the PTX texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// Its label without values: [`PREFIX`] and its name.
    pub label: String,
    /// The file of the declaration.
    pub file: String,
    pub(super) declaration: Declaration,
    /// By the path in the declaration.
    texts: BTreeMap<String, String>,
}

/// Replaces `{NAME}` by the value of each parameter.
fn filled(text: &str, chosen: &Chosen) -> String {
    let replaced =
        |text: String, (name, value): (&String, &Value)| text.replace(&format!("{{{name}}}"), &value.to_string());
    chosen.iter().fold(text.to_string(), replaced)
}

/// Whether a path, and what it links to, is in a folder.
fn is_inside(folder: &Path, path: &Path) -> bool {
    let real = std::fs::canonicalize(folder).and_then(|folder| Ok((folder, std::fs::canonicalize(path)?)));
    real.is_ok_and(|(folder, path)| path.starts_with(folder))
}

/// The folder of a declaration.
fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Only what a compiler refuses, or does not end with, is the kernel's fault.
pub(super) fn not_compiled(error: &CompileError) -> fn(String) -> OwnError {
    match error {
        CompileError::Refused { .. } => OwnError::NotBuilt,
        CompileError::Late { .. } => OwnError::Late,
        CompileError::NoCompiler | CompileError::Sandbox(_) | CompileError::Broken(..) => OwnError::Environment,
    }
}

/// What an id says of a parameter's value: `-M64`.
pub(super) fn of_value((name, value): (&String, &Value)) -> String {
    format!("-{name}{value}")
}

/// What ids say of the values of a parameter: `M64`.
fn in_ids((name, values): (&String, &Vec<Value>)) -> impl Iterator<Item = String> {
    values.iter().map(move |value| format!("{name}{value}"))
}

impl Template {
    /// Whether a file is a declaration (`.toml`), and not a problem, which may be TOML too, or named as the file is.
    pub fn is_one(path: &Path) -> bool {
        if path.extension().is_none_or(|extension| extension != "toml") {
            return false;
        }
        let text = files::read_text_capped(path, files::SMALL).unwrap_or_default();
        toml::from_str::<toml::Table>(&text).is_ok_and(|table| table.contains_key("args"))
    }

    /// Reads a declaration and what it names, with the bytes of all these files, which identify it. Nothing is
    /// compiled.
    ///
    /// # Errors
    /// Files that cannot be read, and mistakes in the declaration.
    pub fn read(path: &Path) -> Result<(Template, Vec<u8>), OwnError> {
        let file = path.display().to_string();
        let wrong = |reason: String| OwnError::Declaration(file.clone(), reason);
        let text = files::read_text_capped(path, files::SMALL).map_err(|error| wrong(error.to_string()))?;
        let declaration: Declaration = toml::from_str(&text).map_err(|error| wrong(of_toml(&text, &error)))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let template = Template::of(path, declaration, stem)?;
        let texts = template.texts.values().map(String::as_bytes);
        let bytes = std::iter::once(text.as_bytes())
            .chain(texts)
            .collect::<Vec<_>>()
            .concat();
        Ok((template, bytes))
    }

    /// Reads what `@flashcore_attn.declared` says of a function of Triton, with the bytes of its file, which runs in a
    /// sandbox.
    ///
    /// # Errors
    /// A file that cannot be read or does not run, no declaration, and mistakes in it.
    pub fn of_function(path: &Path, function: &str) -> Result<(Template, Vec<u8>), OwnError> {
        let wrong = |reason: String| OwnError::Declaration(path.display().to_string(), reason);
        let text = files::read_text_capped(path, MOST_TEXT).map_err(|error| wrong(error.to_string()))?;
        let asked = json!({ "declaration": true });
        let value: Json = triton::ask(path, &text, function, asked, TO_COMPILE).map_err(|error| match error {
            CompileError::Refused { messages, .. } => wrong(messages),
            error => triton::refused(&error, path.display()),
        })?;
        let mut declaration: Declaration = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        if declaration.code().is_ok() || declaration.entry.is_some() {
            let why = "declared(…) has ptx, source or entry, which are the function's";
            return Err(wrong(why.to_string()));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains('{') {
            return Err(wrong(
                "its name has a `{`, which stands for a parameter's value; rename it".to_string(),
            ));
        }
        declaration.source = Some(PathBuf::from(&name));
        declaration.entry = Some(function.to_string());
        let mut template = Template::of(path, declaration, function.to_string())?;
        // What was declared is what is compiled, whatever the file has become meanwhile.
        template.texts = BTreeMap::from([(name, text.clone())]);
        Ok((template, text.into_bytes()))
    }

    /// A declaration in a file, with the texts that it names.
    fn of(path: &Path, declaration: Declaration, stem: String) -> Result<Template, OwnError> {
        let file = path.display().to_string();
        let wrong = |reason: String| OwnError::Declaration(file.clone(), reason);
        let name = declaration.name.clone().unwrap_or(stem);
        let mut template = Template {
            label: format!("{PREFIX}{name}"),
            file: file.clone(),
            declaration,
            texts: BTreeMap::new(),
        };
        template.check(&name).map_err(&wrong)?;
        let folder = folder_of(path);
        let (key, paths) = template.paths().map_err(&wrong)?;
        let mut missing = None;
        for path in paths {
            let file = folder.join(&path);
            let is_below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
            if !Path::new(&path).components().all(is_below) || (file.exists() && !is_inside(folder, &file)) {
                let allowed = "allowed: a file in the folder of the declaration or below it, without .. and links out";
                return Err(wrong(format!("{key} is {path}; {allowed}")));
            }
            match files::read_text_capped(&file, MOST_TEXT) {
                Ok(text) => _ = template.texts.insert(path, text),
                Err(error) => missing = missing.or(Some(format!("{key} is {path}: {error}"))),
            }
        }
        // A file may be missing of some values: these are refused when they are built.
        let missing = missing.filter(|_| template.texts.is_empty());
        missing.map_or(Ok(template), |missing| Err(wrong(missing)))
    }

    /// What is wrong whatever the values are.
    fn check(&self, name: &str) -> Result<(), String> {
        let declaration = &self.declaration;
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == ',' || c.is_control()) {
            return Err(format!("name is `{name}`; allowed: characters but spaces and commas"));
        }
        match declaration.language()? {
            Language::Ptx if !declaration.options.is_empty() => {
                return Err("options are those of a compiler, and there is no source".to_string());
            }
            Language::Triton => triton::check(declaration)?,
            Language::Ptx | Language::Cuda => {}
        }
        let is_bad = |factor: &f64| !(*factor > 0.0 && *factor <= MOST_TOLERANCE);
        if let Some(wrong) = declaration.tolerance.filter(is_bad) {
            let allowed = format!("a factor of the default tolerance, above 0 and at most {MOST_TOLERANCE}");
            return Err(format!("tolerance is {wrong}; allowed: {allowed}"));
        }
        self.check_parameters()?;
        for expression in declaration.constraints.iter().chain(declaration.expressions()) {
            let is_known = |name: &str| declaration.is_parameter(name) || served::is_name(name);
            if let Some(name) = expression.names().into_iter().find(|name| !is_known(name)) {
                let (names, tensors) = (served::names(), BUFFERS.join(", "));
                let own: Vec<&String> = declaration.parameters.keys().collect();
                let own = match own.as_slice() {
                    [] => String::new(),
                    own => format!(", and the parameters {} (of words as NAME.word)", few(own)),
                };
                let why = format!("`{expression}`: nothing is named `{name}`; there are {names}{own}");
                return Err(format!("{why}; alone in args also {tensors}"));
            }
        }
        let of_problem = declaration.constraints.iter().find_map(|constraint| {
            let name = constraint.names().into_iter().find(|name| served::is_name(name))?;
            Some(format!(
                "constraint `{constraint}` names {name}: what a problem must fulfil is in requires"
            ))
        });
        of_problem.map_or(Ok(()), Err)?;
        declaration.check()
    }

    fn check_parameters(&self) -> Result<(), String> {
        let parameters = &self.declaration.parameters;
        let combinations = parameters.values().map(Vec::len).fold(1, usize::saturating_mul);
        if parameters.len() > MOST_PARAMETERS || combinations > MOST_COMBINATIONS {
            let given = format!(
                "{} parameters with {combinations} combinations of values",
                parameters.len()
            );
            return Err(format!(
                "it has {given}; allowed: {MOST_PARAMETERS} and {MOST_COMBINATIONS}"
            ));
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for (name, values) in parameters {
            if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_part) {
                return Err(format!(
                    "a parameter is named `{name}`; allowed: a letter, then letters, digits and _"
                ));
            }
            if served::is_name(name) || BUFFERS.contains(&name.as_str()) {
                return Err(format!(
                    "a parameter is named `{name}`, as something of a problem is; rename it"
                ));
            }
            let is_word = |value: &&Value| matches!(value, Value::Word(_));
            let words = values.iter().filter(is_word).count();
            let is_bad =
                |value: &Value| matches!(value, Value::Word(word) if word.is_empty() || !word.chars().all(is_part));
            let is_twice = (1..values.len()).any(|at| values[..at].contains(&values[at]));
            let is_mixed = words > 0 && words < values.len();
            if !(1..=MOST_VALUES).contains(&values.len()) || is_mixed || is_twice || values.iter().any(is_bad) {
                let allowed = "each once, all whole numbers from 0, or all words of letters, digits and _";
                return Err(format!(
                    "parameter {name} has {}; allowed: 1 to {MOST_VALUES} values, {allowed}",
                    few(values)
                ));
            }
        }
        let mut spelled: Vec<String> = parameters.iter().flat_map(in_ids).collect();
        spelled.sort();
        if let Some(twice) = spelled.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("ids say `{}` for two parameters; rename one", twice[0]));
        }
        Ok(())
    }

    /// The paths of the texts of all values.
    fn paths(&self) -> Result<(&'static str, Vec<String>), String> {
        let (key, path) = self.declaration.code()?;
        let mut paths = vec![path.display().to_string()];
        for (name, values) in &self.declaration.parameters {
            let place = format!("{{{name}}}");
            if paths.iter().any(|path| path.contains(&place)) {
                let with = |path: &String| {
                    values
                        .iter()
                        .map(|value| path.replace(&place, &value.to_string()))
                        .collect()
                };
                paths = paths.iter().flat_map(|path| -> Vec<String> { with(path) }).collect();
            }
        }
        Ok((key, paths))
    }

    /// Its parameters, by name, with their values.
    pub fn parameters(&self) -> &BTreeMap<String, Vec<Value>> {
        &self.declaration.parameters
    }

    /// How many times the default tolerance an error may be.
    pub fn tolerance(&self) -> f64 {
        self.declaration.tolerance.unwrap_or(1.0)
    }

    /// The id of a kernel with values: `own/attention-M64-WARPS4`.
    pub fn id(&self, chosen: &Chosen) -> String {
        std::iter::once(self.label.clone())
            .chain(chosen.iter().map(of_value))
            .collect()
    }

    /// This kernel with another text in place of its files, whatever the values are. `hash` is its name.
    ///
    /// # Errors
    /// What the declaration lacks for this language.
    pub fn rewritten(&self, language: Language, text: &str, hash: &str) -> Result<Template, String> {
        let mut declaration = self.declaration.clone();
        let name = self.label[PREFIX.len()..].to_string();
        declaration.name = Some(format!("{name}@{hash}"));
        let file = format!("{hash}.{}", language.extension());
        (declaration.ptx, declaration.source) = match language {
            Language::Cuda | Language::Triton => (None, Some(PathBuf::from(&file))),
            Language::Ptx => (Some(PathBuf::from(&file)), None),
        };
        // Those of nvcc.
        if language != Language::Cuda {
            declaration.options.clear();
        }
        if language == Language::Triton {
            (declaration.block, declaration.shared) = (None, None);
            triton::check(&declaration)?;
        }
        Ok(Template {
            label: format!("{}@{hash}", self.label),
            file: self.file.clone(),
            declaration,
            texts: BTreeMap::from([(file, text.to_string())]),
        })
    }

    /// The declaration as a file.
    ///
    /// # Errors
    /// What TOML cannot say.
    pub fn to_toml(&self) -> Result<String, OwnError> {
        toml::to_string(&self.declaration).map_err(|error| OwnError::Declaration(self.file.clone(), error.to_string()))
    }

    /// The text for values; `None` where its file is missing.
    pub fn text(&self, chosen: &Chosen) -> Option<(Language, &str)> {
        let (_, path) = self.declaration.code().ok()?;
        let text = self.texts.get(&filled(&path.display().to_string(), chosen))?;
        Some((self.declaration.language().ok()?, text))
    }

    /// Whether one id may be of both.
    pub fn may_share_an_id(&self, other: &Template) -> bool {
        let between_dashes = |of: &Template| -> Vec<Vec<String>> {
            let label = of.label.split('-').map(|part| vec![part.to_string()]);
            label
                .chain(of.parameters().iter().map(|of| in_ids(of).collect()))
                .collect()
        };
        let (ours, theirs) = (between_dashes(self), between_dashes(other));
        let meet = |(ours, theirs): (&Vec<String>, &Vec<String>)| ours.iter().any(|part| theirs.contains(part));
        ours.len() == theirs.len() && ours.iter().zip(&theirs).all(meet)
    }

    /// The values of an id, without the label and the dash after it: `M64-WARPS4`. They fulfil the constraints.
    ///
    /// # Errors
    /// Values that a parameter does not have, and those that do not go together.
    pub fn chosen(&self, text: &str) -> Result<Chosen, OwnError> {
        let parts: Vec<&str> = text.split('-').filter(|part| !part.is_empty()).collect();
        let mut chosen = Chosen::new();
        for (name, values) in self.parameters() {
            let is_given = |value: &&Value| parts.contains(&format!("{name}{value}").as_str());
            chosen.extend(values.iter().find(is_given).map(|value| (name.clone(), value.clone())));
        }
        if chosen.len() < self.parameters().len() || parts.len() > chosen.len() {
            let parameters = self.parameters().iter();
            let known: Vec<String> = parameters
                .map(|(name, values)| format!("{name} = {}", few(values)))
                .collect();
            let (known, label) = (known.join("; "), &self.label);
            let first = self
                .parameters()
                .iter()
                .filter_map(|(name, values)| Some(format!("{name}{}", values.first()?)));
            let example = first.collect::<Vec<_>>().join("-");
            return Err(OwnError::Values(match known.as_str() {
                "" => format!("{label} has no parameters, and `{text}` is given"),
                _ => format!(
                    "`{text}` gives no values for {label} ({known}); write FILE.toml:{example}, or search: tune"
                ),
            }));
        }
        self.go_together(&chosen)?;
        Ok(chosen)
    }

    /// The constraint that values do not fulfil, if any.
    fn go_together(&self, chosen: &Chosen) -> Result<(), OwnError> {
        for constraint in &self.declaration.constraints {
            let holds = constraint.value(&|name| self.declaration.parameter(chosen, name));
            if holds.map_err(|error| OwnError::Values(error.to_string()))? == 0.0 {
                return Err(OwnError::Values(format!(
                    "{}: it needs `{constraint}`",
                    self.id(chosen)
                )));
            }
        }
        Ok(())
    }

    /// Whether values serve a problem, as far as the declaration says.
    ///
    /// # Errors
    /// [`OwnError::NotServed`].
    pub fn serves(&self, chosen: &Chosen, problem: &Problem) -> Result<(), OwnError> {
        self.declaration.serves(chosen, problem).map_err(OwnError::NotServed)
    }

    pub(super) fn max_registers(&self, chosen: &Chosen) -> Option<u32> {
        let options = self.declaration.options.iter().map(|option| filled(option, chosen));
        foreign::most_registers(&options.collect::<Vec<_>>())
    }

    /// The kernel with values, for an architecture; a source is compiled in another process, which is ended at the
    /// limit.
    ///
    /// # Errors
    /// What the compiler says, PTX that is missing or wrong, and a declaration that does not fit it.
    pub fn build(&self, chosen: &Chosen, target: Target, limit: Duration) -> Result<Declared, OwnError> {
        let wrong = |reason: String| OwnError::Declaration(self.file.clone(), reason);
        let (_, path) = self.declaration.code().map_err(wrong)?;
        let path = filled(&path.display().to_string(), chosen);
        let missing = || OwnError::NotBuilt(format!("{}: there is no {path}", self.id(chosen)));
        let text = self.texts.get(&path).ok_or_else(missing)?;
        let ptx = match self.declaration.language().map_err(wrong)? {
            Language::Ptx => text.clone(),
            Language::Cuda => self.compile(chosen, (target, limit), &path, text)?,
            Language::Triton => {
                let file = folder_of(Path::new(&self.file)).join(&path);
                let (declaration, ptx) = triton::compile(&self.declaration, chosen, (target, limit), &file, text)?;
                let made = Template {
                    declaration,
                    ..self.clone()
                };
                return Declared::new(&made, chosen, path, ptx);
            }
        };
        Declared::new(self, chosen, path, ptx)
    }

    /// What a compiler may read. The options are as foreign as the source: what they name elsewhere is not opened.
    pub(super) fn reads(&self, options: &[String], next_to: &Path) -> Vec<PathBuf> {
        let folder = folder_of(Path::new(&self.file));
        let named = foreign::named(options).into_iter().chain([next_to.to_path_buf()]);
        named.filter(|path| is_inside(folder, path)).collect()
    }

    /// The PTX of a source. What was read is compiled, whatever the file has become; it includes files next to it.
    fn compile(
        &self,
        chosen: &Chosen,
        (target, limit): (Target, Duration),
        path: &str,
        text: &str,
    ) -> Result<String, OwnError> {
        let failed = |why: String| OwnError::NotBuilt(format!("{path}: {why}"));
        let io = |error: std::io::Error| OwnError::Environment(format!("{path}: {error}"));
        let folder = programs::scratch_folder().map_err(io)?;
        let own = Path::new(path)
            .file_name()
            .ok_or_else(|| failed("it names no file".to_string()))?;
        let file = folder.path().join(own);
        std::fs::write(&file, text).map_err(io)?;
        let next_to = folder_of(Path::new(&self.file)).join(path);
        let next_to = std::path::absolute(next_to).map_err(io)?;
        let next_to = next_to.parent().unwrap_or(&next_to);
        let include = format!("-I{}", next_to.display());
        let macros = chosen.iter().map(|(name, value)| format!("-D{name}={value}"));
        let options = self.declaration.options.iter().map(|option| filled(option, chosen));
        let options: Vec<String> = options.collect();
        let reads = self.reads(&options, next_to);
        let options: Vec<String> = [include].into_iter().chain(macros).chain(options).collect();
        let made = foreign::compile(&Source {
            file: &file,
            target,
            options: &options,
            reads: &reads,
            limit,
            confinement: Confinement::Sandboxed,
        });
        let of_user = |said: String| said.replace(&file.display().to_string(), path);
        match made {
            Ok(made) => Ok(of_user(made.ptx)),
            Err(error) => Err(not_compiled(&error)(format!("{path}: {}", of_user(error.to_string())))),
        }
    }
}
