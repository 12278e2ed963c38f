// Recorded games: a list, a stage on which one is played, and games that are asked for.

import { make, panel, playerLink } from "./dom.js";
import { GameStage } from "./game_stage.js";
import { short, whole } from "./numbers.js";
import { SortableTable } from "./sortable_table.js";

const RESULTS = { 1: "won", 0.5: "draw", 0: "lost" };

export function create(element, { source, argument, fail }) {
  let listed = [];
  let shown = argument; // the name of the game on the stage; "" if there is none
  let onStage = null; // the game that is there, or on its way
  let members = [];

  const stageElement = make("div", { class: "game-stage" });
  const stageTitle = make("h2", {}, "Game");
  const stagePanel = make("section", { class: "panel", hidden: true }, stageTitle, stageElement);
  const stage = new GameStage(stageElement);
  const players = make("select", { id: "games-of", onchange: () => drawTable() });
  const note = make("p", { class: "faint", role: "status" });
  const table = new SortableTable({
    caption: "Recorded games, newest first",
    columns: [
      { title: "snapshot", cell: (one) => playerLink(one.players[0]), key: (one) => one.players[0] },
      { title: "against", cell: (one) => opponents(one), key: (one) => one.players.slice(1).join(" ") },
      { title: "result", cell: (one) => result(one), key: (one) => one.won ?? 0, hint: "of the snapshot" },
      { title: "score", cell: (one) => ownFirst(one), wide: true, hint: "of the snapshot, then of the others" },
      { title: "decisions", cell: (one) => whole(one.decisions), key: (one) => one.decisions, number: true, wide: true },
      { title: "trained on", cell: (one) => short(one.trained), key: (one) => one.trained, number: true, wide: true },
      { title: "game", cell: (one) => opener(one) },
    ],
  });
  const chosen = make("div", { class: "filter" });
  const ask = make("button", { type: "submit" }, "play a game");
  const asking = make("p", { class: "faint", role: "status" });
  const watchPanel = panel(
    "Watch two players",
    make("form", { class: "filter", onsubmit: (event) => (event.preventDefault(), watch()) }, chosen, ask),
    asking,
  );
  watchPanel.hidden = true;
  const list = panel(
    "Recorded games",
    make("form", { class: "filter", onsubmit: (event) => event.preventDefault() },
      make("label", { for: "games-of" }, "player ", players)),
    note,
    table.element,
  );
  element.replaceChildren(stagePanel, watchPanel, list);

  function render(name, found) {
    if (name === "league") fillChoice(found);
    else fillList(found);
  }

  function fillList(found) {
    listed = found.games;
    const names = ["", ...new Set(listed.flatMap((one) => one.players))];
    const before = players.value;
    players.replaceChildren(
      ...names.map((name) => make("option", { value: name, selected: name === before }, name || "all")),
    );
    note.textContent = [
      listed.length
        ? `${listed.length === 1 ? "One game" : `${whole(listed.length)} games`}: after each evaluation match one more game of the same pair is recorded`
        : "No games yet: one is recorded after each evaluation match of a snapshot.",
      found.note,
    ].filter(Boolean).join(". ");
    drawTable();
    if (onStage === null && listed.length) open(listed.find((one) => one.name === shown) ?? frontGame(listed));
  }

  function drawTable() {
    table.show(listed.filter((one) => !players.value || one.players.includes(players.value)));
  }

  function opener(one) {
    const open_ = () => {
      open(one);
      history.replaceState(null, "", `#games/${one.name}`);
      stagePanel.scrollIntoView({ block: "start" });
    };
    const on = one.name === shown;
    return make("button", { type: "button", class: "link", "aria-current": on ? "true" : null, onclick: open_ },
      on ? "shown" : "watch");
  }

  async function open(one) {
    shown = onStage = one.name;
    drawTable();
    try {
      const record = await source.game(one.name);
      if (onStage === one.name) put(record, `${one.players[0]}, trained on ${short(one.trained)} decisions`);
    } catch (error) {
      fail(error);
    }
  }

  function put(record, about) {
    stagePanel.hidden = false;
    const sides = [...new Set(record.teams)].map((team) => record.players[record.teams.indexOf(team)].name);
    stageTitle.textContent = sides.join(" against ");
    stage.show(record, about);
  }

  function fillChoice(league) {
    watchPanel.hidden = !source.isLive;
    // The strongest first: usually the best snapshot plays the strongest other player.
    const strength = (one) => one.elo ?? one.score?.[0] ?? -Infinity;
    const rank = (a, b) => Number(a.opponents !== null) - Number(b.opponents !== null) || strength(b) - strength(a);
    const names = [...league.players].sort(rank).map((one) => one.id);
    if (names.join() === members.join()) return;
    members = names;
    const before = [...chosen.querySelectorAll("select")].map((one) => one.value);
    const network = league.players.filter((one) => one.weights !== null && one.opponents === null).map((one) => one.id);
    const first = names.find((name) => network.includes(name)) ?? names[0];
    const usual = [first, names.find((name) => name !== first) ?? first];
    chosen.replaceChildren(
      ...Array.from({ length: league.teams }, (_, team) => {
        const id = `team-${team}`;
        const now = before[team] ?? usual[Math.min(team, 1)];
        const select = make("select", { id }, ...names.map((name) => make("option", { value: name, selected: name === now }, name)));
        return make("label", { for: id }, team ? "against " : "", select);
      }),
    );
    chosen.firstElementChild?.prepend("player ");
  }

  async function watch() {
    const names = [...chosen.querySelectorAll("select")].map((one) => one.value);
    ask.disabled = true;
    asking.textContent = "playing …";
    onStage = "asked for";
    try {
      const record = await source.play(names);
      shown = "";
      drawTable();
      put(record, "played now");
      stage.play();
      asking.textContent = `${record.outcome} after ${whole(record.decisions)} decisions`;
      stagePanel.scrollIntoView({ block: "start" });
    } catch (error) {
      asking.textContent = error.message;
    } finally {
      ask.disabled = false;
    }
  }

  return { documents: ["games", "league"], render, close: () => stage.close() };
}

function opponents(one) {
  return make("span", {}, ...[...new Set(one.players.slice(1))].flatMap((name, at) => [at ? ", " : "", playerLink(name)]));
}

function ownFirst(one) {
  const own = one.seats.indexOf(one.players[0]);
  return [one.score[own], ...one.score.filter((_, team) => team !== own)].join(" : ");
}

function result(one) {
  const text = one.won === null ? one.score.join(" ") : RESULTS[one.won];
  return make("span", { class: { 1: "good", 0: "warn" }[one.won] }, text);
}

// The game that stands for the run: the longest of the newest snapshot.
export function frontGame(games) {
  const newest = Math.max(...games.map((one) => one.trained));
  return games.filter((one) => one.trained === newest).reduce((best, one) => (one.decisions > best.decisions ? one : best));
}
