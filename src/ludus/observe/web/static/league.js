// Who is how strong, who beats whom, and who comes from where.

import { CurveChart } from "./curve_chart.js";
import { choice, make, makeSvg, panel, playerLink, whisker, withWeights } from "./dom.js";
import { HeatMap } from "./heat_map.js";
import { LineageTree } from "./lineage_tree.js";
import { elo, isNarrow, isNarrowError, percent, roleScore, short, UNKNOWN, whole } from "./numbers.js";
import { SortableTable } from "./sortable_table.js";

const MOST_OPPONENTS = 12;
const MOST_BOTS = 5;

export function create(element, { source, fail }) {
  let league = null;
  let layers = null;
  let order = "rating";
  let scale = null;

  const columns = [
    { title: "player", cell: (one) => named(one), key: (one) => one.id },
    { title: "role", cell: (one) => one.role, key: (one) => one.role, wide: true },
    {
      title: "Elo",
      cell: (one) => (isNarrow(one) ? elo(one.elo) : UNKNOWN),
      key: (one) => (isNarrow(one) ? one.elo : null),
      number: true,
      apart: (one) => rankedWith(one),
      hint: "shown once its interval is below ±200",
    },
    { title: "95 % interval", cell: (one) => errorBar(one, scale) },
    {
      title: "games",
      cell: (one) => whole(one.games),
      key: (one) => one.games,
      number: true,
      wide: true,
      hint: "after old ones have faded",
    },
    {
      title: "Nash",
      cell: (one) => (one.equilibrium ? percent(one.equilibrium, 1) : ""),
      key: (one) => one.equilibrium,
      number: true,
      hint: "share of the mixture that no other snapshot beats",
    },
    {
      title: "trained on",
      cell: (one) => short(one.decisions),
      key: (one) => one.decisions,
      number: true,
      wide: true,
    },
    {
      title: "score",
      cell: (one) => (one.score === null ? "" : `${short(one.score[0])} ± ${short(1.96 * one.score[1])}`),
      key: (one) => one.score?.[0] ?? null,
      number: true,
      wide: true,
      when: (rows) => rows.some((one) => one.score !== null),
    },
    {
      title: "by role",
      cell: (one) =>
        make(
          "dl",
          { class: "roles" },
          ...one.roles.flatMap((role) => {
            const { score, lead } = roleScore(role);
            return [make("dt", {}, role.role), make("dd", {}, lead ? `${score} (${lead})` : score)];
          }),
        ),
      key: (one) => (one.roles.length ? one.roles.reduce((sum, role) => sum + (role.lead ?? 0), 0) : null),
      hint: "mean score, and in brackets its lead over what its opponents got in that role in the same matches",
      when: (rows) => rows.some((one) => one.roles.length),
    },
  ];
  const table = new SortableTable({ caption: "Players of the league", sortBy: "Elo", columns });
  const caption = make("p", { class: "faint" });
  const lostTable = new SortableTable({
    caption: "Players whose weights are lost",
    sortBy: "Elo",
    columns: [
      ...columns.slice(0, 4),
      { title: "won", cell: (one) => (one.win_rate === null ? "" : percent(one.win_rate)), key: (one) => one.win_rate, number: true, hint: "of all its games; a draw is half" },
      columns.find((one) => one.title === "games"),
      columns.find((one) => one.title === "trained on"),
    ],
  });
  const lost = panel(
    "Weights lost",
    make(
      "p",
      { class: "faint" },
      "The files of these frozen players cannot be read. They play no matches until a start finds their weights; their records are kept.",
    ),
    lostTable.element,
  );
  lost.hidden = true;
  const map = new HeatMap();
  const chart = new CurveChart({ label: "Elo over decisions; the band is the 95 % interval", unit: "Elo", height: 300 });
  const tree = new LineageTree();
  const opponents = make("div", { class: "opponents" });
  const payoff = panel(
    "Who beats whom",
    choice(
      "order",
      [
        ["rating", "rating"],
        ["cluster", "cluster"],
        ["joined", "joined"],
      ],
      order,
      (chosen) => {
        order = chosen;
        if (order === "cluster" && layers === null)
          source.get("top").then((top) => {
            layers = top.why_not ? [] : top.measures.layers;
            drawMap();
          }, fail);
        drawMap();
      },
    ),
    map.element,
  );
  element.replaceChildren(
    panel("Players", caption, table.element),
    lost,
    payoff,
    panel("Ratings over time", chart.element),
    panel("Lineage", tree.element),
    panel("Opponents of the next match", opponents),
  );

  function render(name, found) {
    if (name === "history") {
      drawHistory(found);
      return;
    }
    const before = league;
    league = found;
    const known = [...league.players, ...league.lost].filter((one) => one.elo_interval !== null);
    scale = known.length
      ? [Math.min(...known.map((one) => one.elo_interval[0])), Math.max(...known.map((one) => one.elo_interval[1]))]
      : null;
    const { finished, evaluations, void: voids } = league.matches;
    caption.textContent =
      `${whole(league.players.length)} players, ${whole(finished)} matches finished ` +
      `(${whole(evaluations)} of them evaluations), ${whole(voids)} void. Elo of ${league.anchor} is 0.` +
      (league.players.some((one) => one.roles.length)
        ? " Win rates and Elo compare two players in the same role."
        : "") +
      (averaged() ? " Live and averaged weights are ranked apart." : "");
    showTable();
    lost.hidden = league.lost.length === 0;
    lostTable.show(league.lost);
    payoff.hidden = league.teams < 2;
    if (before === null || before.events !== league.events) drawMap();
    tree.show(league.players.map((one) => (isNarrow(one) ? one : { ...one, elo: null })));
    drawOpponents();
  }

  // As in the terminal, a column for each of the hardest scripted players.
  function showTable() {
    const place = new Map(league.players.map((one, at) => [one.id, at]));
    const bots = league.players.filter((one) => one.role === "scripted");
    bots.sort((a, b) => (b.elo ?? -Infinity) - (a.elo ?? -Infinity));
    const against = bots.slice(0, league.teams < 2 ? 0 : MOST_BOTS).map((bot) => {
      const rate = (one) => (one.id === bot.id ? null : league.win_rates[place.get(one.id)][place.get(bot.id)]);
      return {
        title: `% vs ${bot.id}`,
        cell: (one) => (rate(one) === null ? "" : percent(rate(one))),
        key: rate,
        number: true,
        wide: true,
      };
    });
    table.setColumns([...columns.slice(0, 4), ...against, ...columns.slice(4)]);
    table.show(league.players);
  }

  const averaged = () => league.players.some((one) => one.weights === "average");

  // Bots rank among the averaged players, if there are any, as in `ludus league`.
  function rankedWith(one) {
    return averaged() && one.weights !== "live" ? 1 : 0;
  }

  function drawMap() {
    if (league === null) return;
    const places = [...league.players.keys()];
    const rating = (place) => league.players[place].elo ?? -Infinity;
    const layer = new Map((layers ?? []).flatMap((one, number) => one.players.map((player) => [player, number])));
    const depth = (place) => layer.get(league.players[place].id) ?? Infinity;
    const group = (place) => rankedWith(league.players[place]);
    if (order === "rating") places.sort((a, b) => group(a) - group(b) || rating(b) - rating(a) || a - b);
    if (order === "cluster") places.sort((a, b) => depth(a) - depth(b) || 0 || rating(b) - rating(a) || a - b);
    map.show(
      league.players.map((one) => one.id),
      league.win_rates,
      league.games,
      places,
      league.players.map(withWeights),
    );
  }

  function drawHistory(history) {
    const names = [...history.learning, ...(history.learning.includes(history.anchor) ? [] : [history.anchor])];
    const last = (name) => history.elo[name][history.elo[name].length - 1] ?? -Infinity;
    const rest = Object.keys(history.elo)
      .filter((name) => !names.includes(name))
      .sort((a, b) => last(b) - last(a));
    chart.show(
      [...names.slice(0, 8), ...rest.slice(0, 4)].map((name) => ({
        name: withWeights({ id: name, weights: history.weights[name] }),
        x: history.decisions,
        y: history.elo[name].map((value, at) => (isNarrowError(history.error[name][at]) ? value : null)),
        level: history.weights[name] === null, // a scripted player
        error: history.learning.includes(name)
          ? history.error[name].map((value) => (value === null ? null : 1.96 * value))
          : null,
      })),
    );
  }

  function drawOpponents() {
    const learning = league.players.filter((one) => one.opponents !== null);
    opponents.replaceChildren(
      ...learning.map((one) => {
        const law = Object.entries(one.opponents).sort((a, b) => b[1] - a[1]);
        const rest = law.slice(MOST_OPPONENTS);
        const rows = law.slice(0, MOST_OPPONENTS).map(([player, share]) => [playerLink(player), share]);
        if (rest.length) rows.push([`${rest.length} others`, rest.reduce((sum, [, share]) => sum + share, 0)]);
        return make("div", {}, make("h3", {}, "of ", playerLink(one.id)), bars(rows));
      }),
    );
  }

  return { documents: ["league", "history"], render, close: () => [chart, map, tree].forEach((part) => part.close()) };
}

// Rows of [text or link, share], each with a bar as long as its share.
export function bars(rows) {
  return make(
    "ul",
    { class: "bars" },
    ...rows.map(([name, share]) =>
      make(
        "li",
        {},
        make("span", { class: "name" }, name),
        make("meter", { min: 0, max: 1, value: share, "aria-hidden": "true" }),
        make("span", { class: "number" }, percent(share, 1)),
      ),
    ),
  );
}

function named(one) {
  return make(
    "span",
    {},
    playerLink(one.id),
    ...(one.weights ? [" ", make("span", { class: "tag", title: "the weights that it plays with" }, one.weights)] : []),
    ...one.tags.flatMap((tag) => [" ", make("span", { class: "tag" }, tag)]),
    ...(one.lineage === null
      ? []
      : [" ", make("span", { class: "tag learns" }, one.active ? "learns" : "waits")]),
  );
}

function errorBar(one, scale) {
  if (one.elo_interval === null || scale === null || scale[0] === scale[1]) return "";
  const x = (value) => 4 + (112 * (value - scale[0])) / (scale[1] - scale[0]);
  const [low, high] = one.elo_interval;
  const half = Math.round((high - low) / 2);
  return make(
    "span",
    { class: "interval" },
    makeSvg(
      "svg",
      { viewBox: "0 0 120 14", width: 120, height: 14, "aria-hidden": "true" },
      makeSvg("path", { d: whisker(x(low), x(high)) }),
      makeSvg("circle", { cx: x(one.elo), cy: 7, r: 3 }),
    ),
    half ? `±${half}` : "by definition",
  );
}
