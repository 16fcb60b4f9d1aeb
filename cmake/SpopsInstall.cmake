# SPDX-License-Identifier: Apache-2.0
# Headers, both libraries, the CMake package and the pkg-config file.

include(CMakePackageConfigHelpers)
set(spops_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/spops")

# What an install puts where is noted in the build folder, for the target uninstall.
if(PROJECT_IS_TOP_LEVEL)
    set(spops_own_folders
        "${CMAKE_INSTALL_INCLUDEDIR}/spops" "${spops_cmake_dir}" "${CMAKE_INSTALL_DOCDIR}"
        "${CMAKE_INSTALL_DATADIR}/spops")
    set(spops_folders ${spops_own_folders}
        "${CMAKE_INSTALL_BINDIR}" "${CMAKE_INSTALL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_MANDIR}/man1"
        "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
    list(JOIN spops_own_folders ":" spops_own_folders)
    list(JOIN spops_folders "\" \"" spops_folders)
    configure_file("${PROJECT_SOURCE_DIR}/cmake/note_install.cmake.in"
                   "${PROJECT_BINARY_DIR}/note_install.cmake" @ONLY)
    install(SCRIPT "${PROJECT_BINARY_DIR}/note_install.cmake" ALL_COMPONENTS)
    add_custom_target(uninstall
        COMMAND "${PROJECT_SOURCE_DIR}/cmake/installed.sh" remove "${PROJECT_BINARY_DIR}/installed"
        VERBATIM)
endif()

# Components: library (what programs need to run), dev (what they need to be built), tools (the
# command, its manual page and completion), docs (pages and examples). Each has the licence.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/spops" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT dev FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh" PATTERN "*.hpp")
if(spops_with_list)
    install(FILES "${PROJECT_BINARY_DIR}/spops.ops.json"
            DESTINATION "${CMAKE_INSTALL_DATADIR}/spops" COMPONENT dev)
endif()
set(spops_installed_forms "")
if(spops_build_shared)
    list(APPEND spops_installed_forms spops)
endif()
if(spops_install_static)
    list(APPEND spops_installed_forms spops_static)
endif()
install(TARGETS ${spops_installed_forms} EXPORT spopsTargets
        RUNTIME COMPONENT library
        LIBRARY COMPONENT library NAMELINK_COMPONENT dev
        ARCHIVE COMPONENT dev)
install(EXPORT spopsTargets NAMESPACE spops:: DESTINATION "${spops_cmake_dir}" COMPONENT dev)

configure_package_config_file(
    "${PROJECT_SOURCE_DIR}/cmake/spopsConfig.cmake.in" "${PROJECT_BINARY_DIR}/spopsConfig.cmake"
    INSTALL_DESTINATION "${spops_cmake_dir}")
if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(compatibility SameMinorVersion)
else()
    set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/spopsConfigVersion.cmake"
                                 COMPATIBILITY ${compatibility})
install(FILES "${PROJECT_BINARY_DIR}/spopsConfig.cmake"
              "${PROJECT_BINARY_DIR}/spopsConfigVersion.cmake" DESTINATION "${spops_cmake_dir}"
        COMPONENT dev)

# pkg-config: what the archive needs goes to Libs.private (pkg-config --static).
set(spops_pc_private "")
if(spops_with_cuda)
    get_filename_component(cudart_dir "${CUDA_cudart_static_LIBRARY}" DIRECTORY)
    list(APPEND spops_pc_private "-L${cudart_dir}" -lcudart_static)
endif()
foreach(library IN LISTS spops_system_libraries)
    list(APPEND spops_pc_private "-l${library}")
endforeach()
list(JOIN spops_pc_private " " spops_pc_private)
set(spops_pc_public "")
if(NOT spops_build_shared)
    set(spops_pc_public " ${spops_pc_private}")
endif()
file(RELATIVE_PATH spops_pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" spops_pc_up "${spops_pc_up}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/spops.pc.in" "${PROJECT_BINARY_DIR}/spops.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/spops.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
        COMPONENT dev)

foreach(component IN ITEMS library dev tools docs)
    install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/NOTICE"
            DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT ${component})
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
              "${PROJECT_SOURCE_DIR}/CONTRIBUTING.md" "${PROJECT_SOURCE_DIR}/SECURITY.md"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT docs)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT docs
        PATTERN docs/site EXCLUDE PATTERN "*.py" EXCLUDE)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/bench/results" # the figures that pages link to
        DESTINATION "${CMAKE_INSTALL_DOCDIR}/bench" COMPONENT docs)
