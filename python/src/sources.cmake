# Read by ../CMakeLists.txt: what the extension module is made of.
set(KVMEND_PYTHON_SOURCES
  src/module.cc src/errors.cc src/options.cc src/slices.cc src/engine.cc src/kv_layout.cc src/kv.cc
  src/bootstrap.cc src/foreign.cc src/pool.cc)
set(KVMEND_PYTHON_DEPS runtime engine kv bootstrap memory wire env_posix)
