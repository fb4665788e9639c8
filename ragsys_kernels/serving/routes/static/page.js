// The page of a server. Two requests ask all rules for one query: one for the picks of top-k and VRSD, one for those of MMR at
// every λ, so that the slider needs none.

import { NAMES, digits, made, mean, sections } from "./picks.js";
import { plot, sign } from "./plot.js";

const element = (id) => document.getElementById(id);
const form = element("asked");
const CUT = 280, LONGEST = 20000; // characters of a text, and of one that is shown as a whole
let corpora = {}, limits = {}, encoder = null;
let asked = 0; // answers to older questions are dropped
let lambda = 0.75; // which the slider may round
let shown = null; // what the last question found
let encoded = {}; // the last text, and its vector
let move = null; // shows one of MMR's selections in the plot

class Refused extends Error {}

async function send(path, body) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if (element("token").value) headers.authorization = `Bearer ${element("token").value}`;
  const answer = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body });
  const text = await answer.text();
  if (answer.status === 401) {
    element("token-row").hidden = false;
    element("token").focus();
  }
  // An integer may have more digits than a number keeps: ids stay as they are written.
  const content = JSON.parse(text.replace(/"ids":\[([-\d,]*)\]/g, (_, ids) => `"ids":[${ids.replace(/-?\d+/g, '"$&"')}]`));
  if (content.results) return content;
  if (!answer.ok) throw new Refused(content.error?.message ?? `the server answered ${answer.status}`);
  return content;
}

const name = () => JSON.stringify(form.corpus.value);
const isText = () => encoder !== null && form.by.value === "text";

// The id as JSON: what a person types is an integer or a string, as the corpus has it.
function written(id) {
  if (corpora[form.corpus.value].ids === "string") return JSON.stringify(id);
  if (!/^(0|-?[1-9]\d*)$/.test(id)) throw new Refused("the ids of this corpus are integers");
  return id;
}

const list = (ids) => `[${ids.map(written).join(",")}]`;

// The query as JSON, and what it must not pick.
async function queried() {
  const typed = form.query.value.trim();
  if (!isText()) return `"query_id":${written(typed)}`;
  const text = `{"corpus":${name()},"text":${JSON.stringify(typed)}}`;
  if (encoded.text !== text) encoded = { text, query: JSON.stringify((await send("v1/encode", text)).query) };
  return `"query":${encoded.query}`;
}

const excluded = () => (isText() || form.itself.checked ? "" : `,"exclude":[${written(form.query.value.trim())}]`);

const RULES = {
  topk: () => '"method":"mmr","lambda_d":1,"lambda_b":1',
  mmr: () => `"method":"mmr","lambda_d":${lambda},"lambda_b":${form["lambda-b"].value}`,
  vrsd: () => '"method":"vrsd"',
};

async function selected(rules, query, common) {
  const queries = rules.map((rule) => `{${query},${RULES[rule]()}}`);
  const { results } = await send("v1/select", `{"corpus":${name()},${common},"nearest":true,"queries":[${queries.join(",")}]}`);
  const bad = results.find((result) => result.error);
  if (bad) throw new Refused(bad.error.message);
  return Object.fromEntries(rules.map((rule, i) => [rule, results[i]]));
}

// VRSD does not weigh how alike picks are; MMR with relevance that falls along them keeps their order and tells.
async function likeness(ids) {
  const falling = ids.map((_, i) => ids.length - i);
  const body = `{"corpus":${name()},"k":${ids.length},"lambda_d":1,"lambda_b":1,"queries":` +
    `[{"candidates":${list(ids)},"relevance":[${falling}]}]}`;
  return (await send("v1/select", body)).results[0].redundancy ?? [];
}

async function pick() {
  const number = ++asked;
  const rules = [...form.querySelectorAll("[name=rule]:checked")].map((box) => box.value);
  try {
    if (!form.query.value.trim()) throw new Refused(isText() ? "type a text: it is the query" : "type the id of an item: it is the query");
    const begun = performance.now();
    const query = await queried();
    const common = `"k":${Number(form.k.value)},"pool":${form.pool.value ? Number(form.pool.value) : "null"}${excluded()}`;
    const walks = form.pool.value && Number(form.pool.value) <= limits.path_pool && Number(form.k.value) <= limits.path_k;
    const wanted = ["topk", ...rules.filter((rule) => rule === "vrsd" || (rule === "mmr" && !walks))];
    const path = `{"corpus":${name()},${query},${common},"lambda_b":${form["lambda-b"].value}}`;
    const [found, { segments }] = await Promise.all([selected(wanted, query, common), walks ? send("v1/path", path) : {}]);
    if (found.vrsd?.ids.length) found.vrsd.redundancy = await likeness(found.vrsd.ids);
    const took = performance.now() - begun;
    const texts = corpora[form.corpus.value].texts ? new Map() : null;
    if (texts) {
      const ids = [...new Set([...Object.values(found), ...(segments ?? [])].flatMap((each) => each.ids))];
      const body = `{"corpus":${name()},"chars":${CUT},"ids":${list(ids.slice(0, limits.candidates))}}`;
      const answer = ids.length ? await send("v1/texts", body) : { texts: [] };
      answer.texts.forEach((text, i) => texts.set(ids[i], text));
    }
    if (number !== asked) return;
    shown = { rules, found, segments: segments?.length ? segments : null, texts };
    draw();
    plotted();
    say(`Out of ${corpora[form.corpus.value].rows.toLocaleString("en")} items, in ${took.toFixed(1)} ms with the way here.`);
    remember();
  } catch (error) {
    if (number === asked) say(error instanceof Refused ? error.message : `no answer: ${error.message}`, true);
  }
}

// Which of MMR's selections λ has: the weight is a float32 in the library.
const stepOf = (segments) => Math.max(0, segments.findLastIndex((each) => each.low <= Math.fround(lambda)));

function mmrAt(step) {
  const { ids, relevance, redundancy, nearest } = shown.segments[step];
  return { ids, relevance, redundancy, nearest, scores: relevance.map((value, i) => lambda * value - (1 - lambda) * redundancy[i]) };
}

// Show what was found, with MMR at the λ of now: all that the slider changes.
function draw() {
  const { rules, found, segments, texts } = shown;
  const titles = { ...NAMES, mmr: `MMR, λ = ${weight(lambda)}` };
  if (segments) found.mmr = mmrAt(stepOf(segments));
  element("picks").replaceChildren(...sections(rules, found, titles, texts, whole));
  element("legend").hidden = !rules.length;
  move?.(segments ? stepOf(segments) : 0);
}

// The plot of what was found.
function plotted() {
  const { found, segments } = shown;
  move = null;
  element("plot").hidden = !segments?.some((each) => each.ids.length > 1);
  if (element("plot").hidden) return;
  const point = (picks) => ({ x: mean(picks.redundancy.slice(1)), y: mean(picks.relevance) });
  const others = ["topk", "vrsd"].filter((rule) => found[rule]?.ids.length > 1).map((rule) => ({ name: rule, ...point(found[rule]) }));
  const steps = segments.map((each) => ({ ...point(each), title: `λ from ${weight(each.low)} to ${weight(each.high)}` }));
  const drawn = plot(element("drawing"), { steps, others, choose: (step) => choose((segments[step].low + segments[step].high) / 2) });
  const chosen = made("b");
  const signs = [["mmr", chosen], ...others.map((each) => [each.name, NAMES[each.name]])];
  element("plot-legend").replaceChildren(...signs.map(([rule, text]) => made("span", sign(rule), " ", text)));
  move = (step) => {
    drawn(step);
    const { low, high } = segments[step];
    chosen.textContent = `MMR, λ = ${weight(lambda)}: selection ${step + 1} of ${segments.length}, from λ = ${digits(low)} to ${digits(high)}`;
  };
  move(stepOf(segments));
}

const weight = (value) => (Math.abs(value * 100 - Math.round(value * 100)) < 1e-9 ? value.toFixed(2) : value.toFixed(3));

function choose(value) {
  lambda = value;
  form.lambda.value = value;
  refresh();
  draw();
  remember();
}

async function whole(id) {
  try {
    const { texts } = await send("v1/texts", `{"corpus":${name()},"chars":${LONGEST},"ids":${list([id])}}`);
    return texts[0];
  } catch (error) {
    say(error.message, true);
    return null;
  }
}

function say(text, bad = false) {
  element("said").textContent = text;
  element("said").classList.toggle("bad", bad);
  element("said").setAttribute("role", bad ? "alert" : "status");
}

// What is asked stands in the address, but for the token, so that it can be sent to others.
const KEPT = ["corpus", "by", "query", "k", "pool", "lambda", "lambda-b"];

function remember() {
  const values = KEPT.map((field) => [field, field === "lambda" ? lambda : form[field].value]);
  history.replaceState(null, "", `#${new URLSearchParams(values)}`);
}

function recall() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [field, value] of given) {
    if (KEPT.includes(field) && (field !== "corpus" || value in corpora)) form[field].value = value;
  }
  if (given.has("lambda")) lambda = Math.min(1, Math.max(0, Number(given.get("lambda")) || 0));
  if (!["text", "id"].includes(form.by.value)) form.by.value = "text";
}

function refresh() {
  const corpus = corpora[form.corpus.value];
  element("bias").hidden = !corpus?.bias;
  element("by-row").hidden = encoder === null;
  element("itself-row").hidden = isText();
  element("query-label").textContent = isText() ? "Query" : "Query: id of an item";
  element("lambda-shown").value = weight(lambda);
  element("lambda-b-shown").value = Number(form["lambda-b"].value).toFixed(2);
  if (!corpus) return;
  form.query.placeholder = isText() ? "words" : corpus.ids === "string" ? "an id of the corpus" : `0 to ${corpus.rows - 1}, or as saved`;
}

async function start() {
  try {
    ({ corpora, limits, encoder } = await send("info"));
    form.corpus.replaceChildren(...Object.keys(corpora).map((each) => new Option(each, each)));
    recall();
    refresh();
    if (!form.query.value && !isText() && corpora[form.corpus.value].ids !== "string") form.query.value = "0";
    if (form.query.value) await pick();
    else say(isText() ? "Type a text: it is the query." : "Type the id of an item: it is the query.");
  } catch (error) {
    say(error instanceof Refused ? error.message : `no answer: ${error.message}`, true);
  }
}

let waiting;
form.addEventListener("input", (event) => {
  if (event.target.id === "lambda") lambda = Number(form.lambda.value);
  refresh();
  if (event.target.id === "by") form.query.value = "";
  if (event.target.id === "token" || !form.query.value.trim()) return;
  if (event.target.id === "lambda" && shown?.segments) {
    draw();
    remember();
    return;
  }
  clearTimeout(waiting);
  waiting = setTimeout(pick, event.target.id === "query" && isText() ? 350 : 120);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(waiting);
  if (Object.keys(corpora).length) pick();
  else start();
});
let width = 0;
new ResizeObserver(() => {
  if (move && element("drawing").clientWidth !== width) plotted();
  width = element("drawing").clientWidth;
}).observe(element("drawing"));
start();
