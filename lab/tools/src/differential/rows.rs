//! The forms that programs are made of: those that the simulator executes, the generator writes and the assembler
//! takes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use flashcore_check::programs;
use flashcore_problem::rng::Rng;
use flashcore_ptx::{Spelled, print, spellings};
use flashcore_sim::executes;

use super::writer::{self, TABLE, Writer};
use super::{Options, write};

/// What the assembler has for a file of many forms.
const TO_ASSEMBLE: Duration = Duration::from_secs(3600);
/// Forms of each row that are tried.
const A_ROW: usize = 96;
/// An example of a row, and how many of its forms these are.
pub(super) fn told(rows: &BTreeMap<usize, Vec<String>>) -> Vec<(String, usize)> {
    rows.values()
        .filter_map(|forms| Some((forms.first()?.clone(), forms.len())))
        .collect()
}

/// The rows that programs are made of, each with its forms.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<Vec<Spelled>>,
    pub(super) missing: BTreeMap<usize, Vec<String>>,
    pub(super) unwritten: BTreeMap<usize, Vec<String>>,
    pub(super) refused: BTreeMap<usize, Vec<String>>,
}

impl Rows {
    pub(super) fn new(options: &Options) -> Result<Rows, Box<dyn std::error::Error>> {
        let mut rows = Rows::default();
        let mut snippets = Vec::new();
        for (number, forms) in spellings(A_ROW).into_iter().enumerate() {
            let mut kept = Vec::new();
            for form in forms {
                let opcode = print(&form);
                let mut writer = Writer::new(Rng::stream(options.seed, number as u64));
                if !executes(&opcode) {
                    rows.missing.entry(number).or_default().push(opcode);
                } else if write(&mut writer, &form).is_none() {
                    rows.unwritten.entry(number).or_default().push(opcode);
                } else {
                    snippets.push((number, kept.len(), writer.snippet()));
                    kept.push(form);
                }
            }
            rows.rows.push(kept);
        }
        let lines: Vec<&str> = snippets.iter().map(|(_, _, text)| text.as_str()).collect();
        let refused: BTreeSet<usize> = refused(options, &lines)?.into_iter().collect();
        let mut kept: Vec<Vec<Spelled>> = rows.rows.iter().map(|_| Vec::new()).collect();
        for (at, (row, place, _)) in snippets.iter().enumerate() {
            let form = &rows.rows[*row][*place];
            if refused.contains(&at) {
                rows.refused.entry(*row).or_default().push(print(form));
            } else {
                kept[*row].push(form.clone());
            }
        }
        rows.rows = kept.into_iter().filter(|forms| !forms.is_empty()).collect();
        Ok(rows)
    }
}

/// What the assembler says of a file.
pub(super) fn assembled(options: &Options, file: &Path) -> std::io::Result<String> {
    let arch = format!("-arch={}", options.target);
    let cubin = file.with_extension("cubin");
    let mut command = Command::new(&options.ptxas);
    command.args([arch.as_str(), "-O0", "-o"]).arg(&cubin).arg(file);
    let ran = programs::run(&mut command, TO_ASSEMBLE)?;
    if cubin.exists() {
        std::fs::remove_file(&cubin)?;
    }
    Ok(ran.stdout + &ran.stderr)
}

/// Which of some lines of a kernel the assembler refuses.
fn refused(options: &Options, lines: &[&str]) -> Result<Vec<usize>, Box<dyn std::error::Error>> {
    // Labels are unique in a kernel. The last line stops the assembler after it has read all.
    let numbered = lines
        .iter()
        .enumerate()
        .map(|(at, line)| line.replace("WAIT", &format!("L{at}_")));
    let head = writer::module(&options.target, &[0; TABLE as usize])
        + &format!(".visible .entry k{}\n{{ {}\n", writer::PARAMETERS, writer::PROLOGUE);
    let first = head.matches('\n').count();
    let text = head + &numbered.collect::<Vec<_>>().join("\n") + "\nno instruction;\nret; }\n";
    let file = options.out.join("forms.ptx");
    std::fs::write(&file, text)?;
    let said = assembled(options, &file)?;
    std::fs::remove_file(&file)?;
    let number = |line: &str| {
        line.split("line ")
            .nth(1)?
            .split([';', ','])
            .next()?
            .trim()
            .parse::<usize>()
            .ok()
    };
    let all: Vec<usize> = said
        .lines()
        .filter(|line| line.contains("error"))
        .filter_map(number)
        .collect();
    if all.iter().any(|&line| line == first + lines.len() + 1) {
        Ok(all
            .into_iter()
            .filter(|line| *line > first && *line <= first + lines.len())
            .map(|line| line - 1 - first)
            .collect())
    } else {
        Err(format!(
            "{} says nothing of the last line: {}",
            options.ptxas.display(),
            said.lines().take(5).collect::<Vec<_>>().join("\n")
        )
        .into())
    }
}
