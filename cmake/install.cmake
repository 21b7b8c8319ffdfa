# For embedders: find_package(kvmend) gives kvmend::kvmend; add_subdirectory gives the same name.

get_property(libraries GLOBAL PROPERTY KVMEND_LIBRARIES)
if(NOT libraries)
  return()
endif()
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

add_library(kvmend_all INTERFACE)
target_link_libraries(kvmend_all INTERFACE ${libraries})
set_target_properties(kvmend_all PROPERTIES EXPORT_NAME kvmend)
add_library(kvmend::kvmend ALIAS kvmend_all)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvmend)
install(TARGETS kvmend_all kvm_common ${libraries} EXPORT kvmend COMPONENT dev
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT kvmend NAMESPACE kvmend:: FILE kvmend-targets.cmake
        DESTINATION ${package_dir} COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT dev FILES_MATCHING PATTERN "*.h")
write_basic_package_version_file(kvmend-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/kvmend-config.cmake
              ${PROJECT_SOURCE_DIR}/cmake/dependencies.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/kvmend-config-version.cmake
        DESTINATION ${package_dir} COMPONENT dev)
if(TARGET kvmend)  # the program, from src/cli
  install(TARGETS kvmend COMPONENT program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
