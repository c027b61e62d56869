//! What every attention kernel shares, each idea in one file. A family adds its main loop: shared memory, roles, copies
//! and the order of its products.

pub mod block_range;
pub(crate) mod combine;
pub mod divisor;
pub(crate) mod epilogue;
pub(crate) mod forward;
pub(crate) mod gradients;
pub mod index;
pub(crate) mod lengths;
pub(crate) mod mask;
pub(crate) mod masked_row;
pub(crate) mod params;
pub(crate) mod preprocess;
pub(crate) mod query_rows;
pub(crate) mod row_tile;
pub(crate) mod scheduler;
pub(crate) mod score_mod;
pub(crate) mod softmax;
pub(crate) mod split;
pub(crate) mod stream_k;
pub mod tap;
pub(crate) mod tensor_rows;
pub(crate) mod warp_partials;
