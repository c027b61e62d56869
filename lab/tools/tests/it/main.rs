//! Random kernels under the simulator, and what GPUs answered to them.

mod corpus;
mod probes;
mod programs;
