#!/bin/sh
# check_package.sh STEP SOURCE_DIR BUILD_DIR WORK_DIR CC CXX
# Installs the build into WORK_DIR/prefix and uses it the ways a stranger would.
set -eu
step=$1 source_dir=$2 build_dir=$3 work=$4
export CC=$5 CXX=$6
prefix=$work/prefix
here=$source_dir/tests/package

# build FOLDER NAME [CMAKE ARGUMENTS]: configure and build a project of ours.
build() {
    folder=$1 name=$2
    shift 2
    rm -rf "${work:?}/$name"
    cmake -S "$folder" -B "$work/$name" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" "$@"
    cmake --build "$work/$name" -j 2
}

case $step in
install)
    # Installed to one place and moved to another: the package must not care.
    rm -rf "$prefix" "$prefix.made"
    cmake --install "$build_dir" --prefix "$prefix.made"
    mv "$prefix.made" "$prefix"
    if grep -rIlF -e "$source_dir" -e "$build_dir" -e "$prefix.made" "$prefix" \
        --include='*.cmake' --include='*.pc' --include='*.h'; then
        echo "the files above name a folder of the build"
        exit 1
    fi
    ;;
find_package)
    for language in C CXX; do
        build "$here/find_package" "find_$language" -DCONSUMER_LANGUAGE=$language
        "$work/find_$language/consumer_spops"
        "$work/find_$language/consumer_spops_static"
        readelf -d "$work/find_$language/consumer_spops" | grep -q 'NEEDED.*libspops\.so\.' ||
            { echo "consumer_spops is not linked to libspops.so by its SONAME"; exit 1; }
        if readelf -d "$work/find_$language/consumer_spops_static" | grep 'NEEDED.*libspops'; then
            echo "consumer_spops_static is linked to the shared library"
            exit 1
        fi
    done
    ;;
pkg_config)
    command -v pkg-config >/dev/null || { echo "skipped: no pkg-config here"; exit 77; }
    libdir=$(dirname "$(find "$prefix" -name spops.pc)")
    export PKG_CONFIG_PATH="$libdir"
    mkdir -p "$work/pkg_config"
    cd "$work/pkg_config"
    $CC -std=c99 "$here/consumer.c" $(pkg-config --cflags --libs spops) -o shared_c
    $CXX -std=c++11 "$here/consumer.cpp" $(pkg-config --cflags --libs spops) -o shared_cpp
    library_dir=$(pkg-config --variable=libdir spops)
    static_libs=$(pkg-config --static --libs spops | sed "s|-lspops|$library_dir/libspops.a|")
    $CC -std=c99 "$here/consumer.c" $(pkg-config --cflags spops) $static_libs -o static_c
    $CXX -std=c++11 "$here/consumer.cpp" $(pkg-config --cflags spops) $static_libs -o static_cpp
    for program in shared_c shared_cpp; do
        LD_LIBRARY_PATH=$library_dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ./$program
    done
    ./static_c
    ./static_cpp
    ;;
subdirectory)
    # Without CUDA and without optimisation: what is tested is the build, and compiling every kernel
    # again takes minutes.
    build "$here/subdirectory" subdirectory -DSPOPS_DIR="$source_dir" -DSPOPS_CUDA=OFF \
        -DCMAKE_C_FLAGS_RELEASE=-O0
    "$work/subdirectory/consumer_spops"
    "$work/subdirectory/consumer_spops_static"
    for option in TESTS BENCH TOOLS WERROR INSTALL; do
        grep -q "^SPOPS_$option:BOOL=OFF$" "$work/subdirectory/CMakeCache.txt" ||
            { echo "SPOPS_$option is not OFF in a subdirectory"; exit 1; }
    done
    ;;
examples)
    build "$source_dir/examples" examples
    ctest --test-dir "$work/examples" --verbose | tee "$work/examples.log"
    grep -q '^100% tests passed' "$work/examples.log"
    if [ "${SPOPS_REQUIRE_DEVICE:-0}" = 1 ] && grep -E '^[0-9]+: CUDA: not run' "$work/examples.log"; then
        echo "a device is required and the lines above did without"
        exit 1
    fi
    ;;
*)
    echo "unknown step $step"
    exit 2
    ;;
esac
