//! What a text declares that no launch depends on, and that running it does: variables and device functions.

use std::ops::Range;

use crate::entries::{MOST_DECLARED, PtxModule, SharedSymbol};
use crate::error::PtxError;
use crate::words::{Word, Words};

/// A variable in global or constant memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredVariable {
    /// Its name, type and size.
    pub(crate) symbol: SharedSymbol,
    /// Whether it is constant.
    pub(crate) is_constant: bool,
    /// Its first values: the bytes of the text between the braces, or of the one value.
    pub(crate) initial: Option<Range<usize>>,
}

/// A device function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredFunction {
    /// Its name.
    pub(crate) name: String,
    /// The names of what it gives back.
    pub(crate) results: Vec<String>,
    /// The names of its parameters.
    pub(crate) parameters: Vec<String>,
    /// Its body: the bytes of the text between the braces; none for a declaration.
    pub(crate) body: Option<Range<usize>>,
    /// Line on which the body begins, or the declaration ends.
    pub(crate) body_line: u32,
}

/// Reads what a text declares: what launches depend on, variables, and functions.
pub(crate) fn declarations(text: &str) -> Result<(PtxModule, Vec<DeclaredVariable>, Vec<DeclaredFunction>), PtxError> {
    let (mut variables, mut functions) = (Vec::new(), Vec::new());
    let module = PtxModule::with_others(text, |words, directive, line| {
        match directive {
            ".global" | ".const" => {
                let begin = words.at;
                let Ok(variable) = module_variable(words, directive == ".const", line) else {
                    // Textures, and what else has no size.
                    words.at = begin;
                    return Ok(false);
                };
                variables.push(variable);
            }
            ".func" => functions.push(function(words)?),
            _ => return Ok(false),
        }
        let declared = variables.len().max(functions.len()) as u64;
        PtxError::at_most("declarations of one kind", declared, MOST_DECLARED as u64, line)?;
        Ok(true)
    })?;
    Ok((module, variables, functions))
}

/// The names of variables in parentheses, if there are any: each is the last word before its dimensions.
fn names_in_parentheses(words: &mut Words<'_>) -> Result<Vec<String>, PtxError> {
    let mut names: Vec<String> = Vec::new();
    if !words.takes('(') {
        return Ok(names);
    }
    let mut last = None;
    loop {
        match words.peek() {
            None => return words.wrong("`)`"),
            Some(Word::Name(name)) if !name.starts_with('.') => last = Some(name.to_string()),
            Some(Word::Mark(',' | ')')) => names.extend(last.take()),
            Some(_) => {}
        }
        if words.takes(')') {
            return Ok(names);
        }
        words.at += 1;
    }
}

fn module_variable(words: &mut Words<'_>, is_constant: bool, line: u32) -> Result<DeclaredVariable, PtxError> {
    let (symbol, _) = words.variable(line)?;
    let mut variable = DeclaredVariable {
        symbol,
        is_constant,
        initial: None,
    };
    if words.takes('=') {
        let first = words.tokens.get(words.at).map_or(0, |token| token.offset);
        // Nothing between braces is a word here.
        let is_list = words.takes('{');
        while !matches!(words.peek(), None | Some(Word::Mark(';'))) {
            words.at += 1;
        }
        let last = &words.tokens[words.at.saturating_sub(1)];
        variable.initial = Some(if is_list {
            first + 1..last.offset
        } else {
            first..words.tokens.get(words.at).map_or(first, |token| token.offset)
        });
    }
    words.mark(';')?;
    Ok(variable)
}

fn function(words: &mut Words<'_>) -> Result<DeclaredFunction, PtxError> {
    while matches!(words.peek(), Some(Word::Name(".noreturn"))) {
        words.at += 1;
    }
    let results = names_in_parentheses(words)?;
    let name = words.name("a function's name")?.to_string();
    let parameters = names_in_parentheses(words)?;
    // A declaration ends with `;`, a definition with `}`: skipping finds either.
    words.skip("function")?;
    let last = &words.tokens[words.at - 1];
    let mut function = DeclaredFunction {
        name,
        results,
        parameters,
        body: None,
        body_line: last.line,
    };
    if last.word == Word::Mark('}') {
        // Nothing between braces is a word here.
        let first = &words.tokens[words.at - 2];
        (function.body, function.body_line) = (Some(first.offset + 1..last.offset), first.line);
    }
    Ok(function)
}
