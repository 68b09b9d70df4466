# With -P: writes OUTPUT, the definition of build_info() (src/build_info.h), unless it has the same
# text already.
#   ROOT              the source tree; the commit is empty if it is no git work tree of its own
#   VERSION, OPTIONS  text
set(commit "")
find_program(GIT git)
if(GIT)
  set(ENV{GIT_OPTIONAL_LOCKS} 0)
  execute_process(COMMAND ${GIT} -C ${ROOT} rev-parse --show-toplevel OUTPUT_VARIABLE top RESULT_VARIABLE failed
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(root "${ROOT}" REALPATH)
  if(NOT failed AND top STREQUAL root)
    execute_process(COMMAND ${GIT} -C ${ROOT} rev-parse HEAD OUTPUT_VARIABLE commit RESULT_VARIABLE failed
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${GIT} -C ${ROOT} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
    if(failed)
      set(commit "")
    elseif(NOT changes STREQUAL "")
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()
foreach(text VERSION OPTIONS)
  string(REPLACE "\\" "\\\\" ${text} "${${text}}")
  string(REPLACE "\"" "\\\"" ${text} "${${text}}")
endforeach()
set(source "#include \"src/build_info.h\"

const sy::BuildInfo& sy::build_info() {
  static const BuildInfo info{\"${VERSION}\", \"${commit}\", \"${OPTIONS}\"};
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
