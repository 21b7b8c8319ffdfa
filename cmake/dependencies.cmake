# Third-party libraries, as Debian 12 ships them (tools/apt-packages.txt). Why each: docs/decisions.

find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(Boost 1.81 REQUIRED)  # Boost::headers: Beast, Asio
find_package(OpenSSL 3.0 REQUIRED)
find_package(Protobuf 3.21 REQUIRED)
if(KVMEND_TESTS)
  find_package(GTest 1.12 REQUIRED)
endif()
if(KVMEND_BENCH)
  find_package(benchmark 1.7 REQUIRED)
endif()

# kvm_imported(<target> HEADER h [LIBRARY l] [DEFINES d...]): an imported target for a package
# whose own CMake files are missing or ask for more than we use.
function(kvm_imported target)
  cmake_parse_arguments(ARG "" "HEADER;LIBRARY" "DEFINES" ${ARGN})
  string(MAKE_C_IDENTIFIER ${target} id)
  find_path(${id}_INCLUDE ${ARG_HEADER} REQUIRED)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} INTERFACE ${${id}_INCLUDE})
  target_compile_definitions(${target} INTERFACE ${ARG_DEFINES})
  if(ARG_LIBRARY)
    find_library(${id}_LIBRARY ${ARG_LIBRARY} REQUIRED)
    target_link_libraries(${target} INTERFACE ${${id}_LIBRARY})
  endif()
  mark_as_advanced(${id}_INCLUDE ${id}_LIBRARY)
endfunction()

kvm_imported(xxhash::xxhash HEADER xxhash.h DEFINES XXH_INLINE_ALL)
kvm_imported(prometheus-cpp::core HEADER prometheus/registry.h LIBRARY prometheus-cpp-core)
if(KVMEND_TESTS)
  kvm_imported(rapidcheck::rapidcheck HEADER rapidcheck.h LIBRARY rapidcheck)
endif()
