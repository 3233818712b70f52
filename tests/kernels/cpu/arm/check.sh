#!/bin/sh
# Whether the kernels for ARM give the numbers and texts of this machine's: sh tests/kernels/cpu/arm/check.sh FOLDER [TOKENS]
#
# Needs Debian (apt-get, dpkg-deb) on x86-64 and about 700 MB in FOLDER, no root: Python for arm64 and qemu come from Debian's
# packages, numba and what it needs from wheels. TOKENS: of the embedded model; 0 leaves it out. Fails at the first difference.
# Kernels are compiled on this machine, since compiling them in the emulator takes ten minutes each time; it does so where a file
# of kernels/cpu is changed meanwhile.
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd) tokens=${2:-8}
cd "$(dirname "$0")/../../../.."
python=${PYTHON:-python}
export PYTHONPATH="$PWD" OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=1

if [ ! -e "$folder/root/usr/bin/python3.11" ]; then
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/apt/sources" "$folder/root"
    : > "$folder/apt/status"
    printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm\nComponents: main\nSigned-By: %s\n' \
        /usr/share/keyrings/debian-archive-keyring.gpg > "$folder/apt/sources/debian.sources"
    arm() {
        apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$folder/apt" -o APT::Sandbox::User= \
            -o Dir::State::status="$folder/apt/status" -o Dir::Cache="$folder/apt" -o Dir::Etc::sourcelist=/dev/null \
            -o Dir::Etc::sourceparts="$folder/apt/sources" -o APT::Install-Recommends=false -o Debug::NoLocking=1 "$@"
    }
    arm update
    arm install -y --download-only libstdc++6 libgomp1 python3.11
    (cd "$folder/apt" && apt-get download qemu-user-static)
    for package in "$folder"/apt/archives/*.deb "$folder"/apt/qemu-user-static*.deb; do
        dpkg-deb -x "$package" "$folder/root"
    done
fi
if [ ! -d "$folder/site" ]; then
    wheels=$("$python" -m pip freeze | grep -iE '^(numpy|numba|llvmlite|safetensors|tokenizers|jinja2|filelock|platformdirs)==')
    # shellcheck disable=SC2086
    "$python" -m pip install -q --target "$folder/site" --only-binary=:all: --python-version 3.11 --implementation cp \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 $wheels
fi
if [ ! -d "$folder/tiny" ]; then "$python" -m tests.kernels.cpu.arm.small "$folder/tiny"; fi

"$python" -m tests.kernels.cpu.arm.digests "$folder/tiny" "$tokens" > "$folder/here.txt"
home=$("$python" -c 'from decoding.checkpoints.cache_folder import cache_root; print(cache_root())')
mkdir -p "$folder/home"
for part in models packed; do ln -sfn "$home/$part" "$folder/home/$part"; done
export SQLAGENT_HOME="$folder/home"
emulated() { # of a processor: runs Python
    processor=$1
    shift
    # Ignored is what the emulated OpenBLAS says: it sets the flags of an overflow, and its numbers are right.
    PYTHONPATH="$PWD:$folder/site" PYTHONWARNINGS=ignore::RuntimeWarning "$folder/root/usr/bin/qemu-aarch64-static" \
        -cpu "$processor" -L "$folder/root" "$folder/root/usr/bin/python3.11" "$@"
}
for processor in max neoverse-n1 cortex-a72 named; do # with usdot, with sdot, with neither; the first by a real one's name
    if [ $processor = named ]; then
        processor=max
        export NUMBA_CPU_NAME=neoverse-v1 NUMBA_CPU_FEATURES=+dotprod,+i8mm,-sve
    fi
    name=$(emulated $processor -c 'from kernels.cpu.processor import cpu_name; print(cpu_name())')
    features=$(emulated $processor -c 'from kernels.cpu.processor import features_text; print(features_text())')
    NUMBA_CPU_NAME=$name NUMBA_CPU_FEATURES=$features "$python" -m tests.kernels.cpu.arm.cross
    emulated $processor -m tests.kernels.cpu.arm.digests "$folder/tiny" "$tokens" > "$folder/arm.txt"
    diff "$folder/here.txt" "$folder/arm.txt"
    echo "$processor ($name, $features): equal"
done
