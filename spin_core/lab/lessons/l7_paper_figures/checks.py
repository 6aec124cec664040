"""Lesson 7's exercises: solutions, and how answers are checked."""

from spin_core.lab.lessons.checking import Exercise
from spin_core.lab.simulate.profiles import BYTES, DRAFTERS, HARDWARE, TARGETS


def least_seconds(parameters, bytes_per_value, bandwidth):
    return parameters * bytes_per_value / bandwidth


check_floor = Exercise(
    least_seconds, "Every weight crosses the bus once, however many rows there are. Compare with the published times.",
    cases=[(1e9, 4, 1e12), *((model.read, 2, card.bandwidth) for model in (*TARGETS.values(), DRAFTERS["68M"])
                             for card in HARDWARE.values())],
    rtol=0.01, atol=0, low=0,
    mistakes={
        "A weight has bytes_per_value bytes.": lambda n, size, bandwidth: n / bandwidth,
        "Every weight is read in full: multiply by its bytes.": lambda n, size, bandwidth: n / size / bandwidth,
        "That is passes per second: seconds are bytes over bytes per second.":
            lambda n, size, bandwidth: bandwidth / (n * size),
        "In seconds, not in milliseconds.": lambda n, size, bandwidth: 1000 * n * size / bandwidth,
        "A weight is read once; the 2 in 2 N n counts the arithmetic.":
            lambda n, size, bandwidth: 2 * n * size / bandwidth})


def ridge(arithmetic, stream, bytes_per_value):
    return arithmetic * bytes_per_value / (2 * stream)


check_ridge = Exercise(
    ridge, "Up to there a drafted token is verified for free, and cutting the batch saves nothing.",
    cases=[(card.arithmetic(dtype), card.stream, BYTES[dtype]) for card in HARDWARE.values() for dtype in card.flops],
    rtol=0.01, atol=1,
    mistakes={
        "A row does 2 N operations: a multiplication and an addition per weight.": lambda a, s, size: a * size / s,
        "Reading N values is N * bytes_per_value bytes.": lambda a, s, size: a / (2 * s),
        "More bytes take longer to read, so the arithmetic takes over later, not earlier.":
            lambda a, s, size: a / (2 * s * size),
        "That is the reciprocal.": lambda a, s, size: 2 * s / (a * size)})
