// Studies: the settings of each with their means over seeds.

import { comparisonLink, comparisonWords } from "./chosen_runs.js";
import { title } from "./compare.js";
import { aligned, CurveChart } from "./curve_chart.js";
import { make, panel } from "./dom.js";
import { UNKNOWN } from "./numbers.js";
import { SortableTable } from "./sortable_table.js";

const FEW = 5; // seeds below which a bootstrap interval is clearly too narrow

export function studiesTable() {
  return new SortableTable({
    caption: "Studies",
    columns: [
      {
        title: "study",
        cell: (one) => make("a", { href: `#studies/${encodeURIComponent(one.key)}` }, one.name),
        key: (one) => one.name,
      },
      { title: "runs", cell: (one) => `${one.done} of ${one.planned}`, key: (one) => one.done, number: true },
      { title: "failed", cell: (one) => String(one.failed), key: (one) => one.failed, number: true, when: (rows) => rows.some((one) => one.failed) },
      { title: "best setting", cell: (one) => one.best ?? UNKNOWN, wide: true },
      { title: "mean (95 %)", cell: (one) => meanOf(one), key: (one) => one.mean, number: true },
    ],
  });
}

function meanOf(one) {
  if (one.mean === null) return UNKNOWN;
  const ends = one.interval === null ? "" : `${four(one.interval[0])} to ${four(one.interval[1])}`;
  return make("div", {}, `${one.objective} ${four(one.mean)}`, make("div", { class: "faint" }, ends));
}

export function createList(element) {
  const table = studiesTable();
  const none = make("p", { class: "faint" }, "There are none here: ", make("code", {}, "ludus study FILE.yaml"), " makes one.");
  element.replaceChildren(panel("Studies", none, table.element));

  function render(_, found) {
    none.hidden = found.studies.length > 0;
    table.element.hidden = found.studies.length === 0;
    table.show(found.studies);
  }

  return { documents: ["runs"], render, close: () => {} };
}

export function create(element, { source, argument, fail }) {
  const table = new SortableTable({
    caption: "Settings of the study",
    columns: [
      { title: "setting", cell: (one) => one.setting, key: (one) => one.setting },
      { title: "runs", cell: (one) => `${Object.keys(one.values).length} of ${one.planned}`, number: true },
      { title: "mean (95 %)", cell: (one) => withInterval(one.mean, one.mean_interval), key: (one) => one.mean, number: true },
      { title: "interquartile mean (95 %)", cell: (one) => withInterval(one.iqm, one.iqm_interval), key: (one) => one.iqm, number: true, wide: true },
      { title: "of each seed", cell: (one) => eachSeed(one), wide: true },
    ],
  });
  const heading = make("p", { class: "faint" });
  const failures = make("ul", { class: "warnings" });
  const links = make("p");
  const place = make("div");
  element.replaceChildren(panel("Study", heading, table.element, failures), panel("Curves", place, links));
  let chart = null;
  let drawn = "";

  function render(name, found) {
    if (name === "runs") {
      if (drawn !== "") load(JSON.stringify(found.runs.filter((run) => run.study === argument).map((run) => run.decisions)));
      return;
    }
    const { results } = found;
    element.querySelector("h2").textContent = `Study ${found.name}`;
    const better = found.lower_is_better ? "lower" : "higher";
    const few = results.settings.some((one) => one.mean_interval !== null && Object.keys(one.values).length < FEW);
    heading.textContent =
      `${results.objective}; ${better} is better. Intervals: stratified bootstrap over seeds.` +
      (few ? ` Of fewer than ${FEW} seeds they are too narrow.` : "");
    table.show(results.settings);
    failures.replaceChildren(
      ...results.settings.flatMap((one) =>
        Object.entries(one.failed).map(([seed, text]) => make("li", {}, make("strong", {}, `${one.setting}, seed ${seed}`), make("p", {}, text))),
      ),
    );
    asked = { run: [], study: [argument], of: "metric", name: found.metric, over: "decisions" };
    links.replaceChildren(make("a", { href: comparisonLink(asked) }, "compare with other runs, or by another measure"));
    load("first");
  }

  let asked = null;

  async function load(state) {
    if (asked === null || state === drawn) return;
    drawn = state;
    try {
      const found = await source.compare(comparisonWords(asked));
      if (!element.isConnected) return;
      chart?.close();
      chart = new CurveChart({ label: `${title(found).replace(/\.$/, "")}. Mean of each setting; the band is the 95 % interval over its seeds`, unit: found.unit, xLabel: found.x_unit, height: 320 });
      place.replaceChildren(chart.element);
      chart.show(aligned(found.lines));
    } catch (error) {
      fail(error);
    }
  }

  return { documents: [`study/${argument}`, "runs"], render, close: () => chart?.close() };
}

function withInterval(value, ends) {
  if (value === null) return UNKNOWN;
  return ends === null ? four(value) : `${four(value)} (${four(ends[0])} to ${four(ends[1])})`;
}

function eachSeed(one) {
  return Object.entries(one.values)
    .map(([seed, value]) => `${seed}: ${four(value)}`)
    .join(", ");
}

// Four digits, as `ludus study show` prints them.
function four(value) {
  return String(Number(value.toPrecision(4)));
}
