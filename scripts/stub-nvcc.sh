#!/bin/sh
# Stand-in for nvcc, as FOLDER/bin/nvcc of scripts/cuda_stubs.py, which says what for.
kernels=$(dirname "$0")/../lib/kernels.o
case " $* " in *" --ptx "* | *" --version "*) [ -z "$REAL_NVCC" ] || exec "$REAL_NVCC" "$@" ;; esac
folder= out= mode= last=
while [ $# -gt 0 ]; do
    case $1 in
        --ptx) mode=ptx ;;
        --lib) mode=lib ;;
        -c) mode=object ;;
        -o) out=$2; shift ;;
        --output-directory) folder=$2; shift ;;
        --version) echo "Cuda compilation tools, release 13.0, V13.0.0"; exit ;;
    esac
    last=$1
    shift
done
case $mode in
    ptx) : >"$folder/$(basename "$last" .cu).ptx" ;;
    object) cp "$kernels" "$out" ;;
    lib) rm -f "$out"; ar rcs "$out" "$kernels" ;;
esac
