//! A tensor of another library, however it came here: from libtorch's handle, PyTorch's exchange table, DLPack, or a
//! description in Python's objects.

use std::fmt;
use std::ops::Range;

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use flashcore::{DType, Layout};

use crate::error::Error;

/// Where a tensor's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Cpu,
    Cuda(u32),
    /// Tensors without values, which are only checked.
    Meta,
    Other,
}

impl Place {
    pub(crate) fn of(device: DLDevice) -> Place {
        let kind = device.device_type;
        if kind == DLDeviceType::CPU || kind == DLDeviceType::CUDAHOST {
            return Place::Cpu;
        }
        match u32::try_from(device.device_id) {
            Ok(ordinal) if kind == DLDeviceType::CUDA || kind == DLDeviceType::CUDAMANAGED => Place::Cuda(ordinal),
            _ => Place::Other,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Place::Meta => f.write_str("meta"),
            Place::Other => f.write_str("neither the CPU nor a CUDA device"),
        }
    }
}

const fn scalar(code: DLDataTypeCode, bits: u8) -> DLDataType {
    DLDataType { code, bits, lanes: 1 }
}

/// What an element is, as DLPack says it.
pub(crate) type Element = DLDataType;
pub(crate) const I32: Element = scalar(DLDataTypeCode::INT, 32);
pub(crate) const U64: Element = scalar(DLDataTypeCode::UINT, 64);
pub(crate) const BYTE: Element = scalar(DLDataTypeCode::UINT, 8);

/// An element, the number that PyTorch's file format fixes for it, PyTorch's name, and the library's.
type Known = (Element, i32, &'static str, Option<DType>);

const KNOWN: [Known; 17] = [
    (scalar(DLDataTypeCode::BFLOAT, 16), 15, "bfloat16", Some(DType::BF16)),
    (scalar(DLDataTypeCode::FLOAT, 16), 5, "float16", Some(DType::F16)),
    (scalar(DLDataTypeCode::FLOAT, 32), 6, "float32", Some(DType::F32)),
    (DLDataType::F8E4M3FN, 24, "float8_e4m3fn", Some(DType::E4M3)),
    (I32, 3, "int32", None),
    (BYTE, 0, "uint8", None),
    (scalar(DLDataTypeCode::INT, 8), 1, "int8", None),
    (scalar(DLDataTypeCode::INT, 16), 2, "int16", None),
    (scalar(DLDataTypeCode::INT, 64), 4, "int64", None),
    (scalar(DLDataTypeCode::FLOAT, 64), 7, "float64", None),
    (scalar(DLDataTypeCode::COMPLEX, 32), 8, "complex32", None),
    (scalar(DLDataTypeCode::COMPLEX, 64), 9, "complex64", None),
    (scalar(DLDataTypeCode::COMPLEX, 128), 10, "complex128", None),
    (scalar(DLDataTypeCode::BOOL, 8), 11, "bool", None),
    (DLDataType::F8E5M2, 23, "float8_e5m2", None),
    (scalar(DLDataTypeCode::UINT, 32), 28, "uint32", None),
    (U64, 29, "uint64", None),
];

/// An element that the table does not have.
const UNKNOWN: Element = scalar(DLDataTypeCode(u8::MAX), 0);

fn known(is: impl Fn(&Known) -> bool) -> Option<&'static Known> {
    KNOWN.iter().find(|known| is(known))
}

pub(crate) fn element_of(dtype: DType) -> Element {
    known(|known| known.3 == Some(dtype)).map_or(UNKNOWN, |known| known.0)
}

pub(crate) fn element_of_torch(number: i32) -> Element {
    known(|known| known.1 == number).map_or(UNKNOWN, |known| known.0)
}

pub(crate) fn element_named(name: &str) -> Element {
    known(|known| known.2 == name).map_or(UNKNOWN, |known| known.0)
}

pub(crate) fn torch_number(element: Element) -> i32 {
    known(|known| known.0 == element).map_or(0, |known| known.1)
}

/// The name that PyTorch, NumPy and CuPy have for an element; one of DLPack's that they do not have by its numbers.
pub(crate) fn name_of(element: Element) -> String {
    match known(|known| known.0 == element) {
        Some((_, _, name, _)) => (*name).to_string(),
        None if element.code == DLDataTypeCode::UINT => format!("uint{}", element.bits),
        None => format!(
            "elements of {} bits (DLPack's type code {})",
            element.bits, element.code.0
        ),
    }
}

/// A tensor of another library, valid while what it was taken of lives.
#[derive(Clone, Copy)]
pub(crate) struct Foreign {
    /// What errors call it.
    pub(crate) name: &'static str,
    pub(crate) element: Element,
    pub(crate) place: Place,
    /// The number of dimensions; shape and strides have the first of them, at most four.
    pub(crate) rank: usize,
    pub(crate) shape: [i64; 4],
    pub(crate) strides: [i64; 4],
    /// A number only, where it is device memory.
    pub(crate) first: *mut u8,
}

// SAFETY: what it was taken of is held until the call returns, which waits for other threads that compute: on the CPU
// by an alias that nothing else has, on a GPU by the order in which its library frees memory.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Stands for an argument that is not given: a tensor of one dimension without elements.
    pub(crate) const ABSENT: Foreign = Foreign {
        name: "",
        element: I32,
        place: Place::Other,
        rank: 1,
        shape: [0; 4],
        strides: [1; 4],
        first: std::ptr::null_mut(),
    };

    /// A tensor with its sizes and strides.
    ///
    /// # Safety
    /// Both point to so many numbers.
    pub(crate) unsafe fn new(
        name: &'static str,
        rank: usize,
        [sizes, steps]: [*const i64; 2],
        element: Element,
        place: Place,
        first: *mut u8,
    ) -> Foreign {
        let (mut shape, mut strides) = ([0; 4], [0; 4]);
        for n in 0..rank.min(4) {
            // SAFETY: the caller's part.
            (shape[n], strides[n]) = unsafe { (*sizes.add(n), *steps.add(n)) };
        }
        Foreign {
            name,
            element,
            place,
            rank,
            shape,
            strides,
            first,
        }
    }

    /// One to be allocated, by its shape and strides, which are as many. Those after the first four are left out.
    pub(crate) fn fresh(
        name: &'static str,
        element: Element,
        place: Place,
        shape: &[usize],
        strides: &[i64],
    ) -> Foreign {
        let mut fresh = Foreign {
            name,
            element,
            place,
            rank: shape.len(),
            ..Foreign::ABSENT
        };
        for (n, (&size, &stride)) in shape.iter().zip(strides).enumerate().take(4) {
            (fresh.shape[n], fresh.strides[n]) = (size as i64, stride);
        }
        fresh
    }

    /// The same, dense; of at most four dimensions.
    pub(crate) fn fresh_dense(name: &'static str, element: Element, place: Place, shape: &[usize]) -> Foreign {
        let mut of_four = [1; 4];
        of_four[4 - shape.len()..].copy_from_slice(shape);
        let strides = Layout::bshd(of_four).strides;
        Foreign::fresh(name, element, place, shape, &strides[4 - shape.len()..])
    }

    pub(crate) fn is_given(&self) -> bool {
        self.rank != 1 || self.shape[0] != 0
    }

    pub(crate) fn given(&self) -> Option<&Foreign> {
        self.is_given().then_some(self)
    }

    pub(crate) fn address(&self) -> u64 {
        self.first.addr() as u64
    }

    pub(crate) fn sizes(&self) -> &[i64] {
        &self.shape[..self.rank.min(4)]
    }

    /// Bytes from its first element to the end of its last.
    pub(crate) fn span_bytes(&self) -> usize {
        let size = usize::from(self.element.bits / 8);
        if self.sizes().contains(&0) {
            return 0;
        }
        let dims = self.sizes().iter().zip(&self.strides);
        let last: i64 = dims.map(|(&n, &stride)| (n - 1) * stride).sum();
        (last as usize + 1) * size // strides are not negative: the layout was checked
    }

    /// The addresses of its bytes, gaps included.
    fn span(&self) -> Range<u64> {
        self.address()..self.address() + self.span_bytes() as u64
    }

    /// The same tensor with dimensions 1 and 2 swapped.
    pub(crate) fn swapped(mut self) -> Foreign {
        self.shape.swap(1, 2);
        self.strides.swap(1, 2);
        self
    }

    /// As `[batch, seq, heads, head_dim]`; packed rows `[total, heads, head_dim]` are a batch of one. Strides are
    /// canonical where a dimension has one index: producers may write anything there.
    pub(crate) fn layout(&self) -> Layout {
        let size = |n: i64| usize::try_from(n).unwrap_or(0);
        let ([a, b, c, d], [i, j, k, l]) = (self.shape, self.strides);
        let (shape, mut strides) = match self.rank {
            3 => ([1, a, b, c].map(size), [0, i, j, k]),
            2 => ([1, a, 1, b].map(size), [0, i, 0, j]),
            _ => ([a, b, c, d].map(size), [i, j, k, l]),
        };
        let dense = Layout::bshd(shape).strides;
        for dim in 0..4 {
            if shape[dim] == 1 {
                strides[dim] = dense[dim];
            }
        }
        Layout { shape, strides }
    }

    pub(crate) fn check_rank(&self, rank: usize) -> Result<(), Error> {
        if self.rank == rank {
            return Ok(());
        }
        let name = self.name;
        let given = if self.is_given() {
            format!("{name} has {} dimensions", self.rank)
        } else {
            format!("{name} was not given")
        };
        Err(format!("{given}; it must have {rank}").into())
    }

    /// The dtype of q, k, v or an output.
    pub(crate) fn dtype(&self) -> Result<DType, Error> {
        let dtype = known(|known| known.0 == self.element).and_then(|known| known.3);
        dtype.ok_or_else(|| {
            let (name, holds) = (self.name, name_of(self.element));
            let allowed = "allowed are float16, bfloat16, float32 and float8_e4m3fn";
            Error::DType(format!("{name} holds {holds}; {allowed}"))
        })
    }

    /// Refuses one on another device than q.
    pub(crate) fn check_place(&self, q: &Foreign) -> Result<(), Error> {
        let (name, place) = (self.name, self.place);
        if place == Place::Other {
            return Err(format!("{name} is on {place}; move it to one").into());
        }
        if place == q.place {
            return Ok(());
        }
        Err(format!(
            "{name} is on {place} and {} on {}; move all tensors to one device",
            q.name, q.place
        )
        .into())
    }

    /// Refuses one of another place or dtype than q.
    pub(crate) fn agree(&self, q: &Foreign, dtype: DType) -> Result<(), Error> {
        self.check_place(q)?;
        let theirs = self.dtype()?;
        if theirs == dtype {
            return Ok(());
        }
        let (name, of_q) = (self.name, q.name);
        let what = match theirs {
            DType::E4M3 => format!(
                "float8 keys and values with queries of another dtype are not served: convert {of_q} to float8_e4m3fn, \
                 too, or keep keys and values in {of_q}'s dtype"
            ),
            _ => "convert one, so that all tensors hold the same".to_string(),
        };
        Err(Error::DType(format!(
            "{name} holds {theirs} and {of_q} {dtype}; {what}"
        )))
    }

    /// int32 numbers of so many dimensions, which must lie one after another on q's device; `None` where they are not
    /// given.
    pub(crate) fn numbers(&self, rank: usize, q: &Foreign) -> Result<Option<usize>, Error> {
        if !self.is_given() {
            return Ok(None);
        }
        self.check_place(q)?;
        self.check_rank(rank)?;
        let name = self.name;
        if self.element != I32 {
            return Err(format!("{name} holds {}; it must be int32", name_of(self.element)).into());
        }
        if !self.is_dense() {
            return Err(format!("{name} is not contiguous; make it so with .contiguous()").into());
        }
        Ok(Some(self.sizes().iter().product::<i64>() as usize)) // sizes are not negative
    }

    /// Floats of this shape, one after another on q's device, such as scales.
    pub(crate) fn check_floats(&self, dtypes: &[DType], shape: &[usize], q: &Foreign) -> Result<(), Error> {
        self.check_place(q)?;
        let (name, size) = (self.name, usize::from(self.element.bits / 8).max(1));
        if !dtypes.iter().any(|&dtype| element_of(dtype) == self.element) {
            let allowed: Vec<_> = dtypes.iter().map(|&dtype| name_of(element_of(dtype))).collect();
            let (holds, allowed) = (name_of(self.element), allowed.join(" or "));
            return Err(Error::DType(format!("{name} holds {holds}; it must hold {allowed}")));
        }
        if self.rank != shape.len() || !self.sizes().iter().zip(shape).all(|(&a, &b)| a == b as i64) {
            return Err(format!("{name} has shape {:?}; this call needs {shape:?}", self.sizes()).into());
        }
        if !self.is_dense() {
            let steps = &self.strides[..shape.len()];
            let instead = "its elements lie one after another, so make it .contiguous()";
            return Err(format!("{name} has strides {steps:?} for shape {shape:?}; {instead}").into());
        }
        if !self.first.addr().is_multiple_of(size) {
            return Err(format!("{name}'s memory is not at a multiple of {size} bytes; copy it").into());
        }
        Ok(())
    }

    /// Whether elements lie one after another.
    fn is_dense(&self) -> bool {
        let mut dense = 1;
        self.sizes().iter().zip(&self.strides).rev().all(|(&n, &stride)| {
            let fits = n == 1 || stride == dense;
            dense *= n;
            fits
        })
    }
}

/// Refuses a tensor that is written and has bytes between the addresses of another one.
pub(crate) fn check_apart(tensors: &[Foreign], written: &[usize]) -> Result<(), Error> {
    for (n, &to) in written.iter().enumerate() {
        let (to, at) = (&tensors[to], tensors[to].span());
        if at.is_empty() {
            continue; // perhaps it is not given
        }
        let shares = |(place, other): &(usize, &Foreign)| {
            let theirs = other.span();
            !theirs.is_empty() && theirs.start < at.end && at.start < theirs.end && !written[..=n].contains(place)
        };
        if let Some((_, other)) = tensors.iter().enumerate().find(shares) {
            let name = to.name;
            return Err(format!(
                "{name} shares memory with {}: both have bytes between the same addresses, as interleaved views of one \
                 tensor have, and {name} is written; give {name} separate memory, or make both contiguous",
                other.name
            )
            .into());
        }
    }
    Ok(())
}
