//! What an operator is given: tensors as they are described, whether by a handle or an object of PyTorch's.

use flashcore::DType;

use crate::libtorch::Error;
use crate::tensor::Place;

/// PyTorch's numbers for dtypes, which its file format fixes.
pub(crate) const DTYPES: [(DType, i32); 4] = [(DType::F16, 5), (DType::BF16, 15), (DType::F32, 6), (DType::E4M3, 24)];
pub(crate) const BYTES: i32 = 0;
pub(crate) const I32: i32 = 3;

/// A tensor that an operator is given, valid while what it was taken of lives.
#[derive(Clone, Copy)]
pub(crate) struct Input {
    /// The number of dimensions; shape and strides have the first of them, at most four.
    pub(crate) dims: usize,
    pub(crate) shape: [i64; 4],
    pub(crate) strides: [i64; 4],
    /// PyTorch's number.
    dtype: i32,
    pub(crate) place: Option<Place>,
    pub(crate) first: *mut u8,
}

impl Input {
    /// Stands for an argument that is not given.
    pub(crate) const ABSENT: Input = Input {
        dims: 1,
        shape: [0; 4],
        strides: [1; 4],
        dtype: I32,
        place: None,
        first: std::ptr::null_mut(),
    };

    /// A tensor with its sizes and strides.
    ///
    /// # Safety
    /// Both point to so many numbers.
    pub(crate) unsafe fn new(
        dims: usize,
        sizes: *const i64,
        steps: *const i64,
        dtype: i32,
        place: Option<Place>,
        first: *mut u8,
    ) -> Input {
        let (mut shape, mut strides) = ([0; 4], [0; 4]);
        for n in 0..dims.min(4) {
            // SAFETY: the caller's part.
            (shape[n], strides[n]) = unsafe { (*sizes.add(n), *steps.add(n)) };
        }
        Input {
            dims,
            shape,
            strides,
            dtype,
            place,
            first,
        }
    }

    /// What is known of a tensor of `N` dimensions, which errors call `name`.
    pub(crate) fn describe<const N: usize>(&self, name: &'static str) -> Result<Described<N>, Error> {
        let (place, shape, strides) = self.of_dims::<N>(name)?;
        let allowed = "allowed are float16, bfloat16, float32 and float8_e4m3fn";
        let Some(&(dtype, _)) = DTYPES.iter().find(|(_, known)| *known == self.dtype) else {
            return Err(format!("{name} holds {}; {allowed}", dtype_name(self.dtype)).into());
        };
        Ok(Described {
            name,
            dtype,
            place,
            shape,
            strides,
            first: self.first,
        })
    }

    /// Whether it has one dimension and no elements, which stands for an argument that was not given.
    pub(crate) fn is_absent(&self) -> bool {
        self.dims == 1 && self.shape[0] == 0
    }

    /// The same for int32 numbers, which must lie one after another on `place`; `None` for a tensor
    /// of one dimension without elements, which stands for an argument that was not given.
    pub(crate) fn describe_i32<const N: usize>(
        &self,
        name: &'static str,
        place: Place,
    ) -> Result<Option<Numbers<N>>, Error> {
        if self.is_absent() {
            return Ok(None);
        }
        let (theirs, shape, strides) = self.of_dims::<N>(name)?;
        if self.dtype != I32 {
            return Err(format!("{name} holds {}; it must be int32", dtype_name(self.dtype)).into());
        }
        if theirs != place {
            return Err(format!("{name} is on {theirs} and q on {place}; move it there").into());
        }
        if !is_dense(&shape, &strides) {
            return Err(format!("{name} is not contiguous; make it so with .contiguous()").into());
        }
        Ok(Some(Numbers {
            shape: shape.map(|n| n as usize), // PyTorch's sizes are not negative
            first: self.first.cast(),
        }))
    }

    /// Where a tensor of one dimension is, and how many elements it has.
    pub(crate) fn place_and_count(&self, name: &'static str) -> Result<(Place, i64), Error> {
        let (place, [count], _) = self.of_dims::<1>(name)?;
        Ok((place, count))
    }

    /// The place, shape and strides.
    fn of_dims<const N: usize>(&self, name: &'static str) -> Result<(Place, [i64; N], [i64; N]), Error> {
        const { assert!(N <= 4) };
        let dims = self.dims;
        if dims != N {
            return Err(format!("{name} has {dims} dimensions; it must have {N}").into());
        }
        let on_neither = || format!("{name} is on neither the CPU nor a CUDA device; move it to one");
        let of = |all: &[i64; 4]| std::array::from_fn(|n| all[n]);
        Ok((self.place.ok_or_else(on_neither)?, of(&self.shape), of(&self.strides)))
    }
}

/// A tensor's type and memory.
pub(crate) struct Described<const N: usize> {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    pub(crate) place: Place,
    pub(crate) shape: [i64; N],
    pub(crate) strides: [i64; N],
    pub(crate) first: *mut u8,
}

impl<const N: usize> Described<N> {
    /// Refuses other numbers than float32 of this shape, one after another on `place`.
    pub(crate) fn check_f32(&self, shape: [usize; N], place: Place) -> Result<(), Error> {
        let expected = shape.map(|n| n as i64);
        let dense = is_dense(&self.shape, &self.strides);
        if self.dtype == DType::F32 && self.shape == expected && dense && self.place == place {
            return Ok(());
        }
        Err(format!(
            "{} holds {} of shape {:?} on {}; it must be float32 of shape {expected:?}, contiguous, on {place}",
            self.name, self.dtype, self.shape, self.place
        )
        .into())
    }
}

impl<const N: usize> Described<N> {
    /// Checks that it has one of these dtypes, this shape and place, and is dense.
    pub(crate) fn check(self, dtypes: &[DType], shape: [usize; N], place: Place) -> Result<Self, Error> {
        let expected = shape.map(|n| n as i64);
        let dense = is_dense(&self.shape, &self.strides);
        if dtypes.contains(&self.dtype) && self.shape == expected && dense && self.place == place {
            return Ok(self);
        }
        let allowed: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
        Err(format!(
            "{} holds {} of shape {:?} on {}; it must hold {} of shape {expected:?}, contiguous, on {place}",
            self.name,
            self.dtype,
            self.shape,
            self.place,
            allowed.join(" or ")
        )
        .into())
    }
}

impl Described<2> {
    /// The same, which is dense, as one dimension.
    pub(crate) fn flat(self) -> Described<1> {
        Described {
            name: self.name,
            dtype: self.dtype,
            place: self.place,
            shape: [self.shape.iter().product()],
            strides: [1],
            first: self.first,
        }
    }
}

/// The name of a dtype by PyTorch's number, for messages.
fn dtype_name(number: i32) -> String {
    let names = [
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "bool",
    ];
    match usize::try_from(number).ok().and_then(|number| names.get(number)) {
        Some(name) => name.to_string(),
        None => match number {
            15 => "bfloat16".to_string(),
            23 => "float8_e5m2".to_string(),
            24 => "float8_e4m3fn".to_string(),
            _ => format!("a dtype with PyTorch's number {number}"),
        },
    }
}

/// Whether elements lie one after another.
fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    let mut dense = 1;
    shape.iter().zip(strides).rev().all(|(&n, &stride)| {
        let fits = n == 1 || stride == dense;
        dense *= n;
        fits
    })
}

/// int32 numbers, dense.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<const N: usize> {
    pub(crate) shape: [usize; N],
    pub(crate) first: *mut i32,
}
