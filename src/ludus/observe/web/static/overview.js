// How strong it is, whether it still gets stronger, and whether it can be beaten.

import { CurveChart } from "./curve_chart.js";
import { make, panel, playerLink, withCode, withWeights } from "./dom.js";
import { SmallBoard } from "./game_stage.js";
import { frontGame } from "./games.js";
import { HeatMap } from "./heat_map.js";
import { elo, isKnown, percent, short, span, UNKNOWN, whole } from "./numbers.js";

const MOST_PLAYERS = 6; // whose results are on the first screen of a report

export function create(element, { source, fail }) {
  const verdict = make("p", { class: "verdict" });
  const yardsticks = make("ul", { class: "yardsticks" });
  const ratings = new CurveChart({ label: "Rating of the snapshots; the band is the 95 % interval", unit: "Elo", height: 240 });
  const rates = new CurveChart({ label: "Games won against scripted players; a draw is half", unit: "share", range: [0, 1], height: 240 });
  const exploitability = new CurveChart({ label: "Exploitability (NashConv); 0 cannot be beaten", unit: "NashConv", height: 240 });
  const exploited = new CurveChart({ label: "Games that a trained exploiter wins; a lower bound", unit: "share", range: [0, 1], height: 240 });
  const charts = [exploitability, ratings, rates, exploited]; // what is exact comes first
  const verdictPanel = panel("Strength", verdict, yardsticks);
  const curvesPanel = panel("Over training", make("div", { class: "charts strength" }, ...charts.map((one) => one.element)));
  const tiles = make("dl", { class: "tiles" });
  const progress = make("progress", { max: 1, value: 0, "aria-label": "decisions of the budget" });
  const progressText = make("p", { class: "faint" });
  const warnings = make("ul", { class: "warnings" });
  const bottleneck = make("div");
  const facts = make("dl", { class: "facts" });
  const warningsPanel = panel("To look at", warnings);
  const bottleneckPanel = panel("What holds it up", bottleneck);
  const boardPlace = make("div");
  const board = new SmallBoard(boardPlace);
  const gameLink = make("a", { href: "#games" });
  const gamePanel = panel("Newest game", make("p", {}, gameLink), boardPlace);
  gamePanel.classList.add("newest-game");
  const heat = new HeatMap();
  const heatPanel = panel("Who beats whom", heat.element);
  const side = make("div", { class: "view" }, heatPanel, gamePanel);
  const front = make("div", { class: "front alone" }, make("div", { class: "view" }, verdictPanel, curvesPanel), side);
  verdictPanel.hidden = curvesPanel.hidden = gamePanel.hidden = heatPanel.hidden = true;
  const parts = [
    front,
    warningsPanel,
    panel("Progress", progress, progressText, tiles),
    bottleneckPanel,
    document.getElementById("appendix") ? null : panel("How it was made", facts), // a report tells it at its end
  ];
  element.replaceChildren(...parts.filter((part) => part !== null));

  function render(name, found) {
    if (name === "strength") renderStrength(found);
    else if (name === "games") renderGame(found);
    else if (name === "league") renderHeat(found);
    else renderProgress(found);
  }

  function renderStrength(one) {
    verdictPanel.hidden = false;
    verdict.textContent = one.verdict.join(" ");
    yardsticks.replaceChildren(
      ...one.yardsticks.map((line) =>
        make(
          "li",
          { title: `${percent(line.low)} to ${percent(line.high)} in ${whole(line.games)} games` },
          make("span", { class: "name" }, "against ", playerLink(line.player)),
          make("meter", { min: 0, max: 1, value: line.win_rate, "aria-hidden": "true" }),
          make("span", { class: "number" }, percent(line.win_rate)),
          make("span", { class: "faint" }, `${percent(line.low)} to ${percent(line.high)}`),
        ),
      ),
    );
    // With the untrained snapshot alone, the lines of scripted players reach to where the training is.
    const end = Math.max(0, ...one.ratings.flatMap((line) => line.x)) || (shown?.decisions ?? 0);
    const lines = Object.entries(one.bots)
      .sort((a, b) => b[1] - a[1])
      .slice(0, 6);
    const xs = [...new Set([0, end, ...one.ratings.flatMap((line) => line.x)])].sort((a, b) => a - b);
    const at = (line, key) => xs.map((x) => line[key][line.x.indexOf(x)] ?? null);
    // What is hidden has no width to be drawn in.
    ratings.element.hidden = one.ratings.length === 0;
    rates.element.hidden = one.win_rates.length === 0;
    exploitability.element.hidden = one.exploitability.length === 0;
    exploited.element.hidden = one.exploited.length === 0;
    curvesPanel.hidden = charts.every((chart) => chart.element.hidden);
    ratings.unit = one.rating_unit;
    ratings.show([
      ...one.ratings.map((line) => ({ name: line.name, x: xs, y: at(line, "y"), error: at(line, "error") })),
      ...lines.map(([bot, value]) => ({ name: `${bot} (scripted)`, x: xs, y: xs.map(() => value), level: true })),
    ]);
    rates.show(one.win_rates);
    exploitability.show(one.exploitability);
    exploited.show(one.exploited);
    const measured = one.exploitability.find((curve) => curve.name === one.player)?.y.filter(isKnown) ?? [];
    lowest = measured.length ? Math.min(...measured) : null;
    // Where it is known how much a player can be beaten by, its rating by won games is not what makes it the best.
    best = one.best === null ? null : [one.best, lowest === null ? one.best_elo : null, one.rating_unit];
    drawTiles();
  }

  // The strongest snapshots and all that is scripted, by rating.
  function renderHeat(league) {
    const rated = league.players
      .map((one, at) => [one, at])
      .filter(([one]) => one.elo !== null && one.opponents === null)
      .sort((a, b) => b[0].elo - a[0].elo);
    const kept = rated.filter(([one], place) => place < MOST_PLAYERS - 2 || one.role === "scripted").slice(0, MOST_PLAYERS);
    if (kept.length < 2 || league.teams === 1) return;
    heatPanel.hidden = false;
    front.classList.remove("alone");
    const names = league.players.map((one) => one.id);
    heat.show(names, league.win_rates, league.games, kept.map(([, at]) => at), league.players.map(withWeights));
  }

  let best = null;
  let lowest = null;
  let shown = null;
  let playing = "";

  async function renderGame(found) {
    if (!found.games.length) return;
    const one = frontGame(found.games);
    if (one.name === playing) return;
    playing = one.name;
    try {
      const record = await source.game(one.name);
      if (playing !== one.name || !element.isConnected) return;
      gameLink.href = `#games/${one.name}`;
      gameLink.textContent = one.seats.length > 1 ? one.seats.join(" against ") : one.seats[0];
      gamePanel.hidden = false;
      front.classList.remove("alone");
      board.show(record);
    } catch (error) {
      fail(error);
    }
  }

  function close() {
    playing = "";
    board.stop();
    heat.close();
    for (const chart of charts) chart.close();
  }

  function renderProgress(one) {
    shown = one;
    const share = one.budget ? Math.min(1, one.decisions / one.budget) : 0;
    progress.value = share;
    progressText.textContent = `${whole(one.decisions)} of ${whole(one.budget)} decisions (${percent(share, 1)})`;
    drawTiles();
    warnings.replaceChildren(
      ...one.warnings.map((warning) =>
        make(
          "li",
          {},
          make("strong", {}, `⚠ ${warning.what}`),
          make("p", {}, ...withCode(warning.why)),
          make("p", { class: "advice" }, "Try: ", ...withCode(warning.advice)),
        ),
      ),
    );
    warningsPanel.hidden = one.warnings.length === 0;
    bottleneckPanel.hidden = one.bottleneck === null;
    if (one.bottleneck) {
      bottleneck.replaceChildren(
        make("p", {}, make("strong", {}, one.bottleneck.what), `: ${one.bottleneck.why}`),
        make("p", { class: "advice" }, "Try: ", ...withCode(one.bottleneck.advice)),
      );
    }
    facts.replaceChildren(
      ...Object.entries({ game: one.game, ...one.facts }).flatMap(([name, value]) => [
        make("dt", {}, name),
        make("dd", {}, name === "command" ? make("code", {}, value) : value),
      ]),
    );
  }

  function drawTiles() {
    const one = shown;
    if (one === null) return;
    const measuring = one.ended ? UNKNOWN : "measuring";
    const values = [
      one.ended
        ? ["mean speed", one.mean_per_s === null ? UNKNOWN : short(one.mean_per_s), "decisions/s"]
        : ["decisions/s", one.decisions_per_s === null ? measuring : short(one.decisions_per_s)],
      one.ended
        ? null
        : [
            "time left",
            one.time_left_s === null ? measuring : span(one.time_left_s),
            one.left_by && `by ${one.left_by}`,
          ],
      [one.ended ? "trained for" : "training for", one.trained_s === null ? measuring : span(one.trained_s)],
      one.cpu_s === null ? null : ["CPU time", span(one.cpu_s), "of all processes"],
      lowest === null ? null : ["NashConv", short(lowest), "0 cannot be beaten"],
      best === null
        ? null
        : ["best player", playerLink(best[0]), best[1] === null ? "" : `${best[2] === "Elo" ? elo(best[1]) : short(best[1])} ${best[2]}`],
      ["matches", whole(one.matches.finished), `${whole(one.matches.open)} open, ${whole(one.matches.void)} void`],
      ["episodes", short(one.episodes)],
      one.restarts ? ["restarts", whole(one.restarts), "of workers"] : null,
    ];
    tiles.replaceChildren(
      ...values
        .filter((value) => value !== null)
        .map(([name, value, more]) =>
          make(
            "div",
            {},
            make("dt", {}, name),
            make("dd", {}, value),
            more ? make("dd", { class: "faint" }, more) : null,
          ),
        ),
    );
  }

  const documents = ["overview", "strength", "games"];
  return { documents: source.isLive ? documents : [...documents, "league"], render, close };
}
