#include <rivulet/rivulet.hpp>

rivulet::codec::error_feedback<rivulet::codec::sign<>> good;
#ifdef RIVULET_COMPILE_FAIL
// expect: rivulet: error_feedback<error_feedback<C>> has two residuals for one message
rivulet::codec::error_feedback<rivulet::codec::error_feedback<rivulet::codec::sign<>>> bad;
#endif
