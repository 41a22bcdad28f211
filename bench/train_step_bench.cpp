/// One training step of examples/train_gpt (forward, backward, clip, AdamW) against the sgemm rate
/// of the same threads. The two are timed in turns, so that whatever else runs on the machine slows
/// both alike; medians are printed.
///
///   train_step_bench [--layers 4] [--heads 4] [--width 128] [--context 64] [--batch 12] [--threads
///   2]
///                    [--rounds 60]
///
/// Floating point operations of a step, a multiplication and an addition being two:
///   tokens * (6 * matrices + 6 * layers * width * (context + 1)),  tokens = batch * context
/// matrices = 12 layers width^2 + vocabulary width (the tied embedding counts once, as the output;
/// the input is a lookup): two per element forward, four backward. Attention: a token at position t
/// meets t + 1 others, (context + 1) / 2 in the mean, in two products of `width` forward and four
/// backward. Norms, softmax, GELU, clipping and AdamW count as nothing.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <span>
#include <vector>

#include "examples/train_gpt/adamw.hpp"
#include "examples/train_gpt/model.hpp"

namespace {

struct options {
  train_gpt::model_config model{.layers = 4, .heads = 4, .width = 128, .context = 64};
  int batch = 12;
  int threads = 2;
  int rounds = 60;
};

options parse(int count, char** arguments) {
  options o;
  struct {
    char const* name;
    int* value;
  } const flags[] = {{"--layers", &o.model.layers}, {"--heads", &o.model.heads},
                     {"--width", &o.model.width},   {"--context", &o.model.context},
                     {"--batch", &o.batch},         {"--threads", &o.threads},
                     {"--rounds", &o.rounds}};
  for (int i = 1; i < count; i += 2) {
    auto const* const flag = std::find_if(std::begin(flags), std::end(flags), [&](auto const& f) {
      return std::strcmp(f.name, arguments[i]) == 0;
    });
    if (flag == std::end(flags) || i + 1 == count) {
      std::fprintf(stderr, "train_step_bench: unknown flag or no value: %s\n", arguments[i]);
      std::exit(2);
    }
    *flag->value = std::atoi(arguments[i + 1]);
  }
  return o;
}

template <class F>
double seconds(F&& f) {
  auto const start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Square sgemm on each thread of a team at once.
class sgemm_baseline {
 public:
  explicit sgemm_baseline(int threads) : team_{threads} {
    for (int i = 0; i < 3 * threads; ++i) {
      matrices_.emplace_back(size * size);
      std::ranges::fill(matrices_.back().elements(), 0.5f);
    }
  }
  void operator()() {
    team_.run([&](int rank) {
      auto const* const mine = matrices_.data() + 3 * rank;
      train_gpt::matmul(size, size, size, 1, {mine[0].data(), size}, {mine[1].data(), size}, 0,
                        mine[2].data(), size);
    });
  }
  double flops() const { return 2.0 * size * size * size * team_.size(); }

 private:
  static constexpr train_gpt::dim size = 1024;
  std::vector<train_gpt::aligned_buffer<float>> matrices_;
  train_gpt::thread_team team_;
};

double step_flops(options const& o) {
  double const width = o.model.width;
  double const matrices = 12.0 * o.model.layers * width * width + o.model.vocabulary * width;
  double const attention = 6.0 * o.model.layers * width * (o.model.context + 1);
  return static_cast<double>(o.batch) * o.model.context * (6 * matrices + attention);
}

}  // namespace

int main(int argc, char** argv) try {
  options const o = parse(argc, argv);
  train_gpt::gpt<float> model{o.model, o.batch, o.threads, 1};
  train_gpt::adamw<float> optimizer{model.tensors()};
  sgemm_baseline sgemm{o.threads};

  std::vector<std::uint8_t> text(static_cast<std::size_t>(o.batch * o.model.context + 1));
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>(i * i % 97);
  std::span<std::uint8_t const> const bytes{text};
  auto const inputs = bytes.first(bytes.size() - 1);
  auto const targets = bytes.last(bytes.size() - 1);

  float loss = 0;
  auto const gradients = [&] { loss = model.loss_and_gradients(inputs, targets); };
  auto const update = [&] {
    train_gpt::clip_by_global_norm(model.gradients(), 1.0);
    optimizer.step(1e-3);
  };
  std::vector<double> gradient_times;
  std::vector<double> update_times;
  std::vector<double> step_times;
  std::vector<double> sgemm_times;
  gradients();
  float const first_loss = loss;
  for (int round = 0; round < o.rounds; ++round) {
    gradient_times.push_back(seconds(gradients));
    update_times.push_back(seconds(update));
    step_times.push_back(gradient_times.back() + update_times.back());
    sgemm_times.push_back(seconds([&] { sgemm(); }));
  }
  if (!(loss < first_loss)) {
    std::fprintf(stderr, "train_step_bench: the loss did not fall: %g, then %g\n",
                 static_cast<double>(first_loss), static_cast<double>(loss));
    return 1;
  }
  double const step_rate = step_flops(o) / median(step_times) * 1e-9;
  double const sgemm_rate = sgemm.flops() / median(sgemm_times) * 1e-9;
  std::printf("layers %d heads %d width %d context %d batch %d threads %d, OpenBLAS core %s\n",
              o.model.layers, o.model.heads, o.model.width, o.model.context, o.batch, o.threads,
              openblas_get_corename());
  std::printf("step %.2f ms (gradients %.2f, clip and AdamW %.2f), %.3f GFLOP\n",
              median(step_times) * 1e3, median(gradient_times) * 1e3, median(update_times) * 1e3,
              step_flops(o) * 1e-9);
  std::printf("step %.1f GFLOP/s, sgemm %.1f GFLOP/s, ratio %.2f\n", step_rate, sgemm_rate,
              step_rate / sgemm_rate);
} catch (std::exception const& error) {
  std::fprintf(stderr, "train_step_bench: %s\n", error.what());
  return 1;
}
