# sy_compile_together(TARGET SOURCES...): compiles eight sources of a folder at once, so that
# headers are read once. Kernels are never compiled together: the compiler contracts a*b+c
# depending on the code around it, and results would depend on the grouping.
function(sy_compile_together target)
  if(SWITCHYARD_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    # GCC treats the sources as headers, and warns of types with members of file-local types.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    foreach(source ${ARGN})
      get_filename_component(folder ${source} DIRECTORY)
      file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${folder})
      string(MAKE_C_IDENTIFIER "${folder}" component)
      math(EXPR count_${component} "0${count_${component}} + 1")
      math(EXPR group "(${count_${component}} - 1) / 8")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${component}_${group})
    endforeach()
  endif()
endfunction()

# sy_component(NAME [OPTIMIZE LEVEL] [DEPENDS COMPONENT...] [LIBRARIES TARGET...]
#              [INCLUDES FOLDER...]):
# the static library switchyard::NAME of the sources of this folder.
#   OPTIMIZE   the optimisation level of a release; default -O2
#   DEPENDS    components whose headers it includes
#   LIBRARIES  other libraries that its sources use
#   INCLUDES   folders of their headers
function(sy_component name)
  cmake_parse_arguments(PARSE_ARGV 1 the "" "OPTIMIZE" "DEPENDS;LIBRARIES;INCLUDES")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/main.cpp)
  add_library(sy_${name} STATIC ${sources})
  add_library(switchyard::${name} ALIAS sy_${name})
  sy_compile_together(sy_${name} ${sources})
  if(NOT the_OPTIMIZE)
    set(the_OPTIMIZE -O2)
  endif()
  target_compile_options(sy_${name} PRIVATE $<$<CONFIG:Release>:${the_OPTIMIZE}>)
  list(TRANSFORM the_DEPENDS PREPEND switchyard::)
  target_link_libraries(sy_${name} PUBLIC sy_options ${the_DEPENDS} PRIVATE sy_strict ${the_LIBRARIES})
  target_include_directories(sy_${name} PRIVATE ${the_INCLUDES})
endfunction()
