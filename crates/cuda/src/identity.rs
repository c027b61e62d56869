//! The identity of a compiled kernel.

use sha2::{Digest, Sha256};

/// SHA-256 over a module's PTX without debug lines, and the architecture and driver that compiled
/// it. Equal identities mean equal machine code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleIdentity([u8; 32]);

impl ModuleIdentity {
    /// `driver` is a release and CUDA version, `architecture` a name such as `sm_90`.
    pub(crate) fn new(ptx: &str, architecture: &str, driver: &str) -> Self {
        let mut hash = Sha256::new();
        for line in ptx.lines().filter(|line| !is_debug_line(line)) {
            hash.update(line.trim_end());
            hash.update(b"\n");
        }
        // A byte that no text contains separates the fields. The last one held compiler options;
        // without it, stored identities would change.
        for field in [architecture, driver, ""] {
            hash.update([0xff]);
            hash.update(field);
        }
        Self(hash.finalize().into())
    }

    /// All 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first 12 hexadecimal digits: enough to tell modules apart in a table.
    pub fn short(&self) -> String {
        self.hex()[..12].to_string()
    }
}

impl std::fmt::Display for ModuleIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.hex())
    }
}

impl std::fmt::Debug for ModuleIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModuleIdentity({})", self.short())
    }
}

/// `.file` and `.loc` change no instruction.
fn is_debug_line(line: &str) -> bool {
    matches!(line.split_whitespace().next(), Some(".file" | ".loc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 8.0\n.target sm_80\n.entry k() {\n ret;\n}\n";

    fn identity(ptx: &str) -> ModuleIdentity {
        ModuleIdentity::new(ptx, "sm_90", "580.65.06/13000")
    }

    #[test]
    fn debug_lines_do_not_count_and_instructions_do() {
        let lines = ".version 8.0\n.target sm_80\n.file 1 \"kernel.rs\"\n.entry k() {\n\t.loc 1 20 3\n ret;\n}\n";
        assert_eq!(identity(PTX), identity(lines));
        assert_eq!(identity(PTX), identity(&PTX.replace('\n', "\r\n")));
        assert_ne!(identity(PTX), identity(&PTX.replace("ret", "exit")));
        assert_ne!(identity(PTX), identity(&PTX.replace("sm_80", "sm_89")));
    }

    #[test]
    fn architecture_and_driver_count() {
        let base = identity(PTX);
        assert_ne!(base, ModuleIdentity::new(PTX, "sm_80", "580.65.06/13000"));
        assert_ne!(base, ModuleIdentity::new(PTX, "sm_90", "570.00/12080"));
        assert_ne!(ModuleIdentity::new(PTX, "ab", "c"), ModuleIdentity::new(PTX, "a", "bc"));
    }

    #[test]
    fn it_does_not_change_between_versions_of_this_crate() {
        // Stored evidence must still match: a change here changes every stored
        // identity.
        assert_eq!(identity(PTX).hex().len(), 64);
        assert_eq!(identity(PTX).short(), identity(PTX).hex()[..12]);
        assert_eq!(identity(PTX).short(), "b8cdeb4629ea");
    }
}
