// One player: whom it beats, how it learns, and what was changed for it.

import { CurveChart } from "./curve_chart.js";
import { choice, make, makeSvg, panel, playerLink, whisker } from "./dom.js";
import { elo, isNarrow, percent, roleScore, short, UNKNOWN, whole } from "./numbers.js";
import { SortableTable } from "./sortable_table.js";

const LINES = 10; // curves that can be told apart
const GROUPS = [
  ["Loss", (name) => name.endsWith("_loss") || name === "loss" || /_loss\./.test(name)],
  ["Entropy", (name) => name === "entropy"],
  ["Entropy by head", (name) => name.startsWith("entropy.")],
  ["Distance of the policies", (name) => /^(kl|clip_fraction|magnet_kl|teacher_kl)/.test(name)],
  ["Explained variance", (name) => name.startsWith("explained_variance")],
  ["Episodes", (name) => name === "episode_score" || name === "episode_reward"],
  ["Length of an episode", (name) => name === "episode_length"],
  ["Learning rate", (name) => name === "learning_rate"],
  ["Lag", (name) => name === "lag" || name === "max_lag"],
];

const UNITS = {
  Loss: "loss",
  "Distance of the policies": "nats, share",
  Episodes: "score",
  "Learning rate": "rate",
  Lag: "updates",
};

const ORDERS = [
  ["rating", (one) => -(one.elo ?? -Infinity)],
  ["trained on", (one) => -one.decisions],
  ["games", (one) => -one.games],
  ["name", null],
];

// Without a name: a card for each player.
export function createList(element, { source }) {
  let league = null;
  let order = ORDERS[0];
  const cards = make("ul", { class: "cards" });
  const orders = choice("order", ORDERS.map(([name]) => [name, name]), order[0], (name) => {
    order = ORDERS.find((one) => one[0] === name);
    draw();
  });
  element.replaceChildren(panel("Players", orders, cards));

  function draw() {
    const byName = (a, b) => a.id.localeCompare(b.id, "en", { numeric: true });
    const players = [...league.players, ...league.lost].sort((a, b) => (order[1] ? order[1](a) - order[1](b) : 0) || byName(a, b));
    cards.replaceChildren(...players.map((one) => card(one, league, source.isLive)));
  }

  return {
    documents: ["league"],
    render: (_, found) => {
      league = found;
      draw();
    },
    close() {},
  };
}

// Games and the share won, of the pairs that have met often enough.
function record(one, league) {
  const at = league.players.indexOf(one);
  if (at < 0) return [one.games, one.win_rate]; // its weights are lost
  const met = league.win_rates[at].map((rate, other) => [rate, league.games[at][other]]).filter(([rate], other) => rate !== null && other !== at);
  const games = met.reduce((sum, [, number]) => sum + number, 0);
  return [games, games ? met.reduce((sum, [rate, number]) => sum + rate * number, 0) / games : null];
}

function card(one, league, isServed) {
  const isLost = league.lost.includes(one);
  const [games, won] = record(one, league);
  const half = one.elo_interval === null ? 0 : (one.elo_interval[1] - one.elo_interval[0]) / 2;
  const facts = [
    ["role", one.role],
    one.parent === null ? null : ["parent", playerLink(one.parent)],
    league.teams === 1
      ? ["score", one.score === null ? UNKNOWN : short(one.score[0])]
      : ["Elo", !isNarrow(one) ? `${UNKNOWN}${half ? ` (± ${Math.round(half)})` : ""}` : half > 0.5 ? `${elo(one.elo)} ± ${Math.round(half)}` : elo(one.elo)],
    games ? ["record", `wins ${percent(won)} of ${whole(games)} games`] : null,
    one.role === "scripted" ? null : ["trained on", short(one.decisions)],
  ];
  const tags = [one.weights, one.opponents === null ? null : "learns", ...one.tags].filter((tag) => tag !== null);
  return make(
    "li",
    {},
    make("h3", {}, playerLink(one.id), ...tags.flatMap((tag) => [" ", make("span", { class: "tag" }, tag)])),
    make("dl", { class: "facts" }, ...facts.filter((fact) => fact !== null).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    isServed && !isLost ? make("a", { class: "button", href: `play/?player=${encodeURIComponent(one.id)}`, "aria-label": `play against ${one.id}` }, "play") : null,
  );
}

export function create(element, { argument: player }) {
  const about = make("dl", { class: "tiles" });
  const opponents = new SortableTable({
    caption: `Opponents of ${player}`,
    sortBy: "games",
    columns: [
      {
        title: "opponent",
        cell: (one) =>
          make("span", {}, playerLink(one.player), " ", one.weights ? make("span", { class: "tag" }, one.weights) : null),
        key: (one) => one.player,
      },
      { title: "win rate", cell: (one) => rateBar(one), key: (one) => one.win_rate },
      {
        title: "95 % interval",
        cell: (one) => (one.win_rate === null ? UNKNOWN : `${percent(one.low)} to ${percent(one.high)}`),
        wide: true,
      },
      { title: "games", cell: (one) => whole(one.games), key: (one) => one.games, number: true },
      {
        title: "next match",
        cell: (one) => (one.share === null ? "" : percent(one.share, 1)),
        key: (one) => one.share,
        number: true,
        hint: "probability of this opponent in the next match",
      },
    ],
  });
  const overTime = new CurveChart({
    label: "Win rate against each opponent, of the games since the point before",
    unit: "share",
    range: [0, 1],
    height: 260,
  });
  const charts = make("div", { class: "charts" });
  const metrics = panel("How it learns", charts);
  const drawn = new Map();
  const changes = make("div");
  const parameters = make("dl", { class: "parameters" });
  const parametersPanel = panel("Hyper-parameters", parameters);
  const changesPanel = panel("Origin and changes", changes);
  element.replaceChildren(
    panel(player, about),
    panel("Opponents", opponents.element),
    panel("Win rate over time", overTime.element),
    metrics,
    changesPanel,
    parametersPanel,
  );

  function render(_, one) {
    const line = one.line;
    const facts = [
      ["Elo", isNarrow(line) ? elo(line.elo) : UNKNOWN, line.elo_interval === null ? "" : line.elo_interval.map(elo).join(" to ")],
      ["role", line.role, line.tags.join(", ")],
      ["trained on", short(line.decisions), "decisions"],
      ["games", whole(line.games), "after old ones have faded"],
      ["share of Nash", percent(line.equilibrium, 1)],
      ["model", line.latest_model ?? line.model ?? UNKNOWN, line.reason],
      ["weights", line.weights ?? "none", line.weights === null ? "" : "in the matches of the league"],
    ];
    for (const role of line.roles) {
      const { score, lead } = roleScore(role);
      facts.push([`score as ${role.role}`, score, lead && `${lead} above what its opponents got there`]);
    }
    if (line.score !== null) facts.push(["score", short(line.score[0]), `± ${short(1.96 * line.score[1])}`]);
    about.replaceChildren(
      ...facts.map(([name, value, more]) =>
        make(
          "div",
          {},
          make("dt", {}, name),
          make("dd", {}, value),
          more ? make("dd", { class: "faint" }, more) : null,
        ),
      ),
    );
    opponents.show(one.opponents);
    overTime.show(one.over_time.slice(0, LINES));
    drawMetrics(one.metrics);
    const lines = [
      line.parent === null
        ? null
        : make("p", {}, "Snapshot of ", playerLink(line.parent), line.reason ? ` (${line.reason})` : ""),
      one.children.length
        ? make(
            "p",
            {},
            "Snapshots: ",
            ...one.children.flatMap((child, number) => [number ? ", " : "", playerLink(child)]),
          )
        : null,
      ...[...one.lineage, ...one.changes]
        .sort((a, b) => a.decisions - b.decisions)
        .map((change) => changed(change)),
    ];
    changes.replaceChildren(...lines.filter(Boolean));
    changesPanel.hidden = changes.childElementCount === 0;
    parameters.replaceChildren(
      ...Object.entries(one.hyper_parameters).map(([name, value]) =>
        make(
          "div",
          {},
          make("dt", {}, name),
          make("dd", { class: name in one.settings ? "changed" : null }, written(value)),
        ),
      ),
    );
    parametersPanel.hidden = Object.keys(one.hyper_parameters).length === 0;
  }

  function drawMetrics(curves) {
    metrics.hidden = curves.length === 0;
    for (const [label, belongs] of GROUPS) {
      const found = curves.filter((curve) => belongs(curve.name));
      if (found.length === 0) continue;
      if (!drawn.has(label)) {
        const unit = found.every((curve) => curve.unit === found[0].unit) ? found[0].unit : "";
        drawn.set(label, new CurveChart({ label, unit: unit || UNITS[label] || "", height: 180 }));
        charts.append(drawn.get(label).element);
      }
      drawn.get(label).show(found.slice(0, 2 * LINES));
    }
  }

  return {
    documents: [`player/${player}`],
    render,
    close: () => [overTime, ...drawn.values()].forEach((chart) => chart.close()),
  };
}

function rateBar(one) {
  if (one.win_rate === null) return UNKNOWN;
  const x = (rate) => 2 + 96 * rate;
  return make(
    "span",
    { class: "interval" },
    makeSvg(
      "svg",
      { viewBox: "0 0 100 14", width: 100, height: 14, "aria-hidden": "true" },
      makeSvg("line", { x1: x(0.5), x2: x(0.5), y1: 0, y2: 14, class: "half" }),
      makeSvg("path", { d: whisker(x(one.low), x(one.high)) }),
      makeSvg("circle", { cx: x(one.win_rate), cy: 7, r: 3 }),
    ),
    percent(one.win_rate),
  );
}

function changed(change) {
  const settings = Object.entries(change.settings)
    .map(([name, value]) => `${name} = ${written(value)}`)
    .join(", ");
  return make(
    "p",
    {},
    make("span", { class: "faint" }, `at ${short(change.decisions)} decisions, ${change.whose}: `),
    [settings, change.reason].filter(Boolean).join("; "),
  );
}

function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
