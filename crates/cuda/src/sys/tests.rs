//! Compares what is declared here with the generated bindings. The macros come before the
//! declarations, which call them with their own lists.

use super::*;
use cudarc::driver::sys as theirs;
use std::mem::{align_of, offset_of, size_of};

macro_rules! witness_constants {
    ($($module:ident $witness:ident $name:ident)*) => {
        /// Each constant: its name, its value here, its value in the generated bindings.
        fn witnessed_constants() -> Vec<(&'static str, u32, u32)> {
            vec![$((stringify!($name), $module::$name, cudarc::driver::sys::$witness::$name as u32),)*]
        }
    };
}
pub(super) use witness_constants;

macro_rules! infer {
    ($ty:ty) => {
        _
    };
}
pub(super) use infer;

macro_rules! witness_functions {
    ($($name:ident($($ty:ty),*))*) => {
        /// Each function: its name, its type here, its type in the generated bindings.
        fn witnessed_functions() -> Vec<(&'static str, &'static str, &'static str)> {
            vec![$({
                let theirs: unsafe fn($(tests::infer!($ty)),*) -> _ = cudarc::driver::sys::$name;
                let ours = std::any::type_name::<unsafe extern "C" fn($($ty),*) -> CUresult>();
                (stringify!($name), ours, tests::name_of(theirs))
            },)*]
        }
    };
}
pub(super) use witness_functions;

macro_rules! recording {
    (
        { $($name:ident($($arg:ident: $ty:ty),*))* }
        { $($query:ident($($qarg:ident: $qty:ty),*) -> $result:ty;)* }
        { $($optional:ident)* }
    ) => {
        /// Functions that note their names, and do nothing: results are numbers of equal bytes.
        mod recorded {
            use super::*;
            $(pub(super) unsafe extern "C" fn $name($(_: $ty),*) -> CUresult {
                tests::note(stringify!($name));
                status::CUDA_SUCCESS
            })*
            $(pub(super) unsafe extern "C" fn $query(result: *mut $result $(, _: $qty)*) -> CUresult {
                tests::note(stringify!($query));
                // SAFETY: the caller's result has so many bytes.
                unsafe { result.cast::<u8>().write_bytes(7, size_of::<$result>()) };
                status::CUDA_SUCCESS
            })*
        }

        impl Table {
            /// A driver that only notes what it is asked ([`tests::noted`]).
            pub(crate) fn recording() -> Table {
                Table {
                    $($name: recorded::$name,)*
                    $($query: recorded::$query,)*
                    $($optional: None,)*
                }
            }
        }
    };
}
pub(super) use recording;

std::thread_local! {
    static NOTED: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) };
}

pub(super) fn note(name: &'static str) {
    NOTED.with_borrow_mut(|noted| noted.push(name));
}

/// What the recording driver was asked in this thread since the last time.
pub(crate) fn noted() -> Vec<&'static str> {
    NOTED.take()
}

pub(super) fn name_of<T>(_: T) -> &'static str {
    std::any::type_name::<T>()
}

/// Drops module paths and the calling convention, and reads each generated enum as the integer
/// that it is in C.
fn normal(signature: &str) -> String {
    let mut out = String::new();
    for word in signature.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
        let split = word
            .trim_end_matches(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .len();
        let (path, rest) = word.split_at(split);
        let last = path.rsplit("::").next().unwrap();
        let is_enum = last.ends_with("_enum") || last == "CUlaunchAttributeID_enum";
        out.push_str(if is_enum { "u32" } else { last });
        out.push_str(rest);
    }
    out.replace("extern \"C\" ", "")
}

#[test]
fn signatures_are_those_of_the_generated_bindings() {
    let functions = witnessed_functions();
    assert!(functions.len() > 40);
    for (name, ours, theirs) in functions {
        assert_eq!(normal(ours), normal(theirs), "{name}");
    }
}

#[test]
fn constants_are_those_of_the_generated_bindings() {
    let constants = witnessed_constants();
    assert!(constants.len() > 50);
    for (name, ours, theirs) in constants {
        assert_eq!(ours, theirs, "{name}");
    }
}

macro_rules! assert_same_layout {
    ($ty:ident, $($field:ident)*) => {
        assert_eq!(size_of::<$ty>(), size_of::<theirs::$ty>());
        assert_eq!(align_of::<$ty>(), align_of::<theirs::$ty>());
        $(assert_eq!(offset_of!($ty, $field), offset_of!(theirs::$ty, $field), stringify!($field));)*
    };
}

#[test]
fn layouts_are_those_of_the_generated_bindings() {
    assert_same_layout!(CUlaunchConfig_st, gridDimX gridDimY gridDimZ blockDimX blockDimY blockDimZ sharedMemBytes
        hStream attrs numAttrs);
    assert_same_layout!(CUlaunchAttribute_st, id value);
    assert_eq!(size_of::<CUtensorMap_st>(), size_of::<theirs::CUtensorMap>());
    assert!(align_of::<CUtensorMap_st>() >= align_of::<theirs::CUtensorMap>());
    assert_eq!(size_of::<CUuuid_st>(), size_of::<theirs::CUuuid>());
}

#[test]
fn cluster_and_serialisation_lie_where_the_union_has_them() {
    let mut value: theirs::CUlaunchAttributeValue = theirs::CUlaunchAttributeValue { pad: [0; 64] };
    value.clusterDim.x = 2;
    value.clusterDim.y = 3;
    value.clusterDim.z = 4;
    // SAFETY: both are 64 plain bytes (the layout test above), and every bit pattern is a valid
    // array.
    let words: [u32; 16] = unsafe { std::mem::transmute(value) };
    assert_eq!(words[..3], [2, 3, 4]);
    value.programmaticStreamSerializationAllowed = 7;
    // SAFETY: as above.
    let words: [u32; 16] = unsafe { std::mem::transmute(value) };
    assert_eq!(words[0], 7);
}
