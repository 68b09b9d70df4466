# With -P: writes OUTPUT, the definition of build_info() (src/build_info.h), unless it has the same
# text already. ROOT is the source tree. BUILD_TYPE and the other fields of BuildInfo are texts.
include(${CMAKE_CURRENT_LIST_DIR}/commit.cmake)
sy_commit(${ROOT} commit dirty)
string(TOLOWER ${dirty} dirty)
set(fields "")
foreach(text BUILD_TYPE COMPILER FLAGS KERNEL_FLAGS INSTRUCTION_SETS CUDA_COMPILER)
  string(REPLACE "\\" "\\\\" value "${${text}}")
  string(REPLACE "\"" "\\\"" value "${value}")
  string(TOLOWER ${text} field)
  string(APPEND fields ",\n                              .${field} = \"${value}\"")
endforeach()
set(source "#include \"src/build_info.h\"

const sy::BuildInfo& sy::build_info() {
  static const BuildInfo info{.version = \"${VERSION}\",
                              .commit = \"${commit}\",
                              .dirty = ${dirty}${fields}};
  return info;
}
")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL source)
  file(WRITE ${OUTPUT} "${source}")
endif()
