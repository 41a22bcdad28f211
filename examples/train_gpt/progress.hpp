#pragma once

/// \file
/// The line that shows how a training goes on.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace train_gpt {

/// What is known of a running training after one of its steps.
struct progress_state {
  std::string_view method;
  std::size_t step;
  std::size_t steps;
  double loss;             // smoothed over some steps, nats per byte
  double tokens;           // trained on so far, over all workers
  double elapsed_seconds;  // since the first step began
  double stalled_seconds;  // of these, spent waiting for communication (mean of the workers)
};

/// `seconds` as 0:07, 12:34 or 1:02:03.
inline std::string duration_text(double seconds) {
  auto const total = static_cast<unsigned long>(std::llround(std::clamp(seconds, 0.0, 3.6e8)));
  auto const hours = total / 3600;
  auto const minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

/// The line for `state`, cut to `width` columns.
inline std::string progress_line(progress_state const& state, std::size_t width) {
  double const elapsed = std::max(state.elapsed_seconds, 1e-9);
  double const remaining =
      elapsed / static_cast<double>(state.step) * static_cast<double>(state.steps - state.step);
  auto const digits = fmt::formatted_size("{}", state.steps);
  auto line = fmt::format(
      "{:<13} step {:>{}}/{}  loss {:.3f}  {:.1f}k tokens/s  stalled {:.1f} %  ETA {}",
      state.method, state.step, digits, state.steps, state.loss, state.tokens / elapsed / 1e3,
      100.0 * state.stalled_seconds / elapsed, duration_text(remaining));
  if (line.size() > width) {
    line.resize(width);
  }
  return line;
}

/// Shows how training goes on: on a terminal one line that updates ten times a second, elsewhere
/// about twenty plain lines in a run. What cannot be written is lost; training goes on.
class progress {
 public:
  /// Writes to `stream`, which must outlive this; a terminal is recognized unless TERM is "dumb".
  explicit progress(std::FILE* stream) : stream_(stream), terminal_(is_terminal(stream)) {}

  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;

  /// Leaves the terminal at the beginning of a line.
  ~progress() { end_line(); }

  /// Call after every step, with steps in order.
  void show(progress_state const& state) {
    bool const last = state.step == state.steps;
    if (terminal_) {
      bool const first = state.step == 1;
      if (first || last || state.elapsed_seconds >= shown_at_ + 0.1) {
        // One column less than there are, or some terminals wrap.
        write(fmt::format("\r{}\x1b[K", progress_line(state, columns() - 1)));
        shown_at_ = state.elapsed_seconds;
        line_open_ = true;
      }
      if (last) {
        end_line();
      }
    } else if (last || state.step % std::max(std::size_t{1}, state.steps / 20) == 0) {
      write(progress_line(state, std::string::npos) + '\n');
    }
  }

  /// Ends a line that is being updated, so that other output does not run into it.
  void end_line() noexcept {
    if (std::exchange(line_open_, false)) {
      write("\n");
    }
  }

 private:
  void write(std::string const& text) noexcept {
    std::fputs(text.c_str(), stream_);
    std::fflush(stream_);
  }

  static bool is_terminal(std::FILE* stream) {
    char const* const type = std::getenv("TERM");
    bool const dumb = type == nullptr || std::string_view{type} == "dumb";
    return !dumb && isatty(fileno(stream)) != 0;
  }

  // Asked for at every update: windows are resized while a training runs.
  std::size_t columns() const {
    winsize size{};
    bool const known = ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col : 80;
  }

  std::FILE* stream_;
  bool terminal_;
  bool line_open_ = false;
  double shown_at_ = 0.0;
};

}  // namespace train_gpt
