// Elements from values. All text goes in as text: a name that looks like markup stays a name.

const SVG = "http://www.w3.org/2000/svg";

// make("p", {class: "faint"}, "text", element, ...); a function as on... is a listener.
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// A part of a view with its heading.
export function panel(title, ...children) {
  return make("section", { class: "panel" }, make("h2", {}, title), ...children);
}

export function playerLink(player) {
  return make("a", { href: `#player/${encodeURIComponent(player)}` }, player);
}

// The dashboard of a run in a list; its key is a path.
export function runLink(key, text) {
  return make("a", { href: `run/${key.split("/").map(encodeURIComponent).join("/")}/` }, text);
}

// A player of the league with the weights that it plays with; a bot has none.
export function withWeights(one) {
  return one.weights ? `${one.id} (${one.weights})` : one.id;
}

// One of several choices, as buttons of which one is pressed. options: [[value, text], ...]
export function choice(label, options, chosen, onChoose) {
  const buttons = options.map(([value, text]) =>
    make("button", { type: "button", onclick: () => press(value) }, text),
  );
  const mark = (pressed) =>
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(options[at][0] === pressed)));
  function press(value) {
    mark(value);
    onChoose(value);
  }
  mark(chosen);
  const name = make("span", { class: "faint" }, label);
  return make("div", { class: "choice", role: "group", "aria-label": label }, name, ...buttons);
}

// An interval from one place to another on a line of height 14, with its ends marked.
export function whisker(low, high) {
  return `M${low} 7H${high}M${low} 3V11M${high} 3V11`;
}

// Text with `commands` in it, as the errors and advice of Ludus have them.
export function withCode(text) {
  return text.split("`").map((part, number) => (number % 2 ? make("code", {}, part) : part));
}
