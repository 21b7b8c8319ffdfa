# Read by ../CMakeLists.txt: what the extension module is made of.
set(KVMEND_PYTHON_SOURCES
  src/module.cc src/errors.cc src/options.cc src/slices.cc src/engine.cc)
set(KVMEND_PYTHON_DEPS runtime engine wire)
if(TARGET kvm::kv)
  list(APPEND KVMEND_PYTHON_SOURCES src/kv_layout.cc src/kv.cc)
  list(APPEND KVMEND_PYTHON_DEPS kv)
  set_source_files_properties(src/module.cc PROPERTIES COMPILE_DEFINITIONS KVMEND_PYTHON_KV)
endif()
