#!/usr/bin/env bash
# try.sh [--debug] DIST: the gate for artefacts. Each file of the folder DIST is installed into an empty environment (a
# virtual environment or CARGO_HOME in a folder with a space in its name) as README says, README's programs run there, and
# answers are compared with float64. Prints a row for each, and `NOT CHECKED: ` for what this machine cannot do.
#
#   flashcore_attn-*.whl             with NumPy alone, with JAX (bf16), with PyTorch, next to PyPI's `flashcore`;
#                                    `python -m`, `uv tool run`; a wheel of another system is only audited
#   flashcore_attn-*.tar.gz          the same without PyTorch, which would compile it again, and without the command
#   flashcore-*.tar.xz               the command
#   *.crate                          a program that depends on `flashcore`, in debug and release
#
# --debug: what CI builds for its tests. It was built for this machine, without the command: nothing is audited, PyTorch is
# left to the tests, and programs of Rust run in debug only.
#
# PYTHON names the interpreter (default python3; below 3.11 TOOLS_PYTHON names another, for the tools). TRY_PYTORCH=no leaves
# PyTorch out, which scripts/get-torch.sh installs (3 GB, Python 3.11). Needs PyPI and crates.io.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/scripts/release
debug=
if [[ ${1-} == --debug ]]; then
    debug=yes
    shift
fi
dist=$(cd "$1" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
unset PYTHONPATH
tools() { PYTHON=${TOOLS_PYTHON:-$python} "$here/tools.sh"; }
# What CI sets for its own build.
unset RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS CARGO_TARGET_DIR
rows=()

since() { "$python" -c 'import sys, time; print(f"{float(sys.argv[2] or time.time()) - float(sys.argv[1]):.1f} s")' "$1" "${2-}"; }
now() { "$python" -c 'import time; print(time.time())'; }
row() { rows+=("| $(basename "$1") | $(wc -c <"$1") | $2 | $3 | $4 |"); } # row FILE FLOOR WHERE SECONDS
here_is() { [[ $1 == *linux*_"$(uname -m)".whl && $(uname -s) == Linux ]]; }
system() { (. /etc/os-release 2>/dev/null && echo "$PRETTY_NAME" || uname -s); }

# An empty environment, and in it what the tests compare with.
environment() { # environment FOLDER PACKAGE...
    "$python" -m venv "$1"
    "$1/bin/pip" install --quiet "${@:2}"
}

# As the README says: by name. It finds nothing but the artefact.
install() { # install FOLDER ARTEFACT
    local found=$work/links # pip takes a space for the end of a name
    rm -rf "$found" && mkdir "$found"
    cp "$2" "$found"
    # What builds a source distribution.
    [[ $2 == *.whl ]] || "$1/bin/pip" download --quiet --dest "$found" "$(grep '^maturin==' "$here/requirements.txt")"
    PIP_NO_INDEX=1 PIP_FIND_LINKS=$found "$1/bin/pip" install --quiet --no-deps flashcore-attn
}

pages() { # pages ENVIRONMENT: away from the sources, so that what is imported is what was installed
    local page
    for page in README.md bindings/python/README.md; do (cd "$work" && "$1/bin/python" "$here/examples.py" python "$root/$page"); done
}

runs() { # runs COMMAND...: the command computes, and finds a fault that it plants
    "$@" --version
    (cd "$work" && "$@" run tiny --device cpu >/dev/null)
    if (cd "$work" && "$@" check tiny --plant drop-barrier >said 2>&1); then
        echo "$*: a planted race was not found" >&2
        return 1
    fi
    grep -q race "$work/said"
}

package() { # package ARTEFACT: a wheel for this machine, or a source distribution
    local empty="$work/an empty environment" start said first with
    rm -rf "$empty"
    environment "$empty" numpy
    start=$(now)
    install "$empty" "$1"
    said=$(cd "$work" && "$empty/bin/python" "$here/examples.py" answers)
    first=$(since "$start" "$(sed -n '1s/.* at //p' <<<"$said")")
    sed 's/, at [0-9.]*$//' <<<"$said"
    pages "$empty"
    has_command "$empty" "$1"
    next_to_the_other "$empty"
    if [[ -n $debug ]]; then
        row "$1" "this machine's" "$(system), $("$python" --version)" "$first"
        return
    fi
    # bf16 without PyTorch.
    "$empty/bin/pip" install --quiet jax
    (cd "$work" && "$empty/bin/python" "$here/examples.py" answers) | sed 's/, at [0-9.]*$//'
    with="$work/with PyTorch"
    rm -rf "$with"
    if [[ $1 != *.whl ]]; then
        :
    elif [[ ${TRY_PYTORCH-} == no ]]; then
        echo "NOT CHECKED: the package with PyTorch: TRY_PYTORCH is no"
    else
        with_pytorch "$with"
        install "$with" "$1"
        (cd "$work" && "$with/bin/python" "$here/examples.py" answers) | sed 's/, at [0-9.]*$//'
        pages "$with"
    fi
    row "$1" "$(floor "$1")" "$(system), $("$python" --version)" "$first"
}

# An environment that finds PyTorch where scripts/get-torch.sh put it.
with_pytorch() { # with_pytorch FOLDER
    local cached folder='import sysconfig; print(sysconfig.get_path("purelib"))'
    cached=$(PYTHON=$python "$root/scripts/get-torch.sh")
    environment "$1" pip
    echo "import site; site.addsitedir('$("$cached/bin/python" -c "$folder")')" >"$("$1/bin/python" -c "$folder")/cached.pth"
}

has_command() { # has_command ENVIRONMENT ARTEFACT
    local tools
    if [[ -n $debug || $2 != *.whl ]]; then
        if "$1/bin/python" -m flashcore_attn --version 2>"$work/said"; then
            echo "$2 has a command, and should have none" >&2
            return 1
        fi
        grep -q "without the command" "$work/said"
        return
    fi
    runs "$1/bin/flashcore"
    runs "$1/bin/python" -m flashcore_attn
    tools=$(tools)
    runs "$tools/uv" tool run --quiet --no-cache --no-index --isolated --python "$python" --from "$2" flashcore
}

# PyPI's `flashcore` is another project with a package of that name.
next_to_the_other() { # next_to_the_other ENVIRONMENT
    if ! "$1/bin/pip" install --quiet --only-binary=:all: flashcore==0.1.5 2>"$work/said"; then
        echo "NOT CHECKED: PyPI's flashcore in the same environment: $(grep -m 1 -i error "$work/said" || echo "pip cannot install it")"
        return
    fi
    (cd "$work" && "$1/bin/python" -c 'import flashcore, flashcore_attn' && "$1/bin/python" "$here/examples.py" answers >/dev/null)
    echo "PyPI's flashcore is installed in the same environment: both are imported"
}

floor() { # floor ARTEFACT
    case $1 in
    *linux*) echo "glibc 2.17" ;;
    *.whl) echo "-" ;;
    *) echo "Rust $(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")" ;;
    esac
}

archive() { # archive FILE
    local folder="$work/a folder" start
    if [[ $1 != *-"$(uname -m)"-unknown-linux-gnu.tar.xz ]]; then
        row "$1" "$(floor "$1")" "built, not run" "-"
        return
    fi
    rm -rf "$folder" && mkdir "$folder"
    start=$(now)
    tar xf "$1" -C "$folder"
    runs "$folder"/flashcore-*/flashcore
    row "$1" "$(floor "$1")" "$(system)" "$(since "$start")"
}

# A program of somebody who uses the crate, as README says. Crates name each other by version, and none is published:
# cargo is told where they are.
crates() { # crates FILE...
    local program="$work/a program" crate name line profile example start first=
    rm -rf "$program"
    cargo new --quiet --vcs none --name program "$program"
    mkdir -p "$program/.cargo" "$program/flashcore/crates"
    echo "[patch.crates-io]" >"$program/.cargo/config.toml"
    for crate in "$@"; do
        name=$(basename "$crate" | sed 's/-[0-9][^-]*\.crate$//')
        mkdir "$program/flashcore/crates/$name"
        tar xf "$crate" -C "$program/flashcore/crates/$name" --strip-components 1
        echo "$name = { path = \"flashcore/crates/$name\" }" >>"$program/.cargo/config.toml"
    done
    line=$(grep -o 'cargo add [^`#]*flashcore[^`#]*' "$root/README.md" | head -n 1)
    [[ -n $line ]] || { echo "README.md has no line \`cargo add ... flashcore\`" >&2 && return 1; }
    # Another folder than the reader's clone. A name alone would be looked up in the registry.
    line="$(sed 's/--path [^ ]*//' <<<"$line") --path flashcore/crates/flashcore"
    echo "$line"
    start=$(now)
    # shellcheck disable=SC2086 # a command line
    (cd "$program" && $line >"$work/said" 2>&1) || { cat "$work/said" >&2 && return 1; }
    rm "$program/src/main.rs" && mkdir "$program/src/bin"
    cp "$here/answers.rs" "$program/src/bin"
    "$python" "$here/examples.py" rust "$root/README.md" "$program/src/bin"
    for profile in dev ${debug:-release}; do
        [[ $profile != yes ]] || continue
        (cd "$program" && cargo build --quiet --profile "$profile" --bin answers && cargo run --quiet --profile "$profile" --bin answers)
        first=${first:-$(since "$start")}
        for example in "$program"/src/bin/example*.rs; do
            name=$(basename "$example" .rs)
            (cd "$program" && cargo run --quiet --profile "$profile" --bin "$name" >"$work/said")
            "$python" "$here/examples.py" printed "$root/README.md" "${name#example}" "$work/said"
        done
    done
    for crate in "$@"; do
        if [[ $crate == */flashcore-[0-9]* ]]; then row "$crate" "$(floor "$crate")" "$(system), $(rustc --version)" "$first"; fi
    done
}

shopt -s nullglob
wheels=("$dist"/flashcore_attn-*.whl) sdists=("$dist"/flashcore_attn-*.tar.gz)
archives=("$dist"/flashcore-*.tar.xz) packed=("$dist"/*.crate)
all=("${wheels[@]}" "${sdists[@]}" "${archives[@]}" "${packed[@]}")
if [[ ${#all[@]} == 0 ]]; then
    echo "try.sh: $dist has no wheel, source distribution, archive or crate" >&2
    exit 1
fi
if [[ -z $debug ]]; then
    tools=$(tools)
    "$tools/python" "$here/audit.py" "${all[@]}"
    [[ ${#wheels[@]}${#sdists[@]} == 00 ]] || "$tools/twine" check --strict "${wheels[@]}" "${sdists[@]}"
    for wheel in "${wheels[@]}"; do
        "$tools/abi3audit" --strict "$wheel"
        [[ $wheel != *linux* ]] || "$tools/auditwheel" show "$wheel" | tee "$work/said"
        [[ $wheel != *linux* ]] || grep -q '"manylinux_2_17_' <<<"$(tr -d '\n' <"$work/said")"
    done
fi
export CARGO_HOME="$work/cargo home"
for wheel in "${wheels[@]}"; do
    if here_is "$wheel"; then
        package "$wheel"
    else
        row "$wheel" "$(floor "$wheel")" "built, not run" "-"
    fi
done
for sdist in "${sdists[@]}"; do package "$sdist"; done
for archive in "${archives[@]}"; do archive "$archive"; done
[[ ${#packed[@]} == 0 ]] || crates "${packed[@]}"
echo
echo "| artefact | bytes | needs | installed and run | first correct output after |"
echo "|---|--:|---|---|--:|"
printf '%s\n' "${rows[@]}"
