//! Names of C++ functions, which linkers see mangled.

use cpp_demangle::Symbol;

/// The name as C++ has it, without its result: `reduce<128>(float const*, float*, int)`. Others stay.
///
/// ```
/// use flashcore_check::foreign::readable;
/// assert_eq!(readable("_Z6reduceILi128EEvPKfPfi"), "reduce<128>(float const*, float*, int)");
/// assert_eq!(readable("a"), "a");
/// ```
pub fn readable(name: &str) -> String {
    // Else `a` is a type's.
    let mangled = Some(name).filter(|name| name.starts_with("_Z"));
    let symbol = mangled.and_then(|name| Symbol::new(name).ok());
    let Some(text) = symbol.and_then(|symbol| symbol.demangle().ok()) else {
        return name.to_string();
    };
    // Templates have it, and a kernel's is nothing.
    text.strip_prefix("void ").unwrap_or(&text).to_string()
}

/// Whether a user may mean this kernel: by the linker's name, by that of C++, or by that without arguments, with or
/// without those of a template.
pub(crate) fn is_called(name: &str, given: &str) -> bool {
    let readable = readable(name);
    let short = |end: char| readable.split(end).next().unwrap_or(&readable).to_string();
    name == given || readable == given || short('(') == given || short('<').as_str() == given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_called_by_any_part_that_is_unique() {
        let name = "_Z6reduceILi128EEvPKfPfi";
        for given in [name, "reduce<128>(float const*, float*, int)", "reduce<128>", "reduce"] {
            assert!(is_called(name, given), "{given}");
        }
        for given in ["reduce<64>", "red", "void", ""] {
            assert!(!is_called(name, given), "{given}");
        }
        assert!(is_called("fill", "fill") && is_called("_Z4fillPf", "fill"));
    }
}
