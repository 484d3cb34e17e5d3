"""Letters of array shapes, and array types named by them.

    B lanes              parallel streams of text, each with its own memory
    T segment length     tokens processed at once
    U targets            the last U tokens have one; fewer than T only with
                         `context_len`
    M memory length      remembered positions that a layer can attend to
    K keys               M + T, those that a query could see
    C updates            of one compiled call, each of S consecutive segments
    N layers, P places in the pattern of layers, D model width, H heads, Dh head
    width, F feed-forward width, R slots of a ring
    E embedding width    of one cluster; V vocabulary

Tokens are [B, T], heads [B, T, H, Dh] and scores [H, B, T, K], with lanes first
in a ring and in analyses. What a layer remembers has lanes first, [B, ...]. In
the state of a network the turns of the pattern are in front, [N / P, B, ...].
"""

from typing import Any

import jaxtyping as jt

Array = jt.Array
# A tree of arrays, or of what stands for them: shapes, shardings, specs.
PyTree = Any

Tokens = jt.Int[Array, "B T"]
Targets = jt.Int[Array, "B U"]
Weights = jt.Float[Array, "B U"]
Lanes = jt.Int[Array, "B"]  # Their numbers in the whole batch.
Resets = jt.Bool[Array, "B T"]
Reach = jt.Int[Array, "B T"]
Losses = jt.Float[Array, "B U"]
Hidden = jt.Float[Array, "B T D"]
LayerMemory = jt.Float[Array, "B M D"]
Positions = jt.Float[Array, "K D"]
Queries = jt.Float[Array, "B T H Dh"]
Keys = jt.Float[Array, "B K H Dh"]
PositionKeys = jt.Float[Array, "K H Dh"]
Biases = jt.Float[Array, "H Dh"]
BiasPair = tuple[Biases, Biases]  # u and v of the paper.
Slopes = jt.Float[Array, "H"]  # Less score for a token of distance.
DistanceScores = jt.Float[Array, "H K"]
SegmentPositions = jt.Float[Array, "T D"]
Ring = jt.Float[Array, "BG Dh R"]  # Lanes and heads are one axis, B * G.
RingQueries = jt.Float[Array, "B H T Dh"]
