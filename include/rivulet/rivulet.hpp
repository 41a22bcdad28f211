#pragma once

/// \file
/// The library for the host. Transports over processes and executors that need a library of their
/// own (comm/*.hpp, exec/openmp.hpp) are included by name.

#include <rivulet/adapters/standard.hpp>
#include <rivulet/codec/any.hpp>
#include <rivulet/codec/array.hpp>
#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/chunked_top_k.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/error_feedback.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/fp16.hpp>
#include <rivulet/codec/fp8.hpp>
#include <rivulet/codec/int2.hpp>
#include <rivulet/codec/int8.hpp>
#include <rivulet/codec/mx.hpp>
#include <rivulet/codec/nvfp4.hpp>
#include <rivulet/codec/refit.hpp>
#include <rivulet/codec/sign.hpp>
#include <rivulet/codec/stochastic.hpp>
#include <rivulet/codec/table16.hpp>
#include <rivulet/codec/top_k.hpp>
#include <rivulet/comm/local.hpp>
#include <rivulet/engine/data_parallel.hpp>
#include <rivulet/engine/streaming_diloco.hpp>
#include <rivulet/exec/host.hpp>
#include <rivulet/observe/byte_ledger.hpp>
#include <rivulet/outer/nesterov.hpp>
#include <rivulet/outer/sgd.hpp>
#include <rivulet/partition/balanced.hpp>
#include <rivulet/partition/by_name.hpp>
#include <rivulet/partition/sequential.hpp>
#include <rivulet/partition/strided.hpp>
#include <rivulet/partition/whole_model.hpp>
#include <rivulet/version.hpp>
