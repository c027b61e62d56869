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
use serde::Serialize;

use super::writer::{self, TABLE, Writer};
use super::{Options, write};

/// What the assembler has for a file of many forms.
const TO_ASSEMBLE: Duration = Duration::from_secs(3600);
/// Forms of each row that are tried.
const A_ROW: usize = 96;

/// Forms that programs do not have: by row of the table an example, and how many there are.
#[derive(Default, Serialize)]
pub(super) struct LeftOut {
    /// The simulator does not execute them.
    pub(super) missing: BTreeMap<usize, (String, usize)>,
    /// The generator does not write them.
    pub(super) unwritten: BTreeMap<usize, (String, usize)>,
    /// The assembler does not take them.
    pub(super) refused: BTreeMap<usize, (String, usize)>,
}

fn count(rows: &mut BTreeMap<usize, (String, usize)>, row: usize, form: &Spelled) {
    rows.entry(row).or_insert_with(|| (print(form), 0)).1 += 1;
}

/// The rows that programs are made of, each with its forms.
pub(super) struct Rows {
    pub(super) rows: Vec<Vec<Spelled>>,
    pub(super) left_out: LeftOut,
}

impl Rows {
    pub(super) fn new(options: &Options) -> Result<Rows, Box<dyn std::error::Error>> {
        let (mut left_out, mut tried) = (LeftOut::default(), Vec::new());
        for (row, forms) in spellings(A_ROW).into_iter().enumerate() {
            for form in forms {
                let mut writer = Writer::new(Rng::stream(options.seed, row as u64));
                if !executes(&print(&form)) {
                    count(&mut left_out.missing, row, &form);
                } else if write(&mut writer, &form).is_none() {
                    count(&mut left_out.unwritten, row, &form);
                } else {
                    tried.push((row, form, writer.snippet()));
                }
            }
        }
        let lines: Vec<&str> = tried.iter().map(|(_, _, text)| text.as_str()).collect();
        let refused = refused(options, &lines)?;
        let mut rows = BTreeMap::<usize, Vec<Spelled>>::new();
        for (at, (row, form, _)) in tried.into_iter().enumerate() {
            if refused.contains(&at) {
                count(&mut left_out.refused, row, &form);
            } else {
                rows.entry(row).or_default().push(form);
            }
        }
        let rows = rows.into_values().collect();
        Ok(Rows { rows, left_out })
    }
}

/// What the assembler says of a file.
pub(super) fn assembled(options: &Options, file: &Path) -> std::io::Result<String> {
    let arch = format!("-arch={}", options.target);
    let cubin = file.with_extension("cubin");
    let mut command = Command::new(&options.ptxas);
    command.args([arch.as_str(), "-O0", "-o"]).arg(&cubin).arg(file);
    let wrong = |error: std::io::Error| {
        std::io::Error::new(
            error.kind(),
            format!("{}: {error}; --ptxas names one", options.ptxas.display()),
        )
    };
    let ran = programs::run(&mut command, TO_ASSEMBLE).map_err(wrong)?;
    if cubin.exists() {
        std::fs::remove_file(&cubin)?;
    }
    Ok(ran.stdout + &ran.stderr)
}

/// Which of some lines of a kernel the assembler refuses.
fn refused(options: &Options, lines: &[&str]) -> Result<BTreeSet<usize>, Box<dyn std::error::Error>> {
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
        let number = line.split("line ").nth(1)?.split([';', ',']).next()?;
        number.trim().parse::<usize>().ok()?.checked_sub(first + 1)
    };
    let errors = said.lines().filter(|line| line.contains("error"));
    let mut refused: BTreeSet<usize> = errors.filter_map(number).collect();
    if refused.remove(&lines.len()) {
        return Ok(refused);
    }
    let said = said.lines().take(5).collect::<Vec<_>>().join("\n");
    Err(format!("{} says nothing of the last line: {said}", options.ptxas.display()).into())
}
