/// \file
/// comm::gloo over loopback, by each kind of rendezvous. Ranks are threads, each with the
/// connections and threads that a process would have.

#include <filesystem>
#include <string>
#include <utility>

#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rivulet/comm/gloo.hpp>
#include <rivulet/comm/rendezvous.hpp>

#include "contract/communicator_contract.hpp"
#include "processes/same_bits.hpp"

namespace {

using namespace rivulet_test;
using rivulet::comm::gloo;

/// A port that nobody listens at now, and few will soon.
int free_port() {
  int const handle = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(handle, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::getsockname(handle, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(handle);
  return ntohs(address.sin_port);
}

/// A folder that is gone at the end.
class folder {
 public:
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "rivulet-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  folder(folder const&) = delete;
  folder& operator=(folder const&) = delete;
  ~folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string rendezvous() const { return "file:" + path_.string(); }

 private:
  std::filesystem::path path_;
};

/// Calls body(comm) on all ranks of group after group.
class groups {
 public:
  explicit groups(std::string rendezvous) : rendezvous_(std::move(rendezvous)) {}

  template <class Body>
  void run(int world, Body const& body) {
    std::string const name = std::to_string(made_++);
    run_threads(
        world,
        [&](int rank) {
          gloo comm(rivulet::comm::rendezvous(rendezvous_, rank, 20'000), rank, world,
                    {.network_interface = "lo", .connect_timeout_ms = 20'000, .group = name});
          body(comm);
        },
        [] {});
  }

  void contract() {
    communicator_contract([this](int world, auto const& body) { run(world, body); });
  }

 private:
  std::string rendezvous_;
  int made_ = 0;
};

TEST_CASE("comm::gloo keeps the contract of communicators: ranks meet in a folder") {
  folder const meet;
  groups(meet.rendezvous()).contract();
}

TEST_CASE("comm::gloo keeps the contract of communicators: ranks meet at rank 0") {
  groups("tcp:127.0.0.1:" + std::to_string(free_port())).contract();
}

TEST_CASE("comm::gloo keeps the contract of communicators: ranks meet in Redis") {
  std::string const port = std::to_string(free_port());
  std::string program = "redis-server";
  std::string options[] = {"--port", port, "--bind",     "127.0.0.1",
                           "--save", "",   "--loglevel", "warning"};
  std::vector<char*> arguments{program.data()};
  for (std::string& option : options) arguments.push_back(option.data());
  arguments.push_back(nullptr);
  pid_t server = 0;
  if (::posix_spawnp(&server, program.c_str(), nullptr, nullptr, arguments.data(), environ) != 0) {
    MESSAGE("skipped: no redis-server");
    return;
  }
  auto const listens = [&] {
    try {
      (void)rivulet::comm::rendezvous("redis:127.0.0.1:" + port, 0);
      return true;
    } catch (std::exception const&) {
      return false;
    }
  };
  for (int i = 0; i < 100 && !listens(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  groups("redis:127.0.0.1:" + port).contract();
  ::kill(server, SIGTERM);
  ::waitpid(server, nullptr, 0);
}

TEST_CASE("comm::gloo changes no bit of any codec") {
  folder const meet;
  groups runs(meet.rendezvous());
  for (int const world : {2, 3, 4}) {
    CAPTURE(world);
    runs.run(world, [](auto& comm) { same_bits_as_local(comm); });
  }
}

TEST_CASE("comm::gloo says which rank is missing, or what is wrong") {
  folder const meet;
  auto const store = rivulet::comm::rendezvous(meet.rendezvous(), 0);
  auto const alone = [&] {
    gloo const comm(store, 0, 2, {.network_interface = "lo", .connect_timeout_ms = 200});
  };
  CHECK(mentions(thrown_by<rivulet::comm_error>(alone).what(), "rank 0 of 2 cannot connect"));
  CHECK_THROWS_AS(gloo(store, 2, 2), rivulet::precondition_error);
  CHECK_THROWS_AS(gloo(store, 0, 1, {.connect_timeout_ms = 0}), rivulet::precondition_error);
}

TEST_CASE("a rendezvous is a folder, Redis or an address, and nothing else") {
  for (char const* wrong : {"", "file:", "dir:/tmp", "tcp:", "tcp:localhost", "tcp::80",
                            "tcp:localhost:0", "tcp:localhost:65536", "tcp:localhost:8o"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS((void)rivulet::comm::rendezvous(wrong, 0), rivulet::precondition_error);
  }
}

/// An environment variable that is gone at the end.
class variable {
 public:
  variable(char const* name, char const* value) : name_(name) { ::setenv(name, value, 1); }
  variable(variable const&) = delete;
  variable& operator=(variable const&) = delete;
  ~variable() { ::unsetenv(name_); }

 private:
  char const* name_;
};

TEST_CASE("rank and size come from the environment of the launcher") {
  using rivulet::comm::launch_from_environment;
  CHECK(launch_from_environment().rank == -1);
  variable const procid("SLURM_PROCID", "5");
  variable const tasks("SLURM_NTASKS", "8");
  CHECK(launch_from_environment().rank == 5);
  CHECK(launch_from_environment().size == 8);
  variable const ompi_rank("OMPI_COMM_WORLD_RANK", "0");
  variable const ompi_size("OMPI_COMM_WORLD_SIZE", "3");
  CHECK(launch_from_environment().size == 3);
  CHECK(launch_from_environment().rendezvous.empty());
  variable const rank("RANK", "1");
  {
    variable const size("WORLD_SIZE", "2");
    variable const address("MASTER_ADDR", "node7");
    variable const port("MASTER_PORT", "29500");
    CHECK(launch_from_environment().rank == 1);
    CHECK(launch_from_environment().size == 2);
    CHECK(launch_from_environment().rendezvous == "tcp:node7:29500");
    variable const agent("TORCHELASTIC_USE_AGENT_STORE", "True");
    CHECK(launch_from_environment().rendezvous == "tcp:node7:29501");
  }
  CHECK_THROWS_AS((void)launch_from_environment(), rivulet::precondition_error);  // no WORLD_SIZE
  variable const one("WORLD_SIZE", "1");
  CHECK_THROWS_AS((void)launch_from_environment(), rivulet::precondition_error);  // rank 1 of 1
}

}  // namespace
