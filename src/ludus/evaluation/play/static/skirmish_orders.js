// Orders by mouse, touch and keyboard: who is selected, and what they are to do.

import { make } from "./game_views.js";
import { BASE, KINDS, MAP, WORKER } from "./skirmish_map.js";

const NEAR = 1.2; // how near a click must be to what is meant
const DRAGGED = 0.6; // a shorter way of the pointer is a click
const GOAL_MS = 700;
const HELP = "Drag a box or click to select. A right click sends your units, lets them attack an enemy or gather at " +
  "a patch; or press a button, then click. Who moves does not fight, who advances does. Keys are on the buttons.";
const AIMS = { move: "m", advance: "a", attack: "t" };

export class Orders {
  constructor(element, state, redraw) {
    this.element = element;
    this.redraw = redraw;
    this.waiting = [];
    this.selected = new Set();
    this.aim = null; // the order that the next click is for
    this.from = null;
    this.box = null;
    this.cursor = null;
    this.goals = [];
    this.view = state.view;
    this.buttons = {};
    this.makeButtons();
    this.show(state);
  }

  get marks() {
    return { selected: this.selected, box: this.box, cursor: this.cursor, goals: this.goals };
  }

  // The orders since it was last asked.
  take() {
    return this.waiting.splice(0);
  }

  show(state) {
    this.view = state.view;
    const own = this.view.side === null ? null : this.view.sides[this.view.side];
    const there = new Set(this.view.units.map((unit) => unit[0]));
    for (const id of this.selected) if (!there.has(id)) this.selected.delete(id);
    if (own === null) return;
    for (const { kind, can } of own.train) {
      const button = this.buttons[`train ${kind}`];
      if (button) button.disabled = !can;
    }
    const queue = own.queue.map((kind) => KINDS[kind]).join(", ");
    document.getElementById("economy").textContent = this.view.heroes ? "" :
      `resources ${own.resources} · on order: ${queue || "nothing"}`;
    const names = this.chosen().map((unit) => KINDS[unit[1]]);
    this.told.textContent = this.view.heroes ? "" : names.length === 0 ? "nobody selected" : `selected: ${counted(names)}`;
  }

  makeButtons() {
    const add = (name, label, key, act) => {
      const button = make("button", { text: label, type: "button", title: `key ${key}` });
      button.addEventListener("click", act);
      this.buttons[name] = button;
      return button;
    };
    this.told = make("span");
    const made = Object.entries(AIMS).map(([name, key]) => add(name, name, key, () => this.setAim(name)));
    if (!this.view.heroes) {
      made.push(add("gather", "gather", "g", () => this.give({ order: "gather" })));
      made.push(add("fighters", "all fighters", "f", () => this.selectAll((kind) => kind > WORKER)));
      made.push(add("workers", "all workers", "w", () => this.selectAll((kind) => kind === WORKER)));
      const own = this.view.sides[this.view.side];
      own.train.forEach(({ kind, cost }, place) => made.push(
        add(`train ${kind}`, `${kind} (${cost})`, place + 1, () => this.waiting.push({ train: kind }))));
    }
    const help = make("p", { of: "help", text: HELP });
    this.element.replaceChildren(...made, this.told, help);
  }

  key(event) {
    const name = { g: "gather", f: "fighters", w: "workers" }[event.key] ??
      Object.keys(AIMS).find((aim) => AIMS[aim] === event.key) ??
      (/^[1-4]$/.test(event.key) ? `train ${KINDS[Number(event.key)]}` : null);
    const button = this.buttons[name];
    if (button && !button.disabled) button.click();
    if (event.key === "Escape") this.setAim(null);
    if (event.target.tagName === "CANVAS") this.moveCursor(event);
  }

  // With the keyboard: arrows move a cross, Enter is a click there, Shift+Enter a right click.
  moveCursor(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (step === undefined && event.key !== "Enter") return;
    event.preventDefault();
    this.cursor ??= [MAP / 4, MAP / 4];
    if (step) this.cursor = this.cursor.map((place, axis) => Math.min(MAP, Math.max(0, place + step[axis])));
    else if (event.shiftKey) this.point(this.cursor);
    else this.click(this.cursor);
    this.redraw();
  }

  listen(canvas) {
    canvas.classList.add("orders");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    const place = (event) => {
      const { left, top, width, height } = canvas.getBoundingClientRect();
      return [(MAP * (event.clientX - left)) / width, MAP * (1 - (event.clientY - top) / height)];
    };
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("pointerdown", (event) => {
      canvas.focus();
      if (event.button === 2) this.point(place(event));
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      this.from = place(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.from === null) return;
      this.box = [...this.from, ...place(event)];
      this.redraw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (this.from === null || event.button !== 0) return;
      const [from, to] = [this.from, place(event)];
      this.from = this.box = null;
      if (Math.hypot(to[0] - from[0], to[1] - from[1]) < DRAGGED) this.click(to);
      else this.selectIn(from, to);
      this.redraw();
    });
  }

  click(place) {
    if (this.aim !== null) {
      this.aimAt(this.aim, place);
      return;
    }
    const unit = nearest(this.units(), place);
    this.select(unit ? [unit] : []);
  }

  // A right click does what is meant: attack an enemy, gather at a patch, else go there.
  point(place) {
    const patch = this.view.patches.some(([, x, y]) => Math.hypot(x - place[0], y - place[1]) < NEAR);
    if (nearest(this.enemies(), place)) this.aimAt("attack", place);
    else if (patch && !this.view.heroes) this.give({ order: "gather" });
    else this.aimAt("move", place);
    this.redraw();
  }

  aimAt(order, place) {
    const enemy = nearest(this.enemies(), place);
    if (order === "attack" && !enemy) {
      this.told.textContent = "no enemy there";
      return;
    }
    const point = place.map((one) => Math.min(MAP, Math.max(0, one)));
    this.give(order === "attack" ? { order, target: enemy[0] } : { order, point });
    this.goals.push(point);
    setTimeout(() => {
      this.goals.shift();
      this.redraw();
    }, GOAL_MS);
    this.setAim(null);
  }

  give(order) {
    const units = this.view.heroes ? [0] : [...this.selected];
    if (units.length === 0) this.told.textContent = "select units first";
    else this.waiting.push({ ...order, units });
  }

  setAim(aim) {
    this.aim = this.aim === aim ? null : aim;
    for (const name of Object.keys(AIMS)) this.buttons[name].setAttribute("aria-pressed", name === this.aim);
  }

  selectAll(wanted) {
    this.select(this.units().filter((unit) => wanted(unit[1])));
    this.redraw();
  }

  selectIn(from, to) {
    const inside = (place, axis) => place >= Math.min(from[axis], to[axis]) && place <= Math.max(from[axis], to[axis]);
    this.select(this.units().filter((unit) => inside(unit[3], 0) && inside(unit[4], 1)));
  }

  select(units) {
    this.selected = new Set(units.map((unit) => unit[0]));
    this.show({ view: this.view });
  }

  chosen() {
    return this.view.units.filter((unit) => this.selected.has(unit[0]));
  }

  units() {
    return this.view.units.filter((unit) => unit[2] === this.view.side && unit[1] !== BASE);
  }

  enemies() {
    return this.view.units.filter((unit) => unit[2] !== this.view.side);
  }
}

function nearest(units, [x, y]) {
  const far = (unit) => Math.hypot(unit[3] - x, unit[4] - y) - (unit[1] === BASE ? 1 : 0);
  const best = units.reduce((one, other) => (one === null || far(other) < far(one) ? other : one), null);
  return best !== null && far(best) < NEAR ? best : null;
}

function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => `${count} ${name}`).join(", ");
}
