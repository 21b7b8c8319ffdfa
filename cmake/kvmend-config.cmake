# Installed as kvmend's CMake package: finds what the static libraries need, then defines them.
set(KVMEND_TESTS OFF)
set(KVMEND_BENCH OFF)
include(${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/kvmend-targets.cmake)
