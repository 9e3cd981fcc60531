# libhalfbyte_cuda.so: the CUDA kernels, free of torch, for every GPU generation of build_cuda.py. Without nvcc it is
# left out with a message; -DHALFBYTE_CUDA=ON makes that an error, OFF leaves it out silently.
set(HALFBYTE_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON, OFF")
set_property(CACHE HALFBYTE_CUDA PROPERTY STRINGS AUTO ON OFF)

if(HALFBYTE_CUDA)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  set(build_cuda ${CMAKE_CURRENT_LIST_DIR}/build_cuda.py)
  execute_process(COMMAND ${Python_EXECUTABLE} ${build_cuda} --find
    OUTPUT_VARIABLE nvcc ERROR_VARIABLE reason OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE missing)
  if(missing AND HALFBYTE_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA kernels are left out: ${reason}")
  elseif(missing)
    message(FATAL_ERROR "HALFBYTE_CUDA is ON, but: ${reason}")
  else()
    message(STATUS "CUDA kernels are built with ${nvcc}")
    file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/../csrc/int4_gemm/cuda/*)
    set(library ${CMAKE_CURRENT_BINARY_DIR}/libhalfbyte_cuda.so)
    add_custom_command(OUTPUT ${library}
      COMMAND ${Python_EXECUTABLE} ${build_cuda} --nvcc ${nvcc} --output ${library}
      DEPENDS ${cuda_sources} ${build_cuda} USES_TERMINAL VERBATIM)
    add_custom_target(halfbyte_cuda ALL DEPENDS ${library})
    install(FILES ${library} DESTINATION halfbyte_kernels)

    if(HALFBYTE_TORCH)
      # The operators for CUDA tensors: builds against any torch, loads into one with CUDA.
      add_library(halfbyte_torch_cuda MODULE ${CMAKE_CURRENT_LIST_DIR}/../csrc/torch/int4_gemm_cuda.cpp)
      add_dependencies(halfbyte_torch_cuda halfbyte_cuda)
      target_include_directories(halfbyte_torch_cuda PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../csrc)
      target_include_directories(halfbyte_torch_cuda SYSTEM PRIVATE ${torch}/include)
      target_compile_definitions(halfbyte_torch_cuda PRIVATE TORCH_TARGET_VERSION=0x020a000000000000)
      target_compile_options(halfbyte_torch_cuda PRIVATE -Wall -Wextra)
      target_link_libraries(halfbyte_torch_cuda PRIVATE ${library} ${torch}/lib/libtorch_cpu.so ${CMAKE_DL_LIBS})
      target_link_options(halfbyte_torch_cuda PRIVATE -static-libstdc++ -static-libgcc -s)
      set_target_properties(halfbyte_torch_cuda PROPERTIES INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
      install(TARGETS halfbyte_torch_cuda LIBRARY DESTINATION halfbyte_kernels)
    endif()
  endif()
endif()
