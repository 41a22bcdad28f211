# Checks one case; CMakeLists.txt beside it says how.
set(compile ${compiler} -std=c++20 -fsyntax-only -I ${include} ${source})

execute_process(COMMAND ${compile} RESULT_VARIABLE status ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "Does not compile without the mistake:\n${output}")
endif()

file(STRINGS ${source} mistakes REGEX "^// mistake: ")
list(TRANSFORM mistakes REPLACE "^// mistake: " "")
execute_process(COMMAND ${compile} -D RIVULET_COMPILE_FAIL ${mistakes}
                RESULT_VARIABLE status ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "Compiles in spite of the mistake")
endif()

file(STRINGS ${source} expected REGEX "// expect: ")
if(NOT expected)
  message(FATAL_ERROR "No line of the file has '// expect: TEXT'")
endif()
foreach(text IN LISTS expected)
  string(REGEX REPLACE "^.*// expect: " "" text "${text}")
  string(FIND "${output}" "${text}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "The message lacks '${text}':\n${output}")
  endif()
endforeach()
