// Draws what the server says of a table (the `view` of a game or of a step of a replay) into an element.
// Names are set as text, never as markup.

import { drawMap } from "./skirmish_map.js";

export function make(tag, { text, of, ...properties } = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  if (of !== undefined) element.className = of;
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

// `names`: by seat. `choose(option)`: what a click on the board means; without it nothing can be clicked.
export class GameView {
  constructor(element, { names, teams, choose = null }) {
    this.element = element;
    this.names = names;
    this.teams = teams;
    this.choose = choose;
    this.canvas = null;
    this.stones = []; // of the board that was shown last
    element.classList.add("game");
    element.replaceChildren();
  }

  // `options`: those that are legal now, [{option, name}]; `marks`: what a map shows besides its units.
  show(view, options = [], marks = {}) {
    const legal = new Set(options.map((one) => one.option));
    if (view.kind === "board") this.element.replaceChildren(this.board(view, legal));
    else if (view.kind === "cards") this.element.replaceChildren(this.cards(view));
    else if (view.kind === "picture") this.picture(view);
    else if (view.kind === "skirmish") this.map(view, marks);
    else this.element.replaceChildren(this.numbers(view));
  }

  board(view, legal) {
    const focused = document.activeElement?.dataset?.cell;
    const grid = make("div", { of: view.falls ? "game-board" : "game-board square" });
    grid.style.gridTemplateColumns = `repeat(${view.columns}, 1fr)`;
    if (this.choose === null) {
      grid.setAttribute("role", "img");
      grid.setAttribute("aria-label", written(view));
    }
    if (view.falls && this.choose !== null) {
      for (let column = 0; column < view.columns; column++) {
        const button = make("button", { of: "game-drop", text: column + 1, disabled: !legal.has(column) });
        button.setAttribute("aria-label", `column ${column + 1}`);
        button.dataset.cell = `drop${column}`;
        button.addEventListener("click", () => this.choose(column));
        grid.append(button);
      }
    }
    view.stones.forEach((owner, cell) => grid.append(this.cell(view, owner, cell, legal)));
    this.stones = view.stones;
    if (focused) setTimeout(() => grid.querySelector(`[data-cell="${focused}"]`)?.focus());
    return grid;
  }

  cell(view, owner, cell, legal) {
    const option = view.falls ? cell % view.columns : cell;
    const clickable = this.choose !== null && !view.falls;
    const element = make(clickable ? "button" : "div", { of: "game-cell" });
    if (clickable) {
      const held = owner < 0 ? "free" : this.names[owner];
      element.setAttribute("aria-label", `cell ${cell + 1}, ${held}`);
      element.disabled = !legal.has(option);
      element.dataset.cell = cell;
    }
    if (this.choose !== null) {
      element.addEventListener("click", () => legal.has(option) && this.choose(option));
    }
    if (cell === view.latest) element.classList.add("latest");
    if (view.line.includes(cell)) element.classList.add("line");
    if (owner >= 0) element.append(this.stone(view, owner, cell));
    return element;
  }

  // A new stone falls from above the board to its cell.
  stone(view, owner, cell) {
    const stone = make("span", { of: `game-stone of${owner}` });
    if (view.falls && cell === view.latest && (this.stones[cell] ?? -1) < 0) {
      stone.classList.add("falls");
      stone.style.setProperty("--rows", Math.floor(cell / view.columns) + 1);
    }
    return stone;
  }

  cards(view) {
    const hands = view.hands.map((hand, seat) => {
      const done = view.moves.filter((move) => move.seat === seat).map((move) => move.name);
      return make("div", { of: "game-hand" },
        make("div", { of: "game-name", text: this.names[seat] }),
        card(hand.card, `card of ${this.names[seat]}`),
        make("div", { text: `${hand.stake} in the pot` }),
        make("div", { of: "game-faint", text: done.join(", ") || "–" }));
    });
    if (view.public !== null) {
      hands.splice(1, 0, make("div", { of: "game-hand" },
        make("div", { of: "game-name", text: "table" }), card(view.public, "card on the table")));
    }
    return make("div", { of: "game-hands" }, ...hands);
  }

  picture(view) {
    let image = this.element.querySelector("img");
    if (image === null) {
      image = make("img", { of: "game-picture", alt: "the table" });
      this.element.replaceChildren(image);
    }
    image.src = view.picture;
  }

  map(view, marks) {
    if (this.canvas === null) {
      this.canvas = make("canvas", { of: "game-map", width: 1024, height: 1024 });
      this.canvas.setAttribute("role", "img");
      this.element.replaceChildren(this.canvas);
    }
    this.canvas.setAttribute("aria-label", written(view));
    drawMap(this.canvas, view, marks);
  }

  numbers(view) {
    const rows = view.seats.flatMap((seen) => seen.parts.map((part) => make("tr", {},
      make("th", { text: `${this.names[seen.seat]}: ${part.name}` }),
      make("td", { text: part.numbers.join(" ") }))));
    return make("table", { of: "game-numbers" }, make("tbody", {}, ...rows));
  }
}

function card(shown, label) {
  const element = make("div", { of: shown ? "game-card" : "game-card hidden", text: shown || "?" });
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", `${label}: ${shown || "hidden"}`);
  return element;
}

// A view in words, for who does not see it.
function written(view) {
  if (view.kind === "skirmish") {
    const own = view.units.filter((unit) => unit[2] === (view.side ?? 0)).length;
    return `map at tick ${view.tick} of ${view.last_tick}: ${own} units here, ${view.units.length - own} there`;
  }
  const rows = [];
  for (let row = 0; row < view.rows; row++) {
    const cells = view.stones.slice(row * view.columns, (row + 1) * view.columns);
    rows.push(cells.map((owner) => (owner < 0 ? "free" : owner === 0 ? "first" : "second")).join(" "));
  }
  return rows.join("; ");
}
