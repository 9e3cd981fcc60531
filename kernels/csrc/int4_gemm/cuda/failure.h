// How a C function of this library says what was wrong.
#pragma once

#include <stddef.h>

#include <cstdarg>
#include <cstdio>

namespace halfbyte::cuda {

// Writes the message (printf) and returns -1.
__attribute__((format(printf, 3, 4))) inline int fail(char* error, size_t error_size, const char* text, ...) {
  if (error != nullptr && error_size > 0) {
    va_list values;
    va_start(values, text);
    std::vsnprintf(error, error_size, text, values);
    va_end(values);
  }
  return -1;
}

}  // namespace halfbyte::cuda
