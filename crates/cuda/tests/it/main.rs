//! What the driver does: on a GPU (`gpu`), and what is said where there is none.

mod gpu;
mod without_driver;
