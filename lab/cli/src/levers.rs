//! `flashcore list levers`: the parts of kernel ids, from the levers of each family.

use flashcore_check::levers::{LeverInfo, described, parts};
use flashcore_kernels::Family;
use flashcore_tune::space::ALL;
use serde_json::{Value, json};

use crate::{CODE, DIM, Failure, HEAD, Page, style};

pub(crate) fn list(kernel: Option<&str>) -> Result<(Page, Value), Failure> {
    let Some(id) = kernel else {
        let mut page = Page::default();
        for (index, family) in ALL.iter().enumerate() {
            page.add(if index > 0 { "\n" } else { "" });
            add_family(&mut page, family);
        }
        let all = ALL.into_iter();
        let all = all.map(|family| json!({ "family": family.name, "levers": described(&family) }));
        return Ok((page, all.collect()));
    };
    let id = &crate::kernels::with_family(id)?;
    let owner = ALL.iter().find_map(|family| Some((family, family.read(id)?)));
    let (family, values) = owner.ok_or_else(|| {
        let otherwise = Failure::usage(format!("no kernel is named `{id}`"));
        let help = "`flashcore list levers` explains ids, `flashcore list kernels` shows some";
        crate::kernels::unknown(id, otherwise.help(help))
    })?;
    let mut page = Page::new(format_args!("{HEAD}{id}{HEAD:#}"));
    let mut levers = Vec::new();
    for (at, (name, value)) in family.print(&values).into_iter().enumerate() {
        let (parts, meaning) = (parts(family, &values, at), family.levers[at].meaning);
        let label = match parts.is_empty() {
            true => "(none)".to_string(),
            false => parts.join(" "),
        };
        page.field(&label, format_args!("{name}: {value} {DIM}· {meaning}{DIM:#}"));
        levers.push(json!({ "lever": name, "value": value, "parts": parts, "meaning": meaning }));
    }
    Ok((page, levers.into()))
}

fn add_family(page: &mut Page, family: &Family) {
    let name = family.name;
    page.line(format_args!(
        "{HEAD}{name}{HEAD:#} {DIM}(ids begin with {name}/){DIM:#}"
    ));
    let levers = described(family);
    let indent = levers.iter().map(|lever| lever.name.len()).max().unwrap_or(0) + 4;
    for lever in &levers {
        let label = format!("  {:<width$}", lever.name, width = indent - 2);
        page.wrap(indent, format_args!("{label}{CODE}{}{CODE:#}", spelled(lever)));
        page.wrap(indent, format_args!("{:indent$}{DIM}{}{DIM:#}", "", lever.meaning));
    }
    for constraint in family.constraints {
        page.wrap(
            6,
            format_args!("  {DIM}rule for {}: {}{DIM:#}", constraint.lever, constraint.rule),
        );
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
        let (page, _) = list(Some("mma/m128n64-w4x1-s2-b1-qreg-xor-spec")).unwrap();
        let text = anstream::adapter::strip_str(&page.to_string()).to_string();
        for part in [
            "m128      rows: 128",
            "x1        kv_warps: 1",
            "qreg      q_in_registers: true",
            "(none)    splits: 1",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let (_, found) = list(Some("mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa-k33")).unwrap();
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
        for id in crate::kernels::all() {
            let (_, found) = list(Some(&id)).unwrap();
            let levers = found.as_array().unwrap().iter();
            let parts = levers.flat_map(|lever| lever["parts"].as_array().unwrap());
            let mut explained: Vec<&str> = parts.map(|part| part.as_str().unwrap()).collect();
            explained.sort_unstable();
            let mut parts = flashcore_check::levers::id_parts(&id);
            parts.sort_unstable();
            assert_eq!(explained, parts, "{id}");
        }
    }
}
