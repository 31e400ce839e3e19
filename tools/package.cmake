# What an installed moeflux has besides program and library: manual pages, completions, the story model, units for
# systemd, a CMake package; and a Debian package of all of it (cpack).
set(MF_DATA ${CMAKE_INSTALL_DATADIR}/moeflux)
install(DIRECTORY models/stories-moe DESTINATION ${MF_DATA}/models)
install(FILES docs/serve/moeflux.service docs/serve/moeflux.socket docs/serve/grafana.json DESTINATION ${MF_DATA}/serve)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Made by the program itself, from the tables of its options.
install(CODE "
  set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
  foreach(what man:man/man1 completions:moeflux/completions)
    string(REPLACE \":\" \";\" what \"\${what}\")
    list(GET what 0 kind)
    list(GET what 1 folder)
    execute_process(COMMAND $<TARGET_FILE:moeflux_app> help --\${kind} \"\${share}/\${folder}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(MAKE_DIRECTORY \"\${share}/bash-completion/completions\" \"\${share}/zsh/site-functions\"
       \"\${share}/fish/vendor_completions.d\")
  file(RENAME \"\${share}/moeflux/completions/moeflux.bash\" \"\${share}/bash-completion/completions/moeflux\")
  file(RENAME \"\${share}/moeflux/completions/_moeflux\" \"\${share}/zsh/site-functions/_moeflux\")
  file(RENAME \"\${share}/moeflux/completions/moeflux.fish\" \"\${share}/fish/vendor_completions.d/moeflux.fish\")
  file(REMOVE_RECURSE \"\${share}/moeflux/completions\")
")

# find_package(moeflux): through moeflux.pc, which finds its place from where it lies.
include(CMakePackageConfigHelpers)
set(MF_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/moeflux)
configure_package_config_file(tools/moefluxConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/moefluxConfig.cmake
                              INSTALL_DESTINATION ${MF_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/moefluxConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/moefluxConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/moefluxConfigVersion.cmake
        DESTINATION ${MF_CMAKE_DIR})

set(CPACK_PACKAGE_NAME moeflux)
set(CPACK_PACKAGE_CONTACT "the moeflux maintainers <maintainers@moeflux.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Runs Mixture-of-Experts language models larger than memory")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
include(CPack)
