# SPDX-License-Identifier: Apache-2.0
# Flags and small functions that the library's own build shares.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)

# Before 1.0 a minor version may change the ABI.
if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(spops_soversion 0.${PROJECT_VERSION_MINOR})
else()
    set(spops_soversion ${PROJECT_VERSION_MAJOR})
endif()

set(spops_c_warnings -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla)
set(spops_cuda_warnings -Xcompiler=-Wall)
if(SPOPS_WERROR)
    list(APPEND spops_c_warnings -Werror)
    list(APPEND spops_cuda_warnings -Werror=all-warnings)
endif()

set(spops_sanitize_options "")
if(SPOPS_SANITIZE)
    string(REPLACE ";" "," spops_sanitize_list "${SPOPS_SANITIZE}")
    set(spops_sanitize_options -fsanitize=${spops_sanitize_list} -fno-omit-frame-pointer
                               -fno-sanitize-recover=all)
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # false alarms, as GCC's manual says of -fsanitize
        list(APPEND spops_sanitize_options -Wno-maybe-uninitialized)
    endif()
endif()

# -O2 for a configuration whose flags have no -O at all, such as none or Debug of a project around
# ours: its authors debug their own code, and ours would be forty times slower.
set(spops_optimize_options "")
if(NOT PROJECT_IS_TOP_LEVEL)
    foreach(config IN ITEMS "${CMAKE_BUILD_TYPE}" ${CMAKE_CONFIGURATION_TYPES})
        string(TOUPPER "${config}" upper)
        if(NOT "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${upper}}" MATCHES "(^| )-O")
            list(APPEND spops_optimize_options
                 "$<$<AND:$<COMPILE_LANGUAGE:C>,$<CONFIG:${config}>>:-O2>")
        endif()
    endforeach()
endif()

# Warnings and sanitizers, for every target of ours; source paths are given from the root. Loops
# marked `omp simd` are vectorised; without an OpenMP library the others stay serial.
function(spops_target_options target)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:C>:-fopenmp-simd;${spops_c_warnings};${spops_sanitize_options}>
        $<$<COMPILE_LANGUAGE:CUDA>:${spops_cuda_warnings}>)
    target_link_options(${target} PRIVATE ${spops_sanitize_options})
    set_target_properties(${target} PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                                               CUDA_EXTENSIONS OFF)
endfunction()

# The same for what becomes the library: position-independent, hidden, internal include paths.
function(spops_library_options target)
    spops_target_options(${target})
    target_compile_options(${target} PRIVATE ${spops_optimize_options})
    target_include_directories(${target} PRIVATE
        "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
    target_compile_definitions(${target} PRIVATE $<$<BOOL:${SPOPS_DEBUG_SYNC}>:SPOPS_DEBUG_SYNC=1>
                                                 $<$<BOOL:${spops_with_cuda}>:SPOPS_WITH_CUDA=1>)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fvisibility=hidden>)
    set_target_properties(${target} PROPERTIES
        POSITION_INDEPENDENT_CODE ON
        C_VISIBILITY_PRESET hidden
        CUDA_VISIBILITY_PRESET hidden
        CUDA_SEPARABLE_COMPILATION OFF
        CUDA_RESOLVE_DEVICE_SYMBOLS OFF)
    target_link_libraries(${target} PRIVATE Threads::Threads
        $<$<BOOL:${spops_with_cuda}>:CUDA::cudart_static>)
endfunction()

# What the library itself links. Dependents of the archive link the same by name, because imported
# targets would have to exist in their scope.
macro(spops_link_lists)
    set(spops_private_libraries Threads::Threads m ${CMAKE_DL_LIBS})
    set(spops_system_libraries pthread m ${CMAKE_DL_LIBS})
    set(spops_static_libraries "")
    if(spops_with_cuda)
        list(APPEND spops_private_libraries CUDA::cudart_static stdc++)
        list(APPEND spops_system_libraries rt stdc++)
        list(APPEND spops_static_libraries
            "$<BUILD_INTERFACE:${CUDA_cudart_static_LIBRARY}>"
            "$<INSTALL_INTERFACE:CUDA::cudart_static>")
    endif()
    list(APPEND spops_static_libraries ${spops_system_libraries})
    # Dependents get these on the link line only.
    list(TRANSFORM spops_static_libraries REPLACE "^([^$].*)$" "$<LINK_ONLY:\\1>")
endmacro()

# A C source that holds the named headers of include/ as byte arrays; its path goes to `out`.
function(spops_embed_headers out)
    set(source "${PROJECT_BINARY_DIR}/generated/spops_embedded_headers.c")
    list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/include/" OUTPUT_VARIABLE paths)
    list(JOIN ARGN "," names)
    add_custom_command(
        OUTPUT "${source}"
        COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${source}" "-DHEADERS=${names}"
                "-DINCLUDE_DIR=${PROJECT_SOURCE_DIR}/include"
                -P "${PROJECT_SOURCE_DIR}/cmake/embed.cmake"
        DEPENDS ${paths} "${PROJECT_SOURCE_DIR}/cmake/embed.cmake"
        VERBATIM)
    set(${out} "${source}" PARENT_SCOPE)
endfunction()

# A C source that holds one file (given from the root) as the bytes of `symbol`.
function(spops_embed_file out symbol path)
    set(source "${PROJECT_BINARY_DIR}/generated/${symbol}.c")
    add_custom_command(
        OUTPUT "${source}"
        COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${source}" "-DSYMBOL=${symbol}"
                "-DFILE=${PROJECT_SOURCE_DIR}/${path}" -P "${PROJECT_SOURCE_DIR}/cmake/embed.cmake"
        DEPENDS "${PROJECT_SOURCE_DIR}/${path}" "${PROJECT_SOURCE_DIR}/cmake/embed.cmake"
        VERBATIM)
    set(${out} "${source}" PARENT_SCOPE)
endfunction()

# The instruction sets of vector code, by SPOPS_CPU_ISAS.
function(spops_choose_isas result)
    set(known baseline)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        list(APPEND known avx2 avx512)
    endif()
    if(SPOPS_CPU_ISAS STREQUAL "all")
        set(isas ${known})
    elseif(SPOPS_CPU_ISAS STREQUAL "native")
        set(isas baseline)
        execute_process(COMMAND ${CMAKE_C_COMPILER} -march=native -dM -E -x c /dev/null
                        OUTPUT_VARIABLE macros ERROR_QUIET)
        if(macros MATCHES "__AVX2__ " AND macros MATCHES "__FMA__ " AND macros MATCHES "__F16C__ ")
            set(isas avx2)
            if(macros MATCHES "__AVX512F__ " AND macros MATCHES "__AVX512BW__ " AND
               macros MATCHES "__AVX512VL__ " AND macros MATCHES "__AVX512DQ__ ")
                set(isas avx512)
            endif()
        endif()
    else()
        set(isas ${SPOPS_CPU_ISAS})
        foreach(isa IN LISTS isas)
            if(NOT isa IN_LIST known)
                message(FATAL_ERROR "SPOPS_CPU_ISAS has ${isa}, expected all, native, or some of ${known}")
            endif()
        endforeach()
    endif()
    set(${result} ${isas} PARENT_SCOPE)
endfunction()
