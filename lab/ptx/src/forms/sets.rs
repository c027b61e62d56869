//! The sets of words that modifiers are of.

const SETS: &[(&str, &str)] = &[
    // Types.
    ("INT", "u16 s16 u32 s32 u64 s64"),
    ("INT32", "u32 s32 u64 s64"),
    ("INT8", "u8 s8 u16 s16 u32 s32 u64 s64"),
    ("SINT", "s16 s32 s64"),
    ("WIDE", "u16 s16 u32 s32"),
    ("PAIRS16", "u16x2 s16x2"),
    ("W32", "u32 s32"),
    ("SET32", "u32 s32 f32"),
    ("BITS", "pred b16 b32 b64"),
    ("B16TO64", "b16 b32 b64"),
    ("B32TO64", "b32 b64"),
    ("SHIFTED", "b16 b32 b64 u16 s16 u32 s32 u64 s64"),
    ("MOVED", "pred b16 b32 b64 b128 u16 s16 u32 s32 u64 s64 f32 f64"),
    ("SELECTED", "b16 b32 b64 u16 s16 u32 s32 u64 s64 f32 f64"),
    ("MEM", "b8 u8 s8 b16 u16 s16 b32 u32 s32 b64 u64 s64 f32 f64 b128"),
    ("HALVES", "f16 f16x2"),
    ("BHALVES", "bf16 bf16x2"),
    ("F16S", "f16 f16x2 bf16 bf16x2"),
    ("FLOATS", "f32 f64"),
    ("FTO", "f16 f32 f64"),
    ("FP8", "e4m3 e5m2"),
    ("FP8X2", "e4m3x2 e5m2x2"),
    // Arithmetic.
    ("RND", "rn rz rm rp"),
    ("IRND", "rni rzi rmi rpi"),
    ("HALF", "hi lo"),
    ("ICMP", "eq ne lt le gt ge lo ls hi hs"),
    ("SAME", "eq ne"),
    ("FCMP", "eq ne lt le gt ge equ neu ltu leu gtu geu num nan"),
    ("BOOL", "and or xor"),
    ("CLAMP", "clamp wrap"),
    ("PRMT", "f4e b4e rc8 ecl ecr rc16"),
    ("TEST", "finite infinite number notanumber normal subnormal"),
    // Memory.
    (
        "SPACE",
        "global shared shared::cta shared::cluster local const param param::entry param::func",
    ),
    (
        "STSPACE",
        "global shared shared::cta shared::cluster local param param::func",
    ),
    ("ATSPACE", "global shared shared::cta shared::cluster"),
    ("STEP", "inc dec"),
    ("MINMAX", "min max"),
    ("REMOTE", "b32 u32 s32 b64 u64 s64 f32 f64"),
    ("SUM16", "f16 bf16"),
    ("CTASPACE", "shared shared::cta"),
    (
        "WINDOW",
        "global shared shared::cta shared::cluster local const param param::entry",
    ),
    ("ORDER", "relaxed acquire release acq_rel"),
    ("LDORDER", "relaxed acquire"),
    ("STORDER", "relaxed release"),
    ("SCOPE", "cta cluster gpu sys"),
    ("LDCACHE", "ca cg cs lu cv"),
    ("SUMMED", "u32 s32 u64 f32 f64"),
    ("FENCE", "sc acq_rel acquire release"),
    ("ASYNC", "global shared::cta shared::cluster"),
    ("TENSOR", "box_dim global_dim element_stride"),
    ("MODE", "elemtype interleave_layout swizzle_mode fill_mode"),
    ("MBSCOPE", "cta cluster"),
    ("MBSPACE", "shared shared::cta shared::cluster"),
    ("MBORDER", "release relaxed"),
    ("WAITORDER", "acquire relaxed"),
    ("ARRIVAL", "arrive arrive_drop"),
    ("WAITING", "test_wait try_wait"),
    ("STCACHE", "wb cg cs wt"),
    ("NCCACHE", "ca cg cs"),
    (
        "EVICT",
        "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate",
    ),
    ("HINT", "L2::cache_hint"),
    ("AHEAD", "L2::64B L2::128B L2::256B"),
    ("VEC", "v2 v4"),
    // Warps.
    ("SHFL", "up down bfly idx"),
    ("VOTE", "all any uni"),
    ("SUMOP", "add min max"),
    ("GRID", "launch_dependents wait"),
    // Products.
    ("NUM", "x1 x2 x4"),
    ("LAYOUT", "row col"),
    ("WSPACE", "global shared shared::cta"),
    ("WSHAPE", "m16n16k16 m32n8k16 m8n32k16"),
    ("INT8S", "u8 s8"),
    ("AB", "a b"),
    ("IMDIM", "3d 4d 5d"),
    ("DIM", "1d 2d 3d 4d 5d"),
    ("F32F16", "f32 f16"),
];

/// The words of a set, or a word that is itself.
pub(super) fn words(name: &'static str) -> Vec<&'static str> {
    if !name.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return vec![name];
    }
    // `N16`: the shapes of wgmma with that k; `P8`: those of products of bytes, which have fewer widths.
    if let Some(k) = name.strip_prefix('N').and_then(|k| k.parse::<u32>().ok()) {
        return (8..=256).step_by(8).map(|n| &*format!("m64n{n}k{k}").leak()).collect();
    }
    if name == "P32" {
        let widths = (8..=256).step_by(8).filter(|n| *n <= 24 || n % 16 == 0);
        return widths.map(|n| &*format!("m64n{n}k32").leak()).collect();
    }
    let set = SETS.iter().find(|(known, _)| *known == name);
    set.map_or(vec![name], |(_, words)| words.split(' ').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_declared_once_and_without_repetition() {
        let mut names: Vec<&str> = SETS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for (name, _) in SETS {
            let mut words = words(name);
            let count = words.len();
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), count, "{name}");
        }
    }
}
