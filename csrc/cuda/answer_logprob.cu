// Log-sum-exp of slots, a slot being a row at a temperature, with what log p of its targets needs: ScoringProblem and
// Partials in ragsys_kernels/scoring/problem.py. A block takes one part of the columns of one slot, and the last
// block of a slot merges its parts in float64. Where the parts are cut, and which thread adds which columns in what
// order, depends on the number of columns alone, so that a row has its bits in any batch and at any address.
#include "score_finish.cuh"
#include "score_linear.cuh"
#include "score_logits.cuh"
