# tandem_room(NAME [ROOMS room...] [LIBS target...]): static library `tandem_NAME` from every .cc of the
# current folder. ROOMS are the rooms it may include; LIBS are third-party targets.
set(TANDEM_WARNINGS -Wall -Wextra -Wconversion -Wno-sign-conversion -Werror)
# g++ 12 at -O3 reports impossible overlaps inside std::string::operator+ (GCC bug 105651) and members of
# std::optional and std::variant as maybe uninitialized.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND TANDEM_WARNINGS -Wno-restrict -Wno-maybe-uninitialized)
endif()
add_library(tandem_flags INTERFACE)
target_compile_options(tandem_flags INTERFACE ${TANDEM_WARNINGS} -fvisibility=hidden)
target_include_directories(tandem_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
if(TANDEM_SANITIZE)
  add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
endif()
# What is shipped is what the tests of preset release run. Debug lines go into a package of their own; the maps make
# objects the same wherever the tree lies (the second one is for ccache, which makes paths relative to build/PRESET).
if(TANDEM_SHIPPED)
  add_compile_options(-g1 -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
                      -ffile-prefix-map=${CMAKE_SOURCE_DIR}=. -ffile-prefix-map=../..=.)
endif()
add_compile_definitions(TANDEM_VERSION="${PROJECT_VERSION}")

function(tandem_room name)
  cmake_parse_arguments(R "" "" "ROOMS;LIBS;EXCLUDE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  foreach(pattern ${R_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX "${pattern}")
  endforeach()
  list(TRANSFORM R_ROOMS PREPEND tandem_)
  if(sources)
    add_library(tandem_${name} STATIC ${sources})
    target_link_libraries(tandem_${name} PRIVATE tandem_flags ${R_ROOMS} ${R_LIBS})
  else()
    add_library(tandem_${name} INTERFACE)
    target_link_libraries(tandem_${name} INTERFACE ${R_ROOMS} ${R_LIBS})
  endif()
endfunction()

# tandem_tests(ROOM [ROOMS room...] [LIBS target...]): one Catch2 program `ROOM_test` from *_test.cc here,
# registered with ctest under the label `unit`.
function(tandem_tests room)
  cmake_parse_arguments(R "" "" "ROOMS;LIBS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(NOT sources)
    return()
  endif()
  list(TRANSFORM R_ROOMS PREPEND tandem_)
  add_executable(${room}_test ${sources})
  target_link_libraries(${room}_test PRIVATE tandem_flags tandem_catch_main ${R_ROOMS} ${R_LIBS})
  target_compile_definitions(${room}_test PRIVATE TANDEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(NOT R_LABELS)
    set(R_LABELS unit)
  endif()
  add_test(NAME ${room} COMMAND ${room}_test)
  set_tests_properties(${room} PROPERTIES LABELS "${R_LABELS}")
endfunction()
