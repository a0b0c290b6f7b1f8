// The current selection: a run, a split, and the filters on its samples.

const data = JSON.parse(document.getElementById("data").textContent);
const view = { run: 0, split: null, filters: [], search: "" };
const listeners = { view: [], filters: [] };

function listen(kind, listener) {
  listeners[kind].push(listener);
}

function announce(kind) {
  for (const listener of listeners[kind]) listener();
}

function currentRun() {
  return data.runs[view.run];
}

function currentSplit() {
  const splits = currentRun().splits;
  return splits.find((split) => split.split === view.split) || splits[0] || null;
}

function look(run, split) {
  view.run = run;
  view.split = split === undefined ? view.split : split;
  view.filters = [];
  view.search = "";
  announce("view");
}

// The columns of a split's table by name; without a table, those of the shown samples.
function columnsOf(split) {
  if (!split.byName) split.byName = new Map((split.table ? split.table.columns : []).map((c) => [c.name, c]));
  return split.byName;
}

// The index of a row of the data in the table, which may hold only some of the rows; -1 if it is missing.
function placeOf(split, row) {
  if (!split.table) return -1;
  if (!split.table.rows) return row;
  if (!split.places) split.places = new Map(split.table.rows.map((number, place) => [number, place]));
  return split.places.has(row) ? split.places.get(row) : -1;
}

function rowAt(split, place) {
  return split.table.rows ? split.table.rows[place] : place;
}

function sampleOf(split, row) {
  if (!split.samplesByRow) split.samplesByRow = new Map(split.samples.map((sample) => [sample.row, sample]));
  return split.samplesByRow.get(row) || null;
}

function tableSize(split) {
  return split.table ? split.table.columns[0].values.length : 0;
}
