//! `flashcore list levers`: the parts of kernel ids, from the levers of each family.

use flashcore_kernels::ids::{id_parts, letters};
use flashcore_tune::space::{Family, LeverInfo};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::style::{self, CODE, DIM, HEAD, Page};

fn family_of<'f>(families: &'f [Family], id: &str) -> Option<&'f Family> {
    families.iter().find(|family| !family.values(id).is_empty())
}

/// The parts of an id that a lever writes.
fn parts_of<'i>(id: &'i str, lever: &LeverInfo) -> Vec<&'i str> {
    let known: Vec<&str> = lever.in_ids.iter().flatten().map(|part| letters(part)).collect();
    let parts = id_parts(id).into_iter();
    parts.filter(|part| known.contains(&letters(part))).collect()
}

/// The levers of all families, or those of one id with their values.
pub(crate) fn list(kernel: Option<&str>) -> Result<(Page, Value), Failure> {
    let families = Family::all();
    let Some(id) = kernel else {
        let mut page = Page::default();
        for (index, family) in families.iter().enumerate() {
            page.add(if index > 0 { "\n" } else { "" });
            add_family(&mut page, family);
        }
        let all = families.iter();
        let all = all.map(|family| json!({ "family": family.name, "levers": family.levers }));
        return Ok((page, all.collect()));
    };
    let Some(family) = family_of(&families, id) else {
        return Err(Failure::usage(format!("no kernel is named `{id}`"))
            .help("`flashcore list levers` explains ids, `flashcore list kernels` shows some"));
    };
    let mut page = Page::new(format_args!("{HEAD}{id}{HEAD:#}"));
    let mut levers = Vec::new();
    for (lever, (name, value)) in family.levers.iter().zip(family.values(id)) {
        let parts = parts_of(id, lever);
        let label = match parts.is_empty() {
            true => "(none)".to_string(),
            false => parts.join(" "),
        };
        page.field(&label, format_args!("{name}: {value} {DIM}· {}{DIM:#}", lever.meaning));
        levers.push(json!({ "lever": name, "value": value, "parts": parts, "meaning": lever.meaning }));
    }
    Ok((page, levers.into()))
}

fn add_family(page: &mut Page, family: &Family) {
    let name = family.name;
    page.line(format_args!(
        "{HEAD}{name}{HEAD:#} {DIM}(ids begin with {name}/){DIM:#}"
    ));
    let indent = family.levers.iter().map(|lever| lever.name.len()).max().unwrap_or(0) + 4;
    for lever in &family.levers {
        let label = format!("  {:<width$}", lever.name, width = indent - 2);
        page.wrap(indent, format_args!("{label}{CODE}{}{CODE:#}", spelled(lever)));
        page.wrap(indent, format_args!("{:indent$}{DIM}{}{DIM:#}", "", lever.meaning));
    }
    for constraint in family.constraints {
        page.wrap(6, format_args!("  {DIM}only: {constraint}{DIM:#}"));
    }
}

/// The values of a lever in ids: `m16 m32 m64`, or `qsh (false) qreg (true)` if the part is not a number.
fn spelled(lever: &LeverInfo) -> String {
    let values = lever.values.iter().zip(&lever.in_ids);
    let shown = values.map(|(value, parts)| match parts.as_slice() {
        [] => format!("nothing ({value})"),
        [part] if part.ends_with(value.as_str()) => part.clone(),
        parts if parts.concat().ends_with(value.as_str()) => parts.concat(),
        parts => format!("{} ({value})", parts.join(" or ")),
    });
    style::list(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_explained_part_by_part() {
        let (page, _) = list(Some("mma/m128n64-w4x1-s2-b1-qreg-xor-bold")).unwrap();
        let text = anstream::adapter::strip_str(&page.to_string()).to_string();
        for part in [
            "m128      rows: 128",
            "x1        kv_warps: 1",
            "qreg      q_in_registers: true",
            "(none)    splits: 1",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let (_, found) = list(Some("mma/m16n64-w1x4-s3-b2-qreg-xor-lazy-gqa-k33")).unwrap();
        let splits = found
            .as_array()
            .unwrap()
            .iter()
            .find(|lever| lever["lever"] == "splits")
            .unwrap();
        assert_eq!(
            (splits["value"].as_str(), &splits["parts"]),
            (Some("33"), &json!(["k33"]))
        );
        assert!(list(Some("mma/m128")).is_err() && list(Some("none/m1")).is_err());
    }

    #[test]
    fn every_default_and_listed_kernel_is_explained_in_full() {
        let families = Family::all();
        for id in crate::kernels::all() {
            let family = family_of(&families, &id).unwrap();
            let mut explained: Vec<&str> = family.levers.iter().flat_map(|lever| parts_of(&id, lever)).collect();
            explained.sort_unstable();
            let mut parts = id_parts(&id);
            parts.sort_unstable();
            assert_eq!(explained, parts, "{id}");
        }
    }
}
