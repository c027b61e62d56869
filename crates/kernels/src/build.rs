//! Lists the files of `cards`, so that a card is added without Rust.

use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src/build.rs\ncargo::rerun-if-changed=cards");
    let entries = fs::read_dir(fs::canonicalize("cards")?)?;
    let mut files = entries.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let named = files.iter().filter_map(|file| Some((file.file_name()?, file)));
    let listed = named.map(|(name, file)| format!("({name:?}, include_str!({file:?})),\n"));
    let list = format!("&[{}]", listed.collect::<String>());
    fs::write(env::var("OUT_DIR").map_err(io::Error::other)? + "/cards.rs", list)
}
