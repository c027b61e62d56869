//! What a PTX text says about its kernels: names, parameters, block sizes. The driver tells none of these
//! before CUDA 12.4, and a launch that disagrees with them would read foreign memory or fail unexplained.

/// A kernel declared in a PTX text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Bytes of each parameter; `None` where the declaration could not be read.
    pub(crate) parameter_bytes: Option<Vec<u32>>,
    /// `.reqntid`: the only block that may be launched.
    pub(crate) required_block: Option<[u32; 3]>,
    /// `.maxntid`: the most threads a block may have.
    pub(crate) max_threads: Option<u32>,
    /// `.reqnctapercluster`: the only cluster that may be launched.
    pub(crate) required_cluster: Option<[u32; 3]>,
}

/// The kernels of a PTX text, in order.
pub(crate) fn entries(ptx: &str) -> Vec<Entry> {
    let text = without_comments(ptx);
    let mut entries = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = &rest[at + ".entry".len()..];
        let head = rest[..rest.find('{').unwrap_or(rest.len())].trim_start();
        let end = head.find(|c: char| c.is_whitespace() || c == '(').unwrap_or(head.len());
        let (name, tail) = head.split_at(end);
        let (parameters, directives) = match (tail.find('('), tail.find(')')) {
            (Some(open), Some(close)) if open < close && tail[..open].trim().is_empty() => {
                (Some(&tail[open + 1..close]), &tail[close + 1..])
            }
            _ => (None, tail),
        };
        entries.push(Entry {
            name: name.to_string(),
            parameter_bytes: parameters.map_or(Some(Vec::new()), parameter_bytes),
            required_block: dimensions(directives, ".reqntid"),
            max_threads: dimensions(directives, ".maxntid").map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z)),
            required_cluster: dimensions(directives, ".reqnctapercluster"),
        });
    }
    entries
}

/// Sizes of the parameters in a list such as `.param .u64 .ptr .global .align 16 q, .param .b8 map[128]`.
fn parameter_bytes(list: &str) -> Option<Vec<u32>> {
    if list.trim().is_empty() {
        return Some(Vec::new());
    }
    list.split(',').map(one_parameter_bytes).collect()
}

fn one_parameter_bytes(declaration: &str) -> Option<u32> {
    let element: u32 = declaration
        .split(|c: char| c.is_whitespace())
        .find_map(|word| match word {
            ".b8" | ".u8" | ".s8" => Some(1),
            ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Some(2),
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" => Some(4),
            ".b64" | ".u64" | ".s64" | ".f64" => Some(8),
            ".b128" => Some(16),
            _ => None,
        })?;
    let count = match declaration.split_once('[') {
        Some((_, tail)) => tail.split_once(']')?.0.trim().parse::<u32>().ok()?,
        None => 1,
    };
    element.checked_mul(count)
}

/// The up to three numbers after a directive; those not written are 1.
fn dimensions(directives: &str, name: &str) -> Option<[u32; 3]> {
    let tail = &directives[directives.find(name)? + name.len()..];
    let list = &tail[..tail.find('.').unwrap_or(tail.len())];
    let mut dims = [1; 3];
    for (dim, word) in dims.iter_mut().zip(list.split(',')) {
        *dim = word.trim().parse().ok()?;
    }
    Some(dims)
}

fn without_comments(ptx: &str) -> String {
    let mut out = String::with_capacity(ptx.len());
    let mut rest = ptx;
    loop {
        let line = rest.find("//");
        let block = rest.find("/*");
        let (start, end, skip) = match (line, block) {
            (Some(l), b) if b.is_none_or(|b| l < b) => (l, rest[l..].find('\n').map(|e| l + e), 0),
            (_, Some(b)) => (b, rest[b..].find("*/").map(|e| b + e), 2),
            _ => {
                out.push_str(rest);
                return out;
            }
        };
        out.push_str(&rest[..start]);
        out.push(' ');
        match end {
            Some(end) => rest = &rest[end + skip..],
            None => return out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_blocks_are_read() {
        let ptx = "
            .version 8.0
            .target sm_90a // .entry not_this(
            /* .entry nor_this( */
            .visible .entry attention(
                .param .u64 .ptr .global .align 16 q,   // the queries
                .param .align 64 .b8 map[128],
                .param .f32 scale,
                .param .u32 rows
            )
            .maxntid 384, 1, 1
            .minnctapersm 1
            {
                ret;
            }
            .entry second()
            .reqntid 128
            .reqnctapercluster 2, 1, 1
            { ret; }
            .entry bare { ret; }";
        let entries = entries(ptx);
        assert_eq!(
            entries.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(),
            ["attention", "second", "bare"]
        );
        assert_eq!(entries[0].parameter_bytes, Some(vec![8, 128, 4, 4]));
        assert_eq!(entries[0].max_threads, Some(384));
        assert_eq!(entries[0].required_block, None);
        assert_eq!(entries[1].parameter_bytes, Some(vec![]));
        assert_eq!(entries[1].required_block, Some([128, 1, 1]));
        assert_eq!(entries[1].required_cluster, Some([2, 1, 1]));
        assert_eq!(entries[2].parameter_bytes, Some(vec![]));
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_driver() {
        let entries = entries(".entry odd(.param .texref t) { ret; }");
        assert_eq!(entries[0].parameter_bytes, None);
        assert!(super::entries("not PTX at all").is_empty());
        assert!(super::entries(".entry").len() == 1);
    }
}
