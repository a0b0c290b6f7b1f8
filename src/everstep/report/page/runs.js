// The live page: asks the server for the table every few seconds, and for the curves of ticked runs when they move.

const PAUSE = 2000, PATIENCE = 15000; // milliseconds
const MOST_CHOSEN = COLOURS;
const FIRST_CHOSEN = 3;

const { root } = JSON.parse(document.getElementById("data").textContent);
const chosen = new Map(); // names of runs, with their colours
const sorting = { key: "seen", descending: true };
const answers = new Map(); // what the server has sent: text and tag by address
let runs = null, words = "", logarithmic = false, shownCurves = "", shownComparison = "";

const table = new RunsTable(chosen, sorting, (name, isChosen) => {
  if (name !== undefined) choose(name, isChosen);
  remember();
  showTable();
  showChosen();
});
const pulse = element("span", { class: "pulse", role: "status" }, "live");
const elsewhere = element("span", { class: "elsewhere" });
const size = element("span", { class: "muted", role: "status" });
const below = element("div"), compared = element("div");
const search = element("input", { type: "search", size: 26, placeholder: "name, state, experiment …", oninput: () => { words = search.value; remember(); showTable(); } });
const untick = button("Untick all", () => { chosen.clear(); remember(); showTable(); showChosen(); });

// Asks; an answer that is as before comes without its content.
async function ask(address) {
  const before = answers.get(address);
  const answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE), headers: before ? { "If-None-Match": before.tag } : {} });
  if (answer.status === 304) return before.value;
  if (!answer.ok) throw new Error((await answer.text()).trim());
  const value = await answer.json();
  answers.set(address, { tag: answer.headers.get("ETag"), value });
  return value;
}

function choose(name, isChosen) {
  const used = new Set(chosen.values());
  const free = [...Array(MOST_CHOSEN).keys()].find((colour) => !used.has(colour));
  if (!isChosen) chosen.delete(name);
  else if (free !== undefined && !chosen.has(name)) chosen.set(name, free);
}

// The choice is part of the address: it can be kept, reloaded and sent.
function remember() {
  const said = new URLSearchParams();
  for (const name of chosen.keys()) said.append("run", name);
  if (words) said.set("filter", words);
  said.set("sort", `${sorting.descending ? "-" : ""}${sorting.key}`);
  history.replaceState(null, "", `#${said}`);
}

function recall() {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const name of said.getAll("run")) choose(name, true);
  words = search.value = said.get("filter") || "";
  const sort = said.get("sort");
  if (sort) { sorting.descending = sort.startsWith("-"); sorting.key = sort.replace(/^-/, ""); }
}

function showTable() {
  if (!runs) return;
  const shown = table.show(runs, words.toLowerCase().split(/\s+/).filter(Boolean));
  const running = runs.filter((run) => run.state.startsWith("running")).length;
  const parts = [shown === runs.length ? count(runs.length, "run") : `${number(shown)} of ${count(runs.length, "run")}`];
  if (running) parts.push(`${number(running)} running`);
  if (chosen.size >= MOST_CHOSEN) parts.push(`${MOST_CHOSEN} are shown below, the most that can be told apart`);
  size.textContent = runs.length ? parts.join(", ") : "No runs yet; they appear here when they begin.";
  table.box.hidden = !runs.length;
  untick.hidden = !chosen.size;
}

// Draws curves and comparison again where they have changed, and leaves them alone under the reader's hand otherwise.
async function showChosen() {
  const names = [...chosen.keys()].filter((name) => runs && runs.some((run) => run.name === name));
  const asked = names.join("\n");
  const { runs: found } = names.length ? await ask(`curves.json?${queryOf(names)}`) : { runs: [] };
  if (asked !== [...chosen.keys()].filter((name) => runs.some((run) => run.name === name)).join("\n")) return; // ticked meanwhile
  const coloured = found.map((run) => ({ ...run, colour: chosen.get(run.name) }));
  const now = JSON.stringify([coloured, logarithmic]);
  if (now !== shownCurves) {
    shownCurves = now;
    const open = below.querySelector("details[open]") !== null;
    below.replaceChildren(...(coloured.length ? [curvesOfChosen(coloured, logarithmic, (value) => { logarithmic = value; showChosen(); })]
      : runs && runs.length ? [element("p", { class: "note" }, "Tick runs to see their curves; two or more are compared.")] : []));
    if (open && below.querySelector("details")) below.querySelector("details").open = true;
  }
  const comparison = found.length > 1 ? await ask(`comparison.json?${queryOf(found.map((run) => run.name))}`) : null;
  const text = JSON.stringify([comparison, [...chosen]]);
  if (text !== shownComparison) {
    shownComparison = text;
    const at = compared.querySelector(".scroller") ? compared.querySelector(".scroller").scrollTop : 0;
    compared.replaceChildren(...(comparison ? [comparisonOfChosen(comparison, chosen)] : []));
    if (comparison) compared.querySelector(".scroller").scrollTop = at;
  }
}

async function look() {
  const begin = Date.now();
  try {
    const isFirst = runs === null;
    const found = await ask("runs.json");
    runs = found.runs;
    elsewhere.replaceChildren(...Object.entries(found.links).map(([name, address]) => element("a", { href: address, target: "_blank", rel: "noopener" }, name)));
    if (isFirst && !chosen.size && !location.hash) [...runs].sort((a, b) => (b.seen || 0) - (a.seen || 0)).slice(0, FIRST_CHOSEN).forEach((run) => choose(run.name, true));
    showTable();
    await showChosen();
    pulse.className = "pulse";
    pulse.textContent = "live";
  } catch (error) {
    pulse.className = "pulse lost";
    pulse.textContent = error instanceof TypeError || error.name === "TimeoutError" ? "not connected: everstep ui has ended" : String(error.message || error);
  }
  setTimeout(look, Math.max(PAUSE, 3 * (Date.now() - begin)));
}

recall();
document.body.append(
  element("header", { class: "live" }, element("h1", {}, "Runs"), element("span", { class: "muted where" }, root), elsewhere, pulse),
  element("main", {},
    element("div", { class: "controls" }, element("label", { class: "field" }, element("span", {}, "Filter"), search), size, untick),
    element("section", { "aria-label": "Runs" }, table.box), below, compared),
  element("footer", {}, "Made by everstep ui. The page only reads; it changes as the runs do."));
look();
