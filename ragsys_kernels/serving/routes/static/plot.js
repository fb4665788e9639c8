// The plot of relevance against redundancy: MMR's line as λ moves, and the other rules' points.

const SPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 330, LEFT = 52, RIGHT = 14, TOP = 12, BOTTOM = 44;

function drawn(tag, attributes, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Outlines of the rules' signs, around a point.
const OUTLINES = {
  topk: "m-5-5h10v10h-10z",
  vrsd: "m0-7l7 12h-14z",
  msd: "m0-7l7 7l-7 7l-7-7z",
  dpp: "m0 7l7-12h-14z",
  ssd: "m-2-7h4v5h5v4h-5v5h-4v-5h-5v-4h5z",
  sift: "m7 0l-12 7v-14z",
  coverage: "m-7 0l12 7v-14z",
  gist: "m-3-7h6l4 7l-4 7h-6l-4-7z",
};

function shape(rule, x, y) {
  if (rule === "mmr") return drawn("circle", { class: "now", cx: x, cy: y, r: 7 });
  const colour = Object.keys(OUTLINES).indexOf(rule) % 2 ? "third" : "other";
  return drawn("path", { class: `${colour} ${rule}`, d: `M${x} ${y}${OUTLINES[rule]}` });
}

// A small drawing of a rule's sign, for the legend.
export function sign(name) {
  const svg = drawn("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" });
  svg.append(shape(name, 8, 8));
  return svg;
}

// Round numbers that divide a range into about so many parts.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return { found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

function range(values) {
  const low = Math.min(...values), high = Math.max(...values);
  const margin = Math.max((high - low) * 0.06, 0.005);
  return [low - margin, high + margin];
}

// Draw it. `steps` are MMR's points in the order of λ, `others` {name, x, y} of other rules; `choose` is called with the step
// that a person points at. Returns the function that marks a step.
export function plot(place, { steps, others, choose }) {
  const width = Math.max(240, place.clientWidth || 480);
  const [x0, x1] = range([...steps, ...others].map((point) => point.x));
  const [y0, y1] = range([...steps, ...others].map((point) => point.y));
  const x = (value) => LEFT + ((value - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const svg = drawn("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  const across = ticks(x0, x1, Math.max(2, Math.floor(width / 90)));
  for (const value of across.found) {
    svg.append(drawn("line", { class: "axis", x1: x(value), x2: x(value), y1: TOP, y2: HEIGHT - BOTTOM }));
    svg.append(drawn("text", { x: x(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, value.toFixed(across.digits)));
  }
  const up = ticks(y0, y1, 5);
  for (const value of up.found) {
    svg.append(drawn("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(up.digits)));
  }
  const middle = (TOP + HEIGHT - BOTTOM) / 2;
  svg.append(drawn("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, "redundancy: mean of like"));
  svg.append(drawn("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(11 ${middle}) rotate(-90)` }, "relevance: mean of sim"));
  const places = steps.map((step) => [x(step.x), y(step.y)]);
  svg.append(drawn("polyline", { class: "curve", points: places.map((each) => each.join()).join(" ") }));
  places.forEach(([cx, cy], i) => svg.append(drawn("circle", { class: "step", cx, cy, r: 2.5 }, drawn("title", {}, steps[i].title))));
  for (const { name, x: right, y: above } of others) svg.append(shape(name, x(right), y(above)));
  const now = shape("mmr", 0, 0);
  svg.append(now);

  const chosen = (event) => {
    const box = svg.getBoundingClientRect();
    const far = places.map(([px, py]) => (px - event.clientX + box.left) ** 2 + (py - event.clientY + box.top) ** 2);
    choose(far.indexOf(Math.min(...far)));
  };
  svg.addEventListener("pointerdown", chosen);
  svg.addEventListener("pointermove", (event) => event.buttons && chosen(event));
  place.replaceChildren(svg);
  return (step) => {
    now.setAttribute("cx", places[step][0]);
    now.setAttribute("cy", places[step][1]);
    svg.setAttribute("aria-label", `Mean relevance against mean redundancy: ${steps.length} selections of MMR as λ goes from 0 to 1, ` +
      `the chosen one at ${steps[step].y.toFixed(3)} against ${steps[step].x.toFixed(3)}`);
  };
}
