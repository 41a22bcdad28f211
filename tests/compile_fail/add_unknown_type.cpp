#include <rivulet/rivulet.hpp>

struct known_matrix {
  float values[4];
};

struct unknown_matrix {
  float values[4];
};

template <>
struct rivulet::tensor_traits<known_matrix> {
  static constexpr bool is_view = false;
  static tensor_ref ref(known_matrix& m) { return tensor_ref::of(m.values, 4); }
};

void add(rivulet::parameter_set& params) {
  known_matrix known{};
  params.add("known", rivulet::layer(0), known);
#ifdef RIVULET_COMPILE_FAIL
  unknown_matrix unknown{};
  // expect: rivulet: this type is not known as a tensor; specialize rivulet::tensor_traits<T>
  params.add("unknown", rivulet::layer(1), unknown);
#endif
}
