// How a game went: the score that a network expected at each turn of the person, as a curve, and its best moves.

import { make } from "./game_views.js";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [150, 44, 10, 12, 22]; // pixels
const NARROWEST = 240;
const SPACE = "http://www.w3.org/2000/svg";

// `told`: {range, turns: [{turn, step, value, best, best_p, played, played_p}], end: {step, value} or null, worst}.
// `go(step)`: shows the table at this step; null where nothing can be shown. Returns {mark(step)}.
export function showAnalysis(element, told, judge, go) {
  const points = [...told.turns, ...(told.end ? [told.end] : [])];
  const [low, high] = told.range ?? bounds(points.map(({ value }) => value));
  const last = Math.max(1, points.at(-1).step);
  const width = Math.max(NARROWEST, element.clientWidth);
  const x = (step) => LEFT + (step / last) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);

  const graph = drawn("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  graph.setAttribute("aria-label", `expected score for you: ${points.map(({ value }) => number(value)).join(", ")}`);
  for (const value of [low, (low + high) / 2, high]) {
    graph.append(drawn("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    graph.append(drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)));
  }
  graph.append(drawn("text", { x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, `step ${last}`));
  const here = drawn("line", { class: "here", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const curve = points.map(({ step, value }) => `${x(step)},${y(value)}`).join(" ");
  graph.append(here, drawn("polyline", { class: "curve", points: curve }));
  const moves = told.turns.some(({ best }) => best !== undefined);
  points.forEach((point, place) => {
    if (!moves && place !== points.length - 1) return; // of a real-time game there would be hundreds
    const dot = drawn("circle", { cx: x(point.step), cy: y(point.value), r: 4 });
    if (place === told.worst) dot.setAttribute("class", "worst");
    dot.append(drawn("title", {}, `${place < told.turns.length ? `turn ${point.turn}` : "end"}: ${number(point.value)}`));
    graph.append(dot);
  });
  if (go !== null) {
    graph.style.cursor = "pointer";
    graph.addEventListener("click", (event) => {
      const box = graph.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * width;
      const far = ({ step }) => Math.abs(x(step) - at);
      go(points.reduce((one, other) => (far(other) < far(one) ? other : one)).step);
    });
  }
  element.replaceChildren(
    make("h2", { text: told.end ? "How the game went" : "How the game goes" }),
    make("p", { text: `The score that ${judge} expected for you at each of your turns.` }), graph,
    ...(told.worst === null ? [] : [make("p", { text: `The value fell most after your move of turn ${told.turns[told.worst].turn}.` })]),
    ...(moves ? [table(told, points, go)] : []));
  return {
    mark(step) {
      here.setAttribute("visibility", "visible");
      here.setAttribute("x1", x(step));
      here.setAttribute("x2", x(step));
    },
  };
}

function table(told, points, go) {
  const rows = told.turns.map((turn, place) => {
    const after = points[place + 1];
    const label = go === null ? make("span", { text: turn.turn }) :
      make("button", { text: turn.turn, type: "button", title: "show this position" });
    if (go !== null) label.addEventListener("click", () => go(turn.step));
    const same = turn.played === turn.best;
    return make("tr", { of: place === told.worst ? "worst" : "" },
      make("td", {}, label),
      make("td", { text: turn.played === undefined ? "–" : `${turn.played} (${percent(turn.played_p)})` }),
      make("td", { text: same ? "the same" : `${turn.best} (${percent(turn.best_p)})` }),
      make("td", { text: after ? `${number(turn.value)} → ${number(after.value)}` : number(turn.value) }));
  });
  const head = ["turn", "you played", "it prefers", "expected"].map((text) => make("th", { text, scope: "col" }));
  const holder = make("div", { of: "turns", tabIndex: 0 }, make("table", {},
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
  holder.setAttribute("role", "region");
  holder.setAttribute("aria-label", "your turns");
  return holder;
}

function drawn(tag, attributes, text) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function bounds(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low < high ? [low, high] : [low - 1, high + 1];
}

export function number(value) {
  return String(Number(value.toFixed(2))).replace("-", "−");
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}
