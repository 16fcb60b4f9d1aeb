# SPDX-License-Identifier: Apache-2.0
# What Debian asks of a package, done to the staged files of each .deb before it is closed: a folder of
# documents with the package's name and its licence in it, manual pages compressed.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
    return()
endif()
if(CPACK_SPOPS_MULTIARCH AND NOT CPACK_SPOPS_LIBDIR MATCHES "/${CPACK_SPOPS_MULTIARCH}$")
    message(WARNING "libraries go to /usr/${CPACK_SPOPS_LIBDIR}, expected /usr/lib/${CPACK_SPOPS_MULTIARCH}: configure "
                    "with -DCMAKE_INSTALL_PREFIX=/usr")
endif()
file(READ "${CPACK_SPOPS_SOURCE_DIR}/NOTICE" notice)
file(READ "${CPACK_SPOPS_SOURCE_DIR}/LICENSE" licence)
file(READ "${CPACK_SPOPS_SOURCE_DIR}/third_party/xxhash/xxhash.h" xxhash)
string(FIND "${xxhash}" "*/" end)
string(SUBSTRING "${xxhash}" 0 ${end} xxhash_licence) # of the comment that it begins with
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER "${component}" upper)
    set(name "${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
    set(share "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr/share")
    if(EXISTS "${share}/doc/spops" AND NOT name STREQUAL "spops")
        file(RENAME "${share}/doc/spops" "${share}/doc/${name}")
    endif()
    file(REMOVE "${share}/doc/${name}/LICENSE" "${share}/doc/${name}/NOTICE")
    file(WRITE "${share}/doc/${name}/copyright" "${notice}\n${xxhash_licence}*/\n\n${licence}")
    file(GLOB pages "${share}/man/man1/*.1")
    if(pages)
        execute_process(COMMAND gzip -9nf ${pages} COMMAND_ERROR_IS_FATAL ANY)
    endif()
endforeach()
