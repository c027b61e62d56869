//! Optional arrays by name: those of lengths ([`Lengths`](crate::Lengths)), and those of an append
//! ([`AppendValues`](crate::AppendValues)).

use crate::ProblemError;

/// Declares a struct of arrays, each where it is given. `B` is how one is given: `&[i32]` on the host, a slice of
/// device memory on a GPU.
macro_rules! arrays {
    ($(#[$doc:meta])* $type:ident[$count:literal] { $($(#[$of:meta])* $name:ident = $operand:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $type<B> {
            $($(#[$of])* pub $name: Option<B>,)*
        }

        /// None of them.
        impl<B> Default for $type<B> {
            fn default() -> Self {
                $type { $($name: None),* }
            }
        }

        /// The arrays in the order of `NAMES`.
        impl<B> From<[Option<B>; $count]> for $type<B> {
            fn from([$($name),*]: [Option<B>; $count]) -> Self {
                $type { $($name),* }
            }
        }

        impl<B> $type<B> {
            /// The names of the arrays, as errors and the buffers of launches have them.
            pub const NAMES: [&'static str; $count] = [$(stringify!($name)),*];

            /// The operands that they are, in the order of `NAMES`.
            pub(crate) const OPERANDS: [crate::Name; $count] = [$(crate::Name::$operand),*];

            /// Each array in the order of `NAMES`, where it is given.
            pub fn arrays(&self) -> [Option<&B>; $count] {
                [$(self.$name.as_ref()),*]
            }

            /// The array of a name, where it is given.
            pub fn named(&self, name: &str) -> Option<&B> {
                let place = Self::NAMES.iter().position(|known| *known == name)?;
                self.arrays()[place]
            }

            /// The same arrays in another form.
            pub fn map<'a, C>(&'a self, mut form: impl FnMut(&'a B) -> C) -> $type<C> {
                $type::from(self.arrays().map(|array| array.map(&mut form)))
            }
        }
    };
}
pub(crate) use arrays;

/// Checks that exactly the arrays that are needed are given, each with as many entries as it needs. `of` is what needs
/// them.
pub(crate) fn check_entries<const N: usize>(
    names: [&'static str; N],
    given: [Option<&usize>; N],
    needed: [Option<&usize>; N],
    of: std::fmt::Arguments<'_>,
) -> Result<(), ProblemError> {
    for ((argument, given), needed) in names.into_iter().zip(given).zip(needed) {
        let why = match (given, needed) {
            (None, Some(needed)) => format!("was not given; this {of} needs {needed} entries of it"),
            (Some(_), None) => format!("was given, but this {of} has no use for it: leave it out"),
            (Some(given), Some(needed)) if given != needed => {
                format!("has {given} entries; this {of} needs {needed}")
            }
            _ => continue,
        };
        return ProblemError::lengths(argument, why);
    }
    Ok(())
}
