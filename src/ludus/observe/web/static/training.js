// How the training goes: curves, the players that learn, and the workers.

import { CurveChart } from "./curve_chart.js";
import { make, panel, playerLink } from "./dom.js";
import { bytes, percent, short, UNKNOWN, whole } from "./numbers.js";
import { SortableTable } from "./sortable_table.js";

const CHARTS = [
  ["decisions_per_s", "Decisions per second", "decisions/s"],
  ["episode_score", "Score of an episode", "score"],
  ["entropy", "Entropy of the policy", "nats"],
  ["lag", "Policy lag: updates between acting and learning", "updates"],
  ["value_loss", "Value loss", "loss"],
];

export function create(element) {
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
  const charts = CHARTS.map(([name, label, unit]) => [name, new CurveChart({ label, unit, height: 200 })]);
  const curves = panel("Curves", make("div", { class: "charts" }, ...charts.map(([, chart]) => chart.element)));
  const learnersPanel = panel("Players that learn (live weights)", learners.element);
  const nothing = panel("Training", make("p", { class: "faint" }, "Nothing was measured yet."));
  element.replaceChildren(nothing, curves, learnersPanel, workersPanel);

  function render(_, one) {
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
    curves.hidden = one.curves.length === 0; // what is hidden has no width to be drawn in
    for (const [name, chart] of charts) {
      const found = one.curves.filter((curve) => curve.name === name || curve.name.endsWith(`/${name}`));
      chart.element.hidden = found.length === 0;
      chart.show(
        found.map((curve) => ({
          ...curve,
          name: curve.name.includes("/") ? curve.name.slice(0, curve.name.lastIndexOf("/")) : "all players",
        })),
      );
    }
    nothing.hidden = !(curves.hidden && learnersPanel.hidden && workersPanel.hidden);
  }

  return { documents: ["overview"], render, close: () => charts.forEach(([, chart]) => chart.close()) };
}

function shares(given) {
  return Object.entries(given)
    .map(([name, share]) => `${name} ${percent(share)}`)
    .join("  ");
}
