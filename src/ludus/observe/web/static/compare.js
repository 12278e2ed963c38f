// Any runs on one chart, and studies as a band for each setting.

import { askedIn, chooseRuns, chosenRuns, comparisonLink, comparisonWords } from "./chosen_runs.js";
import { aligned, CurveChart } from "./curve_chart.js";
import { choice, make, panel, runLink } from "./dom.js";
import { isKnown, short } from "./numbers.js";
import { SortableTable } from "./sortable_table.js";

const FIRST = 6; // runs that are compared if none was chosen
const AGAIN_MS = 4000;
const LABELS = {
  rating: "Rating of the best snapshots over training",
  win_rate: "Games won against a scripted player",
  nash_conv: "Exploitability (NashConv)",
  metric: "A metric of the training",
};

export function create(element, { source, argument, fail }) {
  const asked = askedIn(argument);
  let listing = null;
  let found = null;
  let asking = 0;
  let last = 0;
  let wanted = "";
  let later = null;
  let chart = null;
  const place = make("div");
  const quantity = make("div", { class: "choices" });
  const over = choice("over", [["decisions", "decisions"], ["time", "time"]], asked.over, (value) => change({ over: value }));
  const name = make("select", { id: "of-name", onchange: () => change({ name: name.value }) });
  const nameBox = make("label", { for: "of-name" }, "of", name);
  const adding = make("select", { id: "add", onchange: () => add(adding.value) });
  const notes = make("ul", { class: "plain faint", "aria-live": "polite" });
  const table = new SortableTable({
    caption: "Compared runs",
    columns: [
      { title: "line", cell: (one) => lineCell(one), key: (one) => one.name },
      {
        title: "last value (95 %)",
        cell: (one) => make("div", {}, short(lastOf(one.y)), make("div", { class: "faint" }, interval(one))),
        key: (one) => lastOf(one.y),
        number: true,
        hint: "interval: of a run that of its rating; of a setting over its seeds",
      },
      { title: "seeds", cell: (one) => (one.seeds ? String(one.seeds) : ""), key: (one) => one.seeds, number: true, when: (rows) => rows.some((one) => one.seeds) },
    ],
  });
  const chosen = make("ul", { class: "chips", "aria-label": "What is compared" });
  element.replaceChildren(
    panel(
      "Compare",
      make("div", { class: "filter" }, quantity, nameBox, over),
      chosen,
      make("div", { class: "filter" }, make("label", { for: "add" }, "add", adding)),
      place,
      notes,
    ),
    panel("Values", table.element),
  );

  function render(_, one) {
    const isFirst = listing === null;
    listing = one;
    if (isFirst) {
      if (!asked.run.length && !asked.study.length) begin(one);
      ask();
      return;
    }
    drawChosen();
    // Only when what is compared goes on.
    if (state() !== wanted && later === null)
      later = setTimeout(() => {
        later = null;
        ask();
      }, Math.max(0, last + AGAIN_MS - Date.now()));
  }

  // What is shown to somebody who has chosen nothing: the study, or the newest runs of one game.
  function begin(one) {
    if (one.study !== null) asked.study = [one.study];
    else if (chosenRuns().length) asked.run = chosenRuns();
    else {
      const whole = one.runs.filter((run) => run.created !== "" && (run.verdict.length > 0 || !run.is_read));
      asked.run = whole.filter((run) => run.game === whole[0].game).slice(0, FIRST).map((run) => run.key);
    }
  }

  function state() {
    const of = listing.runs.filter((run) => asked.run.includes(run.key) || asked.study.includes(run.study));
    return JSON.stringify(of.map((run) => [run.key, run.decisions, run.state, run.verdict]));
  }

  function change(changes) {
    Object.assign(asked, changes);
    history.replaceState(null, "", comparisonLink(asked));
    ask();
  }

  function add(value) {
    if (!value) return;
    const kind = value.slice(0, value.indexOf(":"));
    change({ [kind]: [...asked[kind], value.slice(kind.length + 1)] });
  }

  async function ask() {
    asking += 1;
    const number = asking;
    [wanted, last] = [state(), Date.now()];
    chooseRuns(asked.run);
    drawChosen();
    try {
      const answer = await source.compare(comparisonWords(asked));
      if (number !== asking || !element.isConnected) return;
      found = answer;
      draw();
    } catch (error) {
      fail(error);
    }
  }

  function draw() {
    const options = [
      ["rating", "rating"],
      ...(found.bots.length ? [["win_rate", "win rate"]] : []),
      ...(found.has_nash_conv ? [["nash_conv", "NashConv"]] : []),
      ...(found.metrics.length ? [["metric", "metric"]] : []),
    ];
    quantity.replaceChildren(choice("show", options, found.of, (value) => change({ of: value, name: "" })));
    const names = found.of === "win_rate" ? found.bots : found.of === "metric" ? found.metrics : [];
    nameBox.hidden = names.length === 0;
    nameBox.firstChild.textContent = found.of === "win_rate" ? "against" : "of";
    if ([...name.options].map((one) => one.value).join() !== names.join())
      name.replaceChildren(...names.map((one) => make("option", { value: one }, one)));
    name.value = found.name;
    chart?.close();
    const range = found.of === "win_rate" ? [0, 1] : null;
    chart = new CurveChart({ label: titleWithBands(found), unit: found.unit, xLabel: found.x_unit, range, height: 380 });
    place.replaceChildren(chart.element);
    chart.show(aligned(found.lines));
    notes.replaceChildren(...found.notes.map((one) => make("li", {}, one)));
    table.show(found.lines);
    drawChosen();
  }

  function drawChosen() {
    const names = new Map([
      ...listing.runs.map((run) => [`run:${run.key}`, run.key.replace("/runs/", ": ").replace(/^runs\//, "")]),
      ...listing.studies.map((study) => [`study:${study.key}`, `study ${study.name}`]),
    ]);
    const keys = [...asked.run.map((key) => `run:${key}`), ...asked.study.map((key) => `study:${key}`)];
    chosen.replaceChildren(
      ...keys.map((key) =>
        make(
          "li",
          {},
          names.get(key) ?? `${key.slice(key.indexOf(":") + 1)} (gone)`,
          make("button", { type: "button", "aria-label": `without ${names.get(key) ?? key}`, onclick: () => remove(key) }, "×"),
        ),
      ),
    );
    const free = [...names.keys()].filter((key) => !keys.includes(key));
    adding.replaceChildren(
      make("option", { value: "" }, free.length ? "a run or study …" : "nothing is left"),
      ...free.map((key) => make("option", { value: key }, names.get(key))),
    );
  }

  function remove(key) {
    const kind = key.slice(0, key.indexOf(":"));
    change({ [kind]: asked[kind].filter((one) => one !== key.slice(kind.length + 1)) });
  }

  function close() {
    asking += 1;
    clearTimeout(later);
    chart?.close();
  }

  return { documents: ["runs"], render, close };
}

export function title(found) {
  if (found.of === "win_rate") return `Games won against ${found.name}; a draw is half`;
  if (found.of === "metric") return found.meaning ? `${found.name}: ${found.meaning}` : found.name;
  if (found.of === "rating") return "Rating of the snapshots; the band is the 95 % interval";
  return `${LABELS[found.of]}; 0 cannot be beaten`;
}

function titleWithBands(found) {
  const seeds = found.lines.some((one) => one.seeds) && found.of !== "rating";
  return seeds ? `${title(found).replace(/\.$/, "")}. Bands of a study: the 95 % interval over its seeds` : title(found);
}

function lineCell(one) {
  return one.seeds ? make("a", { href: `#studies/${encodeURIComponent(one.key)}` }, one.name) : runLink(one.key, one.name);
}

function interval(one) {
  if (one.low === null) return "";
  const at = one.y.findLastIndex(isKnown);
  return `${short(one.low[at])} to ${short(one.high[at])}`;
}

function lastOf(values) {
  return values.findLast(isKnown) ?? null;
}
