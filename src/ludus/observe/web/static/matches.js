// Matches, newest first, and recorded games to step through.

import { make, panel, playerLink } from "./dom.js";
import { short, UNKNOWN, whole } from "./numbers.js";
import { mount } from "./replay.js";
import { SortableTable } from "./sortable_table.js";

const PURPOSES = ["training", "evaluation", "human"];
const STATES = ["finished", "void", "open"];

export function create(element, { source, fail }) {
  const filter = { player: "", purpose: "", state: "", before: null };
  let shown = [];
  let viewer = null;
  let members = new Set();

  const players = make("select", { id: "of-player", onchange: () => ask({ player: players.value }) });
  const purpose = chooser("of-purpose", PURPOSES, (value) => ask({ purpose: value }));
  const state = chooser("of-state", STATES, (value) => ask({ state: value }));
  const counts = make("p", { class: "faint", role: "status" });
  const more = make("button", { type: "button", onclick: () => older() }, "older ones");
  const table = new SortableTable({
    caption: "Matches, newest first",
    columns: [
      { title: "match", cell: (one) => String(one.id), number: true },
      { title: "purpose", cell: (one) => one.purpose, wide: true },
      { title: "players", cell: (one) => sides(one, members) },
      { title: "result", cell: (one) => result(one), hint: "wins, draws and losses of the first side" },
      { title: "scores", cell: (one) => scores(one), wide: true, hint: "mean of an episode, by side" },
      { title: "episodes", cell: (one) => whole(one.episodes), number: true, wide: true },
      {
        title: "steps",
        cell: (one) => short(one.steps_per_episode),
        number: true,
        wide: true,
        hint: "of an episode",
      },
      {
        title: "recorded",
        cell: (one) => (one.replay ? opener(one.replay, "step through") : ""),
        when: (rows) => rows.some((one) => one.replay),
      },
    ],
  });
  const replays = make("ul", { class: "names" });
  const stage = make("div", { class: "stage" });
  const stageTitle = make("p", { class: "faint" });
  const replayPanel = panel("Recorded games", replays, stageTitle, stage);
  element.replaceChildren(
    panel(
      "Matches",
      make(
        "form",
        { class: "filter", onsubmit: (event) => event.preventDefault() },
        labelled("player", players),
        labelled("purpose", purpose),
        labelled("state", state),
      ),
      counts,
      table.element,
      more,
    ),
    replayPanel,
  );

  function render(name, found) {
    if (name === "league") {
      fillPlayers(found);
    } else if (shown.length <= found.matches.length && !filter.player && !filter.purpose && !filter.state) {
      show(found, found.matches); // whoever reads older ones is left alone
    }
  }

  function fillPlayers(league) {
    const names = ["", ...league.players.map((one) => one.id)];
    if (players.options.length === names.length) return;
    members = new Map(league.players.map((one) => [one.id, one.weights]));
    showTable();
    players.replaceChildren(
      ...names.map((name) => make("option", { value: name, selected: name === filter.player }, name || "all")),
    );
  }

  // Matches that a stop has left open say nothing: they are listed when void ones are asked for.
  const listed = () => shown.filter((one) => filter.state === "void" || !one.left_open);

  function showTable() {
    table.show(listed());
  }

  function ask(change) {
    Object.assign(filter, change, { before: null });
    source.matches(filter).then((found) => show(found, found.matches), fail);
  }

  function older() {
    source.matches(filter).then((found) => show(found, [...shown, ...found.matches]), fail);
  }

  function show(found, matches) {
    shown = matches;
    showTable();
    filter.before = found.more;
    more.hidden = found.more === null;
    const voids = Object.entries(found.voids)
      .map(([cause, number]) => `${cause} ${whole(number)}`)
      .join(", ");
    const { finished, open: playing, void: lost } = found.counts;
    const folded = shown.length - listed().length;
    counts.textContent =
      `${whole(shown.length - folded)} shown` +
      (folded ? ` (${whole(folded)} that a stop or a change left open are listed under state: void)` : "") +
      `; of all: ${whole(finished)} finished, ${whole(playing)} open, ` +
      `${whole(lost)} void${voids ? ` (${voids})` : ""}`;
    replayPanel.hidden = found.replays.length === 0;
    replays.replaceChildren(...found.replays.slice(0, 100).map((name) => make("li", {}, opener(name, name))));
  }

  function opener(name, text) {
    return make("button", { type: "button", class: "link", onclick: () => open(name) }, text);
  }

  async function open(name) {
    try {
      const replay = await source.replay(name);
      viewer?.close();
      stageTitle.textContent = name;
      viewer = mount(stage, replay);
      stage.scrollIntoView({ block: "nearest" });
    } catch (error) {
      stageTitle.textContent = `${name}: ${error.message}`;
    }
  }

  return { documents: ["matches", "league"], render, close: () => viewer?.close() };
}

function chooser(id, values, onChoose) {
  const select = make(
    "select",
    { id, onchange: () => onChoose(select.value) },
    ...["", ...values].map((value) => make("option", { value }, value || "all")),
  );
  return select;
}

function labelled(text, select) {
  return make("label", { for: select.id }, text, select);
}

// People, and players that have left, have no page of their own.
function sides(match, members) {
  const named = (player) =>
    members.has(player)
      ? make("span", {}, playerLink(player), " ", members.get(player) ? make("span", { class: "tag" }, members.get(player)) : null)
      : player;
  return make(
    "span",
    {},
    ...match.sides.flatMap((side, number) => [
      number ? " – " : "",
      ...[...new Set(side.players)].flatMap((player, seat) => [seat ? " + " : "", named(player)]),
      ...(side.trains ? [" ", make("span", { class: "tag learns" }, "learns")] : []),
    ]),
  );
}

function result(match) {
  if (match.state === "open") return make("span", { class: "faint" }, "being played");
  if (match.state === "void") return make("span", { class: "warn" }, `void: ${match.reason}`);
  return match.wins === null
    ? UNKNOWN
    : make("span", { class: "whole" }, `${whole(match.wins)}–${whole(match.draws)}–${whole(match.losses)}`);
}

function scores(match) {
  return match.sides.every((side) => side.score === null)
    ? ""
    : match.sides.map((side) => short(side.score)).join(", ");
}
