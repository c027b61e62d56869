//! Damaged files of every format that the command or the library reads. Each must be read, or refused with an error:
//! never a panic, an abort, a hang, or memory without a limit. An input is a seed and a number, so that it can be made
//! again. (PTX has its own.)

pub mod formats;
pub mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use flashcore_ir::files;

use self::formats::{Bench, Format};

/// An input may take so long, on a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_secs(600);

/// Reads damaged files of each format.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Read as a file of the format.
    pub read: u64,
    /// Refused with an error.
    pub refused: u64,
}

/// The inputs of a format, by their numbers, one after another.
///
/// # Errors
/// The first input that makes it panic, with its number; a whole file that is refused; a file that cannot be written.
pub fn run(bench: &Bench, format: &Format, numbers: impl Iterator<Item = u64>) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let path = bench.folder().join(format.file);
    let write = |bytes: &[u8]| std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()));
    // A reader that refuses whole files would refuse everything.
    for seed in &format.seeds {
        write(seed)?;
        (format.read)(bench, &path).map_err(|error| format!("{}: a whole file: {error}", format.name))?;
    }
    for number in numbers {
        write(&mutate::damaged(&format.seeds, number))?;
        match catch_unwind(AssertUnwindSafe(|| (format.read)(bench, &path))) {
            Ok(Ok(())) => tally.read += 1,
            Ok(Err(_)) => tally.refused += 1,
            Err(_) => return Err(format!("{} panics at input {number}, {}", format.name, path.display())),
        }
    }
    // Whole again, for the formats that are read with it.
    write(format.seeds.first().map_or(&[][..], Vec::as_slice))?;
    Ok(tally)
}

/// The most memory that this process has needed, MiB; 0 where the system does not say.
fn peak_mib() -> u64 {
    let status = files::read_text_capped("/proc/self/status".as_ref(), files::SMALL).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
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
    // What hangs cannot be stopped, so the process ends, and says where it was.
    std::thread::spawn(move || {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let at = AT.load(Ordering::Relaxed);
            if at != last {
                (last, since) = (at, Instant::now());
            } else if since.elapsed() > DEADLINE {
                eprintln!("error: input {} takes longer than {DEADLINE:?}", at & 0xffff_ffff);
                std::process::exit(1);
            }
        }
    });
    let mut failed = false;
    for (place, format) in all.iter().enumerate() {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == format.name) {
            continue;
        }
        let numbers = options.from..options.from + options.count;
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
        println!(
            "{:<14} {:>8} read, {:>8} refused, {:.1} s, {} MiB",
            format.name,
            tally.read,
            tally.refused,
            started.elapsed().as_secs_f64(),
            peak_mib()
        );
    }
    let peak = peak_mib();
    println!("{:.0} s, at most {peak} MiB", began.elapsed().as_secs_f64());
    crate::verdict(!failed && peak <= options.memory)
}
