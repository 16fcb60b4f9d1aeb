# SPDX-License-Identifier: Apache-2.0
# Packages by CPack: `cpack -G "DEB;TGZ"` in the build folder. Three .deb (library, dev, tools), and one
# .tar.gz with everything.
set(CPACK_PACKAGE_NAME spops)
set(CPACK_PACKAGE_VENDOR "The libspops authors")
set(CPACK_PACKAGE_CONTACT "The libspops authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Sparse gather and scatter operators for 3D perception")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_RESOURCE_FILE_README "${PROJECT_SOURCE_DIR}/README.md")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_FILE_NAME "spops-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_ALL library dev tools)
if(NOT SPOPS_TOOLS OR NOT TARGET spops_command)
    list(REMOVE_ITEM CPACK_COMPONENTS_ALL tools)
endif()
if(NOT spops_build_shared)
    list(REMOVE_ITEM CPACK_COMPONENTS_ALL library)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME "libspops${spops_soversion}")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION
    "Sparse gather and scatter operators for 3D perception: the library\n\
 BEV pooling, segmented reduction, voxels, kernel maps and sparse convolution as a C library.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libspops-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
if(spops_build_shared)
    set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libspops${spops_soversion} (= ${PROJECT_VERSION})")
endif()
set(CPACK_DEBIAN_DEV_DESCRIPTION
    "Sparse gather and scatter operators for 3D perception: to build with\n\
 Headers, the archive, the CMake package, the pkg-config file and the examples of libspops.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME spops)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_DESCRIPTION
    "Sparse gather and scatter operators for 3D perception: the command\n\
 spops shows what libspops does on this machine: devices, a demo, plans, benchmarks.")
include(CPack)
