//! The kernel language: what kernels print, and what cannot be built.

mod async_tiles;
mod build_errors;
mod every_instruction;
mod machine_code;
mod shared_memory;
mod source_lines;
mod support;
