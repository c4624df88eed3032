# Finds the C++ Actor Framework 0.17, for which Debian ships neither a CMake config nor a .pc file.
#
#   find_package(CAF 0.17.6 REQUIRED COMPONENTS core io openssl)
#
# Targets: CAF::core, CAF::io, CAF::openssl. Result: CAF_FOUND, CAF_VERSION, CAF_<component>_FOUND.
# CAF_ROOT (cache or environment) names an installation prefix to look into before the system's; the
# ThreadSanitizer preset points it at a CAF built with -fsanitize=thread (tools/build_tsan_caf.sh).

find_package(Threads REQUIRED)

if(NOT CAF_FIND_COMPONENTS)
  set(CAF_FIND_COMPONENTS core)
endif()

# find_package(CAF) searches CAF_ROOT first by itself (policy CMP0074).
find_path(CAF_INCLUDE_DIR caf/all.hpp)
mark_as_advanced(CAF_INCLUDE_DIR)

# CAF_VERSION in caf/config.hpp is one number: 1706 is 0.17.6.
if(CAF_INCLUDE_DIR)
  file(STRINGS ${CAF_INCLUDE_DIR}/caf/config.hpp caf_version_line REGEX "^#define CAF_VERSION [0-9]+")
  string(REGEX REPLACE ".* ([0-9]+).*" "\\1" caf_number "${caf_version_line}")
  math(EXPR caf_major "${caf_number} / 10000")
  math(EXPR caf_minor "(${caf_number} / 100) % 100")
  math(EXPR caf_patch "${caf_number} % 100")
  set(CAF_VERSION ${caf_major}.${caf_minor}.${caf_patch})
endif()

foreach(component IN LISTS CAF_FIND_COMPONENTS)
  find_library(CAF_${component}_LIBRARY caf_${component})
  mark_as_advanced(CAF_${component}_LIBRARY)
  if(CAF_INCLUDE_DIR AND CAF_${component}_LIBRARY)
    set(CAF_${component}_FOUND TRUE)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF
  REQUIRED_VARS CAF_INCLUDE_DIR
  VERSION_VAR CAF_VERSION
  HANDLE_COMPONENTS)

if(CAF_FOUND)
  foreach(component IN LISTS CAF_FIND_COMPONENTS)
    if(CAF_${component}_FOUND AND NOT TARGET CAF::${component})
      add_library(CAF::${component} UNKNOWN IMPORTED)
      set_target_properties(CAF::${component} PROPERTIES
        IMPORTED_LOCATION ${CAF_${component}_LIBRARY}
        INTERFACE_INCLUDE_DIRECTORIES ${CAF_INCLUDE_DIR})
      target_link_libraries(CAF::${component} INTERFACE Threads::Threads)
      if(NOT component STREQUAL "core" AND TARGET CAF::core)
        target_link_libraries(CAF::${component} INTERFACE CAF::core)
      endif()
    endif()
  endforeach()
endif()
