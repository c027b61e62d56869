//! Damaged files of every format that the command or the library reads. Each must be read, or refused with an error:
//! never a panic, an abort, a hang, or memory without a limit. An input is a format and a number, so that it can be
//! made again. PTX that is read is simulated, too.

pub mod formats;
pub mod mutate;
mod ptx;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use flashcore_ir::files;

use self::formats::{Bench, Fate, Format};
use self::mutate::Corpus;

/// An input may take so long of a processor, and so long in all, on a machine that is busy with other things.
const PATIENCE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];

/// Reads damaged files of each format, and simulates those that are PTX.
///
/// An input that aborts or fills the memory ends the process: give it a limit (ulimit -v), and make the input again
/// with --from and --keep. Exits with 0 where each input was read or refused, 1 where one panics or takes a minute.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Inputs of each format
    #[arg(long, default_value_t = 100_000)]
    count: u64,
    /// The first of them: what a failure names is made again with `--from N --count 1`
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Formats, by name; all if none
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Most MiB that the process may have needed at its end
    #[arg(long, default_value_t = 512)]
    memory: u64,
    /// Keep the last input here, and the folder
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// What came of the inputs of one format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Inputs by how far they came.
    pub fates: [u64; 3],
    /// Refused with an error.
    pub refused: u64,
    /// The numbers of those that panicked.
    pub panics: Vec<u64>,
    /// The time of the processor that the slowest took, and its number.
    pub slowest: (Duration, u64),
}

/// The inputs of a format, by their numbers, one after another.
///
/// # Errors
/// A whole file that is refused; a file that cannot be written.
pub fn run(bench: &Bench, format: &Format, numbers: impl Iterator<Item = u64>) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let path = bench.folder().join(format.file);
    let write = |bytes: &[u8]| std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()));
    // A reader that refuses whole files would refuse everything.
    for seed in &format.seeds {
        write(seed)?;
        (format.read)(bench, &path).map_err(|error| format!("{}: a whole file: {error}", format.name))?;
    }
    let (corpus, start) = (Corpus::new(&format.seeds), Instant::now());
    for number in numbers {
        write(&corpus.damaged(number))?;
        let began = busy(start);
        match catch_unwind(AssertUnwindSafe(|| (format.read)(bench, &path))) {
            Ok(Ok(fate)) => tally.fates[fate as usize] += 1,
            Ok(Err(_)) => tally.refused += 1,
            Err(_) => {
                eprintln!("error: {} panics at input {number}, {}", format.name, path.display());
                tally.panics.push(number);
            }
        }
        tally.slowest = tally.slowest.max((busy(start).saturating_sub(began), number));
    }
    // Whole again, for the formats that are read with it.
    write(format.seeds.first().map_or(&[][..], Vec::as_slice))?;
    Ok(tally)
}

/// The text of a file under `/proc`; empty where there is none.
fn proc(file: &str) -> String {
    files::read_text_capped(Path::new(file), files::SMALL).unwrap_or_default()
}

/// The most memory that this process has needed, MiB; 0 where the system does not say.
fn peak_mib() -> u64 {
    let status = proc("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// How long the first thread, which reads the inputs, had a processor; elsewhere than on Linux, the time since `start`.
/// A busy machine makes no input slow.
fn busy(start: Instant) -> Duration {
    let running = proc("/proc/self/schedstat");
    let running = running.split_whitespace().next().and_then(|word| word.parse().ok());
    running.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// What hangs cannot be stopped, so the process ends, and says where it was.
fn watch(at: &AtomicU64) {
    let start = Instant::now();
    let (mut last, mut since) = (0, [busy(start), start.elapsed()]);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let (now, times) = (at.load(Ordering::Relaxed), [busy(start), start.elapsed()]);
        if now != last {
            (last, since) = (now, times);
        } else if (0..2).any(|clock| times[clock].saturating_sub(since[clock]) > PATIENCE[clock]) {
            eprintln!("error: input {} takes longer than {:?}", now & 0xffff_ffff, PATIENCE[0]);
            std::process::exit(1);
        }
    }
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let bench = Bench::new(options.keep.as_deref())?;
    let all = bench.formats()?;
    let known: Vec<&str> = all.iter().map(|format| format.name).collect();
    if let Some(unknown) = options.only.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no format is named `{unknown}`; there are {}", known.join(", ")).into());
    }
    static AT: AtomicU64 = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::spawn(|| watch(&AT));
    let mut failed = false;
    for (place, format) in all.iter().enumerate() {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == format.name) {
            continue;
        }
        let numbers = options.from..options.from.saturating_add(options.count);
        let told = numbers.inspect(|number| AT.store((place as u64 + 1) << 32 | number, Ordering::Relaxed));
        let started = Instant::now();
        let tally = match run(&bench, format, told) {
            Ok(tally) => tally,
            Err(why) => {
                eprintln!("error: {why}");
                failed = true;
                continue;
            }
        };
        failed |= !tally.panics.is_empty();
        let of_kernels = match tally.fates {
            [_, 0, 0] => String::new(),
            [_, kernels, simulated] => format!(", {kernels} kernels, {simulated} simulated"),
        };
        println!(
            "{:<14} {:>8} read{of_kernels}, {:>8} refused, {} panic, {:.1} s (input {} {:.3} s), {} MiB",
            format.name,
            tally.fates[Fate::Read as usize],
            tally.refused,
            tally.panics.len(),
            started.elapsed().as_secs_f64(),
            tally.slowest.1,
            tally.slowest.0.as_secs_f64(),
            peak_mib()
        );
    }
    let peak = peak_mib();
    println!("{:.0} s, at most {peak} MiB", began.elapsed().as_secs_f64());
    crate::verdict(!failed && peak <= options.memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_by_number_and_the_others_go_on() {
        let bench = Bench::new(None).unwrap();
        let planted = Format {
            name: "planted",
            file: "planted.txt",
            seeds: vec![b"a = 1\nb = 2\n".to_vec()],
            read: |_, path| {
                let text = files::read_text_capped(path, files::SMALL)?;
                assert!(text.contains('b'), "planted");
                Ok(Fate::Read)
            },
        };
        let tally = run(&bench, &planted, 0..200).unwrap();
        let (first, panics) = (tally.panics[0], tally.panics.len() as u64);
        assert_eq!(tally.fates[0] + tally.refused + panics, 200);
        assert!(panics < 200 && run(&bench, &planted, first..first + 1).unwrap().panics == [first]);
    }
}
