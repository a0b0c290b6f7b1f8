// Filters: conditions on columns, and a search over the texts. Every one is a plain object:
//   { column, is: value }   { column, low, high, last }   { column, contains | not | least | most: what was typed }

function condition(filter) {
  if ("is" in filter) return (value) => value === filter.is;
  if ("low" in filter) {
    return (value) => value !== null && value >= filter.low && (filter.last ? value <= filter.high : value < filter.high);
  }
  if ("least" in filter) return (value) => value !== null && value >= Number(filter.least);
  if ("most" in filter) return (value) => value !== null && value <= Number(filter.most);
  return null;
}

function typedCondition(split, column, filter) {
  const wanted = String("contains" in filter ? filter.contains : filter.not).toLowerCase();
  const spelled = (value) => (value === null ? "" : (column.type === "class" ? className(split, value) : String(value)).toLowerCase());
  const exact = column.type !== "text";
  if ("not" in filter) return (value) => spelled(value) !== wanted;
  return (value) => (exact ? spelled(value) === wanted || value === Number(wanted) : spelled(value).includes(wanted));
}

function described(split, filter) {
  const name = spaced(filter.column);
  const column = columnsOf(split).get(filter.column) || { type: filter.type || "text" };
  if ("is" in filter) return `${name} is ${shown(split, column, filter.is)}`;
  if ("low" in filter) return `${name} from ${interval(filter.low, filter.high)}`;
  if ("least" in filter) return `${name} ≥ ${filter.least}`;
  if ("most" in filter) return `${name} ≤ ${filter.most}`;
  return "not" in filter ? `${name} is not ${filter.not}` : `${name} ${column.type === "text" ? "has" : "is"} ${filter.contains}`;
}

// Returns a function that tells for an index in the table whether the row passes.
function tableTest(split) {
  const tests = view.filters.map((filter) => {
    const column = columnsOf(split).get(filter.column);
    if (!column) return () => false;
    const test = condition(filter) || typedCondition(split, column, filter);
    return (place) => test(column.values[place]);
  });
  const words = view.search.trim().toLowerCase();
  if (words) {
    const columns = [...columnsOf(split).values()].filter((column) => column.type !== "number");
    tests.push((place) => columns.some((column) => shown(split, column, column.values[place]).toLowerCase().includes(words)));
  }
  return (place) => tests.every((test) => test(place));
}

// The same for a sample with a picture, which may be missing in the table.
function sampleTest(split) {
  if (split.table) {
    const test = tableTest(split);
    return (sample) => { const place = placeOf(split, sample.row); return place >= 0 && test(place); };
  }
  const known = (sample, name) => (name in sample ? sample[name] : sample.values[name]);
  return (sample) => view.filters.every((filter) => {
    const column = { type: "text" };
    return (condition(filter) || typedCondition(split, column, filter))(known(sample, filter.column) ?? null);
  });
}

function isFiltered() {
  return view.filters.length > 0 || view.search.trim() !== "";
}

// Replaces all filters, and scrolls to the section with this id.
function setFilters(filters, id) {
  view.filters = filters;
  view.search = "";
  announce("filters");
  if (id) visit(id);
}

function addFilter(filter) {
  view.filters = [...view.filters.filter((other) => other.column !== filter.column), filter];
  announce("filters");
}

function visit(id) {
  const target = document.getElementById(id) || document.getElementById("table");
  if (!target) return;
  target.scrollIntoView({ block: "start" });
  document.getElementById(`${target.id}-title`).focus({ preventScroll: true });
}

// The strip that lists the active filters, and removes them.
function filterStrip() {
  const strip = element("div", { class: "strip", role: "status", hidden: true });
  const show = () => {
    const split = currentSplit();
    strip.hidden = !split || !isFiltered();
    if (strip.hidden) return;
    const chips = view.filters.map((filter) => button(`${described(split, filter)} ✕`, () => {
      view.filters = view.filters.filter((other) => other !== filter);
      announce("filters");
    }, { class: "chip", "aria-label": `Remove the filter ${described(split, filter)}` }));
    if (view.search.trim()) {
      chips.push(button(`“${view.search.trim()}” ✕`, () => { view.search = ""; announce("filters"); }, { class: "chip" }));
    }
    strip.replaceChildren(element("span", {}, "Only samples with"), ...chips,
      button("Show all", () => setFilters([]), { class: "plain" }));
  };
  return { strip, show };
}
