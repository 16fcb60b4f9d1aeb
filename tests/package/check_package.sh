#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
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

# keep_notes: what this test installs and takes away is not noted with what was installed from the build.
keep_notes() {
    rm -rf "$build_dir/installed.kept"
    [ ! -d "$build_dir/installed" ] || mv "$build_dir/installed" "$build_dir/installed.kept"
    trap 'rm -rf "$build_dir/installed"
        [ ! -d "$build_dir/installed.kept" ] || mv "$build_dir/installed.kept" "$build_dir/installed"' EXIT
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
    # A component that there is not is named.
    mkdir -p "$work/no_component"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.24)' 'project(x C)' \
        'find_package(spops 0.1 REQUIRED COMPONENTS shared frob)' >"$work/no_component/CMakeLists.txt"
    if cmake -S "$work/no_component" -B "$work/no_component/build" -DCMAKE_PREFIX_PATH="$prefix" \
        >"$work/no_component.log" 2>&1; then
        echo "a component that there is not was found"
        exit 1
    fi
    tr -s ' \n' '  ' <"$work/no_component.log" | grep -q 'and no frob' || { cat "$work/no_component.log"; exit 1; }
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
components)
    # Each component alone. A manual page that roff takes, a completion that completes.
    keep_notes
    for component in library dev tools docs; do
        rm -rf "${work:?}/$component"
        cmake --install "$build_dir" --prefix "$work/$component" --component $component >/dev/null
        (cd "$work/$component" && find . -type f -o -type l | sort) >"$work/$component.files"
    done
    grep -q 'libspops\.so\.' "$work/library.files"
    ! grep -v -e 'libspops\.so\.' -e '/libspops_\(onnxruntime\|tensorrt\)\.so$' -e /LICENSE -e /NOTICE "$work/library.files" || { echo "in the component library"; exit 1; }
    # has COMPONENT NAME...
    has() {
        component=$1
        shift
        for name in "$@"; do
            grep -q "/$name\$" "$work/$component.files" || { echo "$component lacks $name"; exit 1; }
        done
    }
    has dev libspops.so libspops.a spops.pc spops.h spopsConfig.cmake
    has docs README.md docs/operators.md docs/images/demo_bev.png examples/CMakeLists.txt
    ! grep -e docs/site -e '\.py$' "$work/docs.files" || { echo "in the component docs"; exit 1; }
    for component in library dev tools docs; do has $component LICENSE NOTICE; done
    if grep -q '/bin/spops$' "$work/tools.files"; then
        has tools man1/spops.1 bash-completion/completions/spops
        if command -v groff >/dev/null; then
            troubles=$(groff -man -ww -z "$(find "$work/tools" -name spops.1)" 2>&1)
            [ -z "$troubles" ] || { echo "$troubles"; exit 1; }
        fi
        if command -v bash >/dev/null; then
            bash -euc 'source "$1"; COMP_WORDS=(spops plan --sett); COMP_CWORD=2; _spops
                [ "${COMPREPLY[*]}" = --setting ]
                COMP_WORDS=(spops de); COMP_CWORD=1; _spops; [ "${COMPREPLY[*]}" = demo ]
                COMP_WORDS=(spops demo --backend cu); COMP_CWORD=3; _spops
                [ "${COMPREPLY[*]}" = cuda ]' bash "$(find "$work/tools" -path '*completions/spops')" ||
                { echo "the completion does not complete"; exit 1; }
        fi
    fi
    ;;
uninstall)
    # Whatever the folders are called, all is as it was before: files of others, also hidden ones, and
    # empty folders stay, in the prefix and above it.
    keep_notes
    there="$work/uninstall/spops/lib spops"
    rm -rf "$work/uninstall"
    mkdir -p "$there/.hidden" "$there/share/spops" "$there/prefix/include/spops" "$there/prefix/lib" \
        "$there/prefix/share/doc" "$there/prefix/empty"
    touch "$there/.dot" "$there/prefix/include/spops/.mine" "$there/prefix/share/.mine" "$there/prefix/lib/spops"
    ln -s prefix "$there/linked"
    ln -s ../lib "$there/prefix/empty/lib"
    all() { (cd "$work/uninstall" && find . | sort); }
    all >"$work/before"
    # as_before WHAT ROOT: uninstall, and compare.
    as_before() {
        cmake --build "$build_dir" --target uninstall >"$work/uninstall.log"
        grep -qxF "uninstalling from $2" "$work/uninstall.log" || { cat "$work/uninstall.log"; exit 1; }
        all | diff "$work/before" - || { echo "$1: after uninstalling (>) it is not as before (<)"; exit 1; }
    }
    for folder in prefix linked new new/deep/spops; do
        mkdir -p "$there/$(dirname $folder)"
        all >"$work/before"
        cmake --install "$build_dir" --prefix "$there/$folder" >/dev/null
        [ -e "$there/$folder/include/spops/spops.h" ]
        as_before "$folder" "$there/$folder"
    done
    mkdir -p "$there/staged/opt"
    all >"$work/before"
    DESTDIR="$there/staged" cmake --install "$build_dir" --prefix /opt/spops >/dev/null
    [ -e "$there/staged/opt/spops/include/spops/spops.h" ]
    as_before "DESTDIR" "$there/staged/opt/spops"
    # Parts and the whole at one place, while a part is at another one.
    cmake --install "$build_dir" --prefix "$there/first" --component dev >/dev/null
    all >"$work/before"
    cmake --install "$build_dir" --prefix "$there/prefix" --component library >/dev/null
    cmake --install "$build_dir" --prefix "$there/prefix" >/dev/null
    cmake --install "$build_dir" --prefix "$there/prefix" --component dev >/dev/null
    as_before "components" "$there/prefix"
    grep -qxF "also installed from here, and left: $there/first" "$work/uninstall.log"
    # What another put into a folder of ours stays there.
    touch "$there/first/include/spops/device/.later"
    cmake --build "$build_dir" --target uninstall >/dev/null
    [ "$(cd "$there/first" && find . -mindepth 1 | sort | tr '\n' ' ')" = \
        "./include ./include/spops ./include/spops/device ./include/spops/device/.later " ]
    if cmake --build "$build_dir" --target uninstall >"$work/uninstall.log" 2>&1; then
        echo "uninstalled, where nothing was left"
        exit 1
    fi
    grep -q 'nothing that was installed from here is left' "$work/uninstall.log"
    ;;
pack)
    # Packages of the build that the README's commands made, in Debian's folders: the .deb hold what their
    # names say and work where they are unpacked.
    command -v dpkg-deb >/dev/null || { echo "skipped: no dpkg-deb here"; exit 77; }
    build_dir=$(dirname "$(find "$work/readme/tree" -maxdepth 2 -name CMakeCache.txt | head -n 1)")
    rm -rf "$work/pack"
    mkdir -p "$work/pack"
    cmake "$build_dir" -DCMAKE_INSTALL_PREFIX=/usr >"$work/pack.log"
    cmake --build "$build_dir" >>"$work/pack.log"
    cmake --install "$build_dir" --prefix "$work/pack/installed" --component dev >/dev/null
    (cd "$build_dir" && cpack -G "DEB;TGZ" -B "$work/pack" -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip) \
        >>"$work/pack.log" 2>&1 || { cat "$work/pack.log"; exit 1; }
    ! grep -A 3 -i warning "$work/pack.log" || exit 1
    # What is uninstalled is not what cpack made, nor left for it.
    cmake --build "$build_dir" --target uninstall | grep -qxF "uninstalling from $work/pack/installed"
    [ ! -e "$work/pack/installed" ]
    cd "$work/pack"
    # field DEB NAME PATTERN
    field() { dpkg-deb --field $1_*.deb "$2" | grep -q "$3" || { echo "$1: $2 is not $3"; exit 1; }; }
    : >all
    for deb in *.deb; do
        dpkg-deb --field "$deb" Package Depends Description
        dpkg-deb -x "$deb" root
        copyright=root/usr/share/doc/${deb%%_*}/copyright
        grep -q 'Apache License' "$copyright" && grep -q 'Yann Collet' "$copyright" &&
            grep -q 'Redistributions in binary form' "$copyright" || { echo "$deb: no licence"; exit 1; }
        listed=$(dpkg-deb -c "$deb" | awk '{ print $6 }' | grep -v '/$')
        [ -z "$(echo "$listed" | sort all - | uniq -d)" ] || { echo "$deb: files of another"; exit 1; }
        echo "$listed" >>all
    done
    field libspops-dev Depends '^libspops0[0-9.]* (= '
    field 'libspops0.*' Depends 'libc6'
    field 'libspops0.*' Description '^Sparse gather and scatter .*: the library$'
    field libspops-doc Architecture '^all$'
    [ -e root/usr/share/doc/libspops-doc/docs/operators.md ]
    [ -e root/usr/share/doc/libspops-doc/examples/CMakeLists.txt ]
    library_dir=$(dirname "$(find root -name libspops.so)")
    multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || true)
    [ -z "$multiarch" ] || [ "$library_dir" = "root/usr/lib/$multiarch" ] || { echo "in $library_dir"; exit 1; }
    tar -tzf spops-*.tar.gz | grep -q '/lib.*/libspops\.so$'
    $CC -std=c99 "$here/consumer.c" -Iroot/usr/include -L"$library_dir" -lspops -o from_deb
    LD_LIBRARY_PATH=$library_dir ./from_deb
    if [ -e root/usr/bin/spops ]; then
        gzip -t root/usr/share/man/man1/spops.1.gz
        ! readelf -d root/usr/bin/spops | grep gomp
        root/usr/bin/spops info
    fi
    ;;
readme)
    # The commands of README.md, one after the other, in a copy of the sources, on a home of its own.
    # So that it takes seconds, cmake is told to leave out what the words are not about.
    rm -rf "$work/readme"
    mkdir -p "$work/readme/bin" "$work/readme/tree"
    home=$(mktemp -d) # words of the shell, as most homes are
    trap 'rm -rf "$home"' EXIT
    cd "$work/readme/tree"
    for name in "$source_dir"/*; do
        case $(basename "$name") in build* | out) ;; *) ln -s "$name" . ;; esac
    done
    cp "$here/consumer.c" engine.c
    real_cmake=$(command -v cmake)
    cat >../bin/cmake <<END
#!/bin/sh
case "\$1 \$2" in
"-B build-cuda") # is configured as it stands, where that is possible, and not built: it takes minutes
    command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || exit 0
    exec "$real_cmake" "\$@" ;;
*" build-cuda") exit 0 ;;
"-B "*) shift; folder=\$1; shift; exec "$real_cmake" -B "\$folder" "\$@" -DSPOPS_CUDA=OFF -DSPOPS_CPU_ISAS=baseline -DCMAKE_C_FLAGS_RELEASE=-O0 ;;
esac
exec "$real_cmake" "\$@"
END
    chmod +x ../bin/cmake
    awk '/^## Build and install/ { on = 1 } /^## The `spops` command/ { on = 0 }
         /^```$/ { code = 0 } on && code { print } /^```sh$/ { code = 1 }' README.md |
        grep -v -e "^sudo " -e build-cuda -e "^pip " >../commands # scripts/wheel tries pip
    grep -q 'cmake --install' ../commands && grep -q '^\./engine' ../commands
    HOME=$home PATH=$work/readme/bin:$PATH sh -eux ../commands
    rm -rf "$home/.cache" # of a compiler that keeps one
    [ -z "$(find "$home" -mindepth 1)" ] || { find "$home"; echo "not uninstalled"; exit 1; }
    ;;
native)
    # Without a GPU native architectures are one line, however CUDA was asked for.
    [ ! -e /dev/nvidia0 ] || { echo "skipped: there is a GPU here"; exit 77; }
    rm -rf "$work/native"
    configure_native() {
        cmake -S "$source_dir" -B "$work/native" -DCMAKE_CUDA_ARCHITECTURES=native -DCMAKE_CUDA_COMPILER="$CUDACXX" \
            -DSPOPS_TESTS=OFF -DSPOPS_BENCH=OFF -DSPOPS_TOOLS=OFF -DSPOPS_CUDA=$1 >"$work/native.log" 2>&1
    }
    if configure_native ON; then echo "configured, and there is no GPU"; exit 1; fi
    [ "$(grep -c 'CMake Error' "$work/native.log")" = 1 ] && grep -q 'is native, and there is no GPU here' "$work/native.log" ||
        { cat "$work/native.log"; exit 1; }
    configure_native AUTO && grep -q 'there is no GPU here: building' "$work/native.log" &&
        grep -q '^-- spops .*CUDA OFF' "$work/native.log" || { cat "$work/native.log"; exit 1; }
    ;;
pkg_config)
    command -v pkg-config >/dev/null || { echo "skipped: no pkg-config here"; exit 77; }
    libdir=$(dirname "$(find "$prefix" -name spops.pc)")
    export PKG_CONFIG_PATH="$libdir"
    mkdir -p "$work/pkg_config"
    cd "$work/pkg_config"
    library_dir=$(dirname "$libdir")
    cp "$here"/consumer* .
    # pkg-config quotes its words for a shell that reads them once more.
    shared=$(pkg-config --cflags --libs spops)
    eval "$CC -std=c99 consumer.c $shared -o shared_c"
    eval "$CXX -std=c++11 consumer.cpp $shared -o shared_cpp"
    eval "$CXX -std=c++17 -Wall -Wextra -Werror consumer17.cpp $shared -o shared_cpp17"
    eval "$CXX -std=c++17 -Wall -Wextra -Werror -fno-exceptions -fno-rtti consumer17_status.cpp $shared -o shared_cpp17_status"
    static="$(pkg-config --cflags spops) $(pkg-config --static --libs spops | sed 's|-lspops|"$library_dir/libspops.a"|')"
    eval "$CC -std=c99 consumer.c $static -o static_c"
    eval "$CXX -std=c++11 consumer.cpp $static -o static_cpp"
    for program in shared_c shared_cpp shared_cpp17 shared_cpp17_status; do
        LD_LIBRARY_PATH=$library_dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ./$program
    done
    ./static_c
    ./static_cpp
    ;;
subdirectory)
    # Without CUDA and without optimisation: what is tested is the build, and compiling every kernel
    # again takes minutes.
    build "$here/subdirectory" subdirectory -DSPOPS_DIR="$source_dir" -DSPOPS_CUDA=OFF \
        -DSPOPS_CPU_ISAS=baseline -DCMAKE_C_FLAGS_RELEASE=-O0
    "$work/subdirectory/consumer_spops"
    "$work/subdirectory/consumer_spops_static"
    # Whatever the project around ours chose, ours is optimised.
    for type in "" Debug; do
        cmake -S "$here/subdirectory" -B "$work/unoptimised" -DSPOPS_DIR="$source_dir" \
            -DCMAKE_BUILD_TYPE=$type -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
        grep 'command.*src/core/status\.c' "$work/unoptimised/compile_commands.json" | grep -q -e ' -O2 ' ||
            { echo "build type '$type': the library is compiled without -O2"; exit 1; }
    done
    for option in TESTS BENCH TOOLS WERROR INSTALL; do
        grep -q "^SPOPS_$option:BOOL=OFF$" "$work/subdirectory/CMakeCache.txt" ||
            { echo "SPOPS_$option is not OFF in a subdirectory"; exit 1; }
    done
    grep -q '^SPOPS_CUDA:STRING=OFF$' "$work/unoptimised/CMakeCache.txt" ||
        { echo "SPOPS_CUDA is not OFF in a subdirectory"; exit 1; }
    # And one form alone, where that is asked for.
    cmake -S "$source_dir" -B "$work/archive" -DBUILD_SHARED_LIBS=OFF -DSPOPS_CUDA=OFF \
        -DSPOPS_TESTS=OFF -DSPOPS_BENCH=OFF -DSPOPS_TOOLS=OFF >/dev/null
    if cmake --build "$work/archive" --target help | grep -E '(^|[ .])spops( |:|$)'; then
        echo "BUILD_SHARED_LIBS is OFF, and there is a shared library"
        exit 1
    fi
    ;;
examples)
    build "$source_dir/examples" examples
    ctest --test-dir "$work/examples" --verbose | tee "$work/examples.log"
    grep -q '^100% tests passed' "$work/examples.log"
    if [ "${SPOPS_REQUIRE_DEVICE:-0}" = 1 ] && grep -E '^[0-9]+: CUDA: not run' "$work/examples.log"; then
        echo "a device is required and the lines above did without"
        exit 1
    fi
    rm -f "$work/networks.jsonl" "$work/ranks.jsonl" # lines are added
    # Every network says what its parts took, in one format.
    python3 -B "$source_dir/bench/networks.py" "$work/examples" --small --output "$work/networks.jsonl"
    [ "$(grep -o '"network": "[a-z0-9_]*".*"part": "whole"' "$work/networks.jsonl" | cut -d'"' -f4 | sort -u | wc -l)" -ge 4 ]
    # Ranks of one set and of sets that grow with them.
    python3 -B "$source_dir/bench/scaling.py" "$work/examples/ranks" --weak 3000 --strong 5000 --levels 3 --width 0.125 \
        --dtype f32 --launches 1 --output "$work/ranks.jsonl" | tee "$work/scaling.log"
    grep -Eq '^[|] weak [|] 2 [|] .*efficiency [0-9]' "$work/scaling.log"
    grep -Eq '^[|] strong [|] 2 [|] .*[0-9] times as fast' "$work/scaling.log"
    [ "$(grep -c '"case": "halos"' "$work/ranks.jsonl")" = 4 ]
    ;;
*)
    echo "unknown step $step"
    exit 2
    ;;
esac
