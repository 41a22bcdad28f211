#pragma once

// Macros that system headers and users' code are known to define: a header of ours that uses such a
// name breaks here. The standard library must not see them, so what our headers include of it comes
// first: a new standard header of theirs belongs into this list.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <compare>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if __has_include(<thrust/for_each.h>)
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#endif
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif
#if __has_include(<gloo/config.h>)
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#endif
#if __has_include(<gloo/rendezvous/redis_store.h>) && __has_include(<hiredis/hiredis.h>)
#define HIREDIS_NESTED_INCLUDE
#include <gloo/rendezvous/redis_store.h>
#endif

// clang-format off
#define RIVULET_TRAP this_name_is_a_macro_elsewhere +
// windows.h
#define min(a, b) RIVULET_TRAP
#define max(a, b) RIVULET_TRAP
#define small RIVULET_TRAP
#define near RIVULET_TRAP
#define far RIVULET_TRAP
#define interface RIVULET_TRAP
#define IN RIVULET_TRAP
#define OUT RIVULET_TRAP
#define ERROR RIVULET_TRAP
#define NO_ERROR RIVULET_TRAP
#define DELETE RIVULET_TRAP
#define TRUE RIVULET_TRAP
#define FALSE RIVULET_TRAP
#define CONST RIVULET_TRAP
#define VOID RIVULET_TRAP
#define OPTIONAL RIVULET_TRAP
// X.h
#define None RIVULET_TRAP
#define Bool RIVULET_TRAP
#define Status RIVULET_TRAP
#define Success RIVULET_TRAP
#define Always RIVULET_TRAP
// sys/sysmacros.h, sys/param.h, unistd.h, complex.h, termios.h, math.h, ctype.h
#define major(x) RIVULET_TRAP
#define minor(x) RIVULET_TRAP
#define MIN(a, b) RIVULET_TRAP
#define MAX(a, b) RIVULET_TRAP
#define I RIVULET_TRAP
#define B0 RIVULET_TRAP
#define OVERFLOW RIVULET_TRAP
#define DOMAIN RIVULET_TRAP
#define PI RIVULET_TRAP
#define _N RIVULET_TRAP
#define _B RIVULET_TRAP
#define _P RIVULET_TRAP
// users' code
#define N RIVULET_TRAP
#define BLOCK_SIZE RIVULET_TRAP
#define CHECK(x) RIVULET_TRAP
#define ASSERT(x) RIVULET_TRAP
#define DEBUG 1
// clang-format on
