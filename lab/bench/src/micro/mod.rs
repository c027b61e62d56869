//! Microbenchmarks: small kernels that each measure one rate of a card, for the cost model.
//!
//! They are written in the kernel language, and the simulator runs them where there is no GPU. Each stores a result
//! that depends on all of its work, and the result is checked: a copy copies, sums equal those of the host. A launch is
//! long enough (100 µs or more) that its start does not matter.
//!
//! `memory` measures bandwidth, `arithmetic` instructions, `tensor` matrix products, `chains` latencies.
//! [`device`] runs them on a GPU, [`rates`] keeps the results.

mod arithmetic;
mod chains;
pub mod device;
mod memory;
pub mod rates;
mod tensor;

use std::fmt;

use flashcore_ir::{Arg, BufferSpec, BuildErrors, Kernel, Launch, Target};
use serde::{Deserialize, Serialize};

use crate::own::sha256;
use crate::{BenchError, Result};

pub use rates::{DeviceRates, MeasuredRate};

/// A small kernel that measures one rate.
struct Micro {
    /// Short name: `copy`, `mma-f32`.
    name: &'static str,
    /// What it measures, in a few words.
    about: &'static str,
    kernel: Kernel,
    launch: Launch,
    /// What is in each buffer of the launch.
    contents: Vec<Content>,
    /// Units of work in a launch.
    amount: f64,
    unit: Unit,
    right: Right,
}

/// Whether word number `.0` of the output may be `.1`.
type Right = Box<dyn Fn(usize, u32) -> bool + Send + Sync>;

/// What a buffer holds before a launch.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// [`pattern`] over the whole buffer.
    Pattern,
    /// Poison: the kernel writes it. The last buffer of each launch is so.
    Output,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// 10^9 bytes a second, of the whole card.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// Bytes a clock an SM.
    #[serde(rename = "B/clk/SM")]
    BytesPerClock,
    /// Floating-point operations a clock an SM, a fused product counting two.
    #[serde(rename = "FLOP/clk/SM")]
    FlopsPerClock,
    /// Lanes a clock an SM.
    #[serde(rename = "lanes/clk/SM")]
    LanesPerClock,
    /// Clocks from one link of a chain to the next.
    #[serde(rename = "clk")]
    Clocks,
}

/// As in JSON and tables: `GB/s`.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Unit {
    /// What `amount` units in `micros` microseconds come to, on a card of `sms` SMs at `mhz`.
    ///
    /// ```
    /// use flashcore_bench::micro::Unit;
    /// assert_eq!(Unit::GigabytesPerSecond.value(4.0e9, 1e6, 1000.0, 10), 4.0);
    /// assert_eq!(Unit::LanesPerClock.value(1280.0, 1.0, 1.0, 10), 128.0);
    /// assert_eq!(Unit::Clocks.value(100.0, 1.0, 2000.0, 10), 20.0);
    /// ```
    pub fn value(self, amount: f64, micros: f64, mhz: f64, sms: u32) -> f64 {
        match self {
            Unit::GigabytesPerSecond => amount / micros / 1e3,
            Unit::BytesPerClock | Unit::FlopsPerClock | Unit::LanesPerClock => amount / (micros * mhz * f64::from(sms)),
            Unit::Clocks => micros * mhz / amount,
        }
    }
}

/// How much each kernel is given to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// SMs to fill.
    pub sms: u32,
    /// Bytes that are copied, too many for a cache to matter.
    pub copy_bytes: u64,
    /// Whether loops make all their rounds; otherwise two.
    pub full: bool,
}

/// Bytes of the piece that a block copies or reads at a time.
const CHUNK: u64 = memory::CHUNK_WORDS as u64 * 4;
/// Least bytes copied on a device, however small its L2.
const LEAST_COPY: u64 = 64 << 20;

impl Scale {
    /// For measuring on a card.
    ///
    /// ```
    /// use flashcore_bench::micro::Scale;
    /// let h200 = Scale::device(132, 60 << 20);
    /// assert_eq!(h200.copy_bytes, 480 << 20);
    /// ```
    pub fn device(sms: u32, l2_bytes: u64) -> Scale {
        Scale {
            sms,
            copy_bytes: (8 * l2_bytes).max(LEAST_COPY) / CHUNK * CHUNK,
            full: true,
        }
    }

    /// Rounds of a loop that makes `full` of them on a device.
    fn rounds(&self, full: u32) -> u32 {
        if self.full { full } else { 2 }
    }
}

/// All that run on an architecture.
fn all(target: Target, scale: &Scale) -> Result<Vec<Micro>, BuildErrors> {
    let mut all = chains::all(scale)?;
    all.extend([memory::copy(scale)?, memory::shared(scale)?, arithmetic::ex2(scale)?]);
    all.extend(tensor::all(scale)?);
    all.retain(|micro| micro.kernel.requires().is_met_by(target));
    Ok(all)
}

/// Identity of the microbenchmarks of an architecture: 16 hexadecimal digits that change with any kernel and with how
/// much a launch does.
fn revision(target: Target, scale: &Scale) -> Result<String, BuildErrors> {
    let mut text = String::new();
    for micro in all(target, scale)? {
        text += &micro.kernel.to_ptx();
        text += &format!("{:?} {} {:?}", micro.launch, micro.amount, micro.unit);
    }
    Ok(sha256(text)[..16].to_string())
}

impl Micro {
    /// A kernel that makes `rounds` rounds, its only number; `amount` is the work of all threads. What it reads and
    /// writes is still to be said.
    fn new(
        [name, about]: [&'static str; 2],
        kernel: Kernel,
        [blocks, rounds]: [u32; 2],
        (amount, unit): (f64, Unit),
    ) -> Micro {
        Micro {
            name,
            about,
            launch: Launch {
                args: vec![Arg::U32(rounds)],
                ..Launch::of(&kernel, [blocks, 1, 1])
            },
            kernel,
            contents: Vec::new(),
            amount,
            unit,
            right: Box::new(|_, _| true),
        }
    }

    /// The same of a kernel whose threads all do `work` in a round.
    fn of_threads(words: [&'static str; 2], kernel: Kernel, [blocks, rounds]: [u32; 2], work: (u32, Unit)) -> Micro {
        let threads = f64::from(blocks * kernel.threads());
        let amount = threads * f64::from(rounds) * f64::from(work.0);
        Micro::new(words, kernel, [blocks, rounds], (amount, work.1))
    }

    /// Reads buffers of these names, bytes and contents.
    fn reading(mut self, inputs: impl IntoIterator<Item = (&'static str, u64, Content)>) -> Micro {
        for (name, bytes, content) in inputs {
            self.launch.buffers.push(BufferSpec {
                name,
                bytes,
                written: content == Content::Output,
                align: 16,
            });
            self.contents.push(content);
        }
        self
    }

    /// Writes a word for each thread.
    fn checked(self, right: impl Fn(usize, u32) -> bool + Send + Sync + 'static) -> Micro {
        let bytes = self.launch.blocks() * u64::from(self.kernel.threads()) * 4;
        self.writing(bytes, right)
    }

    /// Writes so many bytes. The kernel takes a pointer to each buffer, the output last, and then its numbers.
    fn writing(self, bytes: u64, right: impl Fn(usize, u32) -> bool + Send + Sync + 'static) -> Micro {
        let mut micro = self.reading([("out", bytes, Content::Output)]);
        let pointers = (0..micro.contents.len()).map(|slot| Arg::Buffer { slot, byte_offset: 0 });
        micro.launch.args.splice(0..0, pointers);
        micro.right = Box::new(right);
        micro
    }

    /// Slot of the buffer that is written: the last.
    fn output(&self) -> usize {
        self.contents.len() - 1
    }

    /// Checks the bytes of the output.
    fn check(&self, bytes: &[u8]) -> Result<()> {
        let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        match words.enumerate().find(|(index, word)| !(self.right)(*index, *word)) {
            None => Ok(()),
            Some((index, word)) => {
                let is = format!("word {index} of its output is {word:#010x} ({})", f32::from_bits(word));
                let why = format!(
                    "microbenchmark {}: {is}, which is wrong; its rate is not used",
                    self.name
                );
                Err(BenchError::Failed(why))
            }
        }
    }
}

/// Words after which [`pattern`] repeats: a prime, so that no stride of a kernel hits the same word by chance.
const PERIOD: usize = 4_194_301;

/// Word `i` of a buffer of [`Content::Pattern`].
fn pattern(i: usize) -> u32 {
    // The finaliser of MurmurHash3: all bits of the number in all bits of the word.
    let mut x = (i % PERIOD) as u32 ^ 0x9e37_79b9;
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

fn held(name: &'static str, bytes: Vec<u8>) -> (&'static str, u64, Content) {
    (name, bytes.len() as u64, Content::Bytes(bytes))
}

fn bytes(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests;
