//! Recognises binary files by their first bytes.

/// First bytes of formats that users pass by mistake.
const SIGNATURES: [(&[u8], &str); 15] = [
    (b"!<arch>\n", "an archive of object files (a static library)"),
    (b"\x50\xed\x55\xba", "a CUDA fat binary"),
    (b"BC\xc0\xde", "LLVM bitcode"),
    (b"MZ", "a Windows program or library"),
    (b"\xcf\xfa\xed\xfe", "a macOS program or library"),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"PK\x03\x04", "a zip archive (a wheel, NumPy's npz)"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"SQLite format 3\0", "an SQLite database"),
];

/// The kind of a binary file; `None` for text.
pub fn binary_kind(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"\x7fELF") {
        return Some(elf(bytes));
    }
    if let Some((_, what)) = SIGNATURES.iter().find(|(first, _)| bytes.starts_with(first)) {
        return Some(what);
    }
    // Zeros at the end are those of a C string; a file of zeros only is not text.
    let is_text = std::str::from_utf8(bytes).is_ok_and(|text| {
        let ended = text.trim_end_matches('\0');
        !ended.contains('\0') && ended.is_empty() == text.is_empty()
    });
    (!is_text).then_some("a binary file of unknown format")
}

/// The kind of an ELF file.
fn elf(bytes: &[u8]) -> &'static str {
    // `e_machine` (System V ABI and vendors' supplements).
    match bytes.get(18..20) {
        Some([190, 0]) => "a cubin: machine code of one GPU architecture",
        Some([62, 0]) => "an ELF program, library or object file for x86-64",
        Some([183, 0]) => "an ELF program, library or object file for 64-bit Arm",
        _ => "an ELF file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_say_what_they_are() {
        let cubin = include_bytes!("fixtures/two_buffers-13.0-sm_89.cubin");
        assert_eq!(
            binary_kind(cubin),
            Some("a cubin: machine code of one GPU architecture")
        );
        let mut program = cubin.to_vec();
        program[18] = 62;
        assert_eq!(
            binary_kind(&program),
            Some("an ELF program, library or object file for x86-64")
        );
        assert_eq!(binary_kind(&cubin[..10]), Some("an ELF file"));
        assert_eq!(
            binary_kind(b"!<arch>\n/ 0"),
            Some("an archive of object files (a static library)")
        );
        assert_eq!(binary_kind(b"\x89PNG\r\n\x1a\n\0\0"), Some("a PNG image"));
        assert_eq!(
            binary_kind(&[0, 159, 146, 150]),
            Some("a binary file of unknown format")
        );
        assert_eq!(binary_kind(b".version 8.0\n.target sm_80\n"), None);
        assert_eq!(binary_kind("// größer\n".as_bytes()), None);
        assert_eq!(binary_kind(b""), None);
        // Drivers hand out PTX with a zero at its end.
        assert_eq!(binary_kind(b".version 8.0\n\0"), None);
        assert_eq!(binary_kind(&[0; 512]), Some("a binary file of unknown format"));
    }
}
