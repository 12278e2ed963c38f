// The list of the runs: what each is, how far it is and how strong.

import { chosenRuns, toggleRun } from "./chosen_runs.js";
import { make, panel, runLink, withCode } from "./dom.js";
import { elo, percent, short, UNKNOWN, whole } from "./numbers.js";
import { SortableTable } from "./sortable_table.js";
import { studiesTable } from "./studies.js";

const GOOD = ["finished"];
const BAD = ["failed", "dead", "damaged"];
const filter = { text: "", state: "", game: "", study: "" };

export function create(element) {
  let shown = null;
  const text = make("input", { type: "search", id: "of-text", value: filter.text, oninput: () => choose("text", text) });
  const selects = Object.fromEntries(
    ["state", "game", "study"].map((name) => {
      const select = make("select", { id: `of-${name}`, onchange: () => choose(name, select) });
      return [name, select];
    }),
  );
  const counts = make("p", { class: "faint", role: "status" });
  const compare = make("a", { href: "#compare", class: "button" });
  const table = new SortableTable({
    caption: "Runs",
    sortBy: "started",
    columns: [
      { title: "compare", cell: (one) => tick(one) },
      { title: "run", cell: (one) => nameCell(one), key: (one) => one.key },
      { title: "state", cell: (one) => stateCell(one), key: (one) => one.state, wide: true },
      { title: "recipe", cell: (one) => recipe(one), key: (one) => recipe(one), wide: true },
      { title: "decisions", cell: (one) => progress(one), key: (one) => one.decisions, number: true, wide: true },
      { title: "verdict", cell: (one) => verdictCell(one), wide: true },
      { title: "best player", cell: (one) => best(one), key: (one) => one.best_rating, number: true, wide: true, hint: "with its rating in its own league" },
      { title: "started", cell: (one) => when(one.created), key: (one) => one.created, number: true, wide: true },
    ],
  });
  const others = make("ul", { class: "plain" });
  const othersPanel = panel("Not listed", others);
  const studies = studiesTable();
  const studiesPanel = panel("Studies", studies.element);
  const box = (name, input) => make("label", { for: input.id }, name, input);
  element.replaceChildren(
    studiesPanel,
    panel(
      "Runs",
      make(
        "form",
        { class: "filter", onsubmit: (event) => event.preventDefault() },
        box("search", text),
        box("state", selects.state),
        box("game", selects.game),
        box("study", selects.study),
      ),
      make("div", { class: "counts" }, counts, compare),
      table.element,
    ),
    othersPanel,
  );
  table.element.classList.add("whole-list");

  function choose(name, input) {
    filter[name] = input.value;
    draw();
  }

  function render(_, found) {
    shown = found;
    options(selects.state, found.runs.map((one) => one.state), filter.state);
    options(selects.game, found.runs.map((one) => one.game), filter.game);
    options(selects.study, found.runs.map((one) => one.study).filter((one) => one !== null), filter.study);
    selects.study.parentElement.hidden = found.studies.length < 2 && !found.runs.some((one) => one.study === null);
    if (selects.study.options.length < 2) selects.study.parentElement.hidden = true;
    studies.show(found.studies);
    studiesPanel.hidden = found.studies.length === 0;
    others.replaceChildren(
      ...found.others.map((one) => make("li", {}, make("strong", {}, one.name), `: ${one.why}`)),
      ...(found.left_out ? [make("li", {}, `${whole(found.left_out)} more runs: a page lists ${whole(found.runs.length)}`)] : []),
    );
    othersPanel.hidden = others.childElementCount === 0;
    draw();
  }

  function draw() {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = shown.runs.filter(
      (one) =>
        (!filter.state || one.state === filter.state) &&
        (!filter.game || one.game === filter.game) &&
        (!filter.study || one.study === filter.study) &&
        words.every((word) => `${one.key} ${recipe(one)} ${one.game} ${one.setting}`.toLowerCase().includes(word)),
    );
    keepingFocus(() => table.show(rows));
    const reading = shown.unread ? `; ${whole(shown.unread)} verdicts are being read` : "";
    counts.textContent = `${whole(rows.length)} of ${whole(shown.runs.length)} shown${reading}`;
    tellChosen();
  }

  function tick(one) {
    const box = make("input", {
      type: "checkbox",
      "data-key": `tick ${one.key}`,
      "aria-label": `compare ${one.key}`,
      disabled: one.created === "" || (one.is_read && one.verdict.length === 0),
      onchange: () => {
        toggleRun(one.key, box.checked);
        tellChosen();
      },
    });
    box.checked = chosenRuns().includes(one.key);
    return box;
  }

  function tellChosen() {
    const number = chosenRuns().length;
    compare.textContent = number ? `compare ${number === 1 ? "the chosen run" : `the ${number} chosen runs`}` : "compare runs";
  }

  return { documents: ["runs"], render, close: () => {} };
}

function nameCell(one) {
  const canOpen = one.created !== "";
  const link = canOpen ? runLink(one.key, one.name) : make("span", {}, one.name);
  link.dataset.key = `open ${one.key}`;
  const above = one.key.slice(0, -one.name.length).replace(/\/(runs\/)?$/, "");
  return make(
    "div",
    {},
    link,
    above && above !== "runs" ? make("div", { class: "faint" }, `in ${above}`) : null,
    make(
      "div",
      { class: "narrow" },
      make("div", {}, stateCell(one), one.created === "" ? null : `, ${short(one.decisions)} decisions`, one.best === null ? null : `, ${best(one)}`),
      make("div", { class: "faint" }, ...verdict(one)),
    ),
  );
}

function stateCell(one) {
  const kind = GOOD.includes(one.state) || one.is_live ? "good" : BAD.includes(one.state) ? "warn" : "";
  const silent = one.silent_s ? `, no news for ${Math.round(one.silent_s)} s` : "";
  return make("span", { class: `state ${silent ? "warn" : kind}` }, one.state + silent);
}

function recipe(one) {
  return [one.experiment || one.game, one.trial && `trial ${one.trial}`].filter(Boolean).join(", ");
}

function progress(one) {
  if (one.created === "") return UNKNOWN;
  const share = one.budget ? Math.min(1, one.decisions / one.budget) : 0;
  const speed = one.decisions_per_s === null ? null : make("div", { class: "faint" }, `${short(one.decisions_per_s)}/s`);
  const budget = make("div", { class: "faint" }, `${percent(share)} of ${short(one.budget)}`);
  return make("div", {}, short(one.decisions), one.budget ? budget : null, speed);
}

function verdict(one) {
  if (one.verdict.length)
    return [one.problem ? make("strong", { class: "warn" }, `${one.problem}. `) : null, one.verdict.join(" ")];
  if (one.problem) return [make("span", { class: one.state === "damaged" ? "warn" : "faint" }, ...withCode(one.problem))];
  return [make("span", { class: "faint" }, one.is_read ? "" : "reading …")];
}

// Three lines of it; all of it under the mouse, and on the run's own page.
function verdictCell(one) {
  const cut = one.problem === "";
  return make("div", { class: cut ? "verdict-cell cut" : "verdict-cell", title: one.verdict.join(" ") || null }, ...verdict(one));
}

function best(one) {
  if (one.best === null) return UNKNOWN;
  if (one.best_rating === null) return one.best;
  return `${one.best} ${one.rating_unit === "Elo" ? elo(one.best_rating) : short(one.best_rating)}`;
}

function when(created) {
  const time = new Date(created);
  if (Number.isNaN(time.getTime())) return UNKNOWN;
  const two = (value) => String(value).padStart(2, "0");
  const date = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${date} ${two(time.getHours())}:${two(time.getMinutes())}`;
}

// The values that there are, and all of them.
function options(select, values, chosen) {
  const found = [...new Set(values)].sort();
  const before = [...select.options].map((one) => one.value).slice(1);
  if (before.length === found.length && before.every((one, at) => one === found[at]) && select.options.length) return;
  select.replaceChildren(
    make("option", { value: "" }, "all"),
    ...found.map((one) => make("option", { value: one }, one)),
  );
  select.value = found.includes(chosen) ? chosen : "";
}

// Rows are made anew; who works by keyboard stays where they were.
export function keepingFocus(draw) {
  const key = document.activeElement?.dataset?.key;
  draw();
  if (key === undefined) return;
  for (const one of document.querySelectorAll("[data-key]"))
    if (one.dataset.key === key && one.offsetParent !== null) one.focus({ preventScroll: true });
}
