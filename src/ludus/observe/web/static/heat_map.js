// Who beats whom: a cell per pair, with a cursor that mouse and arrow keys move.

import { make } from "./dom.js";
import { percent, short } from "./numbers.js";
import { heat, heatColour, inkOn } from "./palette.js";

const WIDEST = 1250;
const LARGEST = 64; // pixels, as a square
const WIDEST_CELL = 240; // where few players leave room
const WITH_TEXT = 30; // pixels of a cell in which a number can be read
const WITH_NAMES = 11;
const NAMES_WIDTH = 110;
const SHADES = [...Array(101).keys()].map((step) => heat(step / 100));

export class HeatMap {
  constructor() {
    this.canvas = make("canvas", {
      tabindex: 0,
      role: "img",
      "aria-label": "Win rates of the players",
      onmousemove: (event) => this.point(event),
      onclick: (event) => this.point(event),
      onkeydown: (event) => this.move(event),
    });
    this.told = make("p", { class: "told", "aria-live": "polite" });
    this.place = make("div", { class: "heat" }, this.canvas);
    this.element = make("div", {}, legend(), this.place, this.told);
    this.order = [];
    this.cursor = null;
    this.observer = new ResizeObserver(() => {
      if (this.place.clientWidth !== this.drawn) this.draw();
    });
    this.observer.observe(this.place);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.dark.addEventListener("change", this.redraw);
  }

  close() {
    this.observer.disconnect();
    this.dark.removeEventListener("change", this.redraw);
  }

  // names: of the players; rates, games: row against column; order: places of the rows and columns shown;
  // labels: names with more about them, for the line that tells about a pair.
  show(names, rates, games, order, labels) {
    const kept = this.order.length === order.length ? this.cursor : null; // who is at a pair stays there
    Object.assign(this, { names, rates, games, order, labels });
    this.canvas.setAttribute(
      "aria-label",
      `Win rates of ${order.length} players, row against column. Arrow keys move from pair to pair.`,
    );
    const haveMet = order.some((row) => order.some((column) => row !== column && rates[row][column] !== null));
    this.place.hidden = !haveMet;
    this.told.textContent = haveMet
      ? "Row against column; point at a cell, or move with the arrow keys."
      : "No two players have met often enough yet.";
    this.cursor = null;
    if (kept) this.choose(...kept);
    else this.draw();
  }

  draw() {
    const size = this.order.length;
    const width = Math.min(this.place.clientWidth, WIDEST);
    if (!size || !width) return;
    this.drawn = this.place.clientWidth;
    const whole = Math.floor(Math.min(LARGEST, (width - NAMES_WIDTH) / size));
    const named = whole >= WITH_NAMES;
    this.left = named ? NAMES_WIDTH : 0;
    this.cell = named ? whole : Math.min(LARGEST, width / size);
    this.across = named ? Math.floor(Math.min(WIDEST_CELL, (width - NAMES_WIDTH) / size)) : this.cell;
    const top = named ? 14 : 0;
    this.top = top;
    const ratio = devicePixelRatio || 1;
    const [w, h] = [this.left + this.across * size, top + this.cell * size];
    this.canvas.width = Math.ceil(w * ratio);
    this.canvas.height = Math.ceil(h * ratio);
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${h}px`;
    const style = getComputedStyle(document.documentElement);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.drawImage(
      this.picture(style.getPropertyValue("--unknown").trim()),
      this.left,
      top,
      this.across * size,
      this.cell * size,
    );
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    if (named) this.write(context, style.getPropertyValue("--text").trim());
    if (this.cursor) this.mark(context, style.getPropertyValue("--accent").trim());
  }

  // One pixel per pair, then scaled up: quick however many there are.
  picture(unknown) {
    const size = this.order.length;
    const small = make("canvas", { width: size, height: size });
    const context = small.getContext("2d");
    const image = context.createImageData(size, size);
    const blank = [1, 3, 5].map((at) => parseInt(unknown.slice(at, at + 2), 16));
    let at = 0;
    for (const row of this.order) {
      const rates = this.rates[row];
      for (const column of this.order) {
        const rate = row === column ? null : rates[column];
        const [red, green, blue] = rate === null ? blank : SHADES[Math.round(100 * rate)];
        image.data[at] = red;
        image.data[at + 1] = green;
        image.data[at + 2] = blue;
        image.data[at + 3] = 255;
        at += 4;
      }
    }
    context.putImageData(image, 0, 0);
    const large = make("canvas", {
      width: Math.max(1, Math.ceil(this.across * size * 2)),
      height: Math.max(1, Math.ceil(this.cell * size * 2)),
    });
    const enlarged = large.getContext("2d");
    enlarged.imageSmoothingEnabled = false;
    enlarged.drawImage(small, 0, 0, large.width, large.height);
    return large;
  }

  write(context, ink) {
    const isWide = this.order.every((row) => context.measureText(this.names[row]).width < this.across - 6);
    this.order.forEach((row, y) => {
      const middle = this.top + (y + 0.5) * this.cell;
      context.fillStyle = ink;
      context.textAlign = "right";
      context.fillText(
        fitted(context, this.cell >= 18 && !isWide ? `${this.names[row]} ${y + 1}` : this.names[row], this.left - 8),
        this.left - 5,
        middle,
      );
      context.textAlign = "center";
      if (this.cell >= 18) context.fillText(isWide ? this.names[row] : String(y + 1), this.left + (y + 0.5) * this.across, 7);
      if (this.cell < WITH_TEXT) return;
      this.order.forEach((column, x) => {
        const rate = row === column ? null : this.rates[row][column];
        if (rate === null) return;
        context.fillStyle = inkOn(rate);
        context.fillText(String(Math.round(100 * rate)), this.left + (x + 0.5) * this.across, middle);
      });
    });
  }

  mark(context, accent) {
    const [x, y] = this.cursor;
    context.strokeStyle = accent;
    context.lineWidth = 2;
    context.strokeRect(this.left + x * this.across - 1, this.top + y * this.cell - 1, this.across + 2, this.cell + 2);
  }

  point(event) {
    const x = Math.floor((event.offsetX - this.left) / this.across);
    const y = Math.floor((event.offsetY - this.top) / this.cell);
    if (x >= 0 && y >= 0 && x < this.order.length && y < this.order.length) this.choose(x, y);
  }

  move(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [x, y] = this.cursor ?? [-step[0], -step[1]];
    const most = this.order.length - 1;
    this.choose(Math.min(Math.max(x + step[0], 0), most), Math.min(Math.max(y + step[1], 0), most));
  }

  choose(x, y) {
    if (this.cursor && this.cursor[0] === x && this.cursor[1] === y) return;
    this.cursor = [x, y];
    const [row, column] = [this.order[y], this.order[x]];
    const rate = this.rates[row][column];
    const met =
      rate === null ? "have met too seldom" : `wins ${percent(rate)} of ${short(this.games[row][column])} games`;
    this.told.textContent =
      row === column ? `${this.labels[row]}` : `${this.labels[row]} against ${this.labels[column]}: ${met}`;
    this.draw();
  }
}

function legend() {
  const bar = make(
    "span",
    { class: "ramp", "aria-hidden": "true" },
    ...[...Array(11).keys()].map((step) => {
      const part = make("i");
      part.style.background = heatColour(step / 10);
      return part;
    }),
  );
  const unknown = make("i", { class: "unknown" });
  return make("p", { class: "scale faint" }, "loses 0 % ", bar, " 100 % wins ", unknown, " met too seldom");
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let kept = text;
  while (kept.length > 1 && context.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
