#include "contract/all_codecs.hpp"
#include "contract/codec_contract.hpp"

namespace {

#define CONTRACT(codec)                                                  \
  TEST_CASE("codec contract: " #codec) {                                 \
    rivulet_test::codec_contract(rivulet_test::codecs::codec().erase()); \
  }
RIVULET_TEST_CODECS(CONTRACT)

}  // namespace
