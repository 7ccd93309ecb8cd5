// How a program that runs under access_trace says what to trace.
#pragma once

#include <valgrind/valgrind.h>

#define ACCESS_TRACE_BEGINS VG_USERREQ_TOOL_BASE('F', 'S')
#define ACCESS_TRACE_ENDS (ACCESS_TRACE_BEGINS + 1)

#define ACCESS_TRACE_BEGIN(turn) \
  VALGRIND_DO_CLIENT_REQUEST_STMT(ACCESS_TRACE_BEGINS, turn, 0, 0, 0, 0)
#define ACCESS_TRACE_END() VALGRIND_DO_CLIENT_REQUEST_STMT(ACCESS_TRACE_ENDS, 0, 0, 0, 0, 0)
