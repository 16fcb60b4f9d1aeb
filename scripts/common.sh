# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts beside it: progress lines, and what Debian is asked for.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
started=$SECONDS
step_name=
step_started=$SECONDS

# step TEXT: close the running step with its time and open the next.
step() {
    end_step
    step_name=$1
    step_started=$SECONDS
    printf '==> [%3d s] %s\n' $((SECONDS - started)) "$step_name"
}
end_step() {
    [ -z "$step_name" ] || printf '    %s: %d s\n' "$step_name" $((SECONDS - step_started))
    step_name=
}

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# need CHECK PACKAGE...: unless CHECK (a command) succeeds, PACKAGE is asked for by install_needed.
missing_packages=()
need() {
    local check=$1
    shift
    eval "$check" >/dev/null 2>&1 || missing_packages+=("$@")
}
has_header() { echo "#include <$1>" | ${2:-cc} -fsyntax-only -x c -; }

install_needed() {
    [ ${#missing_packages[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "these are missing, and there is no apt-get to install them: ${missing_packages[*]}"
    local sudo=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "these are missing: ${missing_packages[*]}; install them, or run this as root"
        sudo=sudo
    fi
    echo "    installing ${missing_packages[*]}"
    # A package list that is there may do; a fresh machine has none.
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing_packages[@]}" >/dev/null 2>&1 || {
        $sudo apt-get update -qq
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing_packages[@]}" >/dev/null
    }
    missing_packages=()
}

need_build_tools() {
    need 'command -v cc && command -v c++ && command -v make' build-essential
    need 'command -v cmake' cmake
    need 'command -v ninja' ninja-build
    need 'command -v pkg-config' pkg-config
    install_needed # a compiler, to look for headers with
    need 'has_header jansson.h' libjansson-dev
    need 'has_header cairo/cairo.h' libcairo2-dev
}

# nvcc's path, or nothing.
find_nvcc() {
    command -v "${CUDACXX:-nvcc}" || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; } || true
}

# configure_and_build FOLDER [CMAKE ARGUMENTS]; $build_target names what to build, if not all.
configure_and_build() {
    local folder=$1
    shift
    local log=$folder.log
    mkdir -p "$(dirname "$folder")"
    if ! cmake -S . -B "$folder" -G Ninja "$@" >"$log" 2>&1; then
        cat "$log"
        die "$folder could not be configured"
    fi
    tail -n 5 "$log" | grep '^-- spops' || true
    cmake --build "$folder" ${build_target:+--target "$build_target"} || die "$folder could not be built"
}
