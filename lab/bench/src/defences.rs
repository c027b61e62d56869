//! Defences against numbers that are fast because nothing was computed.
//!
//! A subject is inspected on a [`Rig`]: the device's buffers, its stream, and the subject bound to them. Every
//! rule has a reason with a name, and every reason a cheating subject among the tests that must be caught for it.

use flashcore_problem::{
    Comparison, POISON, Problem, Reference, ReferenceRow, Tensor, TensorView, Tolerance, compare, compare_lse,
    compare_lse_rows, compare_rows,
};
use rayon::prelude::*;

pub use flashcore_problem::bulk::Census;

pub use crate::inspection::{Inspection, Reason};
use crate::stats::median;
use crate::subject::{Stopwatch, Subject, Trouble};

/// Buffers and the subject bound to them. Whatever is put into the stream happens in order, except what a
/// subject puts elsewhere.
pub trait Rig {
    /// What is asked.
    fn problem(&self) -> &Problem;

    /// The right answer for the inputs of a seed.
    fn expected(&self, seed: u64) -> &Expected;

    /// Puts into the stream: the inputs of a seed go into the buffers of a place (0, or 1 for another set of
    /// addresses), over what was there.
    ///
    /// # Errors
    /// What the device said; also for all others.
    fn load(&mut self, place: usize, seed: u64) -> Result<(), Trouble>;

    /// Puts into the stream: the output of a place becomes poison, and so does its log-sum-exp, where there is one.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn poison(&mut self, place: usize) -> Result<(), Trouble>;

    /// Puts a pause of a few milliseconds into the stream.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn pause(&mut self) -> Result<(), Trouble>;

    /// Calls the subject exactly as it is timed, bound to a place; `false` if it cannot be bound there, as is the
    /// case for functions of other libraries.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn run(&mut self, place: usize) -> Result<bool, Trouble>;

    /// Puts into the stream: a copy of the output of a place, as it is then.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn snapshot(&mut self, place: usize) -> Result<(), Trouble>;

    /// Waits until the whole device, and not just the stream, has nothing left to do.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn finish(&mut self) -> Result<(), Trouble>;

    /// The output of a place as it is now, or as the last snapshot has it.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn read(&mut self, place: usize, what: Output) -> Result<Tensor, Trouble>;

    /// What the output of a place is like, and how it compares with the right answer for a seed: as much of
    /// [`read`](Rig::read) as judging takes. A rig whose outputs are far away looks at them there.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn look(&mut self, place: usize, what: Output, seed: u64) -> Result<Seen, Trouble> {
        let out = self.read(place, what)?;
        Ok(Seen {
            census: census(&out.view()),
            comparison: self.expected(seed).compare(self.problem(), &out.view())?,
        })
    }

    /// The log-sum-exp of a place as it is now; `None` where the problem asks for none, or the subject computes none, as
    /// functions of other libraries.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble>;

    /// What was written beside the tensors that a subject was given, in a sentence; `None` where nothing was, and where
    /// the host's own bounds checks see to that.
    ///
    /// # Errors
    /// As [`load`](Rig::load).
    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        Ok(None)
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

/// What an output is like.
#[derive(Clone, Debug)]
pub struct Seen {
    /// All of it.
    pub census: Census,
    /// As far as the right answer is known, in every element or in some rows.
    pub comparison: Comparison,
}

/// The right answer, whole or in some rows.
#[derive(Clone, Debug)]
pub enum Expected {
    /// Every element.
    Whole(Reference),
    /// Some rows, where all would take too long.
    Rows(Vec<ReferenceRow>),
}

impl Expected {
    /// Compares an output with it.
    ///
    /// # Errors
    /// An output that is not the problem's.
    pub fn compare(&self, problem: &Problem, out: &TensorView<'_>) -> Result<Comparison, Trouble> {
        let tolerance = Tolerance::of(problem.dtype());
        match self {
            Expected::Whole(reference) => compare(problem, out, reference, tolerance),
            Expected::Rows(rows) => compare_rows(problem, out, rows, tolerance),
        }
        .map_err(|error| Trouble::new(error.to_string()))
    }

    /// Compares a log-sum-exp with it.
    fn compare_lse(&self, problem: &Problem, lse: &[f32]) -> Result<Comparison, Trouble> {
        let tolerance = Tolerance::of(problem.dtype());
        match self {
            Expected::Whole(reference) => compare_lse(problem, lse, reference, tolerance),
            Expected::Rows(rows) => compare_lse_rows(problem, lse, rows, tolerance),
        }
        .map_err(|error| Trouble::new(error.to_string()))
    }

    fn is_zero(&self) -> bool {
        match self {
            Expected::Whole(reference) => reference.out.iter().all(|&x| x == 0.0),
            Expected::Rows(rows) => rows.iter().all(|row| row.out.iter().all(|&x| x == 0.0)),
        }
    }
}

/// Seeds that [`inspect`] asks inputs for, in the order it does.
pub const INSPECTION_SEEDS: [u64; 3] = [101, 102, 103];
/// The seed that [`inspect_again`] asks inputs for.
pub const AFTERWARDS_SEED: u64 = 104;

/// Inspects a subject before it is timed.
///
/// # Errors
/// What the device said; a subject that faults is no finding but an error.
pub fn inspect(rig: &mut dyn Rig) -> Result<Inspection, Trouble> {
    let [first, second, third] = INSPECTION_SEEDS;
    let mut found = Inspection {
        rejected: None,
        detail: String::new(),
        max_abs: 0.0,
        skipped: Vec::new(),
    };
    // Fresh inputs, poisoned output; what the stream calls ended, and what is there when everything has ended.
    rig.load(0, first)?;
    rig.poison(0)?;
    rig.finish()?;
    rig.run(0)?;
    rig.snapshot(0)?;
    rig.finish()?;
    if let Some(rejection) = judge(rig, 0, Output::Final, first, None, &mut found)? {
        return Ok(reject(found, rejection));
    }
    if judge(rig, 0, Output::Snapshot, first, None, &mut found)?.is_some() {
        return Ok(reject(
            found,
            (
                Reason::OtherStream,
                "the output was right a moment after the stream had ended, and not yet when it ended; join every \
                 stream it uses to the one it is given"
                    .to_string(),
            ),
        ));
    }
    // The other way round: what does not wait for the stream has run before the poison gets there.
    rig.pause()?;
    rig.poison(0)?;
    rig.run(0)?;
    rig.snapshot(0)?;
    rig.finish()?;
    if judge(rig, 0, Output::Snapshot, first, None, &mut found)?.is_some() {
        return Ok(reject(
            found,
            (
                Reason::OtherStream,
                "it ran before the work that was ahead of it in the stream; make every stream it uses wait for the \
                 one it is given"
                    .to_string(),
            ),
        ));
    }
    // New inputs at the same addresses, and the old answer left in the output.
    rig.load(0, second)?;
    rig.run(0)?;
    rig.finish()?;
    if let Some(rejection) = judge(rig, 0, Output::Final, second, Some(first), &mut found)? {
        return Ok(reject(found, rejection));
    }
    // Other addresses altogether.
    rig.load(1, third)?;
    rig.poison(0)?;
    rig.poison(1)?;
    rig.finish()?;
    if rig.run(1)? {
        rig.finish()?;
        if let Some((reason, detail)) = judge(rig, 1, Output::Final, third, Some(second), &mut found)? {
            let elsewhere = !is_poison(&rig.read(0, Output::Final)?);
            let rejection = match (elsewhere, reason) {
                (true, _) => (
                    Reason::PointerReplay,
                    "given other buffers, it wrote to the first ones; take every address from the arguments"
                        .to_string(),
                ),
                (false, Reason::Unwritten) => (
                    Reason::PointerReplay,
                    format!("given other buffers, it did not write them; {detail}"),
                ),
                (false, reason) => (reason, format!("given other buffers: {detail}")),
            };
            return Ok(reject(found, rejection));
        }
    } else {
        found.skipped.push("other addresses".to_string());
    }
    if let Some(outside) = rig.outside()? {
        return Ok(reject(found, (Reason::OutOfBounds, outside)));
    }
    found.detail = format!("largest error {:.1e} against float64 on fresh inputs", found.max_abs);
    Ok(found)
}

/// Looks once whether a subject's answer is right, on fresh inputs over a poisoned output: for kernels that are only
/// screened. It finds what is wrong, not what cheats.
///
/// # Errors
/// As [`inspect`].
pub fn look_once(rig: &mut dyn Rig) -> Result<Inspection, Trouble> {
    let mut found = Inspection {
        rejected: None,
        detail: String::new(),
        max_abs: 0.0,
        skipped: vec!["all but one look at the answer".to_string()],
    };
    let seed = INSPECTION_SEEDS[0];
    rig.load(0, seed)?;
    rig.poison(0)?;
    rig.finish()?;
    rig.run(0)?;
    rig.finish()?;
    if let Some(rejection) = judge(rig, 0, Output::Final, seed, None, &mut found)? {
        return Ok(reject(found, rejection));
    }
    if let Some(outside) = rig.outside()? {
        return Ok(reject(found, (Reason::OutOfBounds, outside)));
    }
    found.detail = format!("largest error {:.1e} against float64, looked at once", found.max_abs);
    Ok(found)
}

/// Inspects a subject after it was timed, on inputs it has not seen: with the last output still in place, and over poison.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_again(rig: &mut dyn Rig) -> Result<Inspection, Trouble> {
    let mut found = Inspection {
        rejected: None,
        detail: String::new(),
        max_abs: 0.0,
        skipped: Vec::new(),
    };
    rig.load(0, AFTERWARDS_SEED)?;
    rig.run(0)?;
    rig.finish()?;
    let last = INSPECTION_SEEDS[1];
    if let Some(rejection) = judge(rig, 0, Output::Final, AFTERWARDS_SEED, Some(last), &mut found)? {
        return Ok(reject(found, rejection));
    }
    // The same over poison: another subject's answer to these inputs may have been in place.
    rig.poison(0)?;
    rig.run(0)?;
    rig.finish()?;
    if let Some(rejection) = judge(rig, 0, Output::Final, AFTERWARDS_SEED, None, &mut found)? {
        return Ok(reject(found, rejection));
    }
    if let Some(outside) = rig.outside()? {
        return Ok(reject(found, (Reason::OutOfBounds, outside)));
    }
    found.detail = format!("largest error {:.1e} against float64 after timing", found.max_abs);
    Ok(found)
}

/// Single runs that [`time_cold`] takes the median of.
const COLD_RUNS: usize = 25;

/// Times single runs cold in two ways, µs: of `flushed` on its first set of inputs after a flush of L2, and of
/// `rotating` through all its sets, which together must be more memory than L2 holds, without a flush. For
/// [`judge_cold`].
///
/// # Errors
/// What the device or the subjects say.
pub fn time_cold(
    stopwatch: &mut dyn Stopwatch,
    flushed: &mut dyn Subject,
    rotating: &mut dyn Subject,
) -> Result<(f64, f64), Trouble> {
    let sets = rotating.input_sets().max(1);
    let mut once = |subject: &mut dyn Subject, set: Option<usize>| {
        stopwatch.hold()?;
        if set.is_none() {
            stopwatch.flush()?;
        }
        stopwatch.begin(0)?;
        subject.run_once(set.unwrap_or(0))?;
        stopwatch.end(0)?;
        stopwatch.elapsed_us(0)
    };
    // Two rounds of everything first: what persists is there by then.
    for set in 0..2 * sets {
        once(rotating, Some(set % sets))?;
    }
    let rotated = (0..COLD_RUNS.max(sets))
        .map(|run| once(rotating, Some(run % sets)))
        .collect::<Result<Vec<_>, _>>()?;
    for _ in 0..3 {
        once(flushed, None)?;
    }
    let after_flush = (0..COLD_RUNS)
        .map(|_| once(flushed, None))
        .collect::<Result<Vec<_>, _>>()?;
    Ok((median(&after_flush), median(&rotated)))
}

/// How much quicker a flushed run may be than one on memory that was never cached, relative: those runs differ in
/// page and bank, too.
pub const PERSISTING_MARGIN: f64 = 0.15;

/// Judges the time of a run after a flush of L2 (`flushed_us`) beside that of runs that rotate through more memory
/// than L2 holds (`rotating_us`): whatever is cold is cold both ways.
pub fn judge_cold(flushed_us: f64, rotating_us: f64) -> Option<(Reason, String)> {
    (flushed_us < rotating_us * (1.0 - PERSISTING_MARGIN)).then(|| {
        (
            Reason::PersistingCache,
            format!(
                "{flushed_us:.1} µs after a flush of L2 and {rotating_us:.1} µs on memory that was never there: it keeps \
                 lines in L2 that a flush does not reach"
            ),
        )
    })
}

fn reject(found: Inspection, (reason, detail): (Reason, String)) -> Inspection {
    Inspection {
        rejected: Some(reason),
        detail,
        ..found
    }
}

/// What is wrong with an output, if anything. `stale` is the seed of earlier inputs.
fn judge(
    rig: &mut dyn Rig,
    place: usize,
    what: Output,
    seed: u64,
    stale: Option<u64>,
    found: &mut Inspection,
) -> Result<Option<(Reason, String)>, Trouble> {
    let Seen { census, comparison } = rig.look(place, what, seed)?;
    if comparison.passed && census.unwritten == 0 && census.nan == 0 {
        found.max_abs = found.max_abs.max(comparison.max_abs);
        return judge_lse(rig, place, seed, found);
    }
    let elements = census.elements;
    Ok(Some(if census.unwritten > 0 {
        let count = census.unwritten;
        (
            Reason::Unwritten,
            format!("{count} of {elements} elements were never written"),
        )
    } else if census.nan > 0 {
        let count = census.nan;
        (
            Reason::NotANumber,
            format!("{count} of {elements} elements are NaN; a NaN equals nothing"),
        )
    } else if census.zeros == elements && !rig.expected(seed).is_zero() {
        (Reason::Zeros, format!("all {elements} elements are 0"))
    } else if is_answer_of(rig, place, what, stale) {
        (
            Reason::Cached,
            "the inputs changed and the answer did not: it is the earlier inputs' answer".to_string(),
        )
    } else {
        (Reason::Wrong, comparison.to_string())
    }))
}

/// Whether an output is the right answer for earlier inputs.
fn is_answer_of(rig: &mut dyn Rig, place: usize, what: Output, stale: Option<u64>) -> bool {
    let seen = stale.map(|stale| rig.look(place, what, stale));
    seen.is_some_and(|seen| seen.is_ok_and(|seen| seen.comparison.passed))
}

/// What is wrong with a log-sum-exp, if anything. That it was not looked at is noted.
fn judge_lse(
    rig: &mut dyn Rig,
    place: usize,
    seed: u64,
    found: &mut Inspection,
) -> Result<Option<(Reason, String)>, Trouble> {
    if !rig.problem().return_lse() {
        return Ok(None);
    }
    let Some(lse) = rig.read_lse(place)? else {
        let skipped = "log-sum-exp".to_string();
        if !found.skipped.contains(&skipped) {
            found.skipped.push(skipped);
        }
        return Ok(None);
    };
    let count = |is: fn(&f32) -> bool| lse.iter().filter(|value| is(value)).count();
    let unwritten = count(|value| value.to_ne_bytes() == [POISON; 4]);
    let nan = count(|value| value.is_nan());
    let comparison = rig.expected(seed).compare_lse(rig.problem(), &lse)?;
    let rows = lse.len();
    Ok(if unwritten > 0 {
        let detail = format!("the log-sum-exp of {unwritten} of {rows} rows was never written");
        Some((Reason::Unwritten, detail))
    } else if nan > 0 {
        Some((
            Reason::NotANumber,
            format!("the log-sum-exp of {nan} of {rows} rows is NaN"),
        ))
    } else if comparison.passed {
        None
    } else {
        Some((Reason::Wrong, format!("log-sum-exp: {comparison}")))
    })
}

/// Counts over a whole output, on all cores: the comparison may have looked at some rows only.
pub fn census(view: &TensorView<'_>) -> Census {
    let [batch, rows, ..] = view.layout().shape;
    let counted = (0..batch * rows).into_par_iter();
    counted
        .map(|row| Census::of_row(view, row / rows, row % rows))
        .reduce(Census::default, Census::and)
}

fn is_poison(out: &Tensor) -> bool {
    out.bytes().iter().all(|&byte| byte == POISON)
}
