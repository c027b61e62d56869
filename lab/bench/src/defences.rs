//! Inspections: defences against kernels that are fast because they compute nothing.
//!
//! A candidate is inspected on a [`Rig`]: the device's buffers, its stream, and the candidate bound to them. Every rule
//! has a [`Reason`], and the tests have a cheating candidate for every reason.

use std::fmt;

use flashcore_problem::{Comparison, DType, Layout, Lengths, POISON, Problem, ProblemError, Tensor, TensorView};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use flashcore_problem::bulk::Census;

use crate::Expected;
use crate::report::add_new;
use crate::subject::Trouble;

/// A candidate bound to buffers on a device. The judge may be in another process than the candidate.
pub trait Rig {
    /// The problem.
    fn problem(&self) -> &Problem;

    /// The reference output for the inputs of a seed.
    fn expected(&self, seed: u64) -> &Expected;

    /// Which rows of the output are written; `None` where the judge does not know it of a problem with lengths.
    fn rows(&self) -> Option<&Rows> {
        (!self.problem().has_lengths()).then_some(&Rows::All)
    }

    /// Runs the candidate once, exactly as it is timed. `false` if it cannot be bound to that place, as is the case for
    /// functions of other libraries.
    fn run(&mut self, run: &Run) -> Result<bool, Trouble>;

    /// Counts over the outputs of a place, and compares them with the reference output for a seed.
    fn look(&mut self, place: usize, what: Output, seed: u64) -> Result<Seen, Trouble>;

    /// The log-sum-exp of a place; `None` where the problem asks for none, or the candidate computes none, as functions
    /// of other libraries.
    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble>;

    /// What was written outside the tensors that the candidate was given, in a sentence.
    fn outside(&mut self) -> Result<Option<String>, Trouble>;
}

/// One run of a candidate and the work around it, in this order: load inputs, pause, poison the outputs (and wait for
/// that, unless there was a pause), run, copy the output aside in the stream, wait for the whole device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Which set of tensors: 0, or 1 for the same tensors at other addresses.
    pub place: usize,
    /// Seed of the inputs to load first; `None` keeps the inputs that are there.
    pub load: Option<u64>,
    /// Fill the outputs of both places with poison.
    pub poison: bool,
    /// Put a pause of a few milliseconds ahead of the poison, so that a candidate that does not wait for its stream
    /// runs before the poison is written.
    pub pause: bool,
}

impl Run {
    /// A run over poisoned outputs, on the inputs of a seed, or on those that are there.
    pub fn over_poison(load: Option<u64>) -> Run {
        Run {
            load,
            poison: true,
            ..Run::default()
        }
    }

    /// A run on the inputs of a seed, over the last output.
    fn on_new_inputs(seed: u64) -> Run {
        Run {
            load: Some(seed),
            ..Run::default()
        }
    }

    /// A run over outputs that are poisoned late.
    fn after_a_pause() -> Run {
        Run {
            pause: true,
            ..Run::over_poison(None)
        }
    }
}

/// Which output to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// After everything has ended.
    Final,
    /// When the stream had come to the end of the run.
    Snapshot,
}

/// Which rows of its outputs a problem writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// All of them.
    #[default]
    All,
    /// Those of sequences, for each output in the order of [`Problem::outputs`], by their place among the rows of its
    /// tensor.
    Of(Vec<Vec<bool>>),
}

impl Rows {
    /// The rows of a problem whose lengths have these values: rows of O and dQ are query rows, those of dK and dV keys.
    ///
    /// # Errors
    /// Values that contradict the problem.
    pub fn of(problem: &Problem, lengths: &Lengths<&[i32]>) -> Result<Rows, ProblemError> {
        if !problem.has_lengths() {
            return Ok(Rows::All);
        }
        let sequences = problem.sequences(lengths)?;
        let written = |(name, _, layout): (&str, DType, Layout)| {
            let [batch, rows, ..] = layout.shape;
            let mut written = vec![false; batch * rows];
            let mut set = |[b, s]: [usize; 2]| written[b * rows + s] = true;
            for one in &sequences {
                match name {
                    "dk" | "dv" => (0..one.len_kv).filter_map(|key| one.kv_row(key)).for_each(&mut set),
                    _ => (0..one.len_q).map(|row| one.q_row(row)).for_each(&mut set),
                }
            }
            written
        };
        Ok(Rows::Of(problem.outputs().into_iter().map(written).collect()))
    }

    /// Whether a row of an output is written, by its place among the rows of the tensor.
    pub fn has(&self, output: usize, row: usize) -> bool {
        match self {
            Rows::All => true,
            Rows::Of(written) => written
                .get(output)
                .and_then(|rows| rows.get(row))
                .copied()
                .unwrap_or(false),
        }
    }
}

/// What was seen of the outputs.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Counts over all elements of rows that are written.
    pub census: Census,
    /// Elements of other rows that were written, where that is looked at.
    pub beyond: usize,
    /// The comparison of each output, by name, with the reference, in every element or in some rows.
    pub comparisons: Vec<(&'static str, Comparison)>,
}

impl Seen {
    /// Looks at whole outputs.
    pub fn of(problem: &Problem, expected: &Expected, rows: &Rows, outs: &[Tensor]) -> Result<Seen, Trouble> {
        let compared = expected.compare(problem, outs);
        let [inside, outside] = census_of(outs, rows);
        Ok(Seen {
            census: inside,
            beyond: outside.elements - outside.unwritten,
            comparisons: compared.map_err(|error| Trouble::new(error.to_string()))?,
        })
    }

    /// Whether all outputs are right.
    pub fn is_right(&self) -> bool {
        self.comparisons.iter().all(|(_, found)| found.passed)
    }
}

/// The first that is wrong, or the first; its name where there are several.
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong = self.comparisons.iter().find(|(_, found)| !found.passed);
        match wrong.or(self.comparisons.first()) {
            Some((name, found)) if self.comparisons.len() > 1 => write!(f, "{name} {found}"),
            Some((_, found)) => found.fmt(f),
            None => f.write_str("nothing was compared"),
        }
    }
}

/// Why a candidate is not timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Elements of the output still hold the poison that was there before.
    Unwritten,
    /// The output is all zeros and should not be.
    Zeros,
    /// The output has NaNs that the subject wrote itself.
    NotANumber,
    /// The output is that of earlier inputs.
    Cached,
    /// It works only at addresses it has seen before.
    PointerReplay,
    /// It still runs when its stream has ended, or does not wait for the stream.
    OtherStream,
    /// It wrote outside the tensors that it was given.
    OutOfBounds,
    /// Any other wrong output.
    Wrong,
}

/// As in JSON: `other-stream`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What an inspection found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// Why it is rejected; `None` if it is not.
    pub rejected: Option<Reason>,
    /// One sentence: the error where it passed, what was seen where it did not.
    pub detail: String,
    /// Largest error against float64 over all that was compared.
    pub max_abs: f64,
    /// Largest over its outputs: the Frobenius norm of the error over that of the right output, in the rows compared.
    #[serde(default)]
    pub frobenius: f64,
    /// Rules that could not be applied to this subject, by name.
    pub skipped: Vec<String>,
}

impl Inspection {
    /// Whether it may be timed.
    pub fn passed(&self) -> bool {
        self.rejected.is_none()
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rejected {
            None => write!(f, "pass: {}", self.detail),
            Some(reason) => write!(f, "REJECTED ({reason}): {}", self.detail),
        }
    }
}

/// Seeds of the inputs of [`inspect`], in order.
pub const INSPECTION_SEEDS: [u64; 3] = [101, 102, 103];
/// Seed of the inputs of [`inspect_again`].
pub const AFTERWARDS_SEED: u64 = 104;

/// How closely to inspect: [`inspect`] or [`inspect_again`].
pub type Inspect = fn(&mut dyn Rig) -> Result<Inspection, Trouble>;

/// A rejection: the reason, and a sentence on what was seen.
type Rejection = (Reason, String);

/// Inspects a candidate before it is timed.
///
/// # Errors
/// A device error; a candidate that faults is an error and no finding.
pub fn inspect(rig: &mut dyn Rig) -> Result<Inspection, Trouble> {
    inspection(rig, "on fresh inputs", |rig, found| {
        let [first, second, third] = INSPECTION_SEEDS;
        let late = |how: &str| Some((Reason::OtherStream, how.to_string()));
        // Fresh inputs, poisoned output: the output when the stream had ended, and when the device was idle.
        rig.run(&Run::over_poison(Some(first)))?;
        if let Some(rejection) = judge(rig, 0, Output::Final, first, None, found)? {
            return Ok(Some(rejection));
        }
        if judge(rig, 0, Output::Snapshot, first, None, found)?.is_some() {
            return Ok(late(
                "the output was right a moment after the stream had ended, and not yet when it ended; join every stream it \
                 uses to the one it is given",
            ));
        }
        // The other way round: a candidate that does not wait for the stream has run before the poison is written.
        rig.run(&Run::after_a_pause())?;
        if judge(rig, 0, Output::Snapshot, first, None, found)?.is_some() {
            return Ok(late(
                "it ran before the work that was ahead of it in the stream; make every stream it uses wait for the one it \
                 is given",
            ));
        }
        // New inputs at the same addresses, and the old output left in place.
        rig.run(&Run::on_new_inputs(second))?;
        if let Some(rejection) = judge(rig, 0, Output::Final, second, Some(first), found)? {
            return Ok(Some(rejection));
        }
        // Other addresses.
        let at_other = Run {
            place: 1,
            ..Run::over_poison(Some(third))
        };
        if !rig.run(&at_other)? {
            found.skipped.push("other addresses".to_string());
            return Ok(None);
        }
        let Some((reason, detail)) = judge(rig, 1, Output::Final, third, Some(second), found)? else {
            return Ok(None);
        };
        let census = rig.look(0, Output::Final, third)?.census;
        Ok(Some(match (census.unwritten < census.elements, reason) {
            (true, _) => (
                Reason::PointerReplay,
                "given other buffers, it wrote to the first ones; take every address from the arguments".to_string(),
            ),
            (false, Reason::Unwritten) => (
                Reason::PointerReplay,
                format!("given other buffers, it did not write them; {detail}"),
            ),
            (false, reason) => (reason, format!("given other buffers: {detail}")),
        }))
    })
}

/// Inspects a candidate after it was timed, on inputs it has not seen: with the last output still in place, and over
/// poison.
pub fn inspect_again(rig: &mut dyn Rig) -> Result<Inspection, Trouble> {
    inspection(rig, "after timing", |rig, found| {
        let (seed, last) = (AFTERWARDS_SEED, INSPECTION_SEEDS[1]);
        rig.run(&Run::on_new_inputs(seed))?;
        if let Some(rejection) = judge(rig, 0, Output::Final, seed, Some(last), found)? {
            return Ok(Some(rejection));
        }
        // Again over poison: the right output may have been in place, written by another candidate.
        rig.run(&Run::after_a_pause())?;
        judge(rig, 0, Output::Final, seed, None, found)
    })
}

/// An inspection by `look`, and last a look at the guards around the tensors.
fn inspection(
    rig: &mut dyn Rig,
    when: &str,
    look: impl FnOnce(&mut dyn Rig, &mut Inspection) -> Result<Option<Rejection>, Trouble>,
) -> Result<Inspection, Trouble> {
    if rig.rows().is_none() {
        let why = "packed sequences and caches with lengths are not searched: a search draws other lengths for each look; \
                   use `bench`, which takes `sequences`";
        return Err(Trouble::new(why));
    }
    let mut found = Inspection::default();
    let mut rejection = look(rig, &mut found)?;
    if rejection.is_none() {
        rejection = rig.outside()?.map(|outside| (Reason::OutOfBounds, outside));
    }
    found.detail = format!("largest error {:.1e} against float64 {when}", found.max_abs);
    if let Some((reason, detail)) = rejection {
        (found.rejected, found.detail) = (Some(reason), detail);
    }
    Ok(found)
}

/// Why an output is rejected, if it is. `stale` is the seed of earlier inputs.
fn judge(
    rig: &mut dyn Rig,
    place: usize,
    what: Output,
    seed: u64,
    stale: Option<u64>,
    found: &mut Inspection,
) -> Result<Option<Rejection>, Trouble> {
    let seen = rig.look(place, what, seed)?;
    let census = seen.census;
    if seen.beyond > 0 {
        let beyond = format!("{} elements of rows that are of no sequence were written", seen.beyond);
        return Ok(Some((Reason::OutOfBounds, beyond)));
    }
    if seen.is_right() && census.unwritten == 0 && census.nan == 0 {
        for (_, comparison) in &seen.comparisons {
            found.max_abs = found.max_abs.max(comparison.max_abs);
            found.frobenius = found.frobenius.max(comparison.frobenius);
        }
        return judge_lse(rig, place, seed, found);
    }
    let elements = census.elements;
    let of_all = |count: usize, what: &str| format!("{count} of {elements} elements {what}");
    Ok(Some(if census.unwritten > 0 {
        (Reason::Unwritten, of_all(census.unwritten, "were never written"))
    } else if census.nan > 0 {
        (Reason::NotANumber, of_all(census.nan, "are NaN; a NaN equals nothing"))
    } else if census.zeros == elements && rig.expected(seed).is_nonzero() {
        (Reason::Zeros, format!("all {elements} elements are 0"))
    } else if is_output_of(rig, place, what, stale) {
        let seen = "the inputs changed and the output did not: it is that of the earlier inputs";
        (Reason::Cached, seen.to_string())
    } else {
        (Reason::Wrong, seen.to_string())
    }))
}

/// Whether an output is the right one for earlier inputs.
fn is_output_of(rig: &mut dyn Rig, place: usize, what: Output, stale: Option<u64>) -> bool {
    let seen = stale.map(|stale| rig.look(place, what, stale));
    seen.is_some_and(|seen| seen.is_ok_and(|seen| seen.is_right()))
}

/// Why a log-sum-exp is rejected, if it is. Notes if it was not checked.
fn judge_lse(rig: &mut dyn Rig, place: usize, seed: u64, found: &mut Inspection) -> Result<Option<Rejection>, Trouble> {
    if !rig.problem().writes_lse() {
        return Ok(None);
    }
    let Some(lse) = rig.read_lse(place)? else {
        add_new(&mut found.skipped, "log-sum-exp".to_string());
        return Ok(None);
    };
    let of_rows = lse
        .iter()
        .zip(rows_of_lse(rig.problem().o_layout(), rig.rows().unwrap_or(&Rows::All)));
    let of_rows: Vec<f32> = of_rows
        .filter(|(_, is_written)| *is_written)
        .map(|(value, _)| *value)
        .collect();
    let count = |is: fn(&f32) -> bool| of_rows.iter().filter(|value| is(value)).count();
    let unwritten = count(|value| value.to_ne_bytes() == [POISON; 4]);
    let nan = count(|value| value.is_nan());
    let comparison = rig.expected(seed).compare_lse(rig.problem(), &lse);
    let comparison = comparison.map_err(|error| Trouble::new(error.to_string()))?;
    let of_all = |count: usize, what: &str| format!("the log-sum-exp of {count} of {} rows {what}", of_rows.len());
    Ok(if unwritten > 0 {
        Some((Reason::Unwritten, of_all(unwritten, "was never written")))
    } else if nan > 0 {
        Some((Reason::NotANumber, of_all(nan, "is NaN")))
    } else if comparison.passed {
        None
    } else {
        Some((Reason::Wrong, format!("log-sum-exp: {comparison}")))
    })
}

/// Whether each entry of a log-sum-exp is of a row that is written.
fn rows_of_lse<'r>(o: &Layout, rows: &'r Rows) -> impl Iterator<Item = bool> + use<'r> {
    let [batch, seq, heads, _] = o.shape;
    let entries = (0..batch).flat_map(move |b| (0..heads).flat_map(move |_| (0..seq).map(move |s| b * seq + s)));
    entries.map(|row| rows.has(0, row))
}

/// Counts over whole outputs: of the rows that are written, and of the others.
pub fn census_of(outs: &[Tensor], rows: &Rows) -> [Census; 2] {
    let each = outs
        .iter()
        .enumerate()
        .map(|(at, out)| census(&out.view(), |row| rows.has(at, row)));
    each.fold([Census::default(); 2], both)
}

/// Counts over a whole output, on all cores: the comparison may have looked at some rows only. First of the rows that
/// are written, then of the others.
fn census(view: &TensorView<'_>, is_written: impl Fn(usize) -> bool + Sync) -> [Census; 2] {
    let [batch, seq, ..] = view.layout().shape;
    let counted = (0..batch * seq).into_par_iter().map(|row| {
        let census = Census::of_row(view, row / seq, row % seq);
        if is_written(row) {
            [census, Census::default()]
        } else {
            [Census::default(), census]
        }
    });
    counted.reduce(|| [Census::default(); 2], both)
}

fn both([a, b]: [Census; 2], [c, d]: [Census; 2]) -> [Census; 2] {
    [a.and(c), b.and(d)]
}
