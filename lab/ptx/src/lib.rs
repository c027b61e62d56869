//! Reads PTX of any compiler: what a text [declares](PtxModule), the instructions of its kernels by a
//! [table of forms](read), and their [control flow](Flow). A form that the table does not have is no error but part of
//! a list that is [complete](Module::understood).

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod body;
mod declared;
mod entries;
mod error;
mod flow;
mod forms;
mod inline;
mod module;
mod names;
mod operand;
#[cfg(test)]
mod tests;
mod variable;
mod words;

pub use body::{Function, Instruction, Place, Registers};
pub use entries::{PtxEntry, PtxModule, PtxParam, SharedSymbol};
pub use error::PtxError;
pub use flow::{Block, Flow};
pub use forms::{Bound, EXAMPLE_REGISTERS, Missing, Spelled, print, read, shape_of, spellings};
pub use module::{Line, MissingForm, Module, Understood};
pub use operand::{Operand, Pattern, Register, callee};
pub use variable::Variable;
