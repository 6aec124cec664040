"""Maximum-weight matching of requests to drafters with limited capacities (SPIN, arXiv 2503.15921)."""

import numpy as np
from numpy import ndarray
from scipy.optimize import linear_sum_assignment


def match(weights: ndarray, room: ndarray, free: int) -> ndarray:
    """The arm of every row ``[B]`` that maximises the sum of ``weights [B, A]``.

    ``room [A]``: how many rows an arm can have. The arm ``free`` (no speculation) has room for all, so every row gets
    one. If every row can have its best arm, that is the answer. Else it is an assignment problem with a column per
    place of a scarce arm; the gain of a place is what the row wins over its best arm with room for all. A row that
    wins nothing, or gets no place, takes that roomy arm.

    Raises ValueError for weights that are not finite.
    """
    if not np.isfinite(weights).all():
        raise ValueError("match: weights must be finite")
    count = len(weights)
    room = np.array(room)
    room[free] = count
    open_ = np.where(room > 0, weights, -np.inf)
    best = open_.argmax(1)
    if (np.bincount(best, minlength=len(room)) <= room).all():
        return best
    roomy = np.where(room >= count, weights, -np.inf)
    arms = roomy.argmax(1)
    columns = np.repeat(np.arange(len(room)), np.where(room < count, room, 0))
    gain = np.maximum(weights[:, columns] - roomy.max(1, keepdims=True), 0)
    rows, places = linear_sum_assignment(gain, maximize=True)
    won = gain[rows, places] > 0
    arms[rows[won]] = columns[places[won]]
    return arms
