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
