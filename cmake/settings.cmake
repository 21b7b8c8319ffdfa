# Language, warnings, sanitizers, linker, ccache: everything every target of kvmend shares.
# The baseline is plain x86-64 (no -march); faster paths use target attributes on their functions.

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(THREADS_PREFER_PTHREAD_FLAG ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  set(KVMEND_CLANG ON)
else()
  set(KVMEND_CLANG OFF)
endif()

# ccache, set up so that it works with precompiled headers and across clones of the repository.
find_program(KVMEND_CCACHE ccache)
if(KVMEND_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${KVMEND_CCACHE})
endif()

if(KVMEND_TIDY)
  find_program(KVMEND_CLANG_TIDY NAMES clang-tidy-19 clang-tidy REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY ${KVMEND_CLANG_TIDY} --quiet)
  if(KVMEND_TIDY_DEEP)
    list(APPEND CMAKE_CXX_CLANG_TIDY
         --checks=clang-analyzer-core.*,clang-analyzer-cplusplus.*,clang-analyzer-deadcode.*)
  endif()
endif()

# Paths in logs and debug information begin at the repository: src/base/status.cc. (ccache hands the
# compiler paths that are relative to the build folder.)
file(RELATIVE_PATH up ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})

# kvm_settings carries the flags to our own targets only, never to an embedder.
add_library(kvm_settings INTERFACE)
target_include_directories(kvm_settings INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(kvm_settings INTERFACE KVMEND_VERSION="${PROJECT_VERSION}")
target_compile_options(kvm_settings INTERFACE
  -fPIC  # programs too (not -fPIE): they share the libraries' precompiled header
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -ffile-prefix-map=${up}=
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wimplicit-fallthrough -Wcast-qual -Wvla
  -Wno-missing-field-initializers  # designated initializers leave members to their defaults
  $<$<BOOL:${KVMEND_WERROR}>:-Werror>)
if(KVMEND_CLANG)
  target_compile_options(kvm_settings INTERFACE -Wthread-safety -Wunreachable-code-break
    "$<$<BOOL:${KVMEND_PCH}>:SHELL:-Xclang -fno-pch-timestamp>")
  target_link_options(kvm_settings INTERFACE -fuse-ld=lld)
else()
  # GCC 12's flow-based warnings have known false positives in std at -O2 and above; Clang's
  # analyzer and the sanitizers look for the same faults.
  target_compile_options(kvm_settings INTERFACE
    -Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
    -Wno-stringop-overread -Wno-free-nonheap-object -Wno-interference-size
    $<$<BOOL:${KVMEND_PCH}>:-fpch-preprocess>)
  find_program(KVMEND_MOLD mold)
  if(KVMEND_MOLD)
    target_link_options(kvm_settings INTERFACE -fuse-ld=mold)
  endif()
endif()

if(KVMEND_SANITIZE)
  target_compile_options(kvm_settings INTERFACE -fsanitize=${KVMEND_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(kvm_settings INTERFACE -fsanitize=${KVMEND_SANITIZE})
endif()
