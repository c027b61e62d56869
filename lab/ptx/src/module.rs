//! A text: its kernels and functions, and what of each is understood.

use std::collections::HashMap;

use crate::entries::{PtxEntry, PtxModule, SharedSymbol};
use crate::error::PtxError;
use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::body::{Forms, Function, Instruction, Reader};
use crate::declared::declarations;
use crate::forms::{Missing, Spelled};
use crate::operand::callee;
use crate::variable::Variable;

/// Calls in one another.
const MOST_CALLS: u64 = 64;

/// Functions without a body that CUDA's runtime has on the device: printing, and failed assertions.
const KNOWN_OUTSIDE: [&str; 2] = ["vprintf", "__assertfail"];

/// A PTX text.
#[derive(Clone, Debug)]
pub struct Module {
    /// What stands outside the bodies.
    pub declared: PtxModule,
    /// The bodies of the kernels, in the order of [`PtxModule::entries`].
    pub kernels: Vec<Function>,
    /// The device functions that have a body.
    pub functions: Vec<Function>,
    /// Variables in global and constant memory.
    pub variables: Vec<Variable>,
    forms: Forms,
    /// The form of a jump.
    pub(crate) bra: u32,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The file's path as the compiler was given it; none for the PTX itself.
    pub file: Option<String>,
    /// From 1.
    pub line: u32,
}

/// A form that a kernel uses and that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingForm {
    /// The opcode with its modifiers, or what else it is.
    pub form: String,
    /// Instructions that have it.
    pub count: u64,
    /// Their lines, each once, in order.
    pub lines: Vec<Line>,
    /// Why it is not understood.
    pub why: String,
}

/// How much of a kernel is understood, with the functions that it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Understood {
    /// Its instructions.
    pub instructions: u64,
    /// Those whose forms are understood.
    pub understood: u64,
    /// The other forms, the most frequent first.
    pub missing: Vec<MissingForm>,
}

impl Understood {
    /// Counts something else that is not understood, which was taken for known.
    pub fn add(&mut self, missing: MissingForm) {
        self.understood = self.understood.saturating_sub(missing.count);
        self.missing.push(missing);
    }
}

impl Module {
    /// Reads a text. Forms that the table does not have are no error: [`understood`](Self::understood) lists them.
    ///
    /// ```
    /// use flashcore_ptx::Module;
    /// let module = Module::read(
    ///     ".version 8.0 .target sm_80 .entry k() {
    ///         .reg .b32 %r<9>;
    ///         tex.2d.v4.u32.s32 {%r1, %r2, %r3, %r4}, [image, {%r5, %r6}];
    ///         add.s32 %r7, %r1, %r2;
    ///         ret; }",
    /// )?;
    /// let told = module.understood(&module.kernels[0], |_| None)?;
    /// assert_eq!((told.understood, told.instructions, told.missing[0].lines[0].line), (2, 3, 3));
    /// # Ok::<(), flashcore_ptx::PtxError>(())
    /// ```
    ///
    /// # Errors
    /// Where the text is no PTX, or not well-formed: the line, and what was expected.
    pub fn read(text: &str) -> Result<Module, PtxError> {
        let (declared, variables, functions) = declarations(text)?;
        let mut forms = Forms::default();
        let kernels = declared.entries.iter();
        let kernels = kernels.map(|entry| Reader::read(text, &entry.body, entry.body_line, &entry.name, &mut forms));
        let kernels = kernels.collect::<Result<_, _>>()?;
        let functions = functions
            .iter()
            .filter_map(|function| Some((function, function.body.as_ref()?)));
        let functions = functions.map(|(declared, body)| {
            let function = Reader::read(text, body, declared.body_line, &declared.name, &mut forms)?;
            Ok::<_, PtxError>(Function {
                results: declared.results.clone(),
                parameters: declared.parameters.clone(),
                ..function
            })
        });
        let functions = functions.collect::<Result<_, _>>()?;
        let bra = forms.of("bra");
        let mut bytes = 0;
        let variables = variables
            .iter()
            .map(|variable| Variable::read(text, variable, &mut bytes));
        let variables = variables.collect::<Result<_, _>>()?;
        Ok(Module {
            variables,
            declared,
            kernels,
            functions,
            forms,
            bra,
        })
    }

    /// The kernels, and their bodies.
    pub fn entries(&self) -> impl Iterator<Item = (&PtxEntry, &Function)> {
        self.declared.entries.iter().zip(&self.kernels)
    }

    /// The forms of the text, each once, by number.
    pub fn forms(&self) -> &[Result<Spelled, Missing>] {
        &self.forms.all
    }

    /// The shared memory of a kernel: what its body and the functions that it calls declare, and what these name of the
    /// module's.
    pub fn shared_of<'a>(&'a self, kernel: &'a Function) -> Result<Vec<&'a SharedSymbol>, PtxError> {
        let all = self.with_callees(kernel)?;
        let is_named = |symbol: &&SharedSymbol| all.iter().any(|function| function.named.contains(&symbol.name));
        let of_module = self.declared.shared.iter().filter(is_named);
        Ok(of_module
            .chain(all.iter().flat_map(|function| &function.shared))
            .collect())
    }

    /// The functions that a function calls by name.
    pub fn calls<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = (&'a str, &'a Instruction)> {
        function.instructions.iter().filter_map(|inst| {
            let form = self.forms.all[inst.form as usize].as_ref().ok()?;
            let callee = callee(&inst.operands);
            callee.filter(|_| form.name() == "call").map(|callee| (callee, inst))
        })
    }

    /// A function and those that it calls, directly and by others.
    pub fn with_callees<'a>(&'a self, kernel: &'a Function) -> Result<Vec<&'a Function>, PtxError> {
        let by_name: HashMap<&str, &Function> = self.functions.iter().map(|f| (f.name.as_str(), f)).collect();
        let (mut seen, mut all) = (FxHashSet::default(), Vec::new());
        let mut level = vec![kernel];
        let mut depth = 0;
        while !level.is_empty() {
            let line = level[0].instructions.first().map_or(1, |inst| inst.line);
            PtxError::at_most("calls in one another", depth, MOST_CALLS, line)?;
            depth += 1;
            all.extend(&level);
            let callees = level.iter().flat_map(|function| self.calls(function));
            level = callees
                .filter_map(|(name, _)| by_name.get(name).copied().filter(|_| seen.insert(name)))
                .collect();
        }
        Ok(all)
    }

    /// Those of some functions that call themselves, or one that does: what is left without those that call none left.
    pub(crate) fn recursive<'a>(&'a self, all: &[&'a Function]) -> FxHashSet<&'a str> {
        let calls = |function: &&'a Function| {
            let callees: FxHashSet<&str> = self.calls(function).map(|(name, _)| name).collect();
            (function.name.as_str(), callees)
        };
        let calls: HashMap<&str, FxHashSet<&str>> = all.iter().map(calls).collect();
        let mut waits: HashMap<&str, usize> = HashMap::new();
        let mut callers: HashMap<&str, Vec<&str>> = HashMap::new();
        for (name, callees) in &calls {
            let known = callees.iter().filter(|callee| calls.contains_key(**callee));
            waits.insert(name, known.clone().count());
            known.for_each(|callee| callers.entry(callee).or_default().push(name));
        }
        let mut done: Vec<&str> = waits
            .iter()
            .filter(|(_, count)| **count == 0)
            .map(|(name, _)| *name)
            .collect();
        while let Some(name) = done.pop() {
            waits.remove(name);
            for caller in callers.get(name).into_iter().flatten() {
                let count = waits.entry(caller).or_default();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    done.push(caller);
                }
            }
        }
        waits.into_keys().collect()
    }

    /// What of a kernel is understood. `refuses` gives a reason not to count a form that the table has: that who asks
    /// cannot execute it.
    ///
    /// # Errors
    /// Calls in one another deeper than is followed.
    pub fn understood(
        &self,
        kernel: &Function,
        refuses: impl Fn(&str) -> Option<String>,
    ) -> Result<Understood, PtxError> {
        let mut told = Understood::default();
        let mut whys: Vec<Option<Option<(String, String)>>> = vec![None; self.forms.all.len()];
        let mut places: HashMap<(String, String), usize> = HashMap::new();
        let all = self.with_callees(kernel)?;
        let with_body: FxHashSet<&str> = self.functions.iter().map(|f| f.name.as_str()).collect();
        let recursive = self.recursive(&all);
        let mut seen: Vec<FxHashSet<(Option<u32>, u32)>> = Vec::new();
        for function in &all {
            let mut calls = self.calls(function).peekable();
            for inst in &function.instructions {
                told.instructions += 1;
                let why = whys[inst.form as usize].get_or_insert_with(|| match &self.forms.all[inst.form as usize] {
                    Err(missing) => Some((missing.form.clone(), missing.why.to_string())),
                    Ok(form) => {
                        let form = crate::print(form);
                        refuses(&form).map(|why| (form, why))
                    }
                });
                let call = calls
                    .next_if(|(_, call)| std::ptr::eq(*call, inst))
                    .and_then(|(name, _)| {
                        let is_outside = !with_body.contains(name) && !KNOWN_OUTSIDE.contains(&name);
                        let outside = is_outside.then_some("this text has no such function");
                        let why = outside.or(recursive
                            .contains(name)
                            .then_some("it calls itself, directly or through others"));
                        why.map(|why| (format!("call {name}"), why.to_string()))
                    });
                let why = call.or_else(|| why.clone());
                let Some((form, why)) = why else {
                    told.understood += 1;
                    continue;
                };
                let place = *places.entry((form.clone(), why.clone())).or_insert_with(|| {
                    let (count, lines) = (0, Vec::new());
                    told.missing.push(MissingForm {
                        form,
                        count,
                        lines,
                        why,
                    });
                    seen.push(FxHashSet::default());
                    seen.len() - 1
                });
                let missing = &mut told.missing[place];
                missing.count += 1;
                let (file, line, _) = self.line_of(function, inst);
                let line = (file, line);
                if seen[place].insert(line) {
                    let (file, line) = line;
                    let path = |number| self.declared.files.iter().find(|(known, _)| *known == number);
                    let file = file.and_then(path).map(|(_, path)| path.clone());
                    missing.lines.push(Line { file, line });
                }
            }
        }
        told.missing
            .sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.form.cmp(&b.form)));
        Ok(told)
    }

    /// The user's file, line and column of an instruction: of the places that it was inlined through, the innermost in
    /// the file of the outermost. Without `.loc` they are those of the text, whose columns are not known.
    pub fn line_of(&self, function: &Function, inst: &Instruction) -> (Option<u32>, u32, u32) {
        let of_text = (None, inst.line, 1);
        let Some(place) = inst.place else { return of_text };
        let mut chain = vec![&function.places[place as usize]];
        while let Some(outer) = chain[chain.len() - 1].inlined_at {
            // Always an earlier one.
            chain.push(&function.places[outer as usize]);
        }
        let file = chain[chain.len() - 1].file;
        let place = chain.iter().find(|place| place.file == file);
        // Compilers that know no column say 0.
        place.map_or(of_text, |place| (Some(file), place.line, place.column.max(1)))
    }
}
