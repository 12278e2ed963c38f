// A game against a player of a run. The page asks, the server answers with all that may be shown.

import { GameView, make } from "./game_views.js";
import { mount } from "./replay.js";
import { Orders } from "./skirmish_orders.js";

const at = (id) => document.getElementById(id);
const RECORDING_MS = 400; // how often the page asks whether a game that has ended is recorded

let session = null;
let state = null;
let view = null;
let orders = null;
let replay = null;
let last = Promise.resolve();
let underWay = 0;
let loop = null; // of the ticks; null: paused
let ratings = {}; // Elo by player, of those that it is known of
let seats = 0;

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
  const start = await ask("/start");
  document.title = `Ludus: ${start.game}`;
  at("title").textContent = start.game;
  ratings = start.ratings;
  seats = start.seats;
  for (const name of new Set([start.player, ...Object.keys(start.players)])) {
    const weights = start.players[name];
    const elo = name in ratings ? `, Elo ${ratings[name]}` : "";
    at("player").append(new Option((weights ? `${name} (${weights})` : name) + elo, name));
  }
  at("seat").append(new Option("any", ""));
  for (let seat = 0; seat < start.seats; seat++) at("seat").append(new Option(seat));
  at("player").value = start.player;
  at("seat").value = start.seat ?? "";
  await newGame();
}

async function newGame() {
  loop = null;
  const seat = at("seat").value;
  const told = await ask("/game", { player: at("player").value, seat: seat === "" ? null : Number(seat) });
  session = told.session;
  replay?.close();
  replay = null;
  at("table").hidden = false;
  view = new GameView(at("table"), { names: shownNames(told), teams: told.teams, choose: move });
  orders = told.real_time ? new Orders(at("orders"), told, redraw) : null;
  show(told);
  if (told.real_time) {
    orders.listen(view.canvas);
    at("pause").textContent = "begin";
  }
}

function shownNames(told) {
  return told.names.map((name, seat) => (seat === told.seat ? `${name} (you)` : name));
}

function move(option) {
  if (underWay > 0) return; // a second click is not a second move
  attempt(async () => show(await ask("/move", { option })));
}

// --- time ---

// A tick after the other, as fast as is wanted. The game stands still unless this runs.
async function run() {
  const own = (loop = {});
  at("pause").textContent = "pause";
  while (loop === own && state.open) {
    const since = performance.now();
    try {
      const told = await ask("/tick", { orders: orders.take() });
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
  const model = told.model ? ` (${told.model})` : "";
  at("who").textContent = `${told.person}, seat ${told.seat}, against ${told.opponent}${model}`;
  at("status").textContent = told.over ? told.outcome : told.real_time ? `tick ${told.view.tick}` : "Your turn";
  at("status").classList.toggle("over", told.over);
  at("clock").hidden = at("orders").hidden = !told.real_time || told.over;
  at("sides").replaceChildren(...told.names.map((name, seat) => make("li", {},
    make("span", { of: `game-dot of${told.teams[seat] % 4}` }),
    make("span", { text: seat === told.seat ? `${name} (you)` : name }))));
  redraw();
  showOptions();
  showAgain();
  showThoughts();
  at("kept").textContent = told.kept?.text ?? (told.over ? "recording …" : "");
  at("look").hidden = !told.kept?.replay || replay !== null;
  if (told.real_time) {
    orders.show(told);
    if (told.missed) say(told.missed);
  }
  if (told.over && told.kept === null) setTimeout(waitForRecord, RECORDING_MS, session);
}

function redraw() {
  // After the end the whole map is shown, the person's base where it was.
  const marks = state.over ? { turned: state.team === 1 } : orders?.marks;
  view.show(state.view, state.options, marks);
}

// After the end: the same opponent with other seats, or one that is a step stronger or weaker.
function showAgain() {
  at("again").hidden = !state.over;
  if (!state.over) return;
  at("rematch").hidden = seats !== 2;
  const own = ratings[state.opponent];
  const others = Object.entries(ratings).filter(([name]) => name !== state.opponent && hasOption(name));
  const stronger = others.filter(([, elo]) => elo > own).sort((a, b) => a[1] - b[1])[0];
  const weaker = others.filter(([, elo]) => elo < own).sort((a, b) => b[1] - a[1])[0];
  const next = own === undefined || state.won === 0.5 ? null : state.won === 1 ? stronger : weaker;
  at("next").hidden = !next;
  at("advice").textContent = "";
  if (next) {
    const done = state.won === 1 ? "You beat" : "You lost to";
    at("advice").textContent = `${done} ${state.opponent} (Elo ${own}). Try ${next[0]} (Elo ${next[1]}).`;
    at("next").textContent = `Play ${next[0]}`;
    at("next").onclick = () => {
      at("player").value = next[0];
      attempt(newGame);
    };
  }
}

function hasOption(name) {
  return [...at("player").options].some((option) => option.value === name);
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

async function waitForRecord(asked) {
  if (asked !== session) return; // another game has begun
  try {
    show(await ask(`/state?session=${encodeURIComponent(session)}&thoughts=${at("thoughts").checked}`));
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
    : `score that it expects for ${whom}: ${value.toFixed(2)}`;
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
  show(await ask(`/state?session=${encodeURIComponent(session)}&thoughts=${at("thoughts").checked}`));
}));
at("look").addEventListener("click", () => attempt(async () => {
  replay = mount(at("replay"), await ask(`/replays/${encodeURIComponent(state.kept.replay)}`));
  at("look").hidden = at("table").hidden = true;
  at("replay").firstElementChild.focus();
}));
document.addEventListener("keydown", (event) => {
  if (event.target.closest("select, .replay") || event.ctrlKey || event.altKey || event.metaKey) return;
  if (orders !== null && state.open) {
    if (event.key === "p") pause();
    else orders.key(event);
    return;
  }
  // A board's cells are called by number; of other options the keys count from 1.
  const numbered = state?.options?.[Number(event.key) - 1];
  const chosen = state?.view.kind === "board" ? state.options.find(({ name }) => name === event.key) : numbered;
  if (chosen) move(chosen.option);
});
addEventListener("pagehide", () => {
  const left = new Blob([JSON.stringify({ session })], { type: "application/json" });
  if (session !== null) navigator.sendBeacon("/leave", left);
});

attempt(begin);
