//! `flashcore-tools fuzz-ptx`.

use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Corpus, fate, texts};

/// Reads mutated PTX texts and simulates what is a kernel; none may stop it.
///
/// A text that aborts or fills the memory ends the process: give it a limit (ulimit -v), and find the text with
/// --first and --print. Exits with 0 where each text was read or refused, 1 where one panics or takes a minute.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Seed of the texts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first text.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Texts.
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// Prints the first text, and reads nothing.
    #[arg(long)]
    print: bool,
}

/// What no text may take: each is a few kilobytes long, and most are read in a millisecond.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: u64 = 100_000;

static NOW: AtomicU64 = AtomicU64::new(0);

pub(crate) fn main(options: &Options) -> crate::Ran {
    let corpus = Corpus::new(texts());
    if options.print {
        print!("{}", corpus.mutant(options.seed, options.first));
        return crate::verdict(true);
    }
    let start = Instant::now();
    std::thread::spawn(move || watch(start));
    // Panics are told by number, with their line.
    std::panic::set_hook(Box::new(|panic| {
        if let Some(location) = panic.location() {
            print!("{location}: ");
        }
    }));
    let (mut counts, mut panics, mut bytes, mut slowest) = ([0u64; 4], 0u64, 0, (Duration::ZERO, 0));
    for number in options.first..options.first.saturating_add(options.count) {
        let text = corpus.mutant(options.seed, number);
        NOW.store(number, Ordering::Relaxed);
        let began = busy(start);
        match fate(&text) {
            Ok(fate) => counts[fate as usize] += 1,
            Err(message) => {
                panics += 1;
                println!("FAIL text {number}: {message}");
            }
        }
        bytes += text.len();
        slowest = slowest.max((busy(start).saturating_sub(began), number));
        let done = number - options.first + 1;
        if done.is_multiple_of(STEP) {
            eprintln!("{done} texts");
        }
    }
    let [refused, read, kernels, simulated] = counts;
    println!(
        "{} texts of seed {} from {} on, {:.1} MB, in {:.1} s: {refused} refused, {read} read, {kernels} kernels, {simulated} \
         simulated, {panics} panics; slowest {:.3} s (text {}); {}",
        options.count,
        options.seed,
        options.first,
        bytes as f64 / 1e6,
        start.elapsed().as_secs_f64(),
        slowest.0.as_secs_f64(),
        slowest.1,
        peak_memory().unwrap_or("peak memory unknown".to_string())
    );
    crate::verdict(panics == 0)
}

/// Ends the process where a text takes too long.
fn watch(start: Instant) {
    let mut seen = (u64::MAX, busy(start));
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = NOW.load(Ordering::Relaxed);
        if now != seen.0 {
            seen = (now, busy(start));
        } else if busy(start).saturating_sub(seen.1) > PATIENCE {
            println!("FAIL text {now}: not done after {} s", PATIENCE.as_secs());
            exit(1);
        }
    }
}

/// How long the first thread, which reads the texts, had a processor; elsewhere than on Linux, the time since `start`.
/// A busy machine makes no text slow.
fn busy(start: Instant) -> Duration {
    let schedule = read("/proc/self/schedstat");
    let running = schedule.and_then(|text| text.split_whitespace().next()?.parse().ok());
    running.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// The text of a file under `/proc`; `None` where there is none.
fn read(file: &str) -> Option<String> {
    flashcore_ir::files::read_text_capped(std::path::Path::new(file), flashcore_ir::files::SMALL).ok()
}

/// As Linux tells it.
fn peak_memory() -> Option<String> {
    let status = read("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(format!("peak memory {}", line.trim()))
}
