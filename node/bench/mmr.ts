// MMR of one query: loops in TypeScript, LangChain's where @langchain/core is installed, and this package. Picks are compared first.
import { mmr } from "ragsys-kernels";

const k = 6;
const lambda = 0.75;
const columns = 384;

const cosine = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  let dot = 0;
  let aa = 0;
  let bb = 0;
  for (let d = 0; d < a.length; ++d) {
    dot += a[d] * b[d];
    aa += a[d] * a[d];
    bb += b[d] * b[d];
  }
  return dot / Math.sqrt(aa * bb);
};

/** As it is usually written: every similarity anew at every pick. */
function usual(query: number[], rows: number[][], k: number): number[] {
  const picked: number[] = [];
  while (picked.length < Math.min(k, rows.length)) {
    let best = -1;
    let most = -Infinity;
    for (let i = 0; i < rows.length; ++i) {
      if (picked.includes(i)) continue;
      const redundancy = picked.length ? Math.max(...picked.map((p) => cosine(rows[i], rows[p]))) : 0;
      const value = lambda * cosine(query, rows[i]) - (1 - lambda) * redundancy;
      if (value > most) [most, best] = [value, i];
    }
    picked.push(best);
  }
  return picked;
}

/** As well as it goes: norms and relevance once, one product of a row and the last pick. */
function careful(query: Float32Array, rows: Float32Array, k: number): number[] {
  const items = rows.length / columns;
  const dot = (a: Float32Array, i: number, b: Float32Array, j: number): number => {
    let sum = 0;
    for (let d = 0; d < columns; ++d) sum += a[i + d] * b[j + d];
    return sum;
  };
  const norms = Float64Array.from({ length: items }, (_, i) => Math.sqrt(dot(rows, i * columns, rows, i * columns)));
  const queryNorm = Math.sqrt(dot(query, 0, query, 0));
  const relevance = norms.map((norm, i) => dot(query, 0, rows, i * columns) / (norm * queryNorm));
  const redundancy = new Float64Array(items);
  const taken = new Uint8Array(items);
  const picked: number[] = [];
  while (picked.length < Math.min(k, items)) {
    let best = -1;
    let most = -Infinity;
    for (let i = 0; i < items; ++i) {
      if (taken[i]) continue;
      if (picked.length) {
        const last = picked[picked.length - 1];
        const similarity = dot(rows, i * columns, rows, last * columns) / (norms[i] * norms[last]);
        if (picked.length === 1 || similarity > redundancy[i]) redundancy[i] = similarity;
      }
      const value = lambda * relevance[i] - (1 - lambda) * redundancy[i];
      if (value > most) [most, best] = [value, i];
    }
    taken[best] = 1;
    picked.push(best);
  }
  return picked;
}

let state = 1;
const draw = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 31 - 1;

/** Median time of a call in microseconds. */
function time(call: () => unknown): number {
  const samples: number[] = [];
  const end = performance.now() + 400;
  while (performance.now() < end || samples.length < 5) {
    const start = performance.now();
    call();
    samples.push(1000 * (performance.now() - start));
  }
  return samples.sort((a, b) => a - b)[samples.length >> 1];
}

type Peer = (query: number[], rows: number[][], lambda: number, k: number) => number[];

async function langchain(): Promise<Peer | undefined> {
  const name = "@langchain/core/utils/math";
  return import(name).then((module) => module.maximalMarginalRelevance as Peer).catch(() => undefined);
}

async function main(): Promise<void> {
  const peer = await langchain();
  console.log("candidates | usual loop | careful loop | LangChain | mmr of lists | mmr of a Float32Array   (microseconds)");
  for (const items of [20, 100, 1000]) {
    const flat = Float32Array.from({ length: items * columns }, draw);
    const query = Float32Array.from({ length: columns }, draw);
    const lists = Array.from({ length: items }, (_, i) => [...flat.subarray(i * columns, (i + 1) * columns)]);
    const list = [...query];
    const calls: (() => ArrayLike<number>)[] = [
      () => usual(list, lists, k),
      () => careful(query, flat, k),
      () => mmr(list, lists, k).indices,
      () => mmr(query, flat, k).indices,
    ];
    if (peer) calls.splice(2, 0, () => peer(list, lists, lambda, k));
    const picks = calls.map((call) => Array.from(call()).join());
    if (picks.some((found) => found !== picks[0])) throw new Error(`picks differ: ${picks.join(" | ")}`);
    const times = calls.map(time);
    const ours = times[times.length - 1];
    const cells = times.map((t) => `${t.toFixed(1)} (${(t / ours).toFixed(1)}x)`);
    if (!peer) cells.splice(2, 0, "not installed");
    console.log([items, ...cells].join(" | "));
  }
}

void main();
