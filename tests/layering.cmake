# Tests that includes point one way, that one file alone accesses the environment, and that the
# graph of docs/design/architecture.md shows the includes. Fails, and names every violation.
cmake_minimum_required(VERSION 3.22)

# The components of the tree, lowest first. A file includes its own component and those of the lines
# above, but no other component of its own line. The component src/config is src/config*.h and .cpp.
# The component kernels includes its folders ops and formulas, kernels/cuda its folder cutlass, and
# src/numerics its folders cases and reference.
# Code that a lower component needs belongs there.
# Each folder of dist/ is a library of device collectives (dist/device_comm.h).
file(GLOB device_comms RELATIVE ${ROOT} ${ROOT}/dist/*/CMakeLists.txt)
list(TRANSFORM device_comms REPLACE "/CMakeLists.txt$" "")
string(REPLACE ";" " " device_comms "${device_comms}")
set(order
    "kernels"                                          # tensors, operations and devices
    "kernels/cpu kernels/cuda kernels/dry"
    "dist src/numerics"                                # both use kernels alone
    "${device_comms}"
    "src/system"                                       # files and folders of the operating system
    "src/io/format"                                    # the interface of a checkpoint's file format
    "src/io/hdf5"
    "src/build src/optimizers src/text"
    "src/provenance"                                   # of a program, its machines and its call
    "src/config"
    "src/params"
    "src/io src/model"
    "src/tokenizers"
    "src/templates"
    "src/data"
    "src/families"
    "src/evaluate"
    "src/analyse src/doctor src/generate src/train"
    "src/plan src/selftest"                            # both run training; src/plan on kernels/dry
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
  string(REGEX REPLACE "^kernels/cuda/cutlass$" "kernels/cuda" component "${component}")
  string(REGEX REPLACE "^src/numerics/(cases|reference)$" "src/numerics" component "${component}")
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
    if(NOT here STREQUAL there)
      list(APPEND includes_of_${here} "${there}")
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

# A line of the graph: COMPONENT -> COMPONENT... An arrow stands for itself and for the arrows of
# its target.
set(page docs/design/architecture.md)
file(STRINGS ${ROOT}/${page} graph REGEX "^[a-z/0-9]+ +-> ")
foreach(line ${graph})
  string(REGEX MATCHALL "[a-z/0-9]+" arrow "${line}")
  list(POP_FRONT arrow here)
  set(arrows_of_${here} ${arrow})
endforeach()
foreach(line ${order})
  string(REPLACE " " ";" line "${line}")
  foreach(here ${line})
    set(reached_from_${here} "")
    foreach(there ${arrows_of_${here}})
      list(APPEND reached_from_${here} ${there} ${reached_from_${there}})
      if(NOT there IN_LIST includes_of_${here})
        string(APPEND wrong "  ${page}: ${here} -> ${there}: no such include: remove the arrow\n")
      endif()
    endforeach()
    list(REMOVE_DUPLICATES includes_of_${here})
    foreach(there ${includes_of_${here}})
      if(NOT there IN_LIST reached_from_${here})
        string(APPEND wrong "  ${page}: ${here} includes ${there}: draw the arrow\n")
      endif()
    endforeach()
  endforeach()
endforeach()
if(wrong)
  message(FATAL_ERROR "includes point down the order of tests/layering.cmake alone:\n${wrong}")
endif()
