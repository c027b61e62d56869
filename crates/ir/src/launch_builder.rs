//! [`LaunchBuilder`]: a launch whose arguments are placed by the names of the kernel's parameters.

use thiserror::Error;

use crate::{Arg, BufferSpec, Kernel, Launch, ParamKind};

/// A launch on its way, made by [`Launch::builder`]. The order of the calls does not matter.
#[derive(Clone, Debug)]
pub struct LaunchBuilder<'k> {
    kernel: &'k Kernel,
    launch: Launch,
    args: Vec<Option<Arg>>,
    refused: Option<ArgumentError>,
}

/// Why arguments do not make a launch.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ArgumentError {
    /// An argument of a name that no parameter has.
    #[error("`{name}` is no parameter of `{kernel}`; it has {known}; use one of these names")]
    Unknown {
        name: String,
        kernel: String,
        known: String,
    },
    /// Two arguments of one name.
    #[error("`{name}` is given twice; give each argument once")]
    Twice { name: String },
    /// Parameters without an argument.
    #[error("`{kernel}` needs {missing}, too; give an argument of each name")]
    Missing { kernel: String, missing: String },
}

impl Launch {
    /// Begins a launch whose arguments go to the parameters by name: an exchange of two is not possible.
    ///
    /// ```
    /// use flashcore_ir::{Kernel, Launch};
    /// let kernel = Kernel::build("scale", 32, |k| {
    ///     let (x, factor) = (k.param_ptr_mut::<f32>("x"), k.param::<f32>("factor"));
    ///     let x = x.offset(k.lane());
    ///     x.store(x.load() * factor);
    /// })?;
    /// let launch = Launch::builder(&kernel, [1, 1, 1]).arg("factor", 2.0f32).buffer("x", 128).build()?;
    /// assert!(launch.buffers[0].written);
    /// let error = Launch::builder(&kernel, [1, 1, 1]).arg("factor", 2.0f32).build().unwrap_err();
    /// assert_eq!(error.to_string(), "`scale` needs `x`, too; give an argument of each name");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(kernel: &Kernel, grid: [u32; 3]) -> LaunchBuilder<'_> {
        LaunchBuilder {
            kernel,
            launch: Launch::of(kernel, grid),
            args: vec![None; kernel.params().len()],
            refused: None,
        }
    }
}

impl LaunchBuilder<'_> {
    /// The argument of a parameter: a number, a [`Table`](crate::Table), or any other [`Arg`]. Whether it is of the
    /// parameter's kind, [`prove_launch`](crate::proof::prove_launch) says.
    pub fn arg(mut self, name: &str, arg: impl Into<Arg>) -> Self {
        match self.kernel.params().iter().position(|param| param.name == name) {
            None => {
                let kernel = self.kernel.name().to_string();
                let known = self.names(|_| true);
                self.refuse(ArgumentError::Unknown {
                    name: name.to_string(),
                    kernel,
                    known,
                });
            }
            Some(place) if self.args[place].is_some() => self.refuse(ArgumentError::Twice { name: name.to_string() }),
            Some(place) => self.args[place] = Some(arg.into()),
        }
        self
    }

    /// A buffer of so many bytes in the next slot, aligned to 16 bytes, and its address as the argument of the
    /// parameter of its name. It is written if the kernel writes through that parameter.
    pub fn buffer(mut self, name: &'static str, bytes: u64) -> Self {
        let mut params = self.kernel.params().iter();
        let written = params.any(|param| {
            let writable = matches!(
                param.kind,
                ParamKind::Pointer { writable: true, .. } | ParamKind::TensorMap { writable: true, .. }
            );
            param.name == name && writable
        });
        let slot = self.launch.buffers.len();
        self.launch.buffers.push(BufferSpec {
            name,
            bytes,
            written,
            align: 16,
        });
        self.arg(name, Arg::Buffer { slot, byte_offset: 0 })
    }

    /// The launch.
    ///
    /// # Errors
    /// The first name that no parameter has, or that was given twice; or the parameters without an argument.
    pub fn build(mut self) -> Result<Launch, ArgumentError> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        if self.args.contains(&None) {
            return Err(ArgumentError::Missing {
                kernel: self.kernel.name().to_string(),
                missing: self.names(|place| self.args[place].is_none()),
            });
        }
        self.launch.args = self.args.into_iter().flatten().collect();
        Ok(self.launch)
    }

    fn refuse(&mut self, error: ArgumentError) {
        self.refused.get_or_insert(error);
    }

    /// The names of the parameters at some places.
    fn names(&self, at: impl Fn(usize) -> bool) -> String {
        let params = self.kernel.params().iter().enumerate();
        let names = params
            .filter(|(place, _)| at(*place))
            .map(|(_, param)| format!("`{}`", param.name));
        names.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::prove_launch;
    use crate::{Table, Target};

    fn kernel() -> Kernel {
        Kernel::build("sum", 32, |k| {
            let (table, sums) = (k.param_ptr::<u32>("table"), k.param_ptr_mut::<u32>("sums"));
            let [m, n] = ["m", "n"].map(|name| k.param::<u32>(name));
            sums.offset(k.lane()).store(table.load() + m - n);
        })
        .unwrap()
    }

    #[test]
    fn arguments_go_where_their_names_are() {
        let kernel = kernel();
        let launch = Launch::builder(&kernel, [3, 1, 1]).arg("n", 7u32).buffer("sums", 128);
        let launch = launch.arg("table", Table::new(vec![1])).arg("m", 9u32).build().unwrap();
        assert_eq!(launch.args[2..], [Arg::U32(9), Arg::U32(7)]);
        assert_eq!(
            launch.args[1],
            Arg::Buffer {
                slot: 0,
                byte_offset: 0
            }
        );
        assert!(launch.buffers[0].written);
        assert_eq!(prove_launch(&kernel, &launch, Target::Sm80, None), []);
    }

    #[test]
    fn other_names_are_refused() {
        let kernel = kernel();
        let begun = || Launch::builder(&kernel, [1, 1, 1]).buffer("sums", 128).arg("n", 7u32);
        let text = |builder: LaunchBuilder<'_>| builder.build().unwrap_err().to_string();
        assert_eq!(
            text(begun().arg("k", 1u32)),
            "`k` is no parameter of `sum`; it has `table`, `sums`, `m`, `n`; use one of these names"
        );
        assert_eq!(
            text(begun().arg("n", 7u32)),
            "`n` is given twice; give each argument once"
        );
        assert_eq!(
            text(begun()),
            "`sum` needs `table`, `m`, too; give an argument of each name"
        );
        // The first mistake is told.
        assert_eq!(
            text(begun().arg("n", 1u32).arg("k", 1u32)),
            text(begun().arg("n", 7u32))
        );
    }

    /// A kind that does not fit is the launch proof's to refuse.
    #[test]
    fn kinds_are_proved() {
        let kernel = kernel();
        let launch = Launch::builder(&kernel, [1, 1, 1])
            .buffer("sums", 128)
            .buffer("table", 4);
        let launch = launch.arg("m", 1i32).arg("n", 1u32).build().unwrap();
        let refusal = prove_launch(&kernel, &launch, Target::Sm80, None)[0].to_string();
        assert!(refusal.contains("argument 2 is s32; parameter `m` is u32"), "{refusal}");
    }
}
