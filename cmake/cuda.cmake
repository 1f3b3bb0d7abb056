# CUDA without CMake's own CUDA language: nvcc is asked for objects, one command a .cu, so that the toolkit may be any
# folder that holds one (packaging/cuda_toolkit), and each object's registers, shared memory and spills are on record.
#   tandem_cuda_library(NAME SOURCES source…): static library; NAME.d/<source>.log is what ptxas said
#   tandem_cudart: headers and the static runtime, for host code that calls it
include_guard(GLOBAL)
find_program(TANDEM_NVCC nvcc HINTS /usr/local/cuda/bin DOC "CUDA compiler 13.0 (packaging/cuda_toolkit prints one)")
if(NOT TANDEM_NVCC)
  message(FATAL_ERROR "TANDEM_CUDA: no nvcc found. Set TANDEM_NVCC; packaging/cuda_toolkit gets one from PyPI.")
endif()
execute_process(COMMAND ${TANDEM_NVCC} --version OUTPUT_VARIABLE nvcc_version RESULT_VARIABLE nvcc_failed)
if(nvcc_failed OR NOT nvcc_version MATCHES "release 13\\.")
  message(FATAL_ERROR "TANDEM_CUDA: ${TANDEM_NVCC} is not CUDA 13: ${nvcc_version}")
endif()
execute_process(COMMAND ${TANDEM_NVCC} --dryrun -c -x cu /dev/null -o /dev/null ERROR_VARIABLE nvcc_plan)
string(REGEX MATCH "TOP=([^\n]+)" nvcc_plan "${nvcc_plan}")
get_filename_component(TANDEM_CUDA_ROOT "${CMAKE_MATCH_1}" ABSOLUTE)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  set(default_archs 87 110)
else()
  set(default_archs 75 80 86 89 90 120)
endif()
set(TANDEM_CUDA_ARCHS ${default_archs} CACHE STRING "Compute capabilities to compile for; PTX of the last one is kept for later cards")
set(nvcc_archs)
foreach(arch ${TANDEM_CUDA_ARCHS})
  list(APPEND nvcc_archs -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET TANDEM_CUDA_ARCHS -1 last_arch)
list(APPEND nvcc_archs -gencode arch=compute_${last_arch},code=compute_${last_arch})

# -fmad=false: one rounding an operation unless fmaf is written, as everywhere (kernels/README.md).
set(TANDEM_NVCC_FLAGS -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -t2 -lineinfo -Xptxas -v
    --Werror all-warnings -Xcompiler -Wall,-Wextra,-Wno-unknown-pragmas,-fPIC,-ffp-contract=off,-fvisibility=hidden)

function(tandem_cuda_library name)
  cmake_parse_arguments(R "" "" "SOURCES" ${ARGN})
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/${name}.d)
  file(MAKE_DIRECTORY ${dir})
  set(objects)
  foreach(source ${R_SOURCES})
    get_filename_component(stem ${source} NAME)
    set(object ${dir}/${stem}.o)
    # The seed and the temporary files' place take chance out of symbol names: a build can be repeated to the byte, in a
    # folder of the same name (nvcc hashes a source's whole path into them).
    add_custom_command(OUTPUT ${object} ${dir}/${stem}.log
      COMMAND ${CMAKE_SOURCE_DIR}/cmake/run_logged ${dir}/${stem}.log ${TANDEM_NVCC} ${TANDEM_NVCC_FLAGS} ${nvcc_archs}
              -frandom-seed ${stem} -objtemp -I${CMAKE_SOURCE_DIR} -MD -MF ${object}.dep -c ${source} -o ${object}
      DEPENDS ${source} ${CMAKE_SOURCE_DIR}/cmake/run_logged DEPFILE ${object}.dep
      COMMENT "Building CUDA object ${stem}.o" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(${name} STATIC ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

add_library(tandem_cudart INTERFACE)
target_include_directories(tandem_cudart SYSTEM INTERFACE ${TANDEM_CUDA_ROOT}/include)
target_link_libraries(tandem_cudart INTERFACE ${TANDEM_CUDA_ROOT}/lib/libcudart_static.a Threads::Threads ${CMAKE_DL_LIBS} rt)
