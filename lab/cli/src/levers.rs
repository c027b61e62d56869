//! `flashcore list levers`: the parts of kernel ids, from the levers of each family.

use flashcore_check::levers::{LeverInfo, described, parts};
use flashcore_kernels::Family;
use flashcore_tune::space::ALL;
use serde_json::{Value, json};

use crate::{CODE, DIM, Failure, HEAD, Page, style};

/// The family of this name; all if none is named.
pub(crate) fn families(name: Option<&str>) -> Result<Vec<Family>, Failure> {
    let asked: Vec<Family> = ALL
        .into_iter()
        .filter(|family| name.is_none_or(|name| name == family.name))
        .collect();
    if asked.is_empty() {
        let (name, known) = (name.unwrap_or_default(), style::list(ALL.map(|family| family.name)));
        let help = "`flashcore list levers ID` explains an id part by part";
        return Err(Failure::usage(format!("`{name}` is no family; allowed: {known}")).help(help));
    }
    Ok(asked)
}

/// Levers and their values; with what they are for those of one family; or what those of an id are.
pub(crate) fn list(of: Option<&str>) -> Result<(Page, Value), Failure> {
    let family = of.filter(|of| ALL.iter().any(|family| family.name == *of));
    let Some(id) = of.filter(|_| family.is_none()) else {
        let mut page = Page::new(format_args!(
            "{HEAD}Levers{HEAD:#} {DIM}(`list levers mma` says what each does, `list levers ID` what an id means){DIM:#}"
        ));
        let asked = families(family)?;
        asked
            .iter()
            .for_each(|one| add_family(&mut page, one, family.is_some()));
        let asked = asked.iter();
        let asked = asked.map(|family| json!({ "family": family.name, "levers": described(family) }));
        return Ok((page, asked.collect()));
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
        let label = if parts.is_empty() {
            "(none)".to_string()
        } else {
            parts.join(" ")
        };
        page.field(&label, format_args!("{name}: {value} {DIM}· {meaning}{DIM:#}"));
        levers.push(json!({ "lever": name, "value": value, "parts": parts, "meaning": meaning }));
    }
    Ok((page, levers.into()))
}

fn add_family(page: &mut Page, family: &Family, is_whole: bool) {
    page.line(format_args!("{HEAD}{}/{HEAD:#}", family.name));
    let levers = described(family);
    let indent = levers.iter().map(|lever| lever.name.len()).max().unwrap_or(0) + 4;
    for lever in &levers {
        let label = format!("  {:<width$}", lever.name, width = indent - 2);
        page.wrap(indent, format_args!("{label}{CODE}{}{CODE:#}", spelled(lever)));
        if is_whole {
            page.wrap(indent, format_args!("{:indent$}{DIM}{}{DIM:#}", "", lever.meaning));
        }
    }
    for constraint in family.constraints.iter().filter(|_| is_whole) {
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
