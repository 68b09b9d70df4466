# The files of `cmake --install`, and the Debian package that cpack makes of them.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # the tests are not for it
include(GNUInstallDirs)
install(TARGETS switchyard RUNTIME)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard)
install(PROGRAMS launch/mpirun.sh launch/mpirun-filter.pl launch/slurm.sbatch DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard/launch)
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

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME switchyard)
set(CPACK_PACKAGE_CONTACT "The Switchyard authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trainer of mixture-of-experts decoders on MPI ranks")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES TRUE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "gnuplot-nox")
include(CPack)
