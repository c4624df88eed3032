# One place for the compiler's settings and for what a room is.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
# A room finds the packages it uses; whoever links the room must see their targets, too.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
# -g1 keeps line tables and back traces at a fifth of the link time and object size of -g.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
# Beast and CAF translation units need 1-2 GB each: at most two of them at a time.
set_property(GLOBAL PROPERTY JOB_POOLS heavy=2)

find_package(Threads REQUIRED)

add_library(cedar_flags INTERFACE)
target_include_directories(cedar_flags INTERFACE ${CMAKE_SOURCE_DIR})
# x86-64-v2 is the floor for every file; faster paths are separate files chosen at run time.
# No contraction: a row's result may not depend on how a loop was vectorised.
# Files compiled by nvcc have flags of their own: it splits them, and its own output meets few of these warnings.
target_compile_options(cedar_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wold-style-cast;-Wno-missing-field-initializers>"
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>>:-march=x86-64-v2>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${CEDAR_WERROR}>>:-Werror>
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-ffp-contract=off;--expt-relaxed-constexpr>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${CEDAR_WERROR}>>:-Werror=all-warnings>")
target_compile_definitions(cedar_flags INTERFACE $<$<BOOL:${CEDAR_CUDA}>:CEDAR_HAVE_CUDA>)
if(CEDAR_SANITIZE)
  # null: CAF's headers bind references to null in function-based actors, on purpose.
  # maybe-uninitialized: g++ 12 warns falsely about instrumented libstdc++ code (std::regex among others).
  target_compile_options(cedar_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${CEDAR_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>"
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null>
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(cedar_flags INTERFACE -fsanitize=${CEDAR_SANITIZE})
endif()
if(CEDAR_FUZZ)
  target_compile_options(cedar_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_link_libraries(cedar_flags INTERFACE Threads::Threads)

# cedar_room(name SOURCES ... USES ...): the static library cedar_<name>, with cedar::<name> as alias.
function(cedar_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;PRIVATE_USES" ${ARGN})
  add_library(cedar_${name} STATIC ${ARG_SOURCES})
  add_library(cedar::${name} ALIAS cedar_${name})
  target_link_libraries(cedar_${name} PUBLIC cedar_flags ${ARG_USES} PRIVATE ${ARG_PRIVATE_USES})
endfunction()
