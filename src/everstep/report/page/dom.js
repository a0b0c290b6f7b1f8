// Elements. Data is only inserted as text or as attribute values: nothing here parses HTML.

function element(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes || {}, children);
}

function drawn(tag, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes || {}, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// The page's policy forbids style attributes; properties are set one by one.
function styled(node, properties) {
  for (const [name, value] of Object.entries(properties)) node.style.setProperty(name, value);
  return node;
}

// A key that may be broken between its parts.
function brokenAtDots(key) {
  return key.split(/(?<=\.)/).flatMap((part, place) => (place ? [element("wbr"), part] : [part]));
}

function button(text, onclick, attributes) {
  return element("button", { type: "button", onclick, ...attributes }, text);
}

// A labelled choice; `choices` are pairs of value and text.
function choice(label, choices, chosen, onpick) {
  const options = choices.map(([value, text]) => element("option", { value, selected: value === chosen }, text));
  const select = element("select", { onchange: () => onpick(select.value) }, options);
  return element("label", { class: "field" }, element("span", {}, label), select);
}

function tickbox(label, checked, onpick) {
  const box = element("input", { type: "checkbox", checked, onchange: () => onpick(box.checked) });
  return element("label", { class: "tick" }, box, label);
}

// One of few, as buttons side by side.
function segments(label, choices, chosen, onpick) {
  const buttons = choices.map(([value, text]) => button(text, () => { press(value); onpick(value); }));
  const press = (current) => choices.forEach(([value], place) => buttons[place].setAttribute("aria-pressed", String(value === current)));
  press(chosen);
  return element("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

function section(id, title, ...children) {
  return element("section", { id, "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title`, tabindex: "-1" }, title), children);
}

// A row of controls that can redraw itself: `draw(box)` fills the box, initially and on every call.
function redrawn(draw, attributes) {
  const box = element("div", attributes);
  const again = () => box.replaceChildren(...[draw(again)].flat().filter(Boolean));
  again();
  return box;
}
