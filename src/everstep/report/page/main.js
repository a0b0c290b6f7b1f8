// The page: sections on runs are drawn once, those on an evaluation whenever another one is selected.

const ABOUT_RUNS = [headlineSection, curvesSection, comparisonSection];
const ABOUT_A_SPLIT = [confusionSection, classesSection, regressionSection, distributionsSection, gallerySection, slicesSection, tableSection];

function pageHead() {
  const title = data.runs.map((run) => run.name).join(" and ");
  return element("header", {}, element("h1", {}, title),
    data.runs.length === 1 && data.runs[0].origin.length ? element("p", { class: "origin muted" }, data.runs[0].origin.map((fact) => element("span", { title: fact.detail }, `${fact.name} `, element("b", {}, fact.value)))) : null,
    data.runs.length > 1 ? element("p", { class: "muted" }, "Differences are against ", ...runName(0), ".") : null);
}

// Selects the run and the split of the sections below, if there are several.
function chooser() {
  const box = element("div", { class: "chooser" });
  const show = () => {
    const group = box.contains(document.activeElement) ? document.activeElement.parentNode.getAttribute("aria-label") : null;
    const runs = data.runs.map((run, place) => [place, run.name]);
    const splits = currentRun().splits.map((split) => [split.split, split.split]);
    const split = currentSplit();
    box.hidden = data.runs.every((run) => run.splits.length < 1) || (runs.length < 2 && splits.length < 2);
    box.replaceChildren(
      element("span", { class: "muted" }, "Looking at"),
      runs.length > 1 ? segments("Run", runs, view.run, (place) => look(place)) : "",
      splits.length > 1 ? segments("Data", splits, split.split, (name) => look(view.run, name)) : element("span", {}, split ? split.split : ""),
    );
    if (group) box.querySelector(`[aria-label="${group}"] [aria-pressed="true"]`).focus();
  };
  return { box, show };
}

function navigation(main) {
  return [...main.querySelectorAll("section")].map((part) => element("a", { href: `#${part.id}` }, part.querySelector("h2").textContent));
}

function noSamples() {
  return element("p", { class: "note" }, `${data.runs.length > 1 ? "These runs were" : "This run was"} not evaluated sample by sample: curves only.`);
}

function start() {
  const main = element("main"), links = element("div", { class: "links" }), below = element("div", { class: "split" });
  const { strip, show: showStrip } = filterStrip();
  const { box, show: showChooser } = chooser();
  const showSplit = () => {
    const split = currentSplit();
    listeners.filters = [showStrip];  // those of the sections before go with them
    below.replaceChildren(...(split ? ABOUT_A_SPLIT.map((make) => make(split)).filter(Boolean) : [noSamples()]));
    showChooser();
    showStrip();
    links.replaceChildren(...navigation(main));
  };
  listen("view", showSplit);
  main.append(...ABOUT_RUNS.map((make) => make()).filter(Boolean), box, below, ...[configurationSection()].filter(Boolean));
  showSplit();
  document.body.append(pageHead(), element("nav", { "aria-label": "Sections" }, links, strip), main, dialog,
    element("footer", {}, "Made by everstep; this file holds all that it shows."));
}

start();
