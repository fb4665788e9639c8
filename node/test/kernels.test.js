"use strict";

const assert = require("node:assert/strict");
const { spawnSync } = require("node:child_process");
const { describe, it } = require("node:test");

const rk = require("ragsys-kernels");
const fixtures = require("./fixtures.json");

const query = Float32Array.from(fixtures.query);
const rows = Float32Array.from(fixtures.rows.flat());
const { length: columns } = query;

function near(found, expected) {
  assert.ok(found instanceof Float32Array);
  assert.equal(found.length, expected.length);
  expected.forEach((x, i) => {
    if (x === null) assert.ok(Number.isNaN(found[i]));
    else assert.ok(Math.abs(found[i] - x) <= 1e-5 * Math.max(1, Math.abs(x)), `${found[i]} for ${x}`);
  });
}

describe("selections are the reference's", () => {
  for (const { op, k, options, indices, ...values } of fixtures.selections)
    it(`${op} ${JSON.stringify(options)}`, () => {
      const given = { ...options, ...(options.bias && { bias: fixtures.bias }) };
      for (const form of [rows, fixtures.rows, fixtures.rows.map((row) => Float32Array.from(row))]) {
        const picks = rk[op](query, form, k, given);
        assert.deepEqual([...picks.indices], indices);
        for (const name of ["scores", "relevance", "redundancy"]) near(picks[name], values[name]);
      }
    });
});

describe("log-probabilities are the reference's", () => {
  for (const { options, logprobs } of fixtures.logprobs)
    it(JSON.stringify(options), () => {
      const flat = Float32Array.from(fixtures.logits.flat());
      near(rk.tokenLogprobs(flat, fixtures.targets, options), logprobs);
      near(rk.tokenLogprobs(fixtures.logits, Int32Array.from(fixtures.targets), options), logprobs);
    });
});

describe("edges", () => {
  it("more picks than rows are all rows", () => {
    const { indices, scores } = rk.mmr([1, 0], [[1, 0], [0, 1]], 5);
    assert.deepEqual([...indices].sort(), [0, 1]);
    assert.equal(scores.length, 2);
    assert.equal(rk.vrsd([1, 0], [[1, 0], [0, 1]], 9, { candidates: [1] }).indices.length, 1);
  });
  it("no rows, no candidates, no targets give nothing", () => {
    assert.equal(rk.mmr([1], [], 3).indices.length, 0);
    assert.equal(rk.vrsd([1], new Float32Array(0), 3).scores.length, 0);
    assert.equal(rk.mmr([1], [[1]], 3, { candidates: [] }).indices.length, 0);
    assert.equal(rk.tokenLogprobs([], []).length, 0);
  });
  it("views into larger buffers are read where they are", () => {
    const padded = new Float32Array(rows.length + 9).fill(NaN);
    padded.set(rows, 9);
    const { indices } = rk.mmr(query, padded.subarray(9), 5);
    assert.deepEqual(indices, rk.mmr(query, rows, 5).indices);
  });
  it("nothing that is passed changes, and results are the caller's own", () => {
    const before = rows.slice();
    const first = rk.mmr(query, rows, 4);
    const kept = first.indices.slice();
    rk.mmr(rows.subarray(columns, 2 * columns), rows, 4);
    assert.deepEqual(first.indices, kept);
    assert.deepEqual(rows, before);
  });
  it("works in a worker", () => {
    const code = `const { Worker, isMainThread, parentPort } = require("node:worker_threads");
      const rk = require("ragsys-kernels");
      const picks = () => [...rk.mmr([1, 0], [[0, 1], [1, 0]], 2).indices].join();
      if (isMainThread) new Worker(process.env.CODE, { eval: true }).on("message", (m) => console.log(picks(), m));
      else parentPort.postMessage(picks());`;
    const { stdout, stderr } = spawnSync(process.execPath, ["-e", code], {
      cwd: __dirname,
      encoding: "utf8",
      env: { ...process.env, CODE: code },
    });
    assert.equal(stdout.trim(), "1,0 1,0", stderr);
  });
  it("is also a module to import", async () => {
    const { mmr, version } = await import("ragsys-kernels");
    assert.equal(mmr, rk.mmr);
    assert.equal(version, require("../package.json").version);
  });
});

const T = TypeError;
const R = RangeError;
const bad = rows.slice();
bad[3 * columns + 2] = NaN;
describe("errors name the argument, the rule and the value", () => {
  for (const [call, Kind, words] of [
    [() => rk.mmr("query", rows, 3), T, 'mmr: query must be a Float32Array or an array of numbers, got "query"'],
    [() => rk.mmr(new Float64Array(2), rows, 3), T, "mmr: query must be a Float32Array or an array of numbers, got a Float64Array of 2"],
    [() => rk.mmr([1, "2"], [[1, 2]], 3), T, 'mmr: query[1] must be a number, got "2"'],
    [() => rk.mmr([], rows, 3), R, "mmr: query must have at least one number, got an array of 0"],
    [() => rk.mmr(query, rows.subarray(1), 3), R, "mmr: rows must hold rows of 13 numbers, as the query has, got a Float32Array of 519"],
    [() => rk.mmr(query, [query, [1, 2]], 3), R, "mmr: rows[1] must have 13 numbers, as the query has, got an array of 2"],
    [() => rk.vrsd([1], [[1], [null]], 3), T, "vrsd: rows[1][0] must be a number, got null"],
    [() => rk.vrsd(query, { 0: query }, 3), T, "vrsd: rows must be a Float32Array or an array of vectors, got an object Object"],
    [() => rk.vrsd(query, rows, 0), R, "vrsd: k must be an integer of at least 1, got 0"],
    [() => rk.vrsd(query, rows, 1.5), R, "vrsd: k must be an integer of at least 1, got 1.5"],
    [() => rk.vrsd(query, rows), T, "vrsd: k must be a number, got undefined"],
    [() => rk.mmr(query, rows, 3, 0.5), T, "mmr: options must be an object, got 0.5"],
    [() => rk.mmr(query, rows, 3, { lambda: 0.5 }), T, 'mmr: options must be of lambdaD, lambdaB, bias, candidates, metric, got "lambda"'],
    [() => rk.vrsd(query, rows, 3, { bias: [] }), T, 'vrsd: options must be of candidates, metric, got "bias"'],
    [() => rk.mmr(query, rows, 3, { lambdaD: 1.5 }), R, "mmr: lambdaD must be within [0, 1], got 1.5"],
    [() => rk.mmr(query, rows, 3, { lambdaB: NaN }), R, "mmr: lambdaB must be within [0, 1], got NaN"],
    [() => rk.mmr(query, rows, 3, { metric: "l2" }), R, 'mmr: metric must be "cosine" or "dot", got "l2"'],
    [() => rk.mmr(query, rows, 3, { bias: [1] }), R, "mmr: bias must have a number for each of the 40 rows, got an array of 1"],
    [() => rk.mmr(query, rows, 3, { bias: new Float32Array(40).fill(Infinity, 39) }), R, "mmr: bias must be finite, got Infinity at position 39"],
    [() => rk.mmr(query, rows, 3, { candidates: [1, 40] }), R, "mmr: candidates[1] must be an integer within [0, 40), got 40"],
    [() => rk.mmr(query, rows, 3, { candidates: [1, 2, 1] }), R, "mmr: candidates must not repeat an id within a query, got 1 twice for query 0"],
    [() => rk.mmr(query, bad, 3), R, "mmr: rows must be finite, got NaN in row 3"],
    [() => rk.mmr(query.map(() => NaN), rows, 3), R, "mmr: query must be finite, got NaN at position 0"],
    [() => rk.tokenLogprobs([[1, 2]], [2]), R, "tokenLogprobs: targets[0] must be an integer within [0, 2), got 2"],
    [() => rk.tokenLogprobs([[1, 2]], [0, 1]), R, "tokenLogprobs: logits must have a row for each of the 2 targets, got an array of 1"],
    [() => rk.tokenLogprobs(new Float32Array(5), [0, 1]), R, "tokenLogprobs: logits must hold a row for each of the 2 targets, got a Float32Array of 5"],
    [() => rk.tokenLogprobs([[1, 2], [1]], [0, 0]), R, "tokenLogprobs: logits[1] must have 2 numbers, as the first row has, got an array of 1"],
    [() => rk.tokenLogprobs([[1]], [0], { temperature: 0 }), R, "tokenLogprobs: temperature must be within [1e-15, 1e15], got 0"],
    [() => rk.tokenLogprobs([[1]], [0], { softcap: -1 }), R, "tokenLogprobs: softcap must be 0 or within [1e-15, 1e15], got -1"],
  ])
    it(words, () => assert.throws(call, (error) => error.constructor === Kind && error.message === words));
});
