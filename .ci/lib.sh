# Runs steps and tells what they took: sourced by .ci/steps.sh. Each step is a process group with a log of its own.
#
#   begin TIER SECONDS NAME COMMAND...   starts a step; `end NAME` waits for it and shows what it printed
#   step TIER SECONDS NAME COMMAND...    both
#
# TIER is `run` (every change, and a release) or `full` (a release only). SECONDS is what a step takes on CI's two cores
# while others run: it is shown next to what it took, and nothing fails by it. Lines that begin with `NOT CHECKED: ` are
# said again at the end; .ci/summary.py reads the counts of tests and kernels in the logs.

tier= # `run` or `full`: what this run is
named=0 # how many steps were named; without a name all of the tier are meant
only=()  # those that did not come yet
folder= # logs, the list of steps, summary.json
failed=0
declare -A running=()

start() { # start TIER [--list] [STEP...]
    tier=$1
    shift
    if [[ ${1-} == --list ]]; then
        printf '%-5s %7s  %s\n' tier seconds step
        step() { printf '%-5s %7d  %s\n' "$1" "$2" "$3"; }
        begin() { step "$@"; }
        end() { :; }
        return
    fi
    only=("$@")
    named=$#
    folder=$PWD/target/ci/$tier-$(git rev-parse --short=12 HEAD)-$(date -u +%Y%m%dT%H%M%SZ)-$$ # two may begin in one second
    mkdir -p "$folder"
    # In condition contexts errexit does not hold, so that nothing of this calls a step in one.
    trap finish EXIT
    trap 'exit 130' INT TERM
}

is_meant() { # is_meant TIER NAME
    local at
    if [[ $named == 0 ]]; then
        [[ $1 == run || $tier == full ]]
        return
    fi
    for at in "${!only[@]}"; do
        if [[ ${only[at]} == "$2" ]]; then
            unset "only[$at]"
            return
        fi
    done
    return 1
}

record() { printf '%s\t' "$@" >>"$folder/steps.tsv" && echo >>"$folder/steps.tsv"; }

begin() {
    local log=$folder/${3// /-}.log meant=yes
    is_meant "$1" "$3" || meant=
    if [[ -z $meant ]]; then
        record "$3" "$1" "$2" left-out 0 ""
        return
    fi
    : >"$log" # `end` may look before the group is there
    date +%s >"$log.begin"
    printf '%s\t%s\n' "$1" "$2" >"$log.told"
    set -m # as a group, so that all of it can be ended
    (
        trap 'echo "$? $(date +%s)" >"$log.ends" && mv "$log.ends" "$log.end"' EXIT
        "${@:4}"
    ) >"$log" 2>&1 </dev/null &
    running[$3]=$!
    set +m
}

end() {
    local log=$folder/${1// /-}.log status took told ended
    [[ -n ${running[$1]-} ]] || return 0 # left out
    IFS=$'\t' read -r -a told <"$log.told"
    echo "=== $1 (tier ${told[0]}, about ${told[1]} s)"
    # Looks again and again, as a signal that comes just before `wait` would be seen only when that returns.
    exec {shown}<"$log"
    while [[ ! -e $log.end ]] && kill -0 "${running[$1]}" 2>/dev/null; do
        cat <&"$shown"
        sleep 0.2
    done
    cat <&"$shown"
    exec {shown}<&-
    # Not by `wait`: the shell forgets a step that ended long ago once another process gets its number.
    [[ -e $log.end ]] || echo "137 $(date +%s)" >"$log.end" # it was killed
    unset "running[$1]"
    read -r status ended <"$log.end"
    took=$((ended - $(cat "$log.begin")))
    rm "$log".{begin,end,told}
    if [[ $status == 0 ]]; then
        record "$1" "${told[@]}" passed "$took" "$log"
        echo "=== $1 passed in $took s"
        return
    fi
    record "$1" "${told[@]}" failed "$took" "$log"
    echo "=== $1 FAILED after $took s"
    failed=1
    # A change ends at its first fault; a release takes a day, and learns of all.
    if [[ $tier == run ]]; then exit 1; fi
}

step() {
    begin "$@"
    end "$3"
}

not_checked() { echo "NOT CHECKED: $1: $2"; } # not_checked WHAT WHY

# Tests that are marked `ignore`, as they need what others do not, or hours: those of one module, in whichever crate.
ignored() { # ignored MODULE CARGO_ARGUMENT...
    local said
    said=$(mktemp)
    cargo test "${@:2}" -- --ignored --nocapture "$1::" | tee "$said"
    if ! awk '/^test result:/ { passed += $4 } END { exit !passed }' "$said"; then
        echo "no test in a module $1 is marked \`ignore\`"
        return 1
    fi
    rm "$said"
}

# A group that is just begun can lose a signal while its shell sets up its traps, so that one is not enough.
end_groups() { # end_groups PID...
    local group try
    for group in "$@"; do
        for try in {1..100}; do
            kill -- "-$group" 2>/dev/null || continue 2
            sleep 0.1
        done
        kill -KILL -- "-$group" 2>/dev/null
    done
}

finish() {
    local status=$?
    set +e # nothing here may end it
    end_groups "${running[@]}"
    if [[ $failed == 1 ]]; then status=1; fi
    if [[ $status == 0 && ${#only[@]} -gt 0 ]]; then
        echo "no step is called ${only[*]@Q}; --list prints all"
        status=2
    fi
    .ci/summary.py "$folder" "$tier" "$status" "$SECONDS" "${!running[@]}" || status=1
    exit "$status"
}
