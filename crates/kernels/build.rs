//! Lists the files of `cards`, so that a card is added without Rust.

use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=cards");
    let folder = fs::canonicalize("cards")?;
    let names: io::Result<Vec<_>> = fs::read_dir(&folder)?.map(|file| Ok(file?.file_name())).collect();
    let mut names = names?;
    names.sort();
    let listed = names
        .iter()
        .map(|name| format!("({name:?}, include_str!({:?})),\n", folder.join(name)));
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(format!("{out}/cards.rs"), format!("&[{}]", listed.collect::<String>()))
}
