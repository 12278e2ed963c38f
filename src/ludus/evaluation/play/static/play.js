// A game against a player of a run. The page asks, the server answers with all that may be shown.

import { number, showAnalysis } from "./analysis.js";
import { GameView, make } from "./game_views.js";
import { mount } from "./replay.js";
import { Orders } from "./skirmish_orders.js";

const at = (id) => document.getElementById(id);
const FALL_MS = 350;
const RECORDING_MS = 400; // how often the page asks whether a game that has ended is recorded

let session = null;
let state = null;
let view = null;
let orders = null;
let replay = null;
let last = Promise.resolve();
let underWay = 0;
let graph = null; // of the analysis
let loop = null; // of the ticks; null: paused
let seats = []; // what a person calls each seat
let offered = new Map(); // name of an opponent -> what is known of it

async function ask(path, body) {
  const asked = body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ session, thoughts: at("thoughts").checked, ...body }),
  };
  let answer;
  try {
    answer = await fetch(path, asked);
  } catch {
    throw new Error("the command that serves this page has ended");
  }
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error ?? `error ${answer.status}`);
  return told;
}

// One thing after the other; what goes wrong is said on the page.
function attempt(act) {
  underWay += 1;
  last = last.then(async () => {
    try {
      say("");
      await act();
    } catch (error) {
      say(error.message);
    } finally {
      underWay -= 1;
    }
  });
}

function say(text) {
  at("message").textContent = text;
  at("message").hidden = text === "";
}

async function begin() {
  const start = await ask("start");
  document.title = `Ludus: ${start.game}`;
  at("title").textContent = inWords(start.game);
  if (location.pathname.endsWith("/play/")) at("title").append(" ", make("a", { href: "../", class: "back" }, "back to the run"));
  seats = start.seats;
  offered = new Map(start.players.map((one) => [one.name, one]));
  if (!offered.has(start.player)) at("player").append(new Option(start.player));
  for (const group of new Set(start.players.map((one) => one.group))) {
    const members = start.players.filter((one) => one.group === group);
    at("player").append(make("optgroup", { label: group }, ...members.map(({ name }) => new Option(described(name), name))));
  }
  at("seat").append(new Option("any", ""), ...seats.map((name, seat) => new Option(name, seat)));
  const named = new URLSearchParams(location.search).get("player"); // as a card of the dashboard does
  at("player").value = named !== null && offered.has(named) ? named : start.player;
  at("seat").value = start.seat ?? "";
  await newGame();
}

async function newGame() {
  loop = null;
  const seat = at("seat").value;
  const told = await ask("game", { player: at("player").value, seat: seat === "" ? null : Number(seat) });
  session = told.session;
  replay?.close();
  replay = null;
  at("table").hidden = false;
  view = new GameView(at("table"), { names: told.names, teams: told.teams, choose: move });
  orders = told.real_time ? new Orders(at("orders"), told, redraw) : null;
  show(told);
  if (told.real_time) {
    orders.listen(view.canvas);
    at("pause").textContent = "begin";
  }
}

// `connect_four` is for the command line.
function inWords(name) {
  const words = name.replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}

function described(name) {
  const { weights, elo } = offered.get(name) ?? {};
  const known = [weights, elo === null || elo === undefined ? "" : `Elo ${elo}`].filter(Boolean).join(", ");
  return known ? `${name} (${known})` : name;
}

function move(option) {
  if (underWay > 0) return; // a second click is not a second move
  attempt(async () => {
    const placed = showOwnStone(option);
    try {
      const told = await ask("move", { option });
      await placed;
      show(told);
    } catch (error) {
      redraw();
      throw error;
    }
  });
}

// The person's stone falls at once; the answer comes after it. Returns when it has fallen.
function showOwnStone(option) {
  if (state.view.kind !== "board") return null;
  const { stones, columns, falls } = state.view;
  let cell = option;
  while (falls && cell + columns < stones.length && stones[cell + columns] < 0) cell += columns;
  view.show({ ...state.view, stones: stones.with(cell, state.seat), latest: cell });
  return new Promise((done) => setTimeout(done, FALL_MS));
}

function undo() {
  if (underWay > 0 || !state?.can_undo) return;
  attempt(async () => show(await ask("undo", {})));
}

// --- time ---

// A tick after the other, as fast as is wanted. The game stands still unless this runs.
async function run() {
  const own = (loop = {});
  at("pause").textContent = "pause";
  while (loop === own && state.open) {
    const since = performance.now();
    try {
      const told = await ask("tick", { orders: orders.take() });
      if (loop !== own) return; // another game has begun meanwhile
      show(told);
    } catch (error) {
      say(error.message);
      pause();
      return;
    }
    const pace = 1000 / Number(at("speed").value);
    await new Promise((done) => setTimeout(done, Math.max(0, pace - (performance.now() - since))));
  }
}

function pause() {
  if (!state?.real_time || !state.open) return;
  if (loop === null) {
    run();
  } else {
    loop = null;
    at("pause").textContent = "go on";
  }
}

// --- what is shown ---

function show(told) {
  state = told;
  at("who").textContent = `You are ${told.seat_name}, against ${described(told.opponent)}.`;
  at("status").textContent = told.over ? told.outcome :
    told.real_time ? `tick ${told.view.tick} of ${told.view.last_tick}` : "Your turn";
  at("status").classList.toggle("over", told.over);
  at("clock").hidden = at("orders").hidden = !told.real_time || told.over;
  at("sides").replaceChildren(...told.names.map((name, seat) => make("li", {},
    make("span", { of: `game-dot of${told.teams[seat] % 4}` }),
    make("span", { text: name }))));
  at("undo").hidden = told.over || told.real_time || told.no_undo !== "";
  at("undo").disabled = !told.can_undo;
  redraw();
  showValue();
  showOptions();
  showAgain();
  showThoughts();
  at("kept").textContent = told.kept?.text ?? (told.over ? "recording …" : "");
  at("look").hidden = !told.kept?.replay || replay !== null;
  showTurns();
  if (told.real_time) {
    orders.show(told);
    if (told.missed) say(told.missed);
  }
  if (told.over && told.kept === null) setTimeout(waitForRecord, RECORDING_MS, session);
}

// The evaluation bar: how much of the range between the worst and the best end the person can expect.
function showValue() {
  const told = state.evaluation;
  at("value").hidden = told === null || state.over;
  if (at("value").hidden) return;
  const { value, range } = told;
  at("expected").textContent = `${state.judge} expects a score of ${number(value)} for you` +
    (range ? ` (from ${number(range[0])} to ${number(range[1])})` : "");
  at("meter").hidden = range === null;
  if (range === null) return;
  at("meter").firstElementChild.style.width = `${(100 * (value - range[0])) / (range[1] - range[0])}%`;
  for (const [name, told] of [["valuemin", range[0]], ["valuemax", range[1]], ["valuenow", value]]) {
    at("meter").setAttribute(`aria-${name}`, told);
  }
  at("value").style.setProperty("--yours", `var(--team${state.team % 4})`);
  const other = state.teams.find((team) => team !== state.team);
  at("value").style.setProperty("--theirs", `var(--team${other % 4})`);
}

function showTurns() {
  at("analysis").hidden = state.analysis === null;
  if (state.analysis === null) return;
  graph = showAnalysis(at("analysis"), state.analysis, state.judge, state.kept?.replay ? lookAt : null);
}

function redraw() {
  // After the end the whole map is shown, the person's base where it was.
  const marks = state.over ? { turned: state.team === 1 } : orders?.marks;
  view.show(state.view, state.options, marks);
}

// After the end: the same opponent with other seats, or one that is a step stronger or weaker.
function showAgain() {
  at("again").hidden = !state.over;
  const next = state.suggestion;
  at("rematch").hidden = seats.length !== 2;
  at("next").hidden = !next;
  at("advice").textContent = next?.text ?? "";
  if (!next) return;
  at("next").textContent = `Play ${next.player}`;
  at("next").onclick = () => {
    at("player").value = next.player;
    attempt(newGame);
  };
}

function showOptions() {
  const drawn = state.view.kind === "board";
  at("options").replaceChildren(...(drawn ? [] : state.options.map(({ option, name }, place) => {
    const button = make("button", { text: name, type: "button" });
    if (place < 9) button.title = `key ${place + 1}`;
    button.addEventListener("click", () => move(option));
    return button;
  })));
}

// The game as it was, at a step of the table; null: at its end.
function lookAt(step) {
  attempt(async () => {
    if (replay === null) {
      const found = await ask(`replays/${encodeURIComponent(state.kept.replay)}`);
      const players = state.names.map((name) => ({ name, model: "" }));
      const last = found.steps.length - 1;
      const steps = state.analysis ? (state.analysis.end ?? state.analysis.turns.at(-1)).step : last;
      const shown = { ...found, players, outcome: state.outcome };
      replay = mount(at("replay"), shown, { onStep: (at) => graph?.mark(Math.min(at * found.every, steps)) });
      replay.every = found.every;
      replay.last = last;
      at("look").hidden = at("table").hidden = true;
    }
    replay.go(step === null ? replay.last : Math.round(step / replay.every));
    at("replay").firstElementChild.focus();
  });
}

async function waitForRecord(asked) {
  if (asked !== session) return; // another game has begun
  try {
    show(await ask(`state?session=${encodeURIComponent(session)}&thoughts=${at("thoughts").checked}`));
  } catch (error) {
    say(error.message);
  }
}

function showThoughts() {
  const told = state.thoughts;
  const shown = [];
  if (told && !told.thinks) shown.push(make("p", { text: `${state.opponent} is a bot: it tells no values.` }));
  if (told?.yours) shown.push(shares("In your place it would", told.yours, "you"));
  if (told?.its) shown.push(shares("When it last decided", told.its, "itself"));
  at("told").replaceChildren(...shown);
}

function shares(title, { value, options, chose }, whom) {
  const rows = options.filter(({ p }) => p > 0.0005).map(({ option, name, p }) => {
    const bar = make("span", { of: "bar" });
    bar.style.width = `${100 * p}%`;
    return make("div", { of: option === chose ? "share chosen" : "share" },
      make("span", { text: option === chose ? `${name} ✓` : name }), bar,
      make("span", { text: `${(100 * p).toFixed(1)} %` }));
  });
  const worth = value === null
    ? "Its value comes from a critic that sees more than you: it is told after the end."
    : `score that it expects for ${whom}: ${number(value)}`;
  return make("div", {}, make("h2", { text: title }), make("p", { text: worth }), ...rows);
}

// --- what the person does ---

at("setup").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(newGame);
});
at("pause").addEventListener("click", pause);
at("rematch").addEventListener("click", () => {
  at("seat").value = String(1 - state.seat);
  attempt(newGame);
});
at("thoughts").addEventListener("change", () => attempt(async () => {
  show(await ask(`state?session=${encodeURIComponent(session)}&thoughts=${at("thoughts").checked}`));
}));
at("undo").addEventListener("click", undo);
at("look").addEventListener("click", () => lookAt(null));
document.addEventListener("keydown", (event) => {
  if (event.target.closest("select, .replay") || event.ctrlKey || event.altKey || event.metaKey) return;
  if (orders !== null && state.open) {
    if (event.key === "p") pause();
    else orders.key(event);
    return;
  }
  // A board's cells are called by number; of other options the keys count from 1.
  const numbered = state?.options?.[Number(event.key) - 1];
  if (event.key === "u") undo();
  const chosen = state?.view.kind === "board" ? state.options.find(({ name }) => name === event.key) : numbered;
  if (chosen) move(chosen.option);
});
addEventListener("pagehide", () => {
  const left = new Blob([JSON.stringify({ session })], { type: "application/json" });
  if (session !== null) navigator.sendBeacon("leave", left);
});

attempt(begin);
