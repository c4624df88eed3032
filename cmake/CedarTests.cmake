find_package(GTest CONFIG REQUIRED)
include(GoogleTest)

# cedar_test(name SOURCES ... USES ... [TIMEOUT s] [LABELS ...]): one test program, every case a ctest entry.
# Tests find their data under CEDAR_SOURCE_DIR.
function(cedar_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;USES;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_USES} cedar_flags GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE CEDAR_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  # Parameter values stay out of the names: printed as bytes they would differ from run to run.
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
