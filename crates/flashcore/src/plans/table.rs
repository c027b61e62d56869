//! [`PlanTable`]: the kernels measured to be the fastest for problems on one device, as plain data.

use std::fmt;

use flashcore_problem::{CausalAlign, DType, Direction, Layout, Mask, Problem};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use super::PlanError;
use crate::KernelId;

/// The format version of tables that this build reads and writes.
pub const PLAN_FORMAT: u64 = 1;

/// Granularity of the lengths that a row serves: within a step, every family has the same number of
/// tiles.
const STEP: usize = 64;
/// A row serves lengths that are shorter by at most this fraction.
const SLACK: usize = 16;

/// The device that a table was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanDevice {
    /// The driver's name of the GPU, or the model of the CPU.
    pub name: String,
    /// The architecture: `sm_90a`; of a host with its vector instructions, `x86_64/avx512`.
    pub target: String,
    /// Streaming multiprocessors, or threads of a host.
    pub units: u32,
}

impl PlanDevice {
    /// Whether it is a GPU rather than a host.
    pub fn is_gpu(&self) -> bool {
        self.target.starts_with("sm_")
    }
}

impl fmt::Display for PlanDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.is_gpu() { "SMs" } else { "threads" };
        write!(f, "{} ({}, {} {unit})", self.name, self.target, self.units)
    }
}

/// The problems that a row is for: those of the measured problem's direction, dtype, columns, mask,
/// batch and heads, and of its lengths or slightly shorter ones ([`PlanClass::serves`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanClass {
    /// Which way it is computed. Forward where a row does not say it, as rows from before there were
    /// others do not.
    #[serde(default, skip_serializing_if = "Direction::is_forward")]
    pub direction: Direction,
    /// Whether gradients must be the same bits in every run; never of a forward problem.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// Element type of Q, K and V, by name.
    #[serde(serialize_with = "to_text", deserialize_with = "dtype_of_name")]
    pub dtype: DType,
    /// Columns of Q and K.
    pub head_dim: usize,
    /// Columns of V.
    pub head_dim_v: usize,
    /// The mask, as it prints.
    #[serde(serialize_with = "to_text", deserialize_with = "mask_of_name")]
    pub mask: Mask,
    /// Sequences.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Query rows a sequence.
    pub seq_q: usize,
    /// Keys a sequence.
    pub seq_kv: usize,
    /// Whether scores are capped.
    #[serde(default)]
    pub softcap: bool,
    /// Whether heads have sinks.
    #[serde(default)]
    pub sinks: bool,
    /// Whether scores have ALiBi's bias.
    #[serde(default)]
    pub alibi: bool,
    /// Whether the log-sum-exp is written; never of a backward problem, which reads it.
    #[serde(default)]
    pub lse: bool,
    /// Whether tensors, gradients too, lie as `[batch, heads, seq, head_dim]`, rather than `[batch,
    /// seq, heads, head_dim]`.
    #[serde(default)]
    pub bhsd: bool,
}

impl PlanClass {
    /// The class of a problem; `None` for those that no table is for: with tensors that are not
    /// dense or lie in different orders, offsets of the mask, or lengths on the device.
    ///
    /// ```
    /// use flashcore::Problem;
    /// use flashcore::unstable::plans::PlanClass;
    /// let class = PlanClass::of(&Problem::named("llama8b-prefill-8k")?).expect("a dense problem");
    /// assert_eq!((class.heads, class.kv_heads, class.seq_q), (32, 8, 8192));
    /// let backward = Problem::named("llama8b-prefill-8k")?.backward()?;
    /// assert_eq!(class.serves(&PlanClass::of(&backward).expect("a dense problem")), None);
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    pub fn of(problem: &Problem) -> Option<PlanClass> {
        let lies = |order: fn([usize; 4]) -> Layout| problem.layouts().all(|layout| *layout == order(layout.shape));
        let bshd = lies(Layout::bshd);
        let direction = problem.direction();
        let plain = problem.q_offset() == 0 && problem.kv_offset() == 0;
        if problem.has_lengths() || problem.batch_invariant().is_some() || !plain || !(bshd || lies(Layout::bhsd)) {
            return None;
        }
        let mut mask = problem.mask();
        // Where the diagonal begins is the same then.
        if problem.seq_len_q() == problem.seq_len_kv() || mask.is_full() {
            mask.align = CausalAlign::BottomRight;
        }
        Some(PlanClass {
            direction,
            deterministic: direction == Direction::Backward && problem.deterministic(),
            dtype: problem.dtype(),
            head_dim: problem.head_dim(),
            head_dim_v: problem.head_dim_v(),
            mask,
            batch: problem.batch(),
            heads: problem.num_heads(),
            kv_heads: problem.num_kv_heads(),
            seq_q: problem.seq_len_q(),
            seq_kv: problem.seq_len_kv(),
            softcap: problem.softcap().is_some(),
            sinks: problem.sinks().is_some(),
            alibi: problem.alibi().is_some(),
            lse: problem.writes_lse(),
            bhsd: !bshd,
        })
    }

    /// By how many rows and keys a problem of `other`'s class is shorter; `None` where this row is
    /// not for it.
    ///
    /// All but the lengths must be the same. A length is served where it is the row's, or less than
    /// 64 shorter with as many tiles of 64, and by a sixteenth at most.
    ///
    /// ```
    /// use flashcore::Problem;
    /// use flashcore::unstable::plans::PlanClass;
    /// let problem = |length| Problem::builder().heads(8, 8).seq_len(length).head_dim(64).build();
    /// let class = |length| PlanClass::of(&problem(length).unwrap()).unwrap();
    /// assert_eq!(class(4096).serves(&class(4090)), Some(12)); // 6 rows and 6 keys
    /// assert_eq!(class(4096).serves(&class(4032)), None); // a tile fewer
    /// assert_eq!(class(4096).serves(&class(4097)), None);
    /// assert_eq!(class(128).serves(&class(100)), None); // more than a sixteenth
    /// ```
    pub fn serves(&self, other: &PlanClass) -> Option<usize> {
        let rows = shorter(self.seq_q, other.seq_q)?;
        let keys = shorter(self.seq_kv, other.seq_kv)?;
        let same_lengths = PlanClass {
            seq_q: self.seq_q,
            seq_kv: self.seq_kv,
            ..other.clone()
        };
        (same_lengths == *self).then_some(rows + keys)
    }

    /// What rows are sorted by.
    fn order(&self) -> impl Ord + use<> {
        let shape = [self.head_dim, self.head_dim_v];
        let counts = [self.seq_kv, self.seq_q, self.batch, self.heads, self.kv_heads];
        let rest = [
            self.softcap,
            self.lse,
            self.bhsd,
            self.sinks,
            self.alibi,
            self.deterministic,
        ];
        (self.direction, self.dtype, shape, self.mask.to_string(), counts, rest)
    }
}

fn shorter(of_row: usize, length: usize) -> Option<usize> {
    let by = of_row.checked_sub(length)?;
    let same_tiles = of_row.div_ceil(STEP) == length.div_ceil(STEP);
    (by == 0 || same_tiles && by <= of_row / SLACK).then_some(by)
}

/// One line, as a [`Problem`] prints.
impl fmt::Display for PlanClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = format!(
            "B{} H{}/{} Sq{} Skv{} D{} {} {}",
            self.batch, self.heads, self.kv_heads, self.seq_q, self.seq_kv, self.head_dim, self.dtype, self.mask
        );
        if self.head_dim_v != self.head_dim {
            line += &format!(" Dv{}", self.head_dim_v);
        }
        for (unusual, what) in [
            (self.softcap, " cap"),
            (self.sinks, " sinks"),
            (self.alibi, " alibi"),
            (self.lse, " lse"),
            (self.bhsd, " bhsd"),
            (self.deterministic, " deterministic"),
            (!self.direction.is_forward(), " backward"),
        ] {
            line += if unusual { what } else { "" };
        }
        f.pad(&line)
    }
}

/// A row: the kernel for a class of problems, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRow {
    /// The problems it is for.
    pub problem: PlanClass,
    /// The kernel, by id.
    #[serde(serialize_with = "to_text", deserialize_with = "kernel_of_id")]
    pub kernel: KernelId,
    /// The kernel that was used before it, chosen by heuristics or by an earlier row, by id. It
    /// need not exist any more. Where nothing was faster it is the kernel itself.
    pub against: String,
    /// How much faster the kernel was than that one, head to head, as a share of the time: 0.03 is
    /// 3 %.
    pub gain: f64,
    /// Interval of the gain, at 99 %.
    pub interval: [f64; 2],
    /// Git revision of the build that measured it.
    pub revision: String,
    /// The driver; empty for a host.
    pub driver: String,
    /// The day, `2026-11-21`.
    pub date: String,
}

impl PlanRow {
    /// The evidence in a clause.
    pub fn evidence(&self) -> String {
        let percent = |share: f64| share * 100.0;
        let driver = match self.driver.as_str() {
            "" => String::new(),
            driver => format!(", driver {driver}"),
        };
        if self.against == self.kernel.to_string() {
            let (date, revision) = (&self.date, &self.revision);
            return format!("nothing near it was faster on {date} (revision {revision}{driver})");
        }
        format!(
            "{:.1} % [{:.1}, {:.1}] less time than {} on {} (revision {}{driver})",
            percent(self.gain),
            percent(self.interval[0]),
            percent(self.interval[1]),
            self.against,
            self.date,
            self.revision,
        )
    }
}

/// A row as it stands in a file, and what it says if it can be used.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanEntry {
    value: Value,
    /// The row, or what is wrong with it.
    pub row: Result<PlanRow, String>,
}

/// The kernels that were measured to be the fastest on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanTable {
    /// The device.
    pub device: PlanDevice,
    /// The rows in the order of the file, also those that cannot be used.
    pub entries: Vec<PlanEntry>,
}

#[derive(Deserialize)]
struct Format {
    format: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[allow(dead_code)] // read before, by itself
    format: u64,
    device: PlanDevice,
    rows: Vec<Value>,
}

impl PlanTable {
    /// An empty table of a device.
    pub fn new(device: PlanDevice) -> PlanTable {
        PlanTable {
            device,
            entries: Vec::new(),
        }
    }

    /// The table of a file's text; `file` is its name for messages. A row that cannot be used does
    /// not spoil the others.
    ///
    /// # Errors
    /// [`PlanError::NotATable`] and [`PlanError::Format`].
    pub fn parse(text: &str, file: &str) -> Result<PlanTable, PlanError> {
        let bad = |error: serde_json::Error| PlanError::NotATable {
            file: file.to_string(),
            reason: error.to_string(),
        };
        let Format { format } = serde_json::from_str(text).map_err(bad)?;
        if format != PLAN_FORMAT {
            return Err(PlanError::Format {
                file: file.to_string(),
                given: format,
                known: PLAN_FORMAT,
            });
        }
        let read: File = serde_json::from_str(text).map_err(bad)?;
        let mut table = PlanTable::new(read.device);
        for value in read.rows {
            let row = table.check(&value);
            table.entries.push(PlanEntry { value, row });
        }
        Ok(table)
    }

    fn check(&self, value: &Value) -> Result<PlanRow, String> {
        let row = PlanRow::deserialize(value).map_err(|error| error.to_string())?;
        if matches!(row.kernel, KernelId::Gpu(_)) != self.device.is_gpu() {
            return Err(format!("{} does not run on {}", row.kernel, self.device));
        }
        match self.rows().find(|(_, other)| other.problem == row.problem) {
            Some((number, _)) => Err(format!("row {number} is for the same problem")),
            None => Ok(row),
        }
    }

    /// The rows that can be used, with their numbers, from 1.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &PlanRow)> {
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(place, entry)| Some((place + 1, entry.row.as_ref().ok()?)))
    }

    /// The row for a problem's class: among those that [serve](PlanClass::serves) it the nearest.
    pub fn row_for(&self, class: &PlanClass) -> Option<(usize, &PlanRow)> {
        let serving = self
            .rows()
            .filter_map(|(number, row)| Some((row.problem.serves(class)?, (number, row))));
        serving.min_by_key(|(shorter, _)| *shorter).map(|(_, found)| found)
    }

    /// Adds a row, in place of those for the same problems, and sorts.
    pub fn put(&mut self, row: PlanRow) {
        // A row that cannot be used may still say what it is for.
        let same = |entry: &PlanEntry| match &entry.row {
            Ok(other) => other.problem == row.problem,
            Err(_) => PlanClass::deserialize(&entry.value["problem"]).is_ok_and(|class| class == row.problem),
        };
        self.entries.retain(|entry| !same(entry));
        self.entries.push(PlanEntry {
            value: Value::Null,
            row: Ok(row),
        });
        // Rows that cannot be used come last, as they were.
        self.entries.sort_by(|a, b| match (&a.row, &b.row) {
            (Ok(a), Ok(b)) => a.problem.order().cmp(&b.problem.order()),
            (a, b) => a.is_err().cmp(&b.is_err()),
        });
    }

    /// The table as a file's text: a line a row.
    ///
    /// # Errors
    /// A number of the evidence is not finite.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let line = |entry: &PlanEntry| match &entry.row {
            Ok(row) => serde_json::to_string(row),
            Err(_) => serde_json::to_string(&entry.value),
        };
        let lines: Vec<String> = self.entries.iter().map(line).collect::<Result<_, _>>()?;
        let rows = if lines.is_empty() {
            "[]".to_string()
        } else {
            format!("[\n    {}\n  ]", lines.join(",\n    "))
        };
        let device = serde_json::to_string(&self.device)?;
        Ok(format!(
            "{{\n  \"format\": {PLAN_FORMAT},\n  \"device\": {device},\n  \"rows\": {rows}\n}}\n"
        ))
    }
}

fn to_text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn dtype_of_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
    let name = String::deserialize(deserializer)?;
    DType::from_name(&name).ok_or_else(|| {
        let known = DType::ALL.map(DType::name).join(", ");
        de::Error::custom(format!("no dtype is named `{name}`; known are {known}"))
    })
}

fn mask_of_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mask, D::Error> {
    let name = String::deserialize(deserializer)?;
    Mask::from_name(&name)
        .ok_or_else(|| de::Error::custom(format!("`{name}` is no mask; masks are full, causal, window(128,0)")))
}

fn kernel_of_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<KernelId, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}
