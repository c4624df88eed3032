# The CUDA back end (CEDAR_CUDA=ON): compiler, runtime library, flags. Without it, but with nvcc on this machine,
# CEDAR_CUDA_CHECK compiles its files and links them nowhere: machines without a GPU notice what no longer compiles.
#
# Two targets: sm_90a for Hopper, whose wgmma only this architecture-specific target has ("real": its PTX would be of no use
# to other chips), and sm_80 with PTX, plain kernels for every other GPU from there on. The CUDA runtime is linked statically and libcuda is not linked: a program starts on a
# machine without a driver and finds no device there.

if(CEDAR_SANITIZE OR CEDAR_FUZZ)
  set(CEDAR_CUDA_CHECK OFF)
endif()
if(NOT CEDAR_CUDA AND CEDAR_CUDA_CHECK)
  find_program(CEDAR_NVCC nvcc PATHS /usr/local/cuda/bin)
  mark_as_advanced(CEDAR_NVCC)
  if(NOT CEDAR_NVCC)
    message(STATUS "nvcc not found: the CUDA back end is not compiled")
    set(CEDAR_CUDA_CHECK OFF)
  elseif(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CEDAR_NVCC})
  endif()
endif()

# cedar_cuda_check(room SOURCES ...): files of the CUDA back end, compiled only.
function(cedar_cuda_check room)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  if(CEDAR_CUDA OR NOT CEDAR_CUDA_CHECK)
    return()
  endif()
  add_library(cedar_${room}_cuda_check OBJECT ${ARG_SOURCES})
  target_link_libraries(cedar_${room}_cuda_check PRIVATE cedar_flags CUDA::cudart_static)
  target_compile_definitions(cedar_${room}_cuda_check PRIVATE CEDAR_HAVE_CUDA)
endfunction()
if(NOT CEDAR_CUDA AND NOT CEDAR_CUDA_CHECK)
  return()
endif()

if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
elseif(CMAKE_CUDA_ARCHITECTURES STREQUAL "90a")
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
if("${CMAKE_CUDA_ARCHITECTURES}" MATCHES "90a")
  add_compile_definitions(CEDAR_CUDA_HOPPER)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
# CMake 3.25 does not know the compiler's flag for C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG -lineinfo")
