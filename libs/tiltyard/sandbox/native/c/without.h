/* Test builds: -DTILTYARD_WITHOUT_<WALL>=1 leaves one defence out, so that a test can see the attack succeed that it stops.
 *
 * Guarantees: WITHOUT(WALL) is the constant 0 unless the compiler was told otherwise, so a helper that is used holds no trace of
 * it; a helper without a wall says so to --hash, and is refused wherever one that is used is looked for (toolchain.py).
 * What each wall is: tiltyard.sandbox.abuse.walls. */
#ifndef TILT_WITHOUT_H
#define TILT_WITHOUT_H

/* 1 when the name is defined as 1, else 0: the name is pasted, and only 1 makes a second argument of what comes of it. */
#define TILT_COMMA_1 0,
#define TILT_SECOND(first, second, ...) second
#define TILT_PICK(pasted) TILT_SECOND(pasted 1, 0, 0)
#define TILT_PASTE(value) TILT_PICK(TILT_COMMA_##value)
#define TILT_IS_ONE(value) TILT_PASTE(value)
#define WITHOUT(wall) TILT_IS_ONE(TILTYARD_WITHOUT_##wall)

#endif
