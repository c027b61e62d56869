//! [`words!`](crate::words): enums whose variants have names.

/// An enum whose variants have names on the command line and in evidence: `ALL`, `name` and `Display`.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        pub enum $type { $($(#[$doc])* $variant,)* }

        impl $type {
            /// Every one, in declaration order.
            pub const ALL: [$type; [$($name),*].len()] = [$($type::$variant),*];

            /// The name used on the command line, in ids and in evidence.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
