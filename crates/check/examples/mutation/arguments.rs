//! Why a mistake that nothing shows is none: one argument for each place where that is so.

use flashcore_check::mutate::{Mutation, Operator};

/// A mistake that changes nothing which anybody could observe.
pub(crate) struct Argument {
    /// Start of the kernel's id.
    pub(crate) kernel: &'static str,
    pub(crate) operators: &'static [Operator],
    /// Text of the line that it is planted in, or of a verb on the way.
    pub(crate) place: &'static str,
    /// The instruction's mnemonic begins so.
    pub(crate) what: &'static str,
    pub(crate) why: &'static str,
}

#[rustfmt::skip]
pub(crate) const ARGUMENTS: &[Argument] = &[
];

/// The argument for a survivor, if there is one.
pub(crate) fn argument(kernel: &str, mutation: &Mutation, place: &str) -> Option<&'static Argument> {
    ARGUMENTS.iter().find(|argument| {
        kernel.starts_with(argument.kernel)
            && argument.operators.contains(&mutation.operator)
            && place.contains(argument.place)
            && mutation.what.starts_with(argument.what)
    })
}
