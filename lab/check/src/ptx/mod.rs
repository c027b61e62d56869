//! Reads kernels of other compilers from PTX: those that use only instructions of the kernel language
//! ([`PtxText::kernel`]), and what any of them declares in its body.
//!
//! ```
//! use flashcore_check::ptx::PtxText;
//! let text = PtxText::read(
//!     ".version 7.0 .target sm_80 .address_size 64
//!      .visible .entry scale(.param .u64 x) .maxntid 128, 1, 1 { .shared .align 16 .f32 tile[64][32]; ret; }",
//! )?;
//! let (entry, body) = text.entries().next().unwrap();
//! assert_eq!((entry.name.as_str(), body.shared[0].bytes), ("scale", 64 * 32 * 4));
//! # Ok::<(), flashcore_ir::ptx::read::PtxError>(())
//! ```

mod body;
mod control;
mod decode;
mod forms;
mod kernel;
mod objects;
mod operands;
mod scope;
mod statement;
#[cfg(test)]
mod tests;

pub use body::Body;
use flashcore_ir::ptx::read::{PtxEntry, PtxError, PtxModule, SharedSymbol};
pub use kernel::ReadAs;

/// A PTX text: what it declares, and the bodies of its kernels.
#[derive(Clone, Debug)]
pub struct PtxText {
    /// What stands outside the bodies.
    pub module: PtxModule,
    bodies: Vec<Body>,
}

impl PtxText {
    /// Reads a text.
    ///
    /// # Errors
    /// Where the text is no PTX, or not well-formed: the line, and what was expected.
    pub fn read(text: &str) -> Result<PtxText, PtxError> {
        let module = PtxModule::declarations(text)?;
        let bodies = module.entries.iter().map(|entry| Body::read(text, entry));
        let bodies = bodies.collect::<Result<_, _>>()?;
        Ok(PtxText { module, bodies })
    }

    /// The kernels with their bodies.
    pub fn entries(&self) -> impl Iterator<Item = (&PtxEntry, &Body)> {
        self.module.entries.iter().zip(&self.bodies)
    }

    /// The shared memory of a kernel: what its body declares, and what it names of the module's.
    fn shared_of<'a>(&'a self, body: &'a Body) -> impl Iterator<Item = &'a SharedSymbol> {
        let named = |symbol: &&SharedSymbol| body.named.contains(&symbol.name);
        self.module.shared.iter().filter(named).chain(&body.shared)
    }
}
