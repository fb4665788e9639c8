"use strict";

const check = require("./arguments.js");

const platform = `${process.platform}-${process.arch}`;
let native;
try {
  native = require(`./prebuilds/${platform}/ragsys_kernels.node`);
} catch (error) {
  throw new Error(`ragsys-kernels: no compiled module for ${platform}; a checkout makes it by \`make node\``, { cause: error });
}

const metrics = ["cosine", "dot"];

const isEmpty = (list) => (Array.isArray(list) || ArrayBuffer.isView(list)) && list.length === 0;

function select(op, query, rows, k, chosen) {
  const vector = check.vector(op, "query", query);
  const columns = vector.length;
  if (columns === 0) check.refuse(RangeError, op, "query", "have at least one number", query);
  check.count(op, "k", k);
  const metric = metrics.indexOf(chosen.metric);
  if (metric < 0) check.refuse(RangeError, op, "metric", 'be "cosine" or "dot"', chosen.metric);
  const flat = isEmpty(rows) ? new Float32Array(0) : check.rows(op, "rows", rows, columns, "the query has");
  const items = flat.length / columns;
  const bias = chosen.bias === undefined ? null : check.vector(op, "bias", chosen.bias);
  if (bias && bias.length !== items)
    check.refuse(RangeError, op, "bias", `have a number for each of the ${items} rows`, chosen.bias);
  const candidates =
    chosen.candidates === undefined ? null : check.integers(op, "candidates", chosen.candidates, 0, items);
  const most = Math.min(k, candidates ? candidates.length : items);
  if (most === 0) return picks([0, new Int32Array(0), ...[0, 0, 0].map((n) => new Float32Array(n))]);
  const rule = op === "mmr" ? 0 : 1;
  const lambdaB = bias ? chosen.lambdaB : 1;
  try {
    return picks(native.select(rule, vector, flat, columns, most, chosen.lambdaD, lambdaB, metric, bias, candidates));
  } catch (error) {
    check.finite(op, "query", vector);
    if (bias) check.finite(op, "bias", bias);
    check.finite(op, "rows", flat, columns);
    throw error;
  }
}

const picks = ([picked, ...arrays]) => {
  const [indices, scores, relevance, redundancy] = arrays.map((a) => (a.length === picked ? a : a.subarray(0, picked)));
  return { indices, scores, relevance, redundancy };
};

function mmr(query, rows, k, options) {
  const defaults = { lambdaD: 0.75, lambdaB: 0.95, bias: undefined, candidates: undefined, metric: "cosine" };
  const chosen = check.options("mmr", options, defaults);
  check.weight("mmr", "lambdaD", chosen.lambdaD);
  check.weight("mmr", "lambdaB", chosen.lambdaB);
  return select("mmr", query, rows, k, chosen);
}

function vrsd(query, rows, k, options) {
  const chosen = check.options("vrsd", options, { candidates: undefined, metric: "cosine" });
  return select("vrsd", query, rows, k, { ...chosen, lambdaD: 1, lambdaB: 1 });
}

function tokenLogprobs(logits, targets, options) {
  const op = "tokenLogprobs";
  const chosen = check.options(op, options, { temperature: 1, logitScale: 1, softcap: 0 });
  const scale = (x) => x >= 1e-15 && x <= 1e15;
  for (const name of ["temperature", "logitScale"]) check.number(op, name, chosen[name], "be within [1e-15, 1e15]", scale);
  check.number(op, "softcap", chosen.softcap, "be 0 or within [1e-15, 1e15]", (x) => x === 0 || scale(x));
  const tokens = check.integers(op, "targets", targets, 0, 2 ** 31 - 1);
  if (tokens.length === 0) return new Float32Array(0);
  if (!(logits instanceof Float32Array) && !Array.isArray(logits))
    check.refuse(TypeError, op, "logits", "be a Float32Array or an array of vectors", logits);
  const flat = check.rows(op, "logits", logits, columnsOf(op, logits, tokens.length), "the first row has");
  const columns = flat.length / tokens.length;
  check.integers(op, "targets", tokens, 0, columns);
  return native.tokenLogprobs(flat, tokens, chosen.temperature, chosen.logitScale, chosen.softcap);
}

/** How long a row of logits is, of which there is one for each target. */
function columnsOf(op, logits, tokens) {
  if (Array.isArray(logits)) {
    if (logits.length !== tokens) check.refuse(RangeError, op, "logits", `have a row for each of the ${tokens} targets`, logits);
    return logits[0]?.length || 1;
  }
  if (logits.length === 0 || logits.length % tokens)
    check.refuse(RangeError, op, "logits", `hold a row for each of the ${tokens} targets`, logits);
  return logits.length / tokens;
}

module.exports = { mmr, vrsd, tokenLogprobs, version: native.version, instructionSet: native.instructionSet };
