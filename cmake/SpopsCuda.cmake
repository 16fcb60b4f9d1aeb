# SPDX-License-Identifier: Apache-2.0
# Looks for a CUDA compiler and sets spops_with_cuda. Included only where SPOPS_CUDA is not OFF.

include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(SPOPS_NVCC nvcc HINTS /usr/local/cuda/bin)
    mark_as_advanced(SPOPS_NVCC)
    if(SPOPS_NVCC)
        set(CMAKE_CUDA_COMPILER "${SPOPS_NVCC}")
    endif()
endif()
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
        # The least that we serve is sm_75, and CUDA 12 has older ones among its own.
        execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE nvcc_version)
        if(nvcc_version MATCHES "release 12\\.")
            set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90 CACHE STRING
                "GPU architectures to compile for.")
        else()
            set(CMAKE_CUDA_ARCHITECTURES all-major CACHE STRING
                "GPU architectures to compile for.")
        endif()
    endif()
    enable_language(CUDA)
    if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native" AND NOT CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^[0-9]+")
        set(no_gpu "CMAKE_CUDA_ARCHITECTURES is native, and there is no GPU here")
        if(NOT SPOPS_CUDA STREQUAL "AUTO")
            message(FATAL_ERROR "${no_gpu}: name the GPUs to compile for, such as "
                                "-DCMAKE_CUDA_ARCHITECTURES=90")
        endif()
        message(WARNING "${no_gpu}: building without the CUDA backend. With -DSPOPS_CUDA=ON and the GPUs "
                        "to compile for, such as -DCMAKE_CUDA_ARCHITECTURES=90, it is built all the same.")
    else()
        find_package(CUDAToolkit 12.4 REQUIRED)
        set(spops_with_cuda ON)
    endif()
elseif(SPOPS_CUDA STREQUAL "AUTO")
    message(STATUS "No CUDA compiler found: building without the CUDA backend")
else()
    message(FATAL_ERROR "SPOPS_CUDA is ON and no CUDA compiler was found; set CMAKE_CUDA_COMPILER")
endif()
