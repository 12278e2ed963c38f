// How the run goes, at a glance.

import { CurveChart } from "./curve_chart.js";
import { make, panel, playerLink, withCode } from "./dom.js";
import { bytes, percent, short, span, UNKNOWN, whole } from "./numbers.js";
import { SortableTable } from "./sortable_table.js";

const CHARTS = [
  ["decisions_per_s", "Decisions per second", ""],
  ["episode_score", "Score of an episode", ""],
  ["entropy", "Entropy", "nats"],
  ["lag", "Policy lag", "updates"],
  ["value_loss", "Value loss", ""],
];

export function create(element) {
  const tiles = make("dl", { class: "tiles" });
  const progress = make("progress", { max: 1, value: 0, "aria-label": "decisions of the budget" });
  const progressText = make("p", { class: "faint" });
  const warnings = make("ul", { class: "warnings" });
  const bottleneck = make("div");
  const learners = new SortableTable({
    caption: "Players that learn, with their live weights",
    columns: [
      { title: "player", cell: (one) => playerLink(one.player), key: (one) => one.player },
      { title: "role", cell: (one) => one.role, wide: true },
      { title: "decisions", cell: (one) => whole(one.decisions), key: (one) => one.decisions, number: true },
      {
        title: "steps",
        cell: (one) => whole(one.step),
        key: (one) => one.step,
        number: true,
        hint: "versions published",
      },
      {
        title: "lag",
        cell: (one) => short(one.lag),
        key: (one) => one.lag,
        number: true,
        hint: "updates by which the weights that acted were older",
      },
      { title: "entropy", cell: (one) => short(one.entropy), key: (one) => one.entropy, number: true },
      {
        title: "policy loss",
        cell: (one) => short(one.policy_loss),
        key: (one) => one.policy_loss,
        number: true,
        wide: true,
      },
      {
        title: "value loss",
        cell: (one) => short(one.value_loss),
        key: (one) => one.value_loss,
        number: true,
        wide: true,
      },
    ],
  });
  const workers = new SortableTable({
    caption: "Workers",
    columns: [
      { title: "worker", cell: (one) => one.name, key: (one) => one.name },
      {
        title: "state",
        cell: (one) => make("span", { class: `state ${one.state === "working" ? "good" : "warn"}` }, one.state),
        key: (one) => one.state,
      },
      {
        title: "CPU",
        cell: (one) => (one.cores === null ? UNKNOWN : `${one.cores.toFixed(2)} cores`),
        key: (one) => one.cores,
        number: true,
      },
      { title: "memory", cell: (one) => bytes(one.memory), key: (one) => one.memory, number: true },
      {
        title: "GPU memory",
        cell: (one) => bytes(one.gpu_memory),
        key: (one) => one.gpu_memory,
        number: true,
        wide: true,
        when: (rows) => rows.some((one) => one.gpu_memory > 0),
      },
      {
        title: "restarts",
        cell: (one) => whole(one.restarts),
        key: (one) => one.restarts,
        number: true,
        wide: true,
      },
      { title: "time goes into", cell: (one) => shares(one.shares), wide: true },
      {
        title: "node",
        cell: (one) => one.node,
        key: (one) => one.node,
        wide: true,
        when: (rows) => new Set(rows.map((one) => one.node)).size > 1,
      },
    ],
  });
  const workersPanel = panel("Workers", workers.element);
  const gpus = make("ul", { class: "plain" });
  workersPanel.append(gpus);
  const charts = CHARTS.map(([name, label, unit]) => [name, new CurveChart({ label, unit, height: 180 })]);
  const curves = panel("Curves", make("div", { class: "charts" }, ...charts.map(([, chart]) => chart.element)));
  const facts = make("dl", { class: "facts" });
  const warningsPanel = panel("To look at", warnings);
  const bottleneckPanel = panel("What holds it up", bottleneck);
  const learnersPanel = panel("Players that learn (live weights)", learners.element);
  element.replaceChildren(
    panel("Progress", progress, progressText, tiles),
    warningsPanel,
    bottleneckPanel,
    learnersPanel,
    workersPanel,
    curves,
    panel("How it was made", facts),
  );

  function render(_, one) {
    const share = one.budget ? Math.min(1, one.decisions / one.budget) : 0;
    progress.value = share;
    progressText.textContent = `${whole(one.decisions)} of ${whole(one.budget)} decisions (${percent(share, 1)})`;
    const lag = one.learners.map((learner) => learner.lag).filter((value) => value !== null);
    const values = [
      ["decisions/s", short(one.decisions_per_s)],
      [
        "time left",
        one.time_left_s === null ? UNKNOWN : `${span(one.time_left_s)}`,
        one.left_by && `by ${one.left_by}`,
      ],
      [one.ended ? "lasted" : "up", span(one.up_s)],
      ["learner steps", whole(one.learners.reduce((sum, learner) => sum + (learner.step ?? 0), 0))],
      ["policy lag", lag.length ? short(Math.max(...lag)) : UNKNOWN, "updates"],
      ["matches", whole(one.matches.finished), `${whole(one.matches.open)} open, ${whole(one.matches.void)} void`],
      ["episodes", short(one.episodes)],
      ["restarts", whole(one.restarts)],
    ];
    tiles.replaceChildren(
      ...values.map(([name, value, more]) =>
        make(
          "div",
          {},
          make("dt", {}, name),
          make("dd", {}, value),
          more ? make("dd", { class: "faint" }, more) : null,
        ),
      ),
    );
    warnings.replaceChildren(
      ...one.warnings.map((warning) =>
        make(
          "li",
          {},
          make("strong", {}, `⚠ ${warning.what}`),
          make("p", {}, warning.why),
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
    learners.show(one.learners);
    learnersPanel.hidden = one.learners.length === 0;
    workers.show(one.workers);
    workersPanel.hidden = one.workers.length === 0;
    gpus.replaceChildren(
      ...one.gpus.map((gpu) =>
        make(
          "li",
          {},
          `GPU ${gpu.name}: ${percent(gpu.utilisation)} busy, ${bytes(gpu.memory)} of ${bytes(gpu.total_memory)}`,
        ),
      ),
    );
    for (const [name, chart] of charts) {
      const found = one.curves.filter((curve) => curve.name === name || curve.name.endsWith(`/${name}`));
      chart.element.hidden = found.length === 0;
      chart.show(
        found.map((curve) => ({
          ...curve,
          name: curve.name.includes("/") ? curve.name.slice(0, curve.name.lastIndexOf("/")) : curve.name,
        })),
      );
    }
    curves.hidden = one.curves.length === 0;
    facts.replaceChildren(
      ...Object.entries({ game: one.game, ...one.facts }).flatMap(([name, value]) => [
        make("dt", {}, name),
        make("dd", {}, name === "command" ? make("code", {}, value) : value),
      ]),
    );
  }

  return { documents: ["overview"], render, close: () => charts.forEach(([, chart]) => chart.close()) };
}

function shares(given) {
  return Object.entries(given)
    .map(([name, share]) => `${name} ${percent(share)}`)
    .join("  ");
}
