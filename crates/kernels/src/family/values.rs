//! Configs and their levers in one declaration, and configs as values of levers and back.

/// A field of a config as a lever's value.
pub(crate) trait LeverValue {
    fn number(self) -> u32;
    fn of(number: u32) -> Self;
}

impl LeverValue for u32 {
    fn number(self) -> u32 {
        self
    }

    fn of(number: u32) -> u32 {
        number
    }
}

impl LeverValue for bool {
    fn number(self) -> u32 {
        self.into()
    }

    fn of(number: u32) -> bool {
        number == 1
    }
}

/// Makes an enum a lever's values, in the order of its variants.
macro_rules! lever_values {
    ($type:ident: $($variant:ident),+) => {
        impl $crate::family::LeverValue for $type {
            fn number(self) -> u32 {
                self as u32
            }

            fn of(number: u32) -> $type {
                [$($type::$variant),+][number as usize]
            }
        }
    };
}
pub(crate) use lever_values;

/// `constraint!("lever", "what it says", pattern of a Config => condition)`: a [`Constraint`](super::Constraint).
macro_rules! constraint {
    ($lever:literal, $rule:literal, $config:pat => $holds:expr) => {
        $crate::family::Constraint {
            lever: $lever,
            rule: $rule,
            holds: |&values| {
                let $config = Config::from(values);
                $holds
            },
        }
    };
}
pub(crate) use constraint;

/// Declares a family's config and its levers, in the order in which ids have them. `field: type = number("m", &[64]),
/// "what it trades";` is a field of the config, and the lever that `Lever::number` makes of its name and of the rest.
/// Also makes `Values` of a config and back, and prints its id.
macro_rules! levers {
    (
        $(#[$about:meta])*
        $config:ident:
        $(
            $(#[$more:meta])*
            $field:ident: $ty:ty = $lever:ident($($arg:expr),*) $(.$limit:ident($most:expr))?, $meaning:literal;
        )+
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $config {
            $(#[doc = concat!($meaning, ".")] $(#[$more])* pub $field: $ty,)+
        }

        pub(crate) const LEVERS: [$crate::family::Lever; [$(stringify!($field)),+].len()] = [
            $($crate::family::Lever::$lever($($arg),*)$(.$limit($most))?.named(stringify!($field), $meaning)),+
        ];

        impl From<$config> for $crate::family::Values {
            fn from(config: $config) -> Self {
                $crate::family::padded([$($crate::family::LeverValue::number(config.$field)),+])
            }
        }

        impl From<$crate::family::Values> for $config {
            fn from(values: $crate::family::Values) -> Self {
                let mut values = values.into_iter();
                let mut next = || values.next().unwrap_or_default();
                $config { $($field: $crate::family::LeverValue::of(next())),+ }
            }
        }

        impl std::fmt::Display for $config {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&FAMILY.levers_id(&(*self).into()))
            }
        }

        /// From an id without the family's name.
        impl<'de> serde::Deserialize<'de> for $config {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let id = <&str>::deserialize(from)?;
                let unknown = || serde::de::Error::custom(format!("`{id}` is no config of family {}", FAMILY.name));
                FAMILY.read_levers(id).map(Self::from).ok_or_else(unknown)
            }
        }
    };
}
pub(crate) use levers;
