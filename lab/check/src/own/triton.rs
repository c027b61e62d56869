//! Functions of Triton in declarations: `source = "FILE.py"`, with the function as `entry`.
//!
//! Parameters that the function names are its constants, others options of Triton (`num_warps`). A function is compiled
//! once for all problems, so numbers among the arguments are not specialised, but for strides: that these are multiples
//! of 16 becomes a condition of the declaration.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use flashcore_ir::Target;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use super::template::not_compiled;
use super::value::Chosen;
use super::{Declaration, Expression, ExpressionError, OwnError, buffer, served, sha256};
use crate::foreign::CompileError;
use crate::foreign::triton::{self, Made};
use crate::programs;

/// Names whose values have fractions.
const REAL: [&str; 2] = ["scale", "softcap"];
/// What Triton compiles for: multiples of this many, and, with another number, any but 1.
const MULTIPLE: u32 = 16;
const ANY: u32 = 3;

fn is_stride(argument: &Expression) -> bool {
    served::is_stride(argument.to_string().trim())
}

/// What is wrong whatever the values are.
pub(super) fn check(declaration: &Declaration) -> Result<(), String> {
    if declaration.entry.is_none() {
        return Err("it does not say which function of Triton is meant; write entry = \"NAME\"".to_string());
    }
    let not_its_own = [
        ("options", !declaration.options.is_empty()),
        ("block", declaration.block.is_some()),
        ("shared", declaration.shared.is_some()),
    ];
    if let Some((key, _)) = not_its_own.iter().find(|(_, is_given)| *is_given) {
        let allowed =
            "Triton decides on threads and shared memory, and its options are parameters, as num_warps = [4, 8]";
        return Err(format!("it has {key}; {allowed}"));
    }
    if declaration.parameters.contains_key("num_ctas") {
        return Err("it has the parameter num_ctas; blocks of a cluster are not launched as Triton does".to_string());
    }
    match declaration.dtype.len() {
        1 => Ok(()),
        many => Err(format!(
            "it has {many} dtypes; allowed: one, for which the function is compiled"
        )),
    }
}

/// What the function is compiled for: a type, or a number like those that it will get.
fn argument(argument: &Expression, dtype: &str) -> Json {
    let of_launch_files = |dtype: &str| match dtype {
        "fp16" => "f16".to_string(),
        other => other.to_string(),
    };
    match buffer(argument) {
        Some("q" | "k" | "v") => json!({ "type": of_launch_files(dtype) }),
        Some("out") if dtype == "e4m3" => json!({ "type": "bf16" }),
        Some("out") => json!({ "type": of_launch_files(dtype) }),
        Some(_) => json!({ "type": "f32" }),
        None if argument.has_fraction() || argument.names().iter().any(|name| REAL.contains(name)) => {
            json!({ "value": 0.5 })
        }
        None if is_stride(argument) => json!({ "value": MULTIPLE }),
        None => json!({ "value": ANY }),
    }
}

/// Asks the Python package of a function in the text of a file, which may import what lies next to that.
pub(super) fn ask<T: DeserializeOwned>(
    file: &Path,
    text: &str,
    function: &str,
    mut asked: Json,
    limit: Duration,
) -> Result<T, CompileError> {
    let broken = |error: std::io::Error| CompileError::Broken(file.display().to_string(), error.to_string());
    let folder = programs::scratch_folder().map_err(broken)?;
    let place = triton::source_in(folder.path());
    std::fs::create_dir(&place).map_err(broken)?;
    let copy = place.join(file.file_name().unwrap_or_default());
    std::fs::write(&copy, text).map_err(broken)?;
    let next_to = std::path::absolute(file).map_err(broken)?;
    let next_to = next_to.parent().unwrap_or(&next_to).to_path_buf();
    asked["own"] = json!({ "file": copy, "sha256": sha256(text), "code": { "python": function } });
    asked["next_to"] = json!(next_to);
    triton::ask(&asked, folder.path(), &[next_to], limit)
}

/// What an error says of a file.
pub(super) fn refused(error: &CompileError, file: impl Display) -> OwnError {
    not_compiled(error)(format!("{file}: {error}"))
}

/// The PTX of a function with values of its parameters, and the declaration of that PTX: with the shared memory that
/// Triton needs, and the pointers that it adds.
pub(super) fn compile(
    declaration: &Declaration,
    chosen: &Chosen,
    (target, limit): (Target, Duration),
    file: &Path,
    text: &str,
) -> Result<(Declaration, String), OwnError> {
    let dtype = declaration.dtype.first().map_or("", String::as_str);
    let args: Vec<Json> = declaration.args.iter().map(|of| argument(of, dtype)).collect();
    let asked = json!({ "args": args, "constants": chosen, "target": target.name(), "programs": 1 });
    let function = declaration.entry.as_deref().unwrap_or_default();
    let name = Path::new(file.file_name().unwrap_or_default()).display();
    let made: Made = ask(file, text, function, asked, limit).map_err(|error| refused(&error, &name))?;
    if made.scratch.iter().any(|&bytes| bytes > 0) {
        let why = "it needs memory that Triton's launcher allocates, which declared kernels do not get";
        return Err(OwnError::NotBuilt(format!("{name}: {why}")));
    }
    let mut declaration = declaration.clone();
    declaration.entry = Some(made.entry);
    declaration.shared = Some(made.shared.into());
    for stride in declaration.args.iter().filter(|argument| is_stride(argument)) {
        let wrong = |error: ExpressionError| OwnError::NotBuilt(format!("{name}: {error}"));
        let condition = format!("({stride}) % {MULTIPLE} == 0").parse().map_err(wrong)?;
        declaration.requires.push(condition);
    }
    declaration.args.extend(made.scratch.iter().map(|_| 0.into()));
    Ok((declaration, made.ptx))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_types_that_triton_is_asked_for() {
        for (text, dtype, want) in [
            ("q", "fp16", json!({ "type": "f16" })),
            ("v", "bf16", json!({ "type": "bf16" })),
            ("out", "e4m3", json!({ "type": "bf16" })),
            ("k", "e4m3", json!({ "type": "e4m3" })),
            ("lse", "fp16", json!({ "type": "f32" })),
            ("scale", "fp16", json!({ "value": 0.5 })),
            ("seq_q * 1.5", "fp16", json!({ "value": 0.5 })),
            ("seq_q * 2", "fp16", json!({ "value": ANY })),
            ("q_seq_stride", "fp16", json!({ "value": MULTIPLE })),
        ] {
            assert_eq!(argument(&text.parse().unwrap(), dtype), want, "{text}");
        }
    }
}
