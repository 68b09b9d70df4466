# Tests that includes point one way, and that one file alone accesses the environment. Fails, and
# names every violation.

# The components of the tree, lowest first. A file includes its own component and those of the lines
# above, but no other component of its own line. The component src/config is src/config*.h and .cpp.
# The component kernels includes its folders ops and formulas.
# Code that a lower component needs belongs there.
set(order
    "kernels"                                          # tensors, operations and devices
    "kernels/cpu kernels/cuda kernels/dry"
    "dist"
    "dist/nccl"                                        # defines dist/device_comm.h
    "src/system"                                       # files and folders of the operating system
    "src/io/format"                                    # the interface of a checkpoint's file format
    "src/io/hdf5"
    "src/build src/text"
    "src/provenance"                                   # of a program, its machines and its call
    "src/config"
    "src/params"
    "src/io src/model"
    "src/tokenizers"
    "src/data"
    "src/families"
    "src/evaluate"
    "src/analyse src/doctor src/generate src/train"
    "src/plan"                                         # runs training on kernels/dry
    "src/experiments"
    "src/cli")

set(height 0)
foreach(line ${order})
  math(EXPR height "${height} + 1")
  string(REPLACE " " ";" line "${line}")
  foreach(component ${line})
    set("height_of_${component}" ${height})
  endforeach()
endforeach()

# Sets `result` to the component of a path from the root; empty if it is in none.
function(component_of path result)
  get_filename_component(component "${path}" DIRECTORY)
  string(REGEX REPLACE "^kernels/(ops|formulas)$" "kernels" component "${component}")
  if(NOT DEFINED "height_of_${component}")
    string(REGEX REPLACE "^(src/[a-z]+)[_.][^/]*$" "\\1" component "${path}")
  endif()
  if(NOT DEFINED "height_of_${component}")
    set(component "")
  endif()
  set(${result} "${component}" PARENT_SCOPE)
endfunction()

set(wrong "")
file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/kernels/*.h ${ROOT}/kernels/*.cpp ${ROOT}/kernels/*.cu ${ROOT}/kernels/*.cuh
     ${ROOT}/dist/*.h ${ROOT}/dist/*.cpp ${ROOT}/src/*.h ${ROOT}/src/*.cpp)
foreach(file ${files})
  component_of(${file} here)
  if(NOT here)
    string(APPEND wrong "  ${file}: is in no component: add its folder to the order in tests/layering.cmake\n")
    continue()
  endif()
  set(seen_${here} TRUE)
  file(STRINGS ${ROOT}/${file} accesses REGEX "(getenv|setenv|putenv) *\\(")
  if(accesses AND NOT file STREQUAL kernels/environment.cpp)
    string(APPEND wrong "  ${file}: accesses the environment: use kernels/environment.h\n")
  endif()
  file(STRINGS ${ROOT}/${file} includes REGEX "^#include \"")
  foreach(line ${includes})
    string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" path "${line}")
    component_of(${path} there)
    if(NOT there)
      string(APPEND wrong "  ${file}: ${line}: names no component's file from the root of the tree\n")
    elseif(NOT here STREQUAL there AND NOT ${height_of_${there}} LESS ${height_of_${here}})
      string(APPEND wrong "  ${file}: ${line}: ${there} is not below ${here}\n")
    endif()
  endforeach()
endforeach()
foreach(line ${order})
  string(REPLACE " " ";" line "${line}")
  foreach(component ${line})
    if(NOT seen_${component})
      string(APPEND wrong "  ${component}: no source is in this component: take it out of the order in tests/layering.cmake\n")
    endif()
  endforeach()
endforeach()
if(wrong)
  message(FATAL_ERROR "includes point down the order of tests/layering.cmake alone:\n${wrong}")
endif()
