// A recorded game with what its networks thought: the board, the scores that they expected, and the probabilities of
// their choices at each move.

import { make, makeSvg } from "./dom.js";
import { GameView } from "./game_views.js";
import { percent, UNKNOWN } from "./numbers.js";
import { mount } from "./replay.js";

const WIDTH = 600;
const HEIGHT = 140;
const EDGE = 6;

export class GameStage {
  constructor(element) {
    this.element = element;
    this.replay = null;
  }

  // `about`: a line on where the game comes from.
  show(record, about) {
    this.close();
    const board = make("div");
    const thoughts = make("div", { class: "thoughts game" });
    const curve = new ValueCurve(record, (step) => this.replay.go(step));
    const moves = record.steps.some((step) => step.view) ? null : new MoveTable(record, (step) => this.replay.go(step));
    const every = record.every > 1 ? `; every ${record.every} steps of the game are shown as one` : "";
    this.element.replaceChildren(
      make("p", { class: "faint" }, `${about}; ${record.outcome}${every}`),
      make("div", { class: "stage-parts" },
        make("div", {}, board, moves?.element),
        make("div", {}, curve.element, thoughts)),
    );
    this.replay = mount(board, record, {
      onStep: (step) => {
        curve.mark(step);
        moves?.mark(step);
        thoughts.replaceChildren(...thoughtsAt(record, step));
      },
    });
    if (document.body.classList.contains("printing")) this.replay.go(record.steps.length - 1);
  }

  play() {
    this.replay?.play();
  }

  close() {
    this.replay?.close();
    this.replay = null;
    this.element.replaceChildren();
  }
}

function thoughtsAt(record, step) {
  const { done } = record.steps[step];
  if (step === 0) return [make("p", { class: "faint" }, "The first position. Step on to see the moves.")];
  if (!done.length) return [make("p", { class: "faint" }, "Nobody decided anything here.")];
  return done.slice(-4).map((move) => {
    const name = record.players[move.seat].name;
    const options = move.options ?? [];
    const rows = options.map(([option, p]) =>
      make("li", { class: option === move.name ? "chosen" : null },
        make("span", { class: "name" }, option === move.name ? `${option} ✓` : option),
        make("meter", { min: 0, max: 1, value: p, "aria-hidden": "true" }),
        make("span", { class: "number" }, percent(p, 1))));
    const about = isKnown(move.value)
      ? `expected score before the move: ${signed(move.value)}`
      : "a bot: it tells neither values nor probabilities";
    return make("div", {},
      make("h3", {}, dot(record, move.seat), `${name}: ${move.name}`),
      make("p", { class: "faint" }, about),
      rows.length ? make("ul", { class: "bars" }, ...rows) : null);
  });
}

// The score that each network expected for its seat, over the steps of the game.
class ValueCurve {
  constructor(record, choose) {
    const last = Math.max(1, record.steps.length - 1);
    const lines = new Map(); // seat -> [[step, value], ...]
    record.steps.forEach((step, number) => {
      for (const move of step.done) {
        if (!isKnown(move.value)) continue;
        if (!lines.has(move.seat)) lines.set(move.seat, []);
        lines.get(move.seat).push([number - 1, move.value]); // it was expected before the move
      }
    });
    const values = [...lines.values()].flat().map(([, value]) => value);
    const [low, high] = record.score_range ?? [Math.min(0, ...values), Math.max(0, ...values)];
    const reach = high > low ? high - low : 1;
    const x = (step) => (step / last) * WIDTH;
    const y = (value) => HEIGHT - EDGE - ((value - low) / reach) * (HEIGHT - 2 * EDGE);
    this.x = x;
    this.cursor = makeSvg("path", { class: "cursor", d: `M0 0V${HEIGHT}` });
    const svg = makeSvg("svg", {
      class: "values", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": "The score that each network expects, move by move",
    });
    if (low < 0 && high > 0) svg.append(makeSvg("path", { class: "zero", d: `M0 ${y(0)}H${WIDTH}` }));
    for (const [seat, points] of lines) {
      const path = points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      // A single value would be a line of no length.
      const end = points.length === 1 ? `h${(WIDTH / last).toFixed(1)}` : "";
      svg.append(makeSvg("path", { class: `line of${record.teams[seat] % 4}`, d: path + end }));
    }
    svg.append(this.cursor);
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      choose(Math.round(((event.clientX - box.left) / box.width) * last));
    });
    const legend = [...lines.keys()].map((seat) =>
      make("li", {}, dot(record, seat), `${record.players[seat].name} expects `, make("span", { class: "number" })));
    this.told = new Map([...lines.keys()].map((seat, at) => [seat, legend[at].lastElementChild]));
    this.lines = lines;
    const range = `${signed(low)} to ${signed(high)}`;
    this.element = make("figure", { class: "chart game", hidden: lines.size === 0 },
      make("figcaption", {}, `Expected score over the game, each from its own side; ${range}`),
      svg,
      make("ul", { class: "legend" }, ...legend));
  }

  mark(step) {
    this.cursor.setAttribute("d", `M${this.x(step).toFixed(1)} 0V${HEIGHT}`);
    for (const [seat, element] of this.told) {
      const known = this.lines.get(seat).filter(([at]) => at <= step).at(-1);
      element.textContent = known ? signed(known[1]) : UNKNOWN;
    }
  }
}

// The moves of a game that has no drawing.
class MoveTable {
  constructor(record, choose) {
    this.rows = record.steps.map((step, number) =>
      step.done.map((move) =>
        make("tr", {},
          make("td", { class: "number" }, make("button", { type: "button", class: "link", onclick: () => choose(number) }, String(number))),
          make("td", {}, dot(record, move.seat), record.players[move.seat].name),
          make("td", {}, move.name),
          make("td", { class: "number" }, probability(move)),
          make("td", { class: "number" }, isKnown(move.value) ? signed(move.value) : UNKNOWN))));
    const heads = ["step", "player", "action", "probability", "expected score"];
    this.element = make("div", { class: "table moves game", tabindex: "0" },
      make("table", {},
        make("caption", { class: "hidden" }, "Moves of the game"),
        make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
        make("tbody", {}, ...this.rows.flat())));
  }

  mark(step) {
    this.rows.forEach((rows, number) => rows.forEach((row) => row.classList.toggle("now", number === step)));
    const row = this.rows[step][0];
    if (row) this.element.scrollTop = row.offsetTop - this.element.clientHeight / 2;
  }
}

// A small board that plays a game by itself, again and again, unless the reader wants no motion.
export class SmallBoard {
  constructor(element) {
    this.board = make("div", { class: "small-board" });
    this.said = make("p", { class: "faint" });
    this.toggle = make("button", { type: "button", onclick: () => (this.timer ? this.stop() : this.start()) }, "play");
    this.timer = null;
    this.record = null;
    element.replaceChildren(this.board, make("div", { class: "small-bar" }, this.toggle, this.said));
  }

  show(record) {
    this.record = record;
    this.view = new GameView(this.board, { names: record.players.map((player) => player.name), teams: record.teams });
    const isPaper = document.body.classList.contains("printing");
    const isStill = isPaper || matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.draw(isStill ? record.steps.length - 1 : 0);
    if (isStill) this.stop();
    else this.start();
  }

  draw(step) {
    const { record } = this;
    const last = record.steps.length - 1;
    const { view, done } = record.steps[step];
    this.step = step;
    if (view) this.view.show(view);
    else this.board.replaceChildren(make("p", {}, done.map((move) => `${record.players[move.seat].name}: ${move.name}`).join(" · ") || "start"));
    const values = done.filter((move) => isKnown(move.value)).slice(-1)
      .map((move) => `${record.players[move.seat].name} expects ${signed(move.value)}`);
    this.said.textContent = [`step ${step} of ${last}`, step === last ? record.outcome : values[0]].filter(Boolean).join(" · ");
  }

  start() {
    this.stop();
    this.toggle.textContent = "pause";
    const last = this.record.steps.length - 1;
    const pace = last > 100 ? 120 : 900;
    let rest = 0; // at the end it stands still for a while
    this.timer = setInterval(() => {
      if (this.step < last) this.draw(this.step + 1);
      else if ((rest += pace) > 4000) {
        rest = 0;
        this.draw(0);
      }
    }, pace);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.toggle.textContent = "play";
  }
}

function dot(record, seat) {
  return make("span", { class: `game-dot of${record.teams[seat] % 4}` });
}

function probability(move) {
  const found = (move.options ?? []).find(([name]) => move.name === name || move.name.startsWith(`${name}, `));
  return found ? percent(found[1], 1) : UNKNOWN;
}

function isKnown(value) {
  return typeof value === "number";
}

function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
}
