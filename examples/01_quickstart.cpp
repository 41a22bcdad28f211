/// Two workers fit a vector to data of which each has its own half, and exchange 4 bits per value
/// every 20 steps. Here the workers are threads; with another communicator they are processes.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>
#include <vector>

#include <rivulet/rivulet.hpp>

namespace {

constexpr int steps = 1000;
constexpr std::size_t size = 4096;

/// The best values for the data of worker `rank` alone are 2.5 or 3.5; for all data they are 3.
/// Returns how far the outer parameters are from 3 in the end.
float train(rivulet::comm::local comm) {
  float const own_best = comm.rank() == 0 ? 2.5f : 3.5f;
  std::vector<float> weight(size, 0.0f);
  std::vector<float> bias(1, 0.0f);

  rivulet::parameter_set params;
  params.add("weight", rivulet::layer(0), weight);
  params.add("bias", rivulet::head, bias);
  rivulet::streaming_diloco sync{params,
                                 comm,
                                 {.sync_every = 20, .overlap_steps = 2, .mixing = 0.0f},
                                 rivulet::partition::strided{.layers_per_fragment = 1},
                                 rivulet::codec::lloyd_max4{},
                                 rivulet::outer::nesterov{.learning_rate = 0.4f, .momentum = 0.9f}};
  rivulet::observe::byte_ledger ledger;

  for (int step = 0; step < steps; ++step) {
    for (float& w : weight) w -= 0.05f * (w - own_best);
    for (float& b : bias) b -= 0.05f * (b - own_best);
    ledger.add(sync.after_step());
  }
  ledger.add(sync.finish());

  sync.swap_outer();  // the model holds the outer parameters: evaluate these
  float worst = std::abs(bias[0] - 3.0f);
  for (float w : weight) worst = std::max(worst, std::abs(w - 3.0f));
  sync.swap_outer();
  std::printf("rank %d: off by at most %.4f, sent %llu bytes; float gradients would be %zu\n",
              comm.rank(), worst, static_cast<unsigned long long>(ledger.bytes_sent),
              steps * (size + 1) * sizeof(float));
  return worst;
}

}  // namespace

int main() {
  rivulet::comm::local_group group(2);
  float off[2] = {};
  std::thread other([&] { off[1] = train(group.communicator(1)); });
  off[0] = train(group.communicator(0));
  other.join();
  bool const good = off[0] == off[1] && off[0] < 0.05f;
  std::printf("%s\n", good ? "both workers hold the same answer" : "this went wrong");
  return good ? 0 : 1;
}
