// Compiled, never run: what the declarations allow and refuse.
import { mmr, tokenLogprobs, vrsd, type MmrOptions, type Picks } from "ragsys-kernels";

const options: MmrOptions = { lambdaD: 0.5, bias: [0, 1], candidates: new Int32Array(2), metric: "dot" };
const picks: Picks = mmr([1, 2], [new Float32Array(2), [1, 2]], 2, options);
const found: Int32Array = picks.indices;
const logprobs: Float32Array = tokenLogprobs(new Float32Array(8), [0, 1], { temperature: 0.5, softcap: 30 });
void [found, logprobs, vrsd(new Float32Array(2), new Float32Array(4), 1, { metric: "cosine" })];

// @ts-expect-error
mmr("query", [], 1);
// @ts-expect-error
mmr([1], [[1]], 1, { lambda: 0.5 });
// @ts-expect-error
vrsd([1], [[1]], 1, { lambdaD: 0.5 });
// @ts-expect-error
mmr([1], new Float64Array(1), 1);
// @ts-expect-error
tokenLogprobs([[1]], ["1"]);
