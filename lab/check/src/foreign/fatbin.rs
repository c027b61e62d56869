//! PTX inside of programs, libraries, object files and archives: nvcc embeds fat binaries, which hold machine code and
//! PTX for several architectures, compressed or not.
//!
//! The format is not documented. Its fields are those that the tests' files of nvcc 13.0 have, and agree with
//! <https://github.com/n-eiling/cuda-fatbin-decompression>.

use std::io::Read;

/// First bytes of a fat binary.
const MAGIC: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
const KIND_OF_PTX: u16 = 1;
const IS_LZ4: u64 = 0x2000;
const IS_ZSTD: u64 = 0x8000;
/// Most bytes of a text.
const MOST: u64 = 64 << 20;

/// A PTX text of a fat binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// Its architecture, such as 89.
    pub arch: u32,
    /// The text.
    pub ptx: String,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(N)?)?;
    Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

/// All PTX texts in the fat binaries of a file, in their order, and why others cannot be read. Both are empty for a
/// file without fat binaries.
pub fn embedded(bytes: &[u8]) -> (Vec<Embedded>, Vec<String>) {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(next) = bytes
        .get(at..)
        .and_then(|rest| rest.windows(4).position(|bytes| bytes == MAGIC))
    {
        let begin = at + next;
        at = begin + MAGIC.len();
        let header = number::<2>(bytes, begin + 6).zip(number::<8>(bytes, begin + 8));
        let Some((header @ 16.., size)) = header else { continue };
        let first = begin + header as usize;
        let Some(end) = usize::try_from(size).ok().and_then(|size| first.checked_add(size)) else {
            continue;
        };
        let Some(entries) = bytes.get(first..end) else { continue };
        read_entries(entries, &mut found, &mut failed);
        at = end;
    }
    (found, failed)
}

fn read_entries(entries: &[u8], found: &mut Vec<Embedded>, failed: &mut Vec<String>) {
    let mut at = 0;
    while let Some(entry) = entries.get(at..).filter(|entry| !entry.is_empty()) {
        let sizes = number::<4>(entry, 4).zip(number::<8>(entry, 8));
        let Some((header, size)) = sizes.filter(|(header, _)| *header >= 64) else {
            return failed.push("an entry of a fat binary that is cut short".to_string());
        };
        let next = header.checked_add(size).and_then(|next| usize::try_from(next).ok());
        let Some(body) = next.and_then(|next| entry.get(header as usize..next)) else {
            return failed.push("an entry of a fat binary that is longer than the file".to_string());
        };
        if number::<2>(entry, 0) == Some(KIND_OF_PTX.into()) {
            let [compressed, arch] = [16, 28].map(|at| number::<4>(entry, at).unwrap_or(0));
            let [flags, whole] = [40, 56].map(|at| number::<8>(entry, at).unwrap_or(0));
            match text(body, compressed, flags, whole) {
                Ok(ptx) => found.push(Embedded { arch: arch as u32, ptx }),
                Err(why) => failed.push(format!("PTX for sm_{arch}: {why}")),
            }
        }
        at += header as usize + body.len();
    }
}

fn text(body: &[u8], compressed: u64, flags: u64, whole: u64) -> Result<String, String> {
    if whole > MOST {
        return Err(format!("it has {whole} B; at most {MOST} B are read"));
    }
    let packed = || {
        let length = usize::try_from(compressed).ok();
        let packed = length.and_then(|length| body.get(..length));
        packed.ok_or_else(|| "it is longer than its entry".to_string())
    };
    let bytes = if flags & IS_LZ4 != 0 {
        lz4_flex::block::decompress(packed()?, whole as usize).map_err(|error| error.to_string())?
    } else if flags & IS_ZSTD != 0 {
        let stream = ruzstd::decoding::StreamingDecoder::new(packed()?).map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        stream
            .take(MOST)
            .read_to_end(&mut bytes)
            .map_err(|error| error.to_string())?;
        bytes
    } else {
        body.to_vec()
    };
    let text = String::from_utf8(bytes).map_err(|_| "it is no text".to_string())?;
    Ok(text.trim_end_matches('\0').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By nvcc 13.0 with `--compress-mode=none`, `speed` and `default`, of
    /// `extern "C" __global__ void scale(float* x, float by, int n)`, each for sm_80 and sm_90.
    const SCALE: &[u8] = include_bytes!("fixtures/scale-13.0.fatbin");

    #[test]
    fn all_texts_of_a_program_are_found() {
        // Not aligned, and with the magic number of none.
        let program = [b"\x7fELF ", &MAGIC[..], SCALE, b" end"].concat();
        let (found, failed) = embedded(&program);
        assert_eq!(failed, Vec::<String>::new());
        let archs: Vec<u32> = found.iter().map(|text| text.arch).collect();
        assert_eq!(archs, [80, 90, 80, 90, 80, 90]);
        for text in &found {
            let kernels = crate::foreign::read(text.ptx.as_bytes()).unwrap();
            assert_eq!(kernels[0].name, "scale");
            assert_eq!(kernels[0].made_for, format!("sm_{}", text.arch));
        }
        assert_eq!(embedded(b"no program"), (vec![], vec![]));
    }

    #[test]
    fn what_is_cut_short_or_changed_never_panics() {
        for end in 0..SCALE.len() {
            embedded(&SCALE[..end]);
            let mut changed = SCALE.to_vec();
            changed[end] ^= 0x81;
            embedded(&changed);
        }
        let mut long = SCALE.to_vec();
        long[16 + 8 + 3] = 0xff;
        assert_eq!(
            embedded(&long).1,
            ["an entry of a fat binary that is longer than the file"]
        );
    }
}
