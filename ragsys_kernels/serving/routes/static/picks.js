// The picks of the rules side by side: a table a rule, and what one has and another has not.

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
export const digits = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : value.toFixed(3));

// The place of a pick in words: 1st, 2nd, .. 11th.
const place = (i) => `${i + 1}${(Math.floor(i / 10) % 10 !== 1 && ["st", "nd", "rd"][i % 10]) || "th"}`;

export function made(tag, ...children) {
  const node = document.createElement(tag);
  node.append(...children);
  return node;
}

function cell(content, scope) {
  const node = made(scope ? "th" : "td", ...[content].flat());
  if (scope) node.scope = scope;
  return node;
}

// One section a rule. `found` has the picks by rule, or its error; `k` is how many were asked for; `names` and `titles` what a rule
// is called, and what stands above its picks; `texts` a text by id, if there are any; `whole(id)` fetches a text that was cut.
export function sections(rules, found, { k, names, titles, texts, whole }) {
  const shown = rules.filter((name) => !found[name].error);
  return rules.map((name) => {
    const picks = found[name];
    if (picks.error || !picks.ids.length) {
      const why = made("p", picks.error ? picks.error.message : "No picks: nothing can be picked.");
      why.className = picks.error ? "bad" : "note";
      const section = made("section", made("h2", titles[name]), why);
      section.dataset.rule = name;
      return section;
    }
    const rows = picks.ids.flatMap((id, i) => {
      const without = shown.filter((other) => !found[other].ids.includes(id)).map((other) => names[other]);
      const alone = without.length > 0 && without.length === shown.length - 1;
      const few = without.length > 2 ? `in ${shown.length - without.length} of ${shown.length}` : `not in ${without.join(", ")}`;
      const note = made("small", alone ? made("mark", "only here") : without.length ? few : "");
      const near = made("small", picks.nearest?.[i] >= 0 ? `like the ${place(picks.nearest[i])}` : "");
      const row = made("tr", cell(String(i + 1)), cell([made("span", id), " ", note, " ", near], "row"), cell(digits(picks.relevance[i])),
        cell(i ? digits(picks.redundancy[i]) : "–"), cell(digits(picks.scores[i])));
      row.dataset.id = id;
      row.classList.toggle("alone", alone);
      if (!texts) return [row];
      row.classList.add("read");
      return [row, read(id, texts.get(id), whole)];
    });
    const head = made("tr", ...["", "id", "sim", "like", "score"].map((text) => cell(text, "col")));
    const fewer = picks.ids.length < k ? `${picks.ids.length} of ${k} picks, ` : "";
    const caption = made("caption", `${fewer}mean sim ${digits(mean(picks.relevance))}, mean like ${digits(mean(picks.redundancy.slice(1)))}`);
    const section = made("section", made("h2", titles[name]), made("table", caption, made("thead", head), made("tbody", ...rows)));
    section.dataset.rule = name;
    return section;
  });
}

// The row below a pick with its text, and with a button for the rest of one that is cut.
function read(id, text, whole) {
  const place = made("td", made("span", text ? text.text : "no text"));
  place.colSpan = 5;
  const row = made("tr", place);
  row.className = "text";
  if (text && text.text.length < text.chars) {
    const button = made("button", `all ${text.chars.toLocaleString("en")} characters`);
    Object.assign(button, { type: "button", className: "more" });
    button.addEventListener("click", async () => {
      const all = await whole(id);
      if (!all) return;
      place.firstChild.textContent = all.text;
      button.remove();
      if (all.text.length < all.chars) place.append(` … of ${all.chars.toLocaleString("en")} characters`);
    });
    place.append("… ", button);
  }
  return row;
}
