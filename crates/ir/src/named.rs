//! Enums whose variants have names in PTX.

/// Declares an enum, the list of its variants and their names in PTX: the writer prints them, and
/// the reader compares with them.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $ptx:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every variant.
            pub const ALL: [$name; [$($name::$variant,)*].len()] = [$($name::$variant,)*];

            /// The part of an opcode that names it.
            pub const fn ptx(self) -> &'static str {
                match self { $($name::$variant => $ptx,)* }
            }
        }
    };
}
pub(crate) use named;

/// Implements `Display` or `Debug` by one expression.
#[doc(hidden)]
#[macro_export]
macro_rules! shown {
    ($($trait:ident for $type:ty: $of:ident, $f:ident => $shown:expr;)*) => {$(
        impl std::fmt::$trait for $type {
            fn fmt(&$of, $f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $shown
            }
        }
    )*};
}
