# SPDX-License-Identifier: Apache-2.0
# Packages by CPack: `cpack -G "DEB;TGZ"` in the build folder. A .deb for each component, and one .tar.gz with
# everything. Debian's folders are those of -DCMAKE_INSTALL_PREFIX=/usr.
set(CPACK_PACKAGE_NAME spops)
set(CPACK_PACKAGE_VENDOR "The libspops authors")
set(CPACK_PACKAGE_CONTACT "The libspops authors")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_RESOURCE_FILE_README "${PROJECT_SOURCE_DIR}/README.md")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_FILE_NAME "spops-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_ALL library dev tools docs)
if(NOT SPOPS_TOOLS OR NOT TARGET spops_command)
    list(REMOVE_ITEM CPACK_COMPONENTS_ALL tools)
endif()
if(NOT spops_build_shared)
    list(REMOVE_ITEM CPACK_COMPONENTS_ALL library)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # and has ldconfig run
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/package_deb.cmake")
set(CPACK_SPOPS_SOURCE_DIR "${PROJECT_SOURCE_DIR}")
set(CPACK_SPOPS_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
set(CPACK_SPOPS_MULTIARCH "${CMAKE_LIBRARY_ARCHITECTURE}")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME "libspops${spops_soversion}")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION
    "Sparse gather and scatter operators for 3D perception: the library\n\
Sparse convolution, attention over points, BEV pooling, segmented reduction, voxels and kernel\n\
maps as a C library, for CPUs and, where it was built so, NVIDIA GPUs.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libspops-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
if(spops_build_shared)
    set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libspops${spops_soversion} (= ${PROJECT_VERSION})")
endif()
set(CPACK_DEBIAN_DEV_DESCRIPTION
    "Sparse gather and scatter operators for 3D perception: to build with\n\
Headers, the archive, the CMake package and the pkg-config file of libspops.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME spops)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_DESCRIPTION
    "Sparse gather and scatter operators for 3D perception: the command\n\
spops shows what libspops does on this machine: devices, a demo, plans, benchmarks.")
set(CPACK_DEBIAN_DOCS_PACKAGE_NAME libspops-doc)
set(CPACK_DEBIAN_DOCS_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOCS_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DOCS_DESCRIPTION
    "Sparse gather and scatter operators for 3D perception: pages and examples\n\
The documentation of libspops as Markdown, and example programs.")
include(CPack)
