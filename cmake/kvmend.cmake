# The functions that the folders' CMakeLists.txt are written with:
#
#   kvm_library(<name> SOURCES a.cc... [DEPS base fmt::fmt...] [TESTS a_test.cc...] [TEST_DEPS ...])
#       one static library kvm_<name> (alias kvm::<name>) per folder, and <name>_test in ctest
#   kvm_protobuf(<name> control.proto...)       generated code for a library of this folder
#   kvm_test(<name> SOURCES ... [DEPS ...] [LABELS unit] [TIMEOUT 120])
#   kvm_program(<name> SOURCES ... [DEPS ...])  build/<preset>/bin/<name>
#   kvm_benchmark(<name> SOURCES ... [DEPS ...])  bin/<name>_bench, with Google Benchmark
#   kvm_fuzz(<name> SOURCES ... [DEPS ...])     bin/<name>_fuzz, kept corpus fuzz/corpus/<name>/
#
# A dependency without "::" is one of our libraries: `base` means kvm::base, `env_posix` kvm::env_posix.
# Folders and library names: src/wire -> wire, src/env/posix -> env_posix.

add_custom_target(unit_tests)
add_custom_target(fuzz_targets)

# What every target of ours uses: flags, public headers, fmt, spdlog. Kept in one place since all
# users of a precompiled header must share their macro definitions.
add_library(kvm_common INTERFACE)
target_include_directories(kvm_common INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(kvm_common INTERFACE fmt::fmt spdlog::spdlog Threads::Threads)

# kvm_pch(<target> <file> [DEPS ...]): a library that only holds a precompiled header.
function(kvm_pch target file)
  if(NOT KVMEND_PCH)
    return()
  endif()
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/pch/empty.cc)
  target_link_libraries(${target} PRIVATE kvm_settings kvm_common ${ARGN})
  target_precompile_headers(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch/${file})
endfunction()

kvm_pch(kvm_pch_base base.h)
if(KVMEND_TESTS)
  kvm_pch(kvm_pch_test test.h GTest::gtest GTest::gmock)
endif()

# Adds sources, flags, our own and foreign dependencies to a target.
function(kvm_setup target scope pch)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:kvm_settings> ${scope} kvm_common)
  foreach(dep ${ARGN})
    if(dep MATCHES "::")
      target_link_libraries(${target} ${scope} ${dep})
    else()
      target_link_libraries(${target} ${scope} kvm::${dep})
    endif()
  endforeach()
  if(KVMEND_PCH)
    target_precompile_headers(${target} REUSE_FROM ${pch})
  endif()
endfunction()

function(kvm_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;TESTS;TEST_DEPS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvm_library(${name}): unknown ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(ARG_SOURCES)
    add_library(kvm_${name} STATIC ${ARG_SOURCES})
    kvm_setup(kvm_${name} PUBLIC kvm_pch_base ${ARG_DEPS})
  else()  # headers only
    add_library(kvm_${name} INTERFACE)
    target_link_libraries(kvm_${name} INTERFACE kvm_common)
    foreach(dep ${ARG_DEPS})
      string(REGEX REPLACE "^([^:]+)$" "kvm::\\1" dep ${dep})
      target_link_libraries(kvm_${name} INTERFACE ${dep})
    endforeach()
  endif()
  add_library(kvm::${name} ALIAS kvm_${name})
  set_property(GLOBAL APPEND PROPERTY KVMEND_LIBRARIES kvm_${name})
  if(ARG_TESTS)
    kvm_test(${name} SOURCES ${ARG_TESTS} DEPS ${name} ${ARG_TEST_DEPS})
  endif()
endfunction()

# One ctest entry per executable: with a few hundred tests, starting each alone would cost minutes.
function(kvm_test name)
  if(NOT KVMEND_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 180)
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  kvm_setup(${name}_test PRIVATE kvm_pch_test ${ARG_DEPS} GTest::gtest GTest::gmock
            GTest::gmock_main)
  add_test(NAME ${name} COMMAND ${name}_test --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if("unit" IN_LIST ARG_LABELS)
    add_dependencies(unit_tests ${name}_test)
  endif()
endfunction()

function(kvm_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  kvm_setup(${name} PRIVATE kvm_pch_base ${ARG_DEPS})
endfunction()

function(kvm_benchmark name)
  if(KVMEND_BENCH)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
    kvm_program(${name}_bench SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} benchmark::benchmark)
  endif()
endfunction()

function(kvm_fuzz name)
  if(NOT KVMEND_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  kvm_program(${name}_fuzz SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${name}_fuzz)
endfunction()

# Generated sources are compiled without our warnings and included as "wire/control.pb.h".
# Call it after kvm_library(<name> ...), or in a folder that has no other sources instead of it.
function(kvm_protobuf name)
  set(lib kvm_${name}_proto)
  set(root ${PROJECT_BINARY_DIR}/generated)
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src
             OUTPUT_VARIABLE folder)
  file(MAKE_DIRECTORY ${root}/${folder})
  add_library(${lib} STATIC ${ARGN})
  protobuf_generate(TARGET ${lib} LANGUAGE cpp PROTOC_OUT_DIR ${root}/${folder})
  target_include_directories(${lib} SYSTEM PUBLIC $<BUILD_INTERFACE:${root}>)
  target_link_libraries(${lib} PRIVATE $<BUILD_INTERFACE:kvm_settings> PUBLIC protobuf::libprotobuf)
  target_compile_options(${lib} PRIVATE -w)
  set_target_properties(${lib} PROPERTIES CXX_CLANG_TIDY "")
  add_library(kvm::${name}_proto ALIAS ${lib})
  set_property(GLOBAL APPEND PROPERTY KVMEND_LIBRARIES ${lib})
  if(TARGET kvm_${name})
    target_link_libraries(kvm_${name} PUBLIC ${lib})
  endif()
endfunction()
