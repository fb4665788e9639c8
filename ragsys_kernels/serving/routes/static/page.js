// The page of a server: one request asks all rules for one query, and their picks stand side by side.

const element = (id) => document.getElementById(id);
const form = element("asked");
const NAMES = { topk: "top-k", mmr: "MMR", vrsd: "VRSD" };
let corpora = {};
let asked = 0; // answers to older questions are dropped

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

// The id as JSON: what a person types is an integer or a string, as the corpus has it.
function written(id) {
  if (corpora[form.corpus.value].ids === "string") return JSON.stringify(id);
  if (!/^-?\d+$/.test(id)) throw new Refused("the ids of this corpus are integers");
  return id.replace(/^(-?)0+(?=\d)/, "$1");
}

const list = (ids) => `[${ids.map(written).join(",")}]`;

function question(rules) {
  const id = written(form.query.value.trim());
  const rule = {
    topk: '"method":"mmr","lambda_d":1,"lambda_b":1',
    mmr: `"method":"mmr","lambda_d":${form.lambda.value},"lambda_b":${form["lambda-b"].value}`,
    vrsd: '"method":"vrsd"',
  };
  const queries = rules.map((name) => `{"query_id":${id},${rule[name]}}`);
  const exclude = form.itself.checked ? "" : `,"exclude":[${id}]`;
  return `{"corpus":${JSON.stringify(form.corpus.value)},"k":${Number(form.k.value)},` +
    `"pool":${form.pool.value ? Number(form.pool.value) : "null"}${exclude},"queries":[${queries.join(",")}]}`;
}

// VRSD does not weigh how alike picks are; MMR with relevance that falls along them keeps their order and tells.
async function likeness(ids) {
  const falling = ids.map((_, i) => ids.length - i);
  const body = `{"corpus":${JSON.stringify(form.corpus.value)},"k":${ids.length},"lambda_d":1,"lambda_b":1,"queries":` +
    `[{"query_id":${written(form.query.value.trim())},"candidates":${list(ids)},"relevance":[${falling}]}]}`;
  return (await send("v1/select", body)).results[0].redundancy ?? [];
}

async function pick() {
  const number = ++asked;
  const rules = [...form.querySelectorAll("[name=rule]:checked")].map((box) => box.value);
  try {
    if (!form.query.value.trim()) throw new Refused("type the id of an item: it is the query");
    const wanted = rules.includes("topk") ? rules : ["topk", ...rules];
    const begun = performance.now();
    const { results } = await send("v1/select", question(wanted));
    const took = performance.now() - begun;
    const found = Object.fromEntries(wanted.map((name, i) => [name, results[i]]));
    const bad = results.find((result) => result.error);
    if (bad) throw new Refused(bad.error.message);
    if (rules.includes("vrsd") && found.vrsd.ids.length) found.vrsd.redundancy = await likeness(found.vrsd.ids);
    if (number !== asked) return;
    const nearest = new Set(found.topk.ids);
    element("picks").replaceChildren(...rules.map((name) => shown(name, found[name], nearest)));
    element("legend").hidden = !rules.length;
    say(`Out of ${corpora[form.corpus.value].rows.toLocaleString("en")} items, in ${took.toFixed(1)} ms with the way here.`);
    remember();
  } catch (error) {
    if (number === asked) say(error instanceof Refused ? error.message : `no answer: ${error.message}`, true);
  }
}

function shown(name, picks, nearest) {
  const table = made("table");
  const head = made("tr", ...["", "id", "sim", "like", "score"].map((text) => cell(text, "col")));
  const rows = picks.ids.map((id, i) => {
    const alone = nearest.has(id) ? document.createTextNode(id) : made("mark", id);
    const row = made("tr", cell(String(i + 1)), cell(alone, "row"), cell(digits(picks.relevance[i])),
      cell(i ? digits(picks.redundancy[i]) : "–"), cell(digits(picks.scores[i])));
    row.classList.toggle("other", !nearest.has(id));
    return row;
  });
  const caption = made("caption", `mean sim ${digits(mean(picks.relevance))}, mean like ${digits(mean(picks.redundancy.slice(1)))}`);
  table.append(caption, made("thead", head), made("tbody", ...rows));
  const title = name === "mmr" ? `MMR, λ = ${Number(form.lambda.value).toFixed(2)}` : NAMES[name];
  return made("section", made("h2", title), table);
}

function made(tag, ...children) {
  const node = document.createElement(tag);
  node.append(...children);
  return node;
}

function cell(content, scope) {
  const node = made(scope ? "th" : "td", content);
  if (scope) node.scope = scope;
  return node;
}

const digits = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : value.toFixed(3));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function say(text, bad = false) {
  element("said").textContent = text;
  element("said").classList.toggle("bad", bad);
  element("said").setAttribute("role", bad ? "alert" : "status");
}

// What is asked stands in the address, but for the token, so that it can be sent to others.
const KEPT = ["corpus", "query", "k", "pool", "lambda", "lambda-b"];

function remember() {
  history.replaceState(null, "", `#${new URLSearchParams(KEPT.map((name) => [name, form[name].value]))}`);
}

function recall() {
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (KEPT.includes(name) && (name !== "corpus" || value in corpora)) form[name].value = value;
  }
}

function refresh() {
  const corpus = corpora[form.corpus.value];
  element("bias").hidden = !corpus?.bias;
  element("lambda-shown").value = Number(form.lambda.value).toFixed(2);
  element("lambda-b-shown").value = Number(form["lambda-b"].value).toFixed(2);
  if (corpus) form.query.placeholder = corpus.ids === "string" ? "an id of the corpus" : `0 to ${corpus.rows - 1}, or as saved`;
}

async function start() {
  try {
    ({ corpora } = await send("info"));
    form.corpus.replaceChildren(...Object.keys(corpora).map((name) => new Option(name, name)));
    recall();
    refresh();
    if (!form.query.value && corpora[form.corpus.value].ids !== "string") form.query.value = "0";
    if (form.query.value) await pick();
    else say("Type the id of an item: it is the query.");
  } catch (error) {
    say(error instanceof Refused ? error.message : `no answer: ${error.message}`, true);
  }
}

let waiting;
form.addEventListener("input", (event) => {
  refresh();
  if (event.target.id === "token" || !form.query.value.trim()) return;
  clearTimeout(waiting);
  waiting = setTimeout(pick, 120);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(waiting);
  if (Object.keys(corpora).length) pick();
  else start();
});
start();
