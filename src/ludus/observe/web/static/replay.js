// Steps through a recorded game: first, back, play, forward, last, a slider, and the arrow keys.

import { GameView, make } from "./game_views.js";

const SLOW_MS = 900;
const FAST_MS = 80;
const MANY = 100; // steps of a game that goes by like a film

// `replay` is the document of a replay or of a recorded game. `onStep(step)` is called with every step that is shown.
// Returns {go(step), play(), close()}; `close` stops it and empties the element.
export function mount(element, replay, { onStep = () => {} } = {}) {
  const last = replay.steps.length - 1;
  let step = 0;
  let timer = null;

  const table = make("div");
  const said = make("p", { of: "replay-said" });
  said.setAttribute("aria-live", "polite");
  const names = replay.players.map((player) => player.name);
  const view = new GameView(table, { names, teams: replay.teams });

  const slider = make("input", { type: "range", min: 0, max: last, step: 1, value: 0 });
  slider.setAttribute("aria-label", "step");
  slider.addEventListener("input", () => go(Number(slider.value)));
  const button = (text, label, act) => {
    const made = make("button", { text, type: "button", title: label });
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };
  const first = button("|◀", "first", () => go(0));
  const back = button("◀", "back", () => go(step - 1));
  const play = button("play", "play", () => (timer === null ? start() : stop()));
  const forward = button("▶", "forward", () => go(step + 1));
  const end = button("▶|", "last", () => go(last));
  const bar = make("div", { of: "replay-bar" }, first, back, play, forward, end, slider);

  const root = make("div", { of: "replay game", tabIndex: 0 }, players(replay), table, bar, said);
  root.addEventListener("keydown", (event) => {
    const act = {
      ArrowLeft: () => go(step - 1),
      ArrowRight: () => go(step + 1),
      Home: () => go(0),
      End: () => go(last),
    }[event.key];
    if (act === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  });
  element.replaceChildren(root);

  function go(to) {
    stop();
    show(Math.min(Math.max(to, 0), last));
  }

  function show(to) {
    step = to;
    if (replay.steps[step].view) view.show(replay.steps[step].view);
    slider.value = step;
    first.disabled = back.disabled = step === 0;
    forward.disabled = end.disabled = step === last;
    said.textContent = describe(replay, step);
    onStep(step);
  }

  function start() {
    if (step === last) show(0);
    play.textContent = "pause";
    timer = setInterval(() => {
      if (step < last) show(step + 1);
      if (step === last) stop();
    }, last > MANY ? FAST_MS : SLOW_MS);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "play";
  }

  show(0);
  return {
    go,
    play: start,
    close() {
      stop();
      element.replaceChildren();
    },
  };
}

function players(replay) {
  const list = make("ul", { of: "replay-who" });
  replay.players.forEach((player, seat) => {
    const score = replay.score[replay.teams[seat]];
    list.append(make("li", {},
      make("span", { of: `game-dot of${replay.teams[seat] % 4}` }),
      make("span", { text: `${player.name}: ${score}` })));
  });
  return list;
}

function describe(replay, step) {
  const last = replay.steps.length - 1;
  const done = replay.steps[step].done.map((move) => `${replay.players[move.seat].name}: ${move.name}`);
  const parts = [`step ${step} of ${last}`, ...done];
  const tick = replay.steps[step].view?.tick;
  if (tick !== undefined) parts.push(`tick ${tick}`);
  if (step === last) parts.push(replay.outcome);
  return parts.join(" · ");
}
