# cpack runs this script. Writes the commit of the source tree into the tarball of the sources, in
# which git cannot tell it. Other packages have no cmake/commit.txt and stay as they are.
file(GLOB_RECURSE files ${CPACK_TEMPORARY_DIRECTORY}/commit.txt)
list(FILTER files INCLUDE REGEX "/cmake/commit[.]txt$")
foreach(file ${files})
  include(${CMAKE_CURRENT_LIST_DIR}/commit.cmake)
  sy_commit(${CMAKE_CURRENT_LIST_DIR}/.. commit dirty)
  if(dirty)
    string(APPEND commit "-dirty")
  endif()
  file(WRITE ${file} "${commit}\n")
endforeach()
