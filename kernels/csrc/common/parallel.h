// How a kernel asks its caller for threads. The core owns no pool: inside torch the runner is torch's own pool, so
// that one set of threads serves the whole process; in a C program it is whatever the caller passes.
#pragma once

#include <cstdint>

extern "C" {

// Runs task(argument, i) for every i in [0, tasks), in any order and in parallel, and returns when all are done.
typedef struct hb_runner {
  void* context;
  int threads;  // how many tasks may run at once; 1 means that run is not called
  void (*run)(void* context, int64_t tasks, void (*task)(void* argument, int64_t index), void* argument);
} hb_runner;
}

namespace halfbyte {

// Calls body(index) for every index below tasks; runner may be null (serial).
template <class Body>
void parallel(const hb_runner* runner, int64_t tasks, const Body& body) {
  if (runner == nullptr || runner->threads <= 1 || tasks <= 1) {
    for (int64_t index = 0; index < tasks; ++index) body(index);
    return;
  }
  runner->run(
      runner->context, tasks,
      [](void* argument, int64_t index) { (*static_cast<const Body*>(argument))(index); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

inline int threads_of(const hb_runner* runner) { return runner == nullptr || runner->threads < 1 ? 1 : runner->threads; }

}  // namespace halfbyte
