# The CUDA back end (CEDAR_CUDA=ON): compiler, runtime library, flags.
#
# Kernels use wgmma, which only the architecture-specific target sm_90a has; "real" leaves PTX out, which would be
# of no use to other chips. The CUDA runtime is linked statically and libcuda is not linked: a program starts on a
# machine without a driver and finds no device there.

if(NOT CMAKE_CUDA_ARCHITECTURES OR CMAKE_CUDA_ARCHITECTURES STREQUAL "90a")
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
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
