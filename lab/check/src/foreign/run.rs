//! Simulates a kernel of a PTX text.

use flashcore_ir::ptx::read::PtxError;
use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, ParamKind, ScalarType};
use flashcore_problem::rng::Rng;
use flashcore_sim::{SimError, SimOptions, simulate};
use half::f16;
use thiserror::Error;

use crate::Found;
use crate::ptx::{PtxText, ReadAs};

/// Maximum total size of the buffers of a launch; the simulator keeps them twice.
pub const MAX_BUFFER_BYTES: u64 = 1 << 30;

/// The initial contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Random f32 between -1 and 1.
    F32,
    /// Random fp16 between -1 and 1.
    F16,
    /// Zeros.
    Zero,
    /// Uninitialised: reading it is a finding.
    Unwritten,
}

/// An argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Given {
    /// A buffer.
    Buffer {
        /// Its size.
        bytes: u64,
        /// Its initial contents.
        fill: Fill,
    },
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Float(f32),
}

/// An invalid argument text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoArgument {
    /// It has none of the forms of an argument.
    #[error(
        "`{0}` is not an argument; write buf:BYTES, buf:BYTES:f16, :zero or :unwritten for a pointer, and 7, -3 or 0.5 for \
         a number"
    )]
    Form(String),
    /// A buffer that is too large.
    #[error("a buffer of {0} B; at most {MAX_BUFFER_BYTES} B are simulated; give the size that this grid accesses")]
    Bytes(u64),
}

impl std::str::FromStr for Given {
    type Err = NoArgument;

    fn from_str(text: &str) -> Result<Given, NoArgument> {
        let wrong = || NoArgument::Form(text.to_string());
        let Some(buffer) = text.strip_prefix("buf:") else {
            let integer = text.parse().map(Given::Integer);
            return integer.or_else(|_| text.parse().map(Given::Float).map_err(|_| wrong()));
        };
        let (bytes, fill) = buffer.split_once(':').unwrap_or((buffer, "f32"));
        let fill = match fill {
            "f32" => Fill::F32,
            "f16" => Fill::F16,
            "zero" => Fill::Zero,
            "unwritten" => Fill::Unwritten,
            _ => return Err(wrong()),
        };
        let bytes = bytes.parse().map_err(|_| wrong())?;
        if bytes > MAX_BUFFER_BYTES {
            return Err(NoArgument::Bytes(bytes));
        }
        Ok(Given::Buffer { bytes, fill })
    }
}

/// A launch of a PTX kernel.
#[derive(Clone, Debug)]
pub struct ForeignLaunch {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads per block; by default those that the kernel declares.
    pub threads: Option<u32>,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The arguments in order.
    pub args: Vec<Given>,
    /// Number of schedules.
    pub schedules: u32,
    /// Options of each simulation; the seed is that of the first schedule and of the buffers'
    /// contents.
    pub sim: SimOptions,
}

/// Why a PTX kernel cannot be simulated.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// It uses features that the kernel language does not have.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// Wrong number of arguments.
    #[error("{0} arguments; the kernel's parameters are {1}; give one for each, in order")]
    Arguments(usize, String),
    /// An argument (counted from 1) that does not fit the type of its parameter.
    #[error("argument {0} does not fit `{1}`, which is {2}")]
    Kind(usize, String, &'static str),
    /// An integer (counted from 1) that does not fit its parameter of 32 bits.
    #[error("argument {0} is {2}; `{1}` has 32 bits, for {min} to {max}", min = i32::MIN, max = u32::MAX)]
    Range(usize, String, i64),
    /// Buffers whose total size is too large.
    #[error("the buffers have {given} B in total; at most {MAX_BUFFER_BYTES} B are simulated; make them smaller")]
    Buffers {
        /// Bytes of all buffers.
        given: u64,
    },
    /// The simulator cannot run the launch.
    #[error(transparent)]
    Simulator(#[from] SimError),
}

/// Simulates a kernel of a PTX text under several schedules. Returns the findings, with the lines
/// of `.loc` if there are any. The output is not judged.
pub fn run(text: &str, kernel: &str, file: &str, asked: &ForeignLaunch) -> Result<Vec<Found>, RunError> {
    let options = ReadAs {
        file: file.to_string(),
        threads: asked.threads,
        dynamic_shared: asked.dynamic_shared,
    };
    let kernel = PtxText::read(text)?.kernel(kernel, &options)?;
    let (launch, buffers) = launch_of(&kernel, asked)?;
    let fills = asked.args.iter().filter_map(|given| match given {
        Given::Buffer { fill, .. } => Some(*fill),
        Given::Integer(_) | Given::Float(_) => None,
    });
    let unwritten = fills.enumerate().filter(|(_, fill)| *fill == Fill::Unwritten);
    let mut options = asked.sim.clone();
    options.uninitialized = unwritten.map(|(slot, _)| slot).collect();
    let mut found = Vec::new();
    for schedule in (0..asked.schedules.max(1)).map(|n| asked.sim.seed + u64::from(n)) {
        options.seed = schedule;
        let report = simulate(&kernel, &launch, &mut buffers.clone(), &options)?;
        Found::add(&mut found, report.findings, schedule);
    }
    Ok(found)
}

fn launch_of(kernel: &Kernel, asked: &ForeignLaunch) -> Result<(Launch, Vec<Vec<u8>>), RunError> {
    let params = kernel.params();
    if params.len() != asked.args.len() {
        let needed = params.iter();
        let needed = needed.map(|param| format!("`{}` ({})", param.name, kind_of(param.kind)));
        let needed: Vec<String> = needed.collect();
        return Err(RunError::Arguments(asked.args.len(), needed.join(", ")));
    }
    let sizes = asked.args.iter().map(|given| match given {
        Given::Buffer { bytes, .. } => *bytes,
        _ => 0,
    });
    let given = sizes.fold(0, u64::saturating_add);
    if given > MAX_BUFFER_BYTES {
        return Err(RunError::Buffers { given });
    }
    let mut launch = Launch::of(kernel, asked.grid);
    let mut buffers = Vec::new();
    for (number, (param, given)) in (1..).zip(params.iter().zip(&asked.args)) {
        let arg = match (param.kind, *given) {
            (ParamKind::Pointer { writable, .. }, Given::Buffer { bytes, fill }) => {
                launch.buffers.push(BufferSpec {
                    // Names of buffers are `&'static str`.
                    name: Box::leak(param.name.clone().into_boxed_str()),
                    bytes,
                    written: writable,
                    // That of cudaMalloc.
                    align: 256,
                });
                buffers.push(filled(bytes, fill, asked.sim.seed + number as u64));
                Arg::Buffer {
                    slot: buffers.len() - 1,
                    byte_offset: 0,
                }
            }
            (ParamKind::Value(ScalarType::F32), Given::Float(x)) => Arg::F32(x),
            (ParamKind::Value(ScalarType::F32), Given::Integer(x)) => Arg::F32(x as f32),
            (ParamKind::Value(ty @ (ScalarType::U32 | ScalarType::S32)), Given::Integer(x)) => {
                // Accepts the range of both signed and unsigned numbers.
                let bits = u32::try_from(x).or_else(|_| i32::try_from(x).map(|x| x as u32));
                let bits = bits.map_err(|_| RunError::Range(number, param.name.clone(), x))?;
                match ty {
                    ScalarType::U32 => Arg::U32(bits),
                    _ => Arg::I32(bits as i32),
                }
            }
            (ParamKind::Value(ScalarType::U64 | ScalarType::S64), Given::Integer(x)) => Arg::U64(x as u64),
            (kind, _) => return Err(RunError::Kind(number, param.name.clone(), kind_of(kind))),
        };
        launch.args.push(arg);
    }
    Ok((launch, buffers))
}

fn kind_of(kind: ParamKind) -> &'static str {
    match kind {
        ParamKind::Pointer { writable: true, .. } => "a writable pointer",
        ParamKind::Pointer { writable: false, .. } => "a pointer",
        ParamKind::Value(ScalarType::F32) => "a float",
        ParamKind::Value(_) => "an integer",
        ParamKind::TensorMap { .. } => "a tensor map",
    }
}

fn filled(bytes: u64, fill: Fill, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    // 2,001 numbers from -1 to 1.
    let mut number = || rng.below(2001) as f32 / 1000.0 - 1.0;
    let size = bytes as usize;
    let mut data: Vec<u8> = match fill {
        Fill::F32 => (0..size.div_ceil(4)).flat_map(|_| number().to_le_bytes()).collect(),
        Fill::F16 => {
            let mut number = || f16::from_f32(number()).to_le_bytes();
            (0..size.div_ceil(2)).flat_map(|_| number()).collect()
        }
        Fill::Zero => vec![0; size],
        Fill::Unwritten => vec![flashcore_problem::POISON; size],
    };
    data.truncate(size);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(args: &[&str]) -> Result<Vec<Found>, RunError> {
        let text = ".version 7.0 .target sm_80 .entry fill(.param .u64 out, .param .u32 n) .maxntid 32, 1, 1 {
            .reg .b32 %r<2>; .reg .b64 %rd<3>;
            ld.param.u64 %rd0, [out]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %rd0, %rd0;
            mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %rd0, %rd1;
            st.global.u32 [%rd2], %r1; ret; }";
        let launch = ForeignLaunch {
            grid: [1, 1, 1],
            threads: None,
            dynamic_shared: 0,
            args: args.iter().map(|arg| arg.parse().unwrap()).collect(),
            schedules: 1,
            sim: SimOptions::default(),
        };
        run(text, "fill", "fill.ptx", &launch)
    }

    #[test]
    fn arguments_are_numbers_and_buffers() {
        let fill = Fill::Zero;
        assert_eq!("buf:400:zero".parse(), Ok(Given::Buffer { bytes: 400, fill }));
        assert_eq!("-3".parse(), Ok(Given::Integer(-3)));
        assert_eq!("0.5".parse(), Ok(Given::Float(0.5)));
        assert!("buf:many".parse::<Given>().is_err());
        assert!("buf:99999999999999".parse::<Given>().is_err());
    }

    #[test]
    fn a_store_past_the_end_is_found_at_its_line() {
        let found = run_with(&["buf:124", "7"]).unwrap();
        let finding = &found[0].finding;
        assert_eq!((finding.kind.name(), finding.lines[0].line), ("out-of-bounds", 5));
    }

    #[test]
    fn numbers_and_buffers_are_held_to_what_fits() {
        for number in ["4294967295", "-2147483648", "0"] {
            assert!(run_with(&["buf:128", number]).unwrap().is_empty(), "{number}");
        }
        for number in ["4294967296", "-2147483649"] {
            let error = run_with(&["buf:128", number]).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("argument 2 is {number}; `n` has 32 bits, for -2147483648 to 4294967295")
            );
        }
        let error = run_with(&["buf:1073741824", "buf:1"]).unwrap_err();
        assert!(matches!(error, RunError::Buffers { given: 1_073_741_825 }), "{error}");
    }
}
