//! Launches in TOML files: blocks, threads, and arguments with their contents. `lab/check/corpus/README.md` has the
//! format.

use std::path::{Path, PathBuf};

use flashcore_ir::{ScalarType, Swizzle, TensorMapRecipe, files};
use flashcore_problem::DType;
use flashcore_problem::tensor::write_element;
use serde::Deserialize;
use thiserror::Error;

use super::run::{ForeignLaunch, Given};

/// A launch file that cannot be used: what is wrong in it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct LaunchFileError(String);

fn wrong<T>(what: impl Into<String>) -> Result<T, LaunchFileError> {
    Err(LaunchFileError(what.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The architecture that it is compiled for.
    arch: Option<String>,
    grid: Vec<u32>,
    /// By default what the kernel declares.
    block: Option<Vec<u32>>,
    #[serde(default)]
    shared: u32,
    /// Whether the host allows more than 48 KB of it before the launch (`cudaFuncSetAttribute`).
    #[serde(default)]
    opted_in: bool,
    #[serde(default)]
    args: Vec<Argument>,
    #[serde(default)]
    symbols: Vec<Argument>,
    /// Of references alone.
    #[serde(default, rename = "prints")]
    _prints: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Argument {
    /// A struct needs none.
    #[serde(default)]
    name: String,
    r#type: Option<String>,
    count: Option<u64>,
    /// Its bytes, in a file next to this one.
    file: Option<PathBuf>,
    /// The place of the argument into whose buffer it points, from 0.
    into: Option<usize>,
    /// Bytes from the begin of that.
    offset: Option<u64>,
    fill: Option<String>,
    value: Option<Number>,
    r#struct: Option<Vec<Argument>>,
    map: Option<Map>,
    values: Option<Vec<Number>>,
    rest: Option<Number>,
    seed: Option<u64>,
    #[serde(default)]
    swaps: Vec<[usize; 2]>,
    /// Of references alone.
    #[serde(rename = "check")]
    _check: Option<String>,
    #[serde(rename = "atol")]
    _atol: Option<f64>,
    #[serde(rename = "rtol")]
    _rtol: Option<f64>,
}

/// A tensor map: the tensor that a buffer holds, innermost dimension first, and its boxes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Map {
    dims: Vec<u64>,
    r#box: Vec<u32>,
    /// Bytes; by default those of a dense tensor.
    strides: Option<Vec<u64>>,
    /// Bytes of a swizzled row: 0, 32, 64 or 128.
    #[serde(default)]
    swizzle: u32,
}

impl Map {
    fn recipe(&self, name: &str, ty: &str) -> Result<TensorMapRecipe, LaunchFileError> {
        let known = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
        let swizzle = known.into_iter().find(|it| it.span().unwrap_or(0) == self.swizzle);
        let (Some(element), Some(swizzle)) = (ScalarType::from_ptx(ty), swizzle) else {
            return wrong(format!(
                "the tensor map `{name}` has the type `{ty}` and a swizzle of {} bytes; allowed: f16, bf16, f32, e4m3, and \
                 0, 32, 64, 128",
                self.swizzle
            ));
        };
        let dense = self.dims.iter().scan(u64::from(element.bytes()), |bytes, dim| {
            *bytes = bytes.saturating_mul(*dim);
            Some(*bytes)
        });
        let dense = || dense.take(self.dims.len().saturating_sub(1)).collect();
        Ok(TensorMapRecipe {
            slot: 0,
            byte_offset: 0,
            element,
            dims: self.dims.clone(),
            byte_strides: self.strides.clone().unwrap_or_else(dense),
            box_dims: self.r#box.clone(),
            swizzle,
            ragged: None,
        })
    }
}

/// The launch of a file, and the architecture that it names. By default a block.
#[derive(Clone, Debug)]
pub struct LaunchFile {
    /// Such as `sm_80`.
    pub arch: Option<String>,
    /// Whether the host raises the limit of dynamic shared memory first (`cudaFuncSetAttribute`).
    pub opted_in: bool,
    /// Blocks, threads, arguments and variables.
    pub launch: ForeignLaunch,
    /// The types that arguments name.
    pub types: Vec<Option<String>>,
}

impl Default for LaunchFile {
    fn default() -> LaunchFile {
        LaunchFile {
            arch: None,
            opted_in: false,
            types: Vec::new(),
            launch: ForeignLaunch {
                grid: [1, 1, 1],
                ..ForeignLaunch::default()
            },
        }
    }
}

impl LaunchFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is not a launch.
    pub fn read(path: &Path) -> Result<LaunchFile, LaunchFileError> {
        let text = files::read_text_capped(path, files::SMALL);
        let folder = path.parent().unwrap_or(Path::new(""));
        LaunchFile::parse(&text.map_err(|error| LaunchFileError(error.to_string()))?, folder)
    }

    /// Reads its text. The files that it names are in `folder`.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use flashcore_check::foreign::LaunchFile;
    ///
    /// let text = r#"
    ///     grid = [2]
    ///     block = [256]
    ///     args = [
    ///         { name = "x", type = "f32", count = 2000, fill = "uniform" },
    ///         { name = "sums", type = "f32", count = 2, fill = "unwritten" },
    ///         { name = "columns", value = 1000 },
    ///     ]"#;
    /// let file = LaunchFile::parse(text, Path::new(""))?;
    /// assert_eq!((file.launch.grid, file.launch.args.len()), ([2, 1, 1], 3));
    /// # Ok::<(), flashcore_check::foreign::LaunchFileError>(())
    /// ```
    ///
    /// # Errors
    /// It is not a launch.
    pub fn parse(text: &str, folder: &Path) -> Result<LaunchFile, LaunchFileError> {
        let mut file: File = toml::from_str(text).map_err(|error| LaunchFileError(error.to_string()))?;
        let given = file.args.iter_mut().chain(&mut file.symbols);
        given.for_each(|argument| argument.file = argument.file.take().map(|name| folder.join(name)));
        let mut buffers = Buffers::default();
        let args = file.args.iter().map(|argument| argument.given(&mut buffers));
        let args = args.collect::<Result<_, _>>()?;
        let variables = file.symbols.iter().map(|symbol| {
            let contents = symbol.contents(&mut buffers)?;
            Ok((symbol.name.clone(), contents.unwrap_or_default()))
        });
        Ok(LaunchFile {
            arch: file.arch,
            opted_in: file.opted_in,
            types: file.args.iter().map(|argument| argument.r#type.clone()).collect(),
            launch: ForeignLaunch {
                grid: axes("grid", &file.grid)?,
                block: file.block.map(|block| axes("block", &block)).transpose()?,
                dynamic_shared: file.shared,
                args,
                variables: variables.collect::<Result<_, LaunchFileError>>()?,
                ..ForeignLaunch::default()
            },
        })
    }
}

fn axes(what: &str, given: &[u32]) -> Result<[u32; 3], LaunchFileError> {
    match *given {
        [x] => Ok([x, 1, 1]),
        [x, y] => Ok([x, y, 1]),
        [x, y, z] => Ok([x, y, z]),
        _ => wrong(format!(
            "{what} has {} numbers; write one to three: x, y, z",
            given.len()
        )),
    }
}

/// The buffers so far.
#[derive(Default)]
struct Buffers {
    count: u64,
    bytes: u64,
}

impl Buffers {
    /// Bytes that others may have.
    fn left(&self) -> u64 {
        super::MAX_BUFFER_BYTES - self.bytes
    }

    /// Counts one, before its bytes are made.
    fn add(&mut self, name: &str, bytes: u64) -> Result<(), LaunchFileError> {
        if bytes > self.left() {
            let (before, most) = (self.bytes, super::MAX_BUFFER_BYTES);
            return wrong(format!(
                "`{name}` has {bytes} B, and the buffers before it {before} B; at most {most} B in total are simulated"
            ));
        }
        self.count += 1;
        self.bytes += bytes;
        Ok(())
    }
}

impl Argument {
    /// Counts the buffers on the way.
    fn given(&self, buffers: &mut Buffers) -> Result<Given, LaunchFileError> {
        if let Some(fields) = &self.r#struct {
            let fields = fields.iter().map(|field| {
                let ty = field.r#type.as_deref().unwrap_or("i32");
                let ty = if field.value.is_some() { ty } else { "u64" };
                Ok((size_of(&field.name, ty)?, field.given(buffers)?))
            });
            return Ok(Given::Struct(fields.collect::<Result<_, LaunchFileError>>()?));
        }
        if let Some(argument) = self.into {
            let offset = self.offset.unwrap_or(0);
            return Ok(Given::Into { argument, offset });
        }
        if let Some(value) = self.value {
            return Ok(match (value, self.r#type.as_deref()) {
                // PTX passes them as bits.
                (_, Some("f16")) => Given::Integer(half::f16::from_f64(value.float()).to_bits().into()),
                (_, Some("bf16")) => Given::Integer(half::bf16::from_f64(value.float()).to_bits().into()),
                (_, Some("f32" | "f64")) | (Number::Float(_), _) => Given::Float(value.float()),
                (Number::Integer(bits), _) | (Number::Bits(bits), _) => Given::Integer(bits),
            });
        }
        let ty = self.r#type.as_deref().unwrap_or("f32");
        let contents = self.contents(buffers)?;
        let bytes = self.count.unwrap_or(0).saturating_mul(size_of(&self.name, ty)? as u64);
        let buffer = Given::Contents {
            name: self.name.clone(),
            element: size_of(&self.name, ty)? as u32,
            is_unwritten: contents.is_none(),
            contents: contents.unwrap_or_else(|| vec![flashcore_problem::POISON; bytes as usize]),
        };
        let Some(map) = &self.map else { return Ok(buffer) };
        let recipe = map.recipe(&self.name, ty)?;
        let buffer = Box::new(buffer);
        Ok(Given::Map { buffer, recipe })
    }

    /// The bytes of a buffer; `None` if nothing was written there.
    fn contents(&self, buffers: &mut Buffers) -> Result<Option<Vec<u8>>, LaunchFileError> {
        let (name, ty) = (&self.name, self.r#type.as_deref().unwrap_or("f32"));
        if let Some(file) = &self.file {
            if self.count.is_some() || self.fill.is_some() {
                return wrong(format!(
                    "`{name}` has a `file`; `count` and `fill` are for other buffers"
                ));
            }
            let bytes = files::read_capped(file, buffers.left())
                .map_err(|error| LaunchFileError(format!("`{name}`: {}: {error}", file.display())))?;
            buffers.add(name, bytes.len() as u64)?;
            if bytes.len() % size_of(name, ty)? != 0 {
                return wrong(format!("`{name}`: {} B are no whole number of {ty}", bytes.len()));
            }
            return Ok(Some(bytes));
        }
        let Some(count) = self.count else {
            return wrong(format!(
                "`{name}` has none of `count` elements, a `file`, `into`, a `value` and a `struct`"
            ));
        };
        let bytes = count.saturating_mul(size_of(name, ty)? as u64);
        buffers.add(name, bytes)?;
        let fill = self
            .fill
            .as_deref()
            .unwrap_or(if self.values.is_some() { "values" } else { "uniform" });
        if fill == "unwritten" {
            return Ok(None);
        }
        let elements = self.elements(fill, self.seed.unwrap_or(buffers.count), count as usize)?;
        let mut out = Vec::with_capacity(bytes as usize);
        elements.into_iter().for_each(|element| store(ty, element, &mut out));
        Ok(Some(out))
    }

    fn elements(&self, fill: &str, seed: u64, count: usize) -> Result<Vec<Number>, LaunchFileError> {
        let (kind, numbers) = fill.split_once(':').unwrap_or((fill, ""));
        let numbers = numbers.split(':').filter(|text| !text.is_empty()).map(str::parse);
        let unknown = || {
            let known = "unwritten, zero, unit, uniform, bell, ints:LO:HI, bits, iota, offsets:LO:HI, permutation, values, \
                 antidiagonal:N, triangles:N, with N up to 2147483648 and 64 bits for each element";
            LaunchFileError(format!("`{}` has the fill `{fill}`; allowed: {known}", self.name))
        };
        let numbers: Vec<i64> = numbers.collect::<Result<_, _>>().map_err(|_| unknown())?;
        let floats = |of: &dyn Fn(u64) -> f64| (0..count as u64).map(|i| Number::Float(of(i))).collect();
        let uniform = |i| 2.0 * unit(word(seed, 0, i)) - 1.0;
        let added = |n: u64, is_there: bool| if is_there { n as f64 } else { 0.0 };
        let within = |i, lo: i64, hi: i64| lo.wrapping_add((word(seed, 0, i) % hi.abs_diff(lo)) as i64);
        Ok(match (kind, &numbers[..]) {
            ("zero", []) => vec![Number::Integer(0); count],
            ("unit", []) => floats(&|i| unit(word(seed, 0, i))),
            ("uniform", []) => floats(&uniform),
            ("bell", []) => floats(&|i| (0..12).map(|draw| unit(word(seed, draw, i))).sum::<f64>() - 6.0),
            ("bits", []) => (0..count as u64)
                .map(|i| Number::Bits(word(seed, 0, i) as i64))
                .collect(),
            ("ints", &[lo, hi]) if lo < hi => (0..count as u64).map(|i| Number::Integer(within(i, lo, hi))).collect(),
            ("offsets", &[lo, hi]) if lo < hi => {
                let (mut steps, mut sum) = (Vec::with_capacity(count), 0i64);
                for i in 0..count as u64 {
                    steps.push(Number::Integer(sum));
                    sum = sum.checked_add(within(i, lo, hi)).ok_or_else(unknown)?;
                }
                steps
            }
            ("iota", []) => {
                let mut values: Vec<Number> = (0..count as i64).map(Number::Integer).collect();
                for &[a, b] in &self.swaps {
                    if a.max(b) >= count {
                        return wrong(format!("`{}` swaps {a} and {b}; it has {count} elements", self.name));
                    }
                    values.swap(a, b);
                }
                values
            }
            ("permutation", []) => {
                let mut order: Vec<i64> = (0..count as i64).collect();
                order.sort_by_key(|&i| word(seed, 0, i as u64));
                order.into_iter().map(Number::Integer).collect()
            }
            ("antidiagonal", &[n]) if (1..=MAX_SIDE).contains(&n) => {
                let n = n as u64;
                floats(&|i| uniform(i) + added(n, i % (n * n) / n + i % n == n - 1))
            }
            ("triangles", &[n]) if (1..=MAX_SIDE).contains(&n) => {
                let n = n as u64;
                // Row r of a packed triangle ends with its diagonal, at (r + 1)·(r + 2) / 2 − 1.
                let ends = || (1..=n).map(|row| row * (row + 1) / 2);
                let is_diagonal = |at: u64| ends().find(|&end| end > at) == Some(at + 1);
                floats(&|i| uniform(i) + added(n, is_diagonal(i % (n * (n + 1) / 2))))
            }
            ("values", []) => {
                let values = self
                    .values
                    .as_deref()
                    .filter(|values| !values.is_empty())
                    .ok_or_else(unknown)?;
                let rest = self.rest.as_ref().map_or(values, std::slice::from_ref);
                let value = |i: usize| *values.get(i).unwrap_or(&rest[i % rest.len()]);
                (0..count).map(value).collect()
            }
            _ => return Err(unknown()),
        })
    }
}

/// The most rows of a matrix whose elements are counted in 64 bits.
const MAX_SIDE: i64 = 1 << 31;

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Number {
    Integer(i64),
    Float(f64),
    /// The lowest bits, as they are, of whatever type.
    #[serde(skip)]
    Bits(i64),
}

impl Number {
    fn float(self) -> f64 {
        match self {
            Number::Float(x) => x,
            Number::Integer(x) | Number::Bits(x) => x as f64,
        }
    }
}

/// The output function of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn word(seed: u64, draw: u64, i: u64) -> u64 {
    mix((seed.wrapping_mul(16).wrapping_add(draw) << 32).wrapping_add(i))
}

/// A multiple of 2⁻²⁴ in [0, 1).
fn unit(word: u64) -> f64 {
    (word >> 40) as f64 / (1u64 << 24) as f64
}

fn size_of(name: &str, ty: &str) -> Result<usize, LaunchFileError> {
    Ok(match ty {
        "e4m3" | "i8" | "u8" => 1,
        "f16" | "bf16" | "i16" | "u16" => 2,
        "f32" | "i32" | "u32" => 4,
        "f64" | "i64" | "u64" => 8,
        _ => {
            let known = "f16, bf16, f32, f64, e4m3, i8, i16, i32, i64, u8, u16, u32, u64";
            return wrong(format!("`{name}` has the type `{ty}`; allowed: {known}"));
        }
    })
}

fn bytes_of(ty: &str, integer: i64) -> impl Iterator<Item = u8> {
    let size = size_of("", ty).unwrap_or(8);
    integer.to_le_bytes().into_iter().take(size)
}

/// Appends an element, rounded to a known type.
fn store(ty: &str, element: Number, out: &mut Vec<u8>) {
    let float = element.float();
    let integer = match element {
        Number::Integer(x) | Number::Bits(x) => x,
        Number::Float(x) => x as i64,
    };
    match ty {
        _ if matches!(element, Number::Bits(_)) => out.extend(bytes_of(ty, integer)),
        "f64" => out.extend(float.to_le_bytes()),
        "f32" => out.extend((float as f32).to_le_bytes()),
        "f16" => out.extend(half::f16::from_f64(float).to_le_bytes()),
        "bf16" => out.extend(half::bf16::from_f64(float).to_le_bytes()),
        "e4m3" => {
            let mut byte = [0];
            write_element(DType::E4M3, &mut byte, 0, float as f32);
            out.extend(byte);
        }
        _ => out.extend(bytes_of(ty, integer)),
    }
}

#[cfg(test)]
mod tests;
