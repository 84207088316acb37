/* The C half of a warm interpreter. Shared declarations of its parts. */
#ifndef TILT_ZYGOTE_H
#define TILT_ZYGOTE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>

/* script.c: what a copy hands to Python; `strings` holds argc arguments (the script first) and envc variables, NUL after each */
PyObject *script_take(const char *strings, uint32_t argc, uint32_t envc);

#endif
