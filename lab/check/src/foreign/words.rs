//! Findings in the words of CUDA C++, for kernels that are not written in the kernel language.

use flashcore_sim::Finding;

use super::names;

/// Verbs of the kernel language, and what CUDA C++ has for them.
const WORDS: [(&str, &str); 6] = [
    ("`sync_warp`", "__syncwarp()"),
    ("`cp_async_commit`", "__pipeline_commit()"),
    ("`cp_async_wait`", "__pipeline_wait_prior(0)"),
    (
        "load it with `Cache::Default`",
        "load it without __ldg() and `const __restrict__`",
    ),
    (
        "declare it with `param_ptr_mut` to write it",
        "its parameter is for reading",
    ),
    ("put a barrier between", "put __syncthreads() between"),
];

/// The same finding. Symbols have the names of the source: `tile`, not `_ZZ7row_sumE4tile`.
pub(super) fn of_cuda(mut finding: Finding) -> Finding {
    finding.message = with_names(&finding.message);
    finding.object = finding.object.map(|object| with_names(&object));
    finding.help = finding.help.map(|help| {
        let translate = |text: String, (ours, cuda): &(&str, &str)| text.replace(ours, cuda);
        WORDS.iter().fold(help.into_owned(), translate).into()
    });
    finding
}

fn with_names(text: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find("_Z") {
        let end = rest[begin..]
            .find(|c| !is_of_name(c))
            .map_or(rest.len(), |end| begin + end);
        out.push_str(&rest[..begin]);
        let readable = names::readable(&rest[begin..end]);
        // Of a variable of a function its name.
        let is_of_function = rest[begin..].starts_with("_ZZ");
        let local = readable.rsplit("::").next().filter(|_| is_of_function);
        out.push_str(local.unwrap_or(&readable));
        rest = &rest[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_have_the_names_of_the_source() {
        assert_eq!(with_names("of `_ZZ7row_sumE4tile` (row 0)"), "of `tile` (row 0)");
        assert_eq!(with_names("`_ZZ9add_tilesPKfPfiE5stage`"), "`stage`");
        assert_eq!(with_names("`_ZN2ns5tableE` and out"), "`ns::table` and out");
        assert_eq!(with_names("nothing"), "nothing");
    }
}
