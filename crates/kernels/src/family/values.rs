//! Configs as values of levers, and back.

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

/// Makes `Values` of a config and back, by its fields in the order of the levers of `FAMILY`, and prints its id.
macro_rules! lever_values {
    ($config:ident { $($field:ident),+ }) => {
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
    };
}
pub(crate) use lever_values;
