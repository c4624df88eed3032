# What `cmake --install` lays down, and the .deb that `cpack -G DEB` makes of it.

include(GNUInstallDirs)
install(TARGETS cedar RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# Where the program looks for its demo model: beside itself, in ../share/cedar.
install(DIRECTORY config/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/cedar)
install(DIRECTORY config/examples DESTINATION ${CMAKE_INSTALL_DATADIR}/cedar)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(CEDAR_CLUSTER)
  install(FILES docker/systemd/cedar.service docker/systemd/cedar-node@.service DESTINATION lib/systemd/system)
endif()

set(CPACK_PACKAGE_NAME cedar)
set(CPACK_PACKAGE_VENDOR Cedar)
set(CPACK_PACKAGE_CONTACT "Cedar <cedar@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Serves DeepSeek-V4.1-Flash as a pipeline of actors over a cluster")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# UCX loads its transports at run time, where dpkg-shlibdeps does not look.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libucx0")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_SOURCE_DIR}/docker/systemd/postinst")
include(CPack)
