# The files of `cmake --install`, the Debian package that cpack makes of them, and the source
# tarball.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # the tests are not for it
include(GNUInstallDirs)
install(TARGETS switchyard RUNTIME)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard)
install(PROGRAMS launch/mpirun.sh launch/mpirun-filter.pl launch/supervise.sh launch/collect-leftovers.sh
                 launch/slurm.sbatch DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard/launch)
install(FILES launch/supervision.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard/launch)
install(DIRECTORY launch/sites DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard/launch USE_SOURCE_PERMISSIONS)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})  # its pictures, and what it points to
# The program knows its own options.
install(CODE [[
  foreach(shell bash zsh fish)
    execute_process(COMMAND "$<TARGET_FILE:switchyard>" completion ${shell}
                    OUTPUT_FILE "$<TARGET_FILE_DIR:switchyard>/completion.${shell}" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  execute_process(COMMAND "$<TARGET_FILE:switchyard>" help --man
                  OUTPUT_FILE "$<TARGET_FILE_DIR:switchyard>/switchyard.1" COMMAND_ERROR_IS_FATAL ANY)
]])
install(FILES ${CMAKE_BINARY_DIR}/switchyard.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${CMAKE_BINARY_DIR}/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME switchyard)
install(FILES ${CMAKE_BINARY_DIR}/completion.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME switchyard.fish)
# Debian's zsh looks for those of packages in another folder than for those of /usr/local.
install(CODE [[
  set(folder site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(folder vendor-completions)
  endif()
  file(INSTALL "$<TARGET_FILE_DIR:switchyard>/completion.zsh" RENAME _switchyard
       DESTINATION "${CMAKE_INSTALL_PREFIX}/share/zsh/${folder}")
]])
# A modulefile for Environment Modules and Lmod. It contains the prefix, so that a site may copy it
# to its own folder of modulefiles.
install(CODE "
  set(version ${PROJECT_VERSION})
  set(bin ${CMAKE_INSTALL_BINDIR})
  set(data ${CMAKE_INSTALL_DATADIR})
  get_filename_component(prefix \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
  configure_file(\"${CMAKE_SOURCE_DIR}/cmake/modulefile.in\" \"${CMAKE_BINARY_DIR}/modulefile\" @ONLY)
")
install(FILES ${CMAKE_BINARY_DIR}/modulefile DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard/modulefiles/switchyard RENAME ${PROJECT_VERSION})
# A package that find_package(switchyard) finds. It computes the prefix from its own path.
include(CMakePackageConfigHelpers)
set(config_folder ${CMAKE_INSTALL_DATADIR}/switchyard/cmake)
configure_package_config_file(cmake/switchyardConfig.cmake.in ${CMAKE_BINARY_DIR}/switchyardConfig.cmake INSTALL_DESTINATION ${config_folder}
                              PATH_VARS CMAKE_INSTALL_BINDIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/switchyardConfigVersion.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${CMAKE_BINARY_DIR}/switchyardConfig.cmake ${CMAKE_BINARY_DIR}/switchyardConfigVersion.cmake DESTINATION ${config_folder})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME switchyard)
set(CPACK_PACKAGE_CONTACT "The Switchyard authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trainer of mixture-of-experts decoders on MPI ranks")
set(CPACK_STRIP_FILES TRUE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin")  # the launcher
if("${MPI_C_LIBRARIES}" MATCHES "mpich")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "mpich")
endif()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "gnuplot-nox")

# `cpack --config CPackSourceConfig.cmake` makes a tarball of the tree without the files of builds
# and runs. The patterns begin with the source folder, so that its own path does not match them.
# CPACK_PACKAGING_INSTALL_PREFIX would be a folder in the tarball. Debian packages have /usr anyway.
set(CPACK_VERBATIM_VARIABLES TRUE)
set(CPACK_SOURCE_GENERATOR TGZ)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/source_commit.cmake)
set(CPACK_SOURCE_PACKAGE_FILE_NAME switchyard-${PROJECT_VERSION})
set(escape "([][+.*()^$?|\\])")
string(REGEX REPLACE "${escape}" "\\\\\\1" source "${CMAKE_SOURCE_DIR}")
string(REGEX REPLACE "${escape}" "\\\\\\1" build "${CMAKE_BINARY_DIR}")
set(CPACK_SOURCE_IGNORE_FILES "^${build}/" "^${source}/(\\.git|\\.cache|build[^/]*|runs|data)(/|$)" "\\.swp$" "/__pycache__/")
include(CPack)
