# Builds tests/flags/fingerprints.cpp as ${program} by ${compiler} with ${flags}, and runs it.
separate_arguments(flags)
execute_process(
  COMMAND ${compiler} -std=c++20 ${flags} -I${root}/include -I${root}/tests
          ${root}/tests/flags/fingerprints.cpp -o ${program} -pthread
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${program} ${root}/tests/flags/fingerprints.txt COMMAND_ERROR_IS_FATAL ANY)
