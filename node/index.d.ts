/** Numbers: a Float32Array is used as it is, an array of numbers is copied. */
export type Vector = Float32Array | readonly number[];

/** Rows one after the other in a Float32Array, used as it is; or a list of vectors, which are copied into one. */
export type Rows = Float32Array | readonly Vector[];

export interface VrsdOptions {
  /** Positions of the rows that may be picked; all of them by default. */
  candidates?: Int32Array | readonly number[];
  /** `"cosine"` by default: vectors may have any length. */
  metric?: "cosine" | "dot";
}

export interface MmrOptions extends VrsdOptions {
  /** The weight of relevance against diversity, within [0, 1]; 0.75. */
  lambdaD?: number;
  /** A number for each row: how good it is. */
  bias?: Vector;
  /** The weight of relevance against bias, within [0, 1]; 0.95. */
  lambdaB?: number;
}

/** Picks in the order in which they were made, the best first; k of them, or as many as there are rows. */
export interface Picks {
  /** Positions of rows. */
  indices: Int32Array;
  /** The value of the rule at which a row was picked. */
  scores: Float32Array;
  /** Similarity to the query; with a bias, `lambdaB * similarity + (1 - lambdaB) * bias`. */
  relevance: Float32Array;
  /** Largest similarity to an earlier pick, 0 for the first one; NaN for VRSD. */
  redundancy: Float32Array;
}

/**
 * Maximal marginal relevance with a bias (RAGSys, Algorithm 1): each pick has the largest
 * `lambdaD * relevance - (1 - lambdaD) * redundancy`; ties go to the lowest position.
 *
 * @throws TypeError, RangeError: `mmr: <argument> must <rule>, got <value>`
 */
export function mmr(query: Vector, rows: Rows, k: number, options?: MmrOptions): Picks;

/**
 * VRSD: each pick makes the sum of the picks most similar to the query. It has no weight to choose.
 *
 * @throws TypeError, RangeError: `vrsd: <argument> must <rule>, got <value>`
 */
export function vrsd(query: Vector, rows: Rows, k: number, options?: VrsdOptions): Picks;

export interface LogprobOptions {
  /** Logits are divided by it; 1. */
  temperature?: number;
  /** Logits are multiplied by it; 1. */
  logitScale?: number;
  /** Logits become `softcap * tanh(logit / softcap)`; 0 is none. */
  softcap?: number;
}

/**
 * log p of a token in each row of logits, in nats: `logits[t][targets[t]] - logsumexp(logits[t])`.
 *
 * @throws TypeError, RangeError: `tokenLogprobs: <argument> must <rule>, got <value>`
 */
export function tokenLogprobs(
  logits: Rows,
  targets: Int32Array | readonly number[],
  options?: LogprobOptions,
): Float32Array;

/** Of the kernels. */
export const version: string;
/** The widest of this processor that the kernels are compiled for: `"base"`, `"avx2"`, `"avx512"`. */
export const instructionSet: string;
