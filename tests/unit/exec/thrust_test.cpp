#include <doctest/doctest.h>
#include <thrust/execution_policy.h>
#include <thrust/system/omp/execution_policy.h>

#include <rivulet/exec/thrust.hpp>

#include "contract/executor_contract.hpp"

TEST_CASE("exec::thrust visits every tile once, under the policies for host and OpenMP") {
  rivulet_test::executor_contract(rivulet::exec::thrust{thrust::host});
  rivulet_test::executor_contract(rivulet::exec::thrust{thrust::omp::par});
}
