/* What a copy runs: its script, arguments and environment, made here because each Python function that is called instead would
 * cost a copy some twenty more pages that it shares with the interpreter and must copy to touch.
 *
 * Guarantees: `environ` is exactly what was asked for; the script is read as the payload.
 * Does not: judge the script. What cannot be read comes back as its errno. */
#define _GNU_SOURCE
#include "zygote.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 64 << 10 };
extern char **environ;

static const char *next(const char *text) {
    return text + strlen(text) + 1;
}

static PyObject *arguments(const char *at, uint32_t count) {
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint32_t i = 0; list && i < count; i++, at = next(at)) {
        PyObject *text = PyUnicode_DecodeFSDefault(at);
        if (!text || PyList_SetItem(list, (Py_ssize_t)i, text))
            return NULL;
    }
    return list;
}

/* Replaces the C environment; the same as a dict of bytes, for os.environ. */
static PyObject *environment(const char *at, uint32_t count) {
    char **array = calloc(count + 1, sizeof *array);
    PyObject *dict = PyDict_New();
    for (uint32_t i = 0; array && dict && i < count; i++, at = next(at)) {
        const char *equals = strchr(at, '=');
        PyObject *name = equals ? PyBytes_FromStringAndSize(at, equals - at) : NULL;
        PyObject *value = name ? PyBytes_FromString(equals + 1) : NULL;
        if (!(array[i] = strdup(at)) || !value || PyDict_SetItem(dict, name, value))
            return NULL;
        Py_DECREF(name);
        Py_DECREF(value);
    }
    environ = array;
    return array ? dict : NULL;
}

/* The absolute name of the script, as the interpreter gives it. */
static PyObject *absolute(const char *script) {
    char folder[4096], path[2 * sizeof folder];
    if (*script == '/')
        return PyUnicode_DecodeFSDefault(script);
    if (!getcwd(folder, sizeof folder))
        return PyErr_SetFromErrno(PyExc_OSError);
    snprintf(path, sizeof path, "%s%s%s", folder, folder[1] ? "/" : "", script);
    return PyUnicode_DecodeFSDefault(path);
}

/* Its bytes, or the errno that says why they cannot be had. */
static PyObject *source(const char *script) {
    size_t size = 0, room = BLOCK;
    ssize_t got = 0;
    char *bytes = malloc(room), *grown;
    int fd = open(script, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && bytes && (got = read(fd, bytes + size, room - size)) > 0) {
        size += (size_t)got;
        if (size < room)
            continue;
        if (!(grown = realloc(bytes, room *= 2)))
            free(bytes);
        bytes = grown;
    }
    PyObject *found = fd < 0 || got < 0 || !bytes ? PyLong_FromLong(errno) : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    if (fd >= 0)
        close(fd);
    free(bytes);
    return found;
}

/* (arguments, environment, path, source or errno) */
PyObject *script_take(const char *strings, uint32_t argc, uint32_t envc) {
    const char *variables = strings;
    for (uint32_t i = 0; i < argc; i++)
        variables = next(variables);
    PyObject *parts[] = {arguments(strings, argc), environment(variables, envc), absolute(strings), source(strings)};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!parts[i])
            return NULL;
    return PyTuple_Pack(4, parts[0], parts[1], parts[2], parts[3]);
}
