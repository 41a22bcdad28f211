/// \file
/// comm::mpi. All ranks run this program (mpirun), and each its own copy of every test.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <rivulet/comm/mpi.hpp>

#include "contract/communicator_contract.hpp"
#include "processes/same_bits.hpp"

namespace {

using rivulet::comm::mpi;

int ranks_of_world() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

TEST_CASE("comm::mpi keeps the contract of communicators") {
  rivulet_test::communicator_contract(
      [](int, auto const& body) {
        mpi comm;
        body(comm);
      },
      {ranks_of_world()});
}

TEST_CASE("comm::mpi changes no bit of any codec") {
  mpi comm;
  rivulet_test::same_bits_as_local(comm);
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  int const status = doctest::Context(argc, argv).run();
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
}
