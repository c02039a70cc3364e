"""The numbers of the integer contract. ``CONTRACT.md`` is their text; every exact device computes with these.

Four kinds of arithmetic are allowed, because each gives the same bits on every machine and in any order of evaluation
that the contract leaves open:

* integers: products and sums that cannot overflow;
* binary32 ``+ - * /`` and ``sqrt``, each rounded to nearest, ties to even, never fused (IEEE 754-2019, 5.4.1);
* ``rne``: a binary32 rounded to the nearest integer, ties to even;
* table look-ups (``tables.py``).

Sums of binary32 values, exp, log, tanh and erf are not allowed.
"""

VERSION = 1
"""Raised with every change that can change a bit of a result."""

Q8 = 127
"""Largest magnitude of an 8-bit quantity (symmetric; -128 is never used)."""
Q16 = 32767
"""Largest magnitude of a 16-bit quantity: embedding rows and score heads."""
DIGIT_BASE = 255
"""Base of the two digits of a 16-bit activation: digits of at most 127 either way, which the 8-bit array multiplies."""
Q16D = DIGIT_BASE * Q8 + Q8
"""Largest magnitude of an activation of two digits, 32512: both its digits are 127."""
Q20 = 2**19 - 1
"""Largest magnitude of a row inside a norm or a mean: a sum of MAX_WIDTH squares stays below 2^53."""
ROW_FLOOR = 2.0**-40
"""Smallest absolute maximum of a row that is divided by: products of two scales stay normal binary32 numbers."""

MAX_WIDTH = 8192
"""Largest row of a norm, and largest number of keys of a query."""
MAX_INNER = 131072
"""Largest inner dimension of an 8-bit product: 131072 * 127^2 < 2^31."""
MAX_VOCABULARY = 2**22
"""Largest vocabulary: 2^22 probabilities of at most 2^30 sum to at most 2^52."""

GATE_STEP = 256
"""Entries of an activation table to a unit of its argument."""
GATE_HALF = 4096
"""Entries on each side of zero: arguments within [-16, 16)."""
GATE_ONE = 2**15
"""A gate of 1 in an activation table."""

EXP_BITS = 12
"""Bits of an octave in the table of 2^-f."""
EXP_ONE = 2**30
"""2^0 in that table."""
ATTENTION_STEP = 256
"""Steps of an octave in attention: every 16th entry of the table."""
ATTENTION_OCTAVES = 16
"""Attention weights below 2^-16 of a row's largest are 0."""
ATTENTION_SHIFT = 15
"""Attention weights are the table's entries shifted right by this: 2^15 stands for 1."""
LOGPROB_STEP = 4096
"""Steps of an octave in the log-probability head: every entry of the table."""
LOGPROB_OCTAVES = 30
"""Probabilities below 2^-30 of a row's largest are 0."""

EXACT_F32_INNER = 1024
"""Products of 8-bit integers whose sum binary32 holds exactly in any order: 1024 * 127^2 < 2^24."""

LOG2E = 1.4426950408889634
"""log2(e), rounded to binary64."""
LN2 = 0.6931471805599453
"""ln(2), rounded to binary64."""
