// The page of a server. Two requests ask all rules for one query: one for the picks of most, one for those of MMR at every λ, so
// that the slider needs none.

import { digits, made, mean, sections } from "./picks.js";
import { plot, sign } from "./plot.js";

const element = (id) => document.getElementById(id);
const form = element("asked");
const CUT = 280, LONGEST = 20000; // characters of a text, and of one that is shown as a whole
let corpora = {}, limits = {}, encoder = null;
let RULES = [], NAMES = {}; // what the server says of the rules, and what each is called
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

const chosen = () => [...form.querySelectorAll("[name=rule]:checked")].map((box) => box.value);
const options = (rule) => [...form.querySelectorAll(`[data-of=${rule}]`)];

// What a rule is asked with: an empty field is the rule's own default.
function asking(rule) {
  if (rule === "topk") return '"method":"mmr","lambda_d":1,"lambda_b":1';
  const given = options(rule).filter((field) => field.value !== "").map((field) => {
    if (!field.checkValidity()) throw new Refused(`${NAMES[rule]}: ${field.dataset.name} must be ${field.dataset.rule}`);
    return `,"${field.dataset.name}":${field.type === "number" ? Number(field.value) : JSON.stringify(field.value)}`;
  });
  if (rule === "mmr") given.push(`,"lambda_d":${lambda}`);
  if (rule !== "vrsd" && rule !== "sift") given.push(`,"lambda_b":${form["lambda-b"].value}`);
  return `"method":"${rule}"${given.join("")}`;
}

async function selected(rules, query, common) {
  const queries = rules.map((rule) => `{${query},${asking(rule)}}`);
  const { results } = await send("v1/select", `{"corpus":${name()},${common},"nearest":true,"queries":[${queries.join(",")}]}`);
  if (results.every((result) => result.error)) throw new Refused(results[0].error.message);
  const found = Object.fromEntries(rules.map((rule, i) => [rule, results[i]]));
  await liken(rules.filter((rule) => rule !== "topk" && rule !== "mmr" && found[rule].ids?.length).map((rule) => found[rule]));
  return found;
}

// Put how alike picks are into those of rules that weigh something else: MMR with relevance that falls along them keeps their
// order and tells.
async function liken(found) {
  if (!found.length) return;
  const queries = found.map(({ ids }) => `{"candidates":${list(ids)},"k":${ids.length},"relevance":[${ids.map((_, i) => ids.length - i)}]}`);
  const body = `{"corpus":${name()},"lambda_d":1,"lambda_b":1,"queries":[${queries.join(",")}]}`;
  const { results } = await send("v1/select", body);
  found.forEach((picks, i) => { picks.redundancy = results[i].redundancy ?? []; });
}

async function pick() {
  const number = ++asked;
  const rules = chosen();
  try {
    if (!form.query.value.trim()) throw new Refused(isText() ? "type a text: it is the query" : "type the id of an item: it is the query");
    const begun = performance.now();
    const query = await queried();
    for (const field of [form.k, form.pool]) {
      if (!field.checkValidity()) throw new Refused(`${field.name} must be a whole number from 1 to ${field.max}`);
    }
    const k = Number(form.k.value);
    const common = `"k":${k},"pool":${form.pool.value ? Number(form.pool.value) : "null"}${excluded()}`;
    const walks = form.pool.value && Number(form.pool.value) <= limits.path_pool && k <= limits.path_k;
    const wanted = ["topk", ...rules.filter((rule) => rule !== "topk" && (rule !== "mmr" || !walks))];
    const path = `{"corpus":${name()},${query},${common},"lambda_b":${form["lambda-b"].value}}`;
    const [found, { segments }] = await Promise.all([selected(wanted, query, common), walks ? send("v1/path", path) : {}]);
    const took = performance.now() - begun;
    const texts = corpora[form.corpus.value].texts ? new Map() : null;
    if (texts) {
      const ids = [...new Set([...Object.values(found), ...(segments ?? [])].flatMap((each) => each.ids ?? []))];
      const body = `{"corpus":${name()},"chars":${CUT},"ids":${list(ids.slice(0, limits.candidates))}}`;
      const answer = ids.length ? await send("v1/texts", body) : { texts: [] };
      answer.texts.forEach((text, i) => texts.set(ids[i], text));
    }
    if (number !== asked) return;
    shown = { rules, found, segments: segments?.length ? segments : null, texts, k };
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
  const { rules, found, segments, texts, k } = shown;
  const titles = { ...NAMES, mmr: `MMR, λ = ${weight(lambda)}` };
  if (segments) found.mmr = mmrAt(stepOf(segments));
  element("picks").replaceChildren(...sections(rules, found, { k, names: NAMES, titles, texts, whole }));
  element("legend").hidden = !rules.length;
  move?.(segments ? stepOf(segments) : 0);
}

// The plot of what was found.
function plotted() {
  const { rules, found, segments } = shown;
  move = null;
  element("plot").hidden = !segments?.some((each) => each.ids.length > 1);
  if (element("plot").hidden) return;
  const point = (picks) => ({ x: mean(picks.redundancy.slice(1)), y: mean(picks.relevance) });
  const others = rules.filter((rule) => rule !== "mmr" && found[rule].ids?.length > 1).map((rule) => ({ name: rule, ...point(found[rule]) }));
  const steps = segments.map((each) => ({ ...point(each), title: `λ from ${weight(each.low)} to ${weight(each.high)}` }));
  const drawn = plot(element("drawing"), { steps, others, choose: (step) => choose((segments[step].low + segments[step].high) / 2) });
  const at = made("b");
  const signs = [["mmr", at], ...others.map((each) => [each.name, NAMES[each.name]])];
  element("plot-legend").replaceChildren(...signs.map(([rule, text]) => made("span", sign(rule), " ", text)));
  move = (step) => {
    drawn(step);
    const { low, high } = segments[step];
    at.textContent = `MMR, λ = ${weight(lambda)}: selection ${step + 1} of ${segments.length}, from λ = ${digits(low)} to ${digits(high)}`;
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
  values.push(["rules", chosen().join(".")]);
  for (const rule of chosen()) values.push(...options(rule).filter((field) => field.value !== "").map((field) => [field.name, field.value]));
  history.replaceState(null, "", `#${new URLSearchParams(values)}`);
}

function recall() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [field, value] of given) {
    if (KEPT.includes(field) && (field !== "corpus" || value in corpora)) form[field].value = value;
    else if (form[field]?.dataset?.of) form[field].value = value;
  }
  if (given.has("rules")) for (const box of form.querySelectorAll("[name=rule]")) box.checked = given.get("rules").split(".").includes(box.value);
  if (given.has("lambda")) lambda = Math.min(1, Math.max(0, Number(given.get("lambda")) || 0));
  if (!["text", "id"].includes(form.by.value)) form.by.value = "text";
}

// The rules as fields: a box each, what it picks in words, and its options where it is chosen.
function offer() {
  NAMES = Object.fromEntries(RULES.map(({ rule, name }) => [rule, name]));
  element("rules").append(...RULES.flatMap(({ rule, name, words, options }) => {
    const box = Object.assign(made("input"), { type: "checkbox", name: "rule", value: rule, checked: ["topk", "mmr", "vrsd"].includes(rule) });
    const label = made("label", box, made("span", made("b", name), " ", made("small", words)));
    label.className = "check";
    const fields = options.filter((option) => rule !== "mmr" || option.name !== "lambda_d").map((option) => field(rule, option));
    const place = made("div", ...fields);
    place.className = "options";
    return fields.length ? [label, place] : [label];
  }));
}

function field(rule, option) {
  const input = made(option.choices ? "select" : "input");
  if (option.choices) {
    input.append(...option.choices.map((each) => new Option(each, each, each === option.default, each === option.default)));
  } else {
    const shown = option.default === null ? "all" : String(option.default);
    Object.assign(input, { type: "number", step: option.whole ? "1" : "any", min: option.low, max: option.high ?? "", placeholder: shown });
  }
  input.name = `${rule}.${option.name}`;
  Object.assign(input.dataset, { of: rule, name: option.name, rule: option.rule ?? "" });
  return made("label", made("span", made("b", SIGNS[option.name] ?? option.name), ": ", option.words), input);
}

const SIGNS = { lambda_d: "λ", gamma: "γ", eps: "ε" };

function refresh() {
  const corpus = corpora[form.corpus.value];
  for (const box of form.querySelectorAll("[name=rule]")) {
    const place = box.closest("label").nextElementSibling;
    if (place?.className === "options") place.hidden = !box.checked;
  }
  form.k.max = limits.k;
  form.pool.max = limits.pool;
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
    const [about, rules] = await Promise.all([send("info"), RULES.length ? RULES : send("static/rules.json")]);
    ({ corpora, limits, encoder } = about);
    if (!RULES.length) {
      RULES = rules;
      offer();
    }
    if (!Object.keys(corpora).length) throw new Refused("This server has no corpus: start it with --corpus NAME=FOLDER, or load one.");
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
