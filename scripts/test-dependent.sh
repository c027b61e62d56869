#!/bin/bash
# test-dependent.sh [ROUNDS]: builds a program outside of the workspace that depends on the crate flashcore, in debug: as
# it is, and with the lines of Cargo.toml that crates/flashcore/README.md tells users to add. `plan().why()` names those
# lines in the first alone. The program prints the time of attention on the CPU, ROUNDS times (default 1): with more, also
# a release build, to compare. Nothing is asserted about times.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
rounds=${1:-1}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}/dependent
# A user has none of these.
unset RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS CARGO_PROFILE_DEV_DEBUG CARGO_PROFILE_DEV_CODEGEN_UNITS
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

lines=$(sed -n '/^```toml$/,/^```$/{/^```/d;p}' "$root/crates/flashcore/README.md")
mkdir "$work/src"
cp "$root/Cargo.lock" "$work"
cat >"$work/Cargo.toml" <<TOML
[package]
name = "dependent"
version = "0.0.0"
edition = "2024"

[dependencies]
flashcore.path = "$root/crates/flashcore"

TOML
cat >"$work/src/main.rs" <<'RUST'
use flashcore::{Attention, Device, Element, Error, Problem, Tensor, bf16};

fn attend<T: Element>(rounds: usize, value: impl Fn(f32) -> T) -> Result<(), Error> {
    let problem = Problem::builder().heads(8, 8).seq_len(512).head_dim(64).dtype(T::DTYPE).build()?;
    let values: Vec<T> = (0..512 * 8 * 64).map(|i| value((i as f32 * 0.7).sin())).collect();
    let q = Tensor::from_slice([1, 512, 8, 64], &values)?;
    let attention = Attention::new(Device::cpu())?;
    println!("{problem}: {}", attention.plan(&problem)?.why());
    for _ in 0..rounds {
        let begin = std::time::Instant::now();
        attention.forward(&problem, &q, &q, &q)?;
        println!("{:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    attend(rounds, |x| x)?;
    attend(rounds, bf16::from_f32)
}
RUST

runs() { # runs PROFILE: what the program says, in $said
    cargo build --quiet --manifest-path "$work/Cargo.toml" --profile "$1"
    said=$(RAYON_NUM_THREADS=1 "$CARGO_TARGET_DIR/${1/#dev/debug}/dependent" "$rounds")
    echo "$said"
}

echo "in debug:"
runs dev
while read -r line; do
    if [[ $(grep -cF "\`$line\`" <<<"$said") != 2 ]]; then
        echo "the plan does not say: add $line" >&2
        exit 1
    fi
done <<<"$lines"

echo "in debug, with the README's lines:"
echo "$lines" >>"$work/Cargo.toml"
runs dev
if grep -F "Cargo.toml" <<<"$said"; then
    echo "the plan asks for what is there" >&2
    exit 1
fi

if [[ $rounds != 1 ]]; then
    echo "in release:"
    runs release
fi
