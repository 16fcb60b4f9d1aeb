# Headers, both libraries, the CMake package and the pkg-config file.

include(CMakePackageConfigHelpers)
set(spops_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/spops")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/spops" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
install(TARGETS spops spops_static EXPORT spopsTargets)
install(EXPORT spopsTargets NAMESPACE spops:: DESTINATION "${spops_cmake_dir}")

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
              "${PROJECT_BINARY_DIR}/spopsConfigVersion.cmake" DESTINATION "${spops_cmake_dir}")

# pkg-config: what the archive needs goes to Libs.private (pkg-config --static).
set(spops_pc_private "")
if(spops_with_cuda)
    get_filename_component(cudart_dir "${CUDA_cudart_static_LIBRARY}" DIRECTORY)
    list(APPEND spops_pc_private "-L${cudart_dir}" -lcudart_static)
endif()
foreach(library IN LISTS spops_system_libraries)
    if(IS_ABSOLUTE "${library}")
        list(APPEND spops_pc_private "${library}")
    else()
        list(APPEND spops_pc_private "-l${library}")
    endif()
endforeach()
list(JOIN spops_pc_private " " spops_pc_private)
file(RELATIVE_PATH spops_pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" spops_pc_up "${spops_pc_up}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/spops.pc.in" "${PROJECT_BINARY_DIR}/spops.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/spops.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
