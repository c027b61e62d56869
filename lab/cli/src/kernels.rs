//! Kernel ids: the known ones, and those that a command line names.

use std::path::Path;

use flashcore::KernelId;
use flashcore_bench::KERNEL_WORDS;
use flashcore_check::foreign;
use flashcore_check::levers::{self, id_parts};
use flashcore_ir::files;
use flashcore_kernels::family::Values;
use flashcore_kernels::{Config, Family};
use flashcore_problem::Problem;
use flashcore_tune::space::ALL;

use crate::{Card, Failure, simulated};

/// An id with its family, which is looked for if the id has none.
///
/// # Errors
/// An id without a family that no family has, or several.
pub(crate) fn with_family(id: &str) -> Result<String, Failure> {
    if id.contains('/') {
        return Ok(id.to_string());
    }
    let whole = ALL.iter().map(|family| (family, format!("{}/{id}", family.name)));
    let (allowed, read): (Vec<_>, Vec<_>) = whole
        .filter(|(family, whole)| family.read(whole).is_some())
        .partition(|(family, whole)| family.owns(whole));
    // Levers that do not go together are refused where there is nothing better, with the reason.
    let found = if allowed.is_empty() { read } else { allowed };
    let mut found: Vec<String> = found.into_iter().map(|(_, whole)| whole).collect();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => {
            let families = ALL.map(|family| family.name).join(", ");
            let why = format!("no kernel is named `{id}`: its family is missing, and none ({families}) has such an id");
            let otherwise = Failure::usage(why);
            Err(unknown(
                id,
                otherwise.help("`flashcore list levers` explains ids, `flashcore list kernels` shows some"),
            ))
        }
        _ => {
            let all = found.join(", ");
            Err(Failure::usage(format!(
                "`{id}` is an id of several families: write {all}"
            )))
        }
    }
}

/// The id that has the parts of another one in their order.
pub(crate) fn reordered(id: &str) -> Option<String> {
    let name = id.split_once('/').map(|(name, _)| name);
    let families = ALL.iter().filter(|family| name.is_none_or(|name| name == family.name));
    let mut found = families.filter_map(|family| in_order(family, id_parts(id)));
    found.find(|known| known != id)
}

/// The id of a family with these parts, if it has one.
fn in_order(family: &Family, mut parts: Vec<&str>) -> Option<String> {
    let mut values = family.first();
    for at in 0..family.levers.len() {
        let written = |values: &Values| levers::parts(family, values, at);
        let settings = family.settings(&values, at);
        let fitting = settings.filter(|values| written(values).iter().all(|part| parts.contains(&part.as_str())));
        values = fitting.max_by_key(|values| written(values).len())?;
        let used = levers::parts(family, &values, at);
        parts.retain(|part| !used.iter().any(|used| used == part));
    }
    let id = family.id(&values);
    (parts.is_empty() && family.owns(&id)).then_some(id)
}

/// An error about an id that is none: the one that was perhaps meant, or else why.
pub(crate) fn unknown(id: &str, otherwise: impl Into<Failure>) -> Failure {
    match reordered(id) {
        Some(known) => Failure::usage(format!("no kernel is named `{id}`; did you mean {known}?")),
        None => otherwise.into(),
    }
}

/// A kernel by its id, whose levers have values that there are.
pub(crate) fn named(id: &str) -> Result<KernelId, Failure> {
    let id = with_family(id)?;
    let kernel: KernelId = id.parse().map_err(|error: flashcore::Error| unknown(&id, error))?;
    if let KernelId::Gpu(config) = &kernel {
        let (family, values) = config.levers();
        // A backward pass has other values.
        let of_backward = || family.of_backward(false).check(&values);
        let checked = family
            .check(&values)
            .or_else(|refusal| of_backward().map_err(|_| refusal));
        checked.map_err(|refusal| {
            Failure::usage(format!("no kernel is named `{id}`: {refusal}"))
                .help("`flashcore list levers` shows the values")
        })?;
    }
    Ok(kernel)
}

pub(crate) fn gpu(id: &str) -> Result<Config, Failure> {
    match named(id)? {
        KernelId::Gpu(config) => Ok(config),
        kernel => {
            let why = "runs on the CPU; this is about GPU kernels, such as scalar/tiled-m32n32-w4-v16";
            Err(Failure::usage(format!("{kernel} {why}")))
        }
    }
}

/// Ids of kernels that run on GPUs, or some of the many that run on the CPU.
pub(crate) fn on(cpu: bool) -> Vec<String> {
    if !cpu {
        return Config::all().iter().map(Config::to_string).collect();
    }
    let config = |tile_q| flashcore_cpu::CpuConfig { tile_q, tile_kv: 128 }.to_string();
    [32, 64, 128].map(config).to_vec()
}

pub(crate) fn all() -> Vec<String> {
    [on(false), on(true)].concat()
}

/// The ladder up to what the library runs on a card, by its plan tables.
pub(crate) fn rungs(problem: &Problem, card: Card) -> Result<Vec<(String, &'static str)>, Failure> {
    let rows = simulated::plans(card)?.suggestions(problem);
    let rungs = flashcore_bench::rungs(problem, card.chip, &rows).into_iter();
    Ok(rungs.map(|rung| (rung.config.to_string(), rung.label)).collect())
}

/// The ids of a command line: ids, prefixes that end in `*`, `ladder` for its rungs on the small shape
/// problem on a card, [words](KERNEL_WORDS) such as `near`, and files with one id per line (`#` begins a comment,
/// `=` a name). Ids of a file are checked where they are used, so that an unknown one does not stop the
/// others.
pub(crate) fn ids(given: &[String], card: Option<Card>) -> Result<Vec<String>, Failure> {
    let mut ids = Vec::new();
    for word in given {
        let is_word = KERNEL_WORDS.contains(&word.as_str());
        if word == "ladder" {
            let problem = Problem::named("small")?;
            ids.extend(
                rungs(&problem, card.unwrap_or_else(Card::default))?
                    .into_iter()
                    .map(|(id, _)| id),
            );
        } else if let Some(prefix) = word.strip_suffix('*') {
            ids.extend(begin_with(prefix)?);
        } else if !is_word && word.parse::<KernelId>().is_err() && Path::new(word).is_file() {
            ids.extend(of_file(word)?);
        } else {
            ids.push(if is_word {
                word.clone()
            } else {
                named(word)?.to_string()
            });
        }
    }
    Ok(ids)
}

fn begin_with(prefix: &str) -> Result<Vec<String>, Failure> {
    let ids: Vec<String> = all().into_iter().filter(|id| id.starts_with(prefix)).collect();
    if ids.is_empty() {
        Err(Failure::usage(format!("no kernel's id begins with `{prefix}`"))
            .help("`flashcore list kernels` shows them all"))
    } else {
        Ok(ids)
    }
}

fn of_file(path: &str) -> Result<Vec<String>, Failure> {
    let bytes = files::read_capped(Path::new(path), files::LARGE)
        .map_err(|error| Failure::usage(format!("{path}: {error}")))?;
    if foreign::binary_kind(&bytes).is_some() || foreign::read(&bytes).is_ok() {
        let why = format!("{path} holds kernels, not ids; PTX files and cubins cannot be timed");
        let help = "`flashcore check FILE.ptx` simulates them, `flashcore explain FILE.ptx` shows what they use";
        return Err(Failure::usage(why).help(help));
    }
    let text = String::from_utf8(bytes).map_err(|error| Failure::usage(format!("{path}: {error}")))?;
    let id = |line: &str| line.split(['#', '=']).next().unwrap_or_default().trim().to_string();
    let ids: Vec<String> = text.lines().map(id).filter(|id| !id.is_empty()).collect();
    if ids.is_empty() {
        Err(Failure::usage(format!("{path} lists no kernel")).help("write one id per line"))
    } else {
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_there_are_have_names() {
        let mut all = all();
        for card in ["l4", "a100", "h200"] {
            for head_dim in [64, 128, 256] {
                let problem = Problem::builder().heads(2, 1).seq_len(256).head_dim(head_dim).build();
                let problem = problem.expect("a problem");
                let card = Card::parse(card).expect("a card");
                for problem in [problem.backward().expect("a backward problem"), problem] {
                    let choice = simulated::plan(&problem, card, None).expect("a plan");
                    all.push(choice.plan.config.to_string());
                }
            }
        }
        for id in all {
            assert!(named(&id).is_ok(), "{id}: {:?}", named(&id));
        }
        for wrong in ["mma/m100n64-w4x1-s2-b1-qreg-xor-cond", "cpu/m7n3", "foo"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_in_another_order_are_put_in_theirs() {
        for (given, known) in [
            (
                "mma/n64m128-w4x1-s2-b1-qreg-xor-cond",
                "mma/m128n64-w4x1-s2-b1-qreg-xor-cond",
            ),
            (
                "mma/m64n64-xor-w4x1-cond-s2-b1-qsh",
                "mma/m64n64-w4x1-s2-b1-qsh-xor-cond",
            ),
            ("m128n128-spec-pingpong-s2", "wgmma/m128n128-s2-pingpong-spec"),
            ("scalar/naive-v16-t128", "scalar/naive-t128-v16"),
        ] {
            assert_eq!(reordered(given).as_deref(), Some(known));
            assert!(named(given).unwrap_err().message.contains(known), "{given}");
        }
        for other in ["mma/m128n64-w4x1-s2-b1-qreg-xor-cond", "mma/m128", "foo", "cpu/m64n64"] {
            assert_eq!(reordered(other), None, "{other}");
        }
        for id in Config::all().iter().map(Config::to_string) {
            let backwards: Vec<&str> = id_parts(&id).into_iter().rev().collect();
            let (family, _) = id.split_once('/').unwrap();
            let found = reordered(&format!("{family}/{}", backwards.join("-")));
            assert!(found.is_none_or(|found| found == id), "{id}");
        }
    }

    #[test]
    fn an_id_without_its_family_is_found_in_the_one_that_has_it() {
        for (bare, whole) in [
            ("m128n128-s2-pingpong-spec", "wgmma/m128n128-s2-pingpong-spec"),
            ("naive-t128-v16", "scalar/naive-t128-v16"),
            (
                "mma/m64n64-w4x1-s2-b1-qsh-xor-cond",
                "mma/m64n64-w4x1-s2-b1-qsh-xor-cond",
            ),
        ] {
            assert_eq!(with_family(bare).unwrap(), whole);
            assert_eq!(ids(&[bare.to_string()], None).unwrap(), [whole]);
        }
        let missing = with_family("m64q").unwrap_err().message;
        assert!(missing.contains("its family is missing"), "{missing}");
    }

    #[test]
    fn files_and_beginnings_stand_for_ids() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ids.txt");
        std::fs::write(&path, "# tiles\nscalar/a=first\n\n  scalar/b # the second\nnonsense\n").expect("a file");
        let name = path.to_str().expect("a name").to_string();
        let read = ids(&["cpu/m64n64".to_string(), name.clone()], None).expect("ids");
        assert_eq!(read, ["cpu/m64n64", "scalar/a", "scalar/b", "nonsense"]);
        std::fs::write(&path, "# nothing\n").expect("a file");
        assert!(ids(&[name], None).is_err());
        let ladder = ids(&["ladder".to_string()], None).expect("ids");
        assert!(
            ladder.len() == 8 && ladder[3] == "ladder/hybrid-m64n64-w4",
            "{ladder:?}"
        );
        let naive = ids(&["scalar/naive*".to_string()], None).expect("ids");
        assert!(naive.len() > 3 && naive.iter().all(|id| id.starts_with("scalar/naive")));
        for wrong in ["wgmma/none*", "foo", "cpu/m7n3"] {
            assert!(ids(&[wrong.to_string()], None).is_err(), "{wrong}");
        }
    }
}
