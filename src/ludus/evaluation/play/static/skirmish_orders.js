// Orders by mouse, touch and keyboard: who is selected, and what they are to do.

import { make } from "./game_views.js";
import { BASE, KINDS, MAP, WORKER } from "./skirmish_map.js";

const NEAR = 1.2; // how near a click must be to what is meant
const DRAGGED = 0.6; // a shorter way of the pointer is a click
const GOAL_MS = 700;
const HELP = [
  "Drag a box or click to select; with Shift, to select more.",
  "A right click sends them, lets them attack an enemy, or gather at a patch. Or press an order, then click.",
  "Units that move do not fight; units that advance do.",
  "A spear beats a horse, a horse a bow, a bow a spear.",
];
const HERO_HELP = [
  "You are the hero in the white ring.",
  "A right click sends it, or lets it attack an enemy. Or press an order, then click.",
  "A hero that moves does not fight; one that advances does.",
  "A spear beats a horse, a horse a bow, a bow a spear.",
];
const SKILLS = {
  aid: "heals you and your units near you",
  charge: "leaps at the nearest enemy",
  volley: "hits the nearest enemy and those around it",
};
const AIMS = { move: "m", advance: "a", attack: "t" };
const KEYS = { gather: "g", fighters: "f", workers: "w", skill: "s" };

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
    this.showSkill();
    this.showFacts(own);
  }

  showSkill() {
    const { skill } = this.view;
    if (!skill) return;
    const { skill: button } = this.buttons;
    button.disabled = !skill.can;
    button.firstChild.textContent = skill.wait ? `${skill.name} in ${skill.wait}` : skill.name;
  }

  // What the side has, and what it sees of the other.
  showFacts(own) {
    const facts = [];
    if (!this.view.heroes) {
      const queue = own.queue.map((kind) => KINDS[kind]);
      const first = queue.length ? `${queue.join(", ")} (${Math.round(100 * own.progress)} % of the first)` : "nothing";
      facts.push(["resources", own.resources], ["on order", first]);
    } else {
      const hero = this.view.units.find((unit) => unit[0] === this.view.own);
      facts.push(["your hero", hero ? `${KINDS[hero[1]]}, ${health([hero])}` : "fallen, comes back at the base"]);
    }
    facts.push(["your units", counted(this.units().map(kindOf)) || "none"]);
    facts.push(["your base", `${Math.round(100 * own.base)} % health`]);
    facts.push(["enemies seen", counted(this.enemies().map(kindOf)) || "none"]);
    if (!this.view.heroes) {
      const chosen = this.chosen();
      facts.push(["selected", chosen.length ? `${counted(chosen.map(kindOf))}, ${health(chosen)}` : "nobody"]);
    }
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
  }

  makeButtons() {
    const add = (name, label, key, act) => {
      const button = make("button", { type: "button", title: `key ${key}` }, label, make("kbd", { text: key }));
      button.addEventListener("click", act);
      this.buttons[name] = button;
      return button;
    };
    this.facts = make("dl");
    this.told = make("p", { of: "help" });
    this.told.setAttribute("role", "status");
    const orders = Object.entries(AIMS).map(([name, key]) => add(name, name, key, () => this.setAim(name)));
    const rows = [orders];
    if (this.view.skill) {
      const { name } = this.view.skill;
      orders.push(add("skill", name, KEYS.skill, () => this.waiting.push({ order: "skill" })));
      this.buttons.skill.title = `${name} ${SKILLS[name]} (key ${KEYS.skill})`;
    }
    if (!this.view.heroes) {
      orders.push(add("gather", "gather", KEYS.gather, () => this.give({ order: "gather" })));
      rows.push([
        add("fighters", "all fighters", KEYS.fighters, () => this.selectAll((kind) => kind > WORKER)),
        add("workers", "all workers", KEYS.workers, () => this.selectAll((kind) => kind === WORKER)),
      ]);
      const own = this.view.sides[this.view.side];
      rows.push(own.train.map(({ kind, cost }, place) =>
        add(`train ${kind}`, `${kind} (${cost})`, place + 1, () => this.waiting.push({ train: kind }))));
    }
    const help = (this.view.heroes ? HERO_HELP : HELP).map((text) => make("li", { text }));
    if (this.view.skill) help.splice(2, 0, make("li", { text: `Your skill: ${this.buttons.skill.title}.` }));
    this.element.replaceChildren(this.facts, ...rows.map((row) => make("div", { of: "row" }, ...row)), this.told,
      make("ul", { of: "help" }, ...help));
  }

  key(event) {
    const name = Object.keys(KEYS).find((one) => KEYS[one] === event.key) ??
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
      if (Math.hypot(to[0] - from[0], to[1] - from[1]) < DRAGGED) this.click(to, event.shiftKey);
      else this.selectIn(from, to, event.shiftKey);
      this.redraw();
    });
  }

  click(place, more = false) {
    if (this.aim !== null) {
      this.aimAt(this.aim, place);
      return;
    }
    const unit = nearest(this.units(), place);
    this.select(unit ? [unit] : [], more);
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
    this.told.textContent = "";
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

  selectIn(from, to, more = false) {
    const inside = (place, axis) => place >= Math.min(from[axis], to[axis]) && place <= Math.max(from[axis], to[axis]);
    this.select(this.units().filter((unit) => inside(unit[3], 0) && inside(unit[4], 1)), more);
  }

  select(units, more = false) {
    this.selected = new Set([...(more ? this.selected : []), ...units.map((unit) => unit[0])]);
    this.told.textContent = "";
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

function kindOf(unit) {
  return KINDS[unit[1]];
}

// The mean of their health.
function health(units) {
  return `${Math.round((100 * units.reduce((sum, unit) => sum + unit[5], 0)) / units.length)} % health`;
}

function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => `${count} ${name}${count > 1 ? "s" : ""}`).join(", ");
}
